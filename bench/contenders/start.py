"""Measure how long a query takes from its start to its first record, awslabs' connector too, and an empty query to its first batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from program import Figures, Meter, run, twice
from spark_session import awslabs_frame, awslabs_session, kinesis, register, running, session, wait_until


def first_batch(load: Callable[[], Any]) -> Figures:
    """Return what passes from the start of a query to its first row, looking its source up included."""
    arrived: list[Figures] = []
    meter = Meter()

    def note(batch: Any, _: int) -> None:
        if batch.collect():
            arrived.append(meter.read())

    with running(load(), note) as query:
        wait_until(query, lambda: bool(arrived), "the first record")
    return {"first_record_s": arrived[0]["wall_s"], "cpu_s": arrived[0]["cpu_s"]}


def penstock(stream: str, turn: int, is_registered: bool = False) -> Figures:
    """Start queries with Penstock's source, which Spark finds by itself unless the program registers it."""
    with session() as spark:

        def load(time_no: int) -> Any:
            if is_registered and not time_no:
                register(spark)
            return kinesis(spark, stream, f"{stream}-{turn}-{time_no}-{is_registered}")

        return twice(lambda time_no: first_batch(lambda: load(time_no)))


def awslabs(stream: str, turn: int, jars: str) -> Figures:
    del turn
    with awslabs_session(jars) as (spark, endpoint_url):
        return twice(lambda _: first_batch(lambda: awslabs_frame(spark, stream, endpoint_url)))


def python_source(stream: str, turn: int) -> Figures:
    """Start a Python source that has one row in memory and makes no call."""
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
        return twice(lambda _: first_batch(lambda: spark.readStream.format("one-row").load()))


if __name__ == "__main__":
    run(
        {
            "penstock": penstock,
            "penstock-registered": lambda **options: penstock(is_registered=True, **options),
            "awslabs": awslabs,
            "python-source": python_source,
        }
    )
