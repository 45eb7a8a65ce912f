"""Deliveries that are killed at every step, by Spark: tables that get more records and more kills, and what two readers find in them.

A run is killed by an exception, after which the session goes on, or by SIGKILL in a process and a session of its own:
`python tests/killed_deliveries.py DOCUMENT` is that process.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pyarrow.json as pj

from lake_jars import JARS

IN_THE_WRITE = "in the write"
STEPS = ("begin", "write", IN_THE_WRITE, "dead letters", "commit", "end")
"""Before the batch, before its write, among its staged files, before dead letters, before its commit, before Spark's own commit."""
CALLS = tuple(f"{when} call {number} of the commit" for number in range(1, 6) for when in ("before", "after"))
"""The calls to the file system: the manifest, the moves, the note that the batch is done, the removal of what was staged."""
KILLS = STEPS + CALLS
IN_THE_TRANSACTION = "in the transaction"
LAKE_KILLS = (*KILLS, IN_THE_TRANSACTION)
"""A lake's transaction comes after call 1, the manifest, and before call 2."""
LAKES = ("delta", "iceberg")
CATALOG = "lake"
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}
"""Of a session for many small queries."""
KILLED_CODE = -signal.SIGKILL
TOO_BUSY = "Python worker failed to connect back"
"""Of Spark, when the machine was too busy to start a process in time: it kills the run at a place of its own."""
_TRIES_MAX = 12
CHILD_S_MAX = 300.0
FAST = {"fetchInterval": "0ms", "probeInterval": "200ms"}
_CALLS_THAT_WRITE = ("create", "replace", "rename", "remove")
_WRITE_S_MAX = 30.0
_TRANSACTION_S_MAX = 0.5
"""A transaction is cancelled within this time of its begin."""


class Killed(Exception):  # noqa: N818 - named for what happened
    """The run ends here."""


class Kill:
    """Ends one run of a delivery at a place.

    Args:
        place: One of `LAKE_KILLS`.
        is_hard: Whether the process is killed by SIGKILL, instead of by an exception.
    """

    def __init__(self, place, *, is_hard=False):
        self._place = place
        self._is_hard = is_hard
        self._calls_left = None
        self.is_reached = False

    def arm(self, run, spark):
        """Wrap the file system of an opened delivery; call it before the run begins."""
        self._spark, self._opened = spark, run.opened[0]
        for name in _CALLS_THAT_WRITE:
            setattr(self._opened.files, name, self._mortal(getattr(self._opened.files, name)))
        if self._place == IN_THE_TRANSACTION:
            table = self._opened.target._table
            table.append = self._cancelled(table.append)

    def at_step(self, step):
        """Handle a step: die there, or before a call of the commit."""
        if step == self._place:
            self._die()
        elif step == "write" and self._place == IN_THE_WRITE:
            threading.Thread(target=self._cancel_the_write, daemon=True).start()
        elif step == "commit" and self._place in CALLS and not self.is_reached:
            self._calls_left = int(self._place.split()[2])

    def _mortal(self, call):
        def mortal(*arguments):
            if self._calls_left is None:
                return call(*arguments)
            self._calls_left -= 1
            if self._calls_left > 0:
                return call(*arguments)
            self._calls_left = None
            if self._place.startswith("after"):
                call(*arguments)
            return self._die()

        return mortal

    def _cancelled(self, append):
        def cancelled(*arguments):
            timer = threading.Timer(random.uniform(0, _TRANSACTION_S_MAX), self._cancel_the_jobs)
            timer.start()
            try:
                append(*arguments)
            finally:
                timer.cancel()

        return cancelled

    def _die(self):
        self.is_reached = True
        if self._is_hard:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Killed(self._place)

    def _cancel_the_write(self):
        """Cancel the jobs of the query when the first staged file is there."""
        staging, end_s = Path(self._opened.delivery.state, "staging"), time.monotonic() + _WRITE_S_MAX
        # Unlike glob, walk goes on when a folder disappears under way.
        while not any(files and "_temporary" in at for at, _, files in os.walk(staging)):
            if time.monotonic() > end_s:
                return
            time.sleep(0.002)
        self._cancel_the_jobs()

    def _cancel_the_jobs(self):
        self.is_reached = True
        if self._is_hard:
            os.kill(os.getpid(), signal.SIGKILL)
        for query in self._spark.streams.active:
            if query.name == self._opened.delivery.name:
                self._spark.sparkContext.cancelJobGroup(str(query.runId))


def run_once(spark, definition, kill=None):
    """Run a delivery until all is read; return whether it was killed."""
    from penstock.core.delivering.definition import parse_delivery
    from penstock.delivery.running import DeliveryRun, check_deliveries
    from penstock.errors import DeliveryFailed

    checked = check_deliveries([parse_delivery(definition)])
    if kill is None:
        DeliveryRun(spark, checked, lambda _report: None).run(once=True)
        return False
    try:
        run = DeliveryRun(spark, checked, lambda _report: None, kill.at_step)
        kill.arm(run, spark)
        run.run(once=True)
    except (DeliveryFailed, Killed):  # a backfill has no query, so its error comes as it is
        if not kill.is_reached:
            raise
        return True
    return False


