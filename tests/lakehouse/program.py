"""The recipes of docs/lakehouse.md for one lake, as a program: all of them at the same time, each with its own table.

`python program.py FOLDER LAKE hold` holds each query in its function for `foreachBatch`, when that has written a second batch:
FOLDER/written/WAY has its number, and the batch never counts as done. `... read COUNT` reads until each table has COUNT rows,
writes them to FOLDER/rows.json, lets a query with a new application and a new checkpoint location merge the whole stream again, and
ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from pyspark import __version__
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from lake_recipes import RECIPES, program

SPARK_LINE = ".".join(__version__.split(".")[:2])
QUIET_COUNT, DEADLINE_S, POLL_S = 2, 200.0, 0.2
TOO_BUSY, STARTS_MAX = "Python worker failed to connect back", 20
"""Spark gives a Python process ten seconds to start, which no setting changes; then the query is started once more."""
folder, lake, task = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


def end_with_parent() -> None:
    """End when the test is gone, however it went."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def start(way: str, turn: str) -> dict:
    """Run the blocks of a recipe, and return its names; what would wait for the query's end does not."""
    each_batch = DataStreamWriter.foreachBatch

    def hold_after(writer, write):
        def write_and_hold(batch, batch_id):
            write(batch, batch_id)
            if batch_id > 0:
                (folder / "written" / way).write_text(str(batch_id))
                threading.Event().wait()

        return each_batch(writer, write_and_hold)

    names: dict = {}
    StreamingQuery.awaitTermination = lambda _: None
    if task == "hold":
        DataStreamWriter.foreachBatch = hold_after
    try:
        for text in program(lake, way, SPARK_LINE, folder, turn):
            exec(text, names)
    finally:
        DataStreamWriter.foreachBatch = each_batch
    return names


class Recipe:
    """A recipe that runs; what a busy machine ends is started again."""

    def __init__(self, way: str, turn: str = "") -> None:
        self._way, self._turn, self._starts = way, turn, 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        self.names = start(self._way, self._turn)

    def revive(self) -> None:
        """Start it again where Spark has ended it because the machine was too busy."""
        if TOO_BUSY in str(self.names["query"].exception()) and self._starts < STARTS_MAX:
            self.start()

    def read_to_the_end(self, count: int) -> list[list]:
        """Read until the table has the rows, look once more for some that should not be there, and return all of them."""
        spark, name = self.names["spark"], self.names["TABLE"]
        quiet_count, end_s = 0, time.monotonic() + DEADLINE_S
        while quiet_count < QUIET_COUNT and time.monotonic() < end_s:
            try:
                self.names["query"].processAllAvailable()
            except StreamingQueryException as error:
                if TOO_BUSY not in str(error):
                    raise
                self.revive()
            if lake == "iceberg":
                spark.catalog.refreshTable(name)  # the query writes in a session of its own
            quiet_count = quiet_count + 1 if spark.table(name).count() >= count else 0
        columns = ("shardId", "sequenceNumber", "subSequenceNumber", "partitionKey")
        rows = spark.table(name).selectExpr(*columns, "cast(data as string)").collect()
        return [list(row) for row in rows]


def main() -> None:
    end_with_parent()
    recipes = {way: Recipe(way) for way in RECIPES[lake]}
    while task == "hold":  # until it is killed
        for recipe in recipes.values():
            recipe.revive()
        time.sleep(POLL_S)
    count = int(sys.argv[4])
    rows = {way: recipe.read_to_the_end(count) for way, recipe in recipes.items()}
    again = recipes["again"] = Recipe("merge", "-again")
    rows["again"] = again.read_to_the_end(count)
    rows["offered again"] = sum(each.numInputRows for each in again.names["query"].recentProgress)
    (folder / "rows.json").write_text(json.dumps(rows))
    for recipe in recipes.values():
        recipe.names["query"].stop()
    recipes["sink"].names["spark"].stop()


if __name__ == "__main__":
    main()
