"""Measure how long a query takes from its start to its first record, and an empty query of Spark's own to its first batch."""

from __future__ import annotations

import time
from typing import Any

from program import Figures, run
from spark_session import kinesis, running, session, wait_until


def first_batch(frame: Any) -> float:
    """Return the seconds from the start of a query to its first row."""
    arrived: list[float] = []

    def note(batch: Any, _: int) -> None:
        if batch.collect():
            arrived.append(time.perf_counter())

    began_s = time.perf_counter()
    with running(frame, note) as query:
        wait_until(query, lambda: bool(arrived), "the first record")
    return arrived[0] - began_s


def penstock(stream: str, turn: int) -> Figures:
    with session() as spark:
        return {"first_record_s": first_batch(kinesis(spark, stream, f"{stream}-{turn}"))}


def python_source(stream: str, turn: int) -> Figures:
    """Start a source in Python that has one row in memory and talks to nobody."""
    del stream, turn
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"at": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
            return [InputPartition(end["at"] - start["at"])]

        def read(self, partition: Any) -> Any:
            yield (partition.value,)

    class OneRow(DataSource):
        @classmethod
        def name(cls) -> str:
            return "one-row"

        def schema(self) -> str:
            return "row int"

        def streamReader(self, schema: Any) -> Reader:  # noqa: ARG002, N802 - Spark's name
            return Reader()

    with session(daemon="pyspark.daemon") as spark:
        spark.dataSource.register(OneRow)
        return {"first_record_s": first_batch(spark.readStream.format("one-row").load())}


if __name__ == "__main__":
    run({"penstock": penstock, "python-source": python_source})