def run_patiently(spark, definition, place=None):
    """Run a delivery as `run_once`, again if the machine was too busy; return whether it was killed at the place."""
    return _patiently(lambda: run_once(spark, definition, None if place is None else Kill(place)))


def _patiently(attempt, on_busy=lambda: None):
    """Return the result of an attempt; it is made again if the machine was too busy."""
    from penstock.errors import DeliveryFailed

    for tries_left in reversed(range(_TRIES_MAX)):
        try:
            return attempt()
        except DeliveryFailed as error:
            if tries_left == 0 or TOO_BUSY not in str(error):
                raise
            on_busy()
    return None


class KilledTable:
    """A stream, and a table into which it is delivered.

    Args:
        spark: The session.
        server: The embedded Kinesis.
        folder: Gets table and state; of Iceberg, the catalog's warehouse.
        number: Of this table; layouts differ by it.
        table_format: `parquet`, `json`, `delta` or `iceberg`.
    """

    def __init__(self, spark, server, folder, number, table_format="parquet"):
        self._spark, self._server = spark, server
        self._chance = random.Random(number)
        self._client = server.client("kinesis")
        self.stream = f"killed-{os.getpid()}-{number}"
        self._folder = f"{folder}/killed/orders_{number}"
        is_iceberg = table_format == "iceberg"
        self.to = f"{CATALOG}.killed.orders_{number}" if is_iceberg else self._folder
        self._state = f"{folder}/state-{number}" if table_format in LAKES else f"{self.to}.penstock"
        self.put_ids, self.bad = [], []
        self.killed, self.missed = Counter(), 0
        layout = {"partition-by": ["date(arrived)", "id % 2 AS odd"]} if number % 3 else {}
        self.definition = {
            "stream": self.stream,
            "to": self.to,
            "format": table_format,
            "options": FAST,
            "state": self._state,
            **layout,
        }
        server.create_stream(self.stream, shards=2)

    def put(self):
        """Put some records; one in ten is not JSON, and later ones have another field."""
        first = len(self.put_ids)
        numbers = range(first, first + self._chance.randrange(3, 30))
        more = {f"field{first // 100}": "new"} if first else {}
        lines = [json.dumps({"id": number, "price": number / 2, **more}).encode() for number in numbers]
        self.put_ids += numbers
        bad = [f"bad {first} {number}".encode() for number in range(len(lines) // 10 + 1)]
        self.bad += bad
        answer = self._client.put_records(
            StreamName=self.stream,
            Records=[{"PartitionKey": f"key-{at}", "Data": line} for at, line in enumerate(lines + bad)],
        )
        assert answer["FailedRecordCount"] == 0

    def reshard(self):
        """Split a shard, or merge two."""
        shards = self._client.list_shards(StreamName=self.stream, ShardFilter={"Type": "AT_LATEST"})["Shards"]
        ranges = sorted(
            (int(each["HashKeyRange"]["StartingHashKey"]), int(each["HashKeyRange"]["EndingHashKey"]), each)
            for each in shards
        )
        if len(ranges) < 4:
            begin, end, shard = self._chance.choice(ranges)
            self._client.split_shard(
                StreamName=self.stream,
                ShardToSplit=shard["ShardId"],
                NewStartingHashKey=str((begin + end) // 2),
            )
        else:
            left, right = self._chance.choice([*pairwise(ranges)])
            self._client.merge_shards(
                StreamName=self.stream,
                ShardToMerge=left[2]["ShardId"],
                AdjacentShardToMerge=right[2]["ShardId"],
            )

    def kill(self, place, *, is_hard=False):
        """Run the delivery and kill it; the table has no row twice then."""
        attempt = self._in_a_process if is_hard else self._in_this_process
        is_killed = _patiently(lambda: attempt(place), self._on_busy)
        if is_killed:
            self.killed[f"{place}, by SIGKILL" if is_hard else place] += 1
        else:  # the batch had no dead letters, or fewer calls, or the write was over
            self.missed += 1
        self.check(is_whole=not is_killed)

    def _on_busy(self):
        self.killed["machine too busy"] += 1
        self.check(is_whole=False)

    def _in_this_process(self, place=None):
        return run_once(self._spark, self.definition, None if place is None else Kill(place))

    def _in_a_process(self, place):
        from penstock.errors import DeliveryFailed

        folder = str(Path(self._folder).parents[1])
        document = json.dumps({"definition": self.definition, "place": place, "folder": folder})
        child = subprocess.run(
            [sys.executable, __file__, document],
            env={**os.environ, **self._server.environ()},
            capture_output=True,
            text=True,
            timeout=CHILD_S_MAX,
            check=False,
        )
        if child.returncode not in (0, KILLED_CODE):
            raise DeliveryFailed(child.stderr)
        return child.returncode == KILLED_CODE

    def finish(self):
        """Run the delivery to its end twice; the table has each record once then."""
        for _ in range(2):
            _patiently(self._in_this_process, self._on_busy)
            self.check(is_whole=True)

    def check(self, *, is_whole):
        """Compare table and records.

        Before the end each record is there once or not at all, and each reader finds the same ones.
        """
        for reader, ids in self.read(is_whole=is_whole).items():
            assert len(ids) == len(set(ids)), f"{self.stream}: {reader} finds a row twice"
            if is_whole:
                assert sorted(ids) == self.put_ids, f"{self.stream}: {reader} finds other rows"
            else:
                assert set(ids) <= set(self.put_ids), f"{self.stream}: {reader} finds a row that nobody put"
        letters = self.letters()
        assert len(letters) == len(set(letters)), f"{self.stream}: a dead letter is there twice"
        assert sorted(letters) == sorted(self.bad) if is_whole else set(letters) <= set(self.bad)

    def read(self, *, is_whole):
        """Return the ids in the table, by reader; Spark reads a lake only when it is whole."""
        match self.definition["format"]:
            case "delta":
                found, name = read_delta(self._folder), f"delta.`file://{self._folder}`"
            case "iceberg":
                found, name = read_iceberg(self._folder), self.to
            case ending:
                return read_files(self._folder, ending)
        if is_whole:
            # Delta reads its log again; Spark 4.1.4 cannot refresh a table that is named by its path.
            if self.definition["format"] == "iceberg":
                self._spark.catalog.refreshTable(name)
            found["Spark"] = [row.id for row in self._spark.sql(f"SELECT id FROM {name}").collect()]
        return found

    def letters(self):
        """Return the bytes of the dead letters."""
        found = Path(self._state).glob("*/dead-letters/*.jsonl")
        lines = [line for path in found for line in path.read_text().splitlines()]
        return [base64.b64decode(json.loads(line)["data"]) for line in lines]


def read_files(folder, ending):
    """Return the column `id` of all files below a folder, as DuckDB and as pyarrow find it."""
    paths = [str(path) for path in Path(folder).glob(f"**/*.{ending}")]
    if not paths:
        return {}
    with duckdb.connect() as connection:
        query = f"SELECT id FROM read_{ending}('{folder}/**/*.{ending}', union_by_name=true)"
        by_duckdb = [row[0] for row in connection.sql(query).fetchall()]
    if ending == "parquet":
        by_pyarrow = ds.dataset(folder, partitioning="hive").to_table(columns=["id"])["id"].to_pylist()
    else:
        by_pyarrow = [number for path in paths for number in pj.read_json(path)["id"].to_pylist()]
    return {"DuckDB": by_duckdb, "pyarrow": by_pyarrow}


def read_delta(folder):
    """Return the column `id` of a Delta table, as `deltalake` finds it; it reads the log without Spark."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(folder):
        return {}
    return {"deltalake": DeltaTable(folder).to_pyarrow_table(columns=["id"])["id"].to_pylist()}


def read_iceberg(folder):
    """Return the column `id` of an Iceberg table, as `pyiceberg` finds it."""
    from pyiceberg.table import StaticTable

    hint = Path(folder, "metadata", "version-hint.text")
    if not hint.exists():
        return {}
    table = StaticTable.from_metadata(f"{folder}/metadata/v{hint.read_text().strip()}.metadata.json")
    return {"pyiceberg": table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()}


def lake_settings(folder):
    """Return Spark's settings for tables of Delta Lake, and for those of Iceberg in a catalog of files."""
    return {
        "spark.jars.ivy": str(JARS),
        "spark.databricks.delta.snapshotPartitions": "2",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": str(folder),
    }


def open_killed_session(folder, formats):
    """Open the session that the command would open, for many small queries.

    Args:
        folder: Of the tables.
        formats: Their formats.
    """
    from penstock.delivery.running import open_session

    lakes = [each for each in formats if each in LAKES]
    settings = {**SETTINGS, **(lake_settings(folder) if lakes else {})}
    return open_session("local[2,4]", settings, is_verbose=False, formats=lakes)


def places(count, seed, kills=KILLS):
    """Return places of kills: each as often as the others, in a random order."""
    found = [kills[number % len(kills)] for number in range(count)]
    random.Random(seed).shuffle(found)
    return found


def _child(document):
    given = json.loads(document)
    spark = open_killed_session(given["folder"], [given["definition"]["format"]])
    run_once(spark, given["definition"], Kill(given["place"], is_hard=True))
    spark.stop()


if __name__ == "__main__":
    _child(sys.argv[1])
