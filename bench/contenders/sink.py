"""Write a frame with Spark: Penstock's sink, plain and aggregated, boto3 in `foreachPartition`, and what Spark costs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from program import Figures, Meter, run, twice
from spark_session import register, session

DATA_BYTES = 1024


def frame(spark: Any, record_count: int) -> Any:
    """Return rows that Spark makes itself."""
    return spark.range(0, record_count, numPartitions=2).selectExpr(
        "cast(id % 10000 as string) as partitionKey", f"rpad(cast(id as string), {DATA_BYTES}, 'x') as data"
    )


def figures_of(meter: Meter, record_count: int) -> Figures:
    found = meter.read()
    return {
        **found,
        "cpu_s_per_million": found["cpu_s"] / record_count * 1e6,
        "records_per_s": record_count / found["wall_s"],
    }


def written_twice(record_count: int, write: Callable[[int], object]) -> Figures:
    """Return the cost of a session's first write, and of its second.

    Args:
        record_count: Of each write.
        write: Gets 0 the first time and 1 the second.
    """

    def measured(time_no: int) -> Figures:
        meter = Meter()
        write(time_no)
        return figures_of(meter, record_count)

    return twice(measured)


def penstock(
    stream: str, turn: int, record_count: int, aggregation: bool = False, is_registered: bool = False
) -> Figures:
    """Write with Penstock's sink, which Spark finds by itself unless the program registers it."""
    del turn
    with session() as spark:
        rows = frame(spark, record_count)
        rows.count()

        def write(time_no: int) -> None:
            if is_registered and not time_no:
                register(spark)
            writer = rows.write.format("kinesis").option("streamName", stream)
            writer.option("aggregation", str(aggregation).lower()).mode("append").save()

        return written_twice(record_count, write)


def boto3(stream: str, turn: int, record_count: int) -> Figures:
    del turn

    def write(rows: Iterator[Any]) -> None:
        import boto3

        client = boto3.client("kinesis")

        def send(batch: list[dict[str, Any]]) -> None:
            while batch:
                answer = client.put_records(StreamName=stream, Records=batch)
                batch = [
                    entry for entry, word in zip(batch, answer["Records"], strict=True) if "ErrorCode" in word
                ]

        batch = []
        for row in rows:
            batch.append({"Data": row.data.encode(), "PartitionKey": row.partitionKey})
            if len(batch) == 500:
                send(batch)
                batch = []
        send(batch)

    with session(daemon="pyspark.daemon") as spark:
        rows = frame(spark, record_count)
        rows.count()
        return written_twice(record_count, lambda _: rows.foreachPartition(write))


def nothing(stream: str, turn: int, record_count: int) -> Figures:
    """Make rows in Spark and pass them to Python, which drops them."""
    del stream, turn

    def drop(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, 0)

    with session(daemon="pyspark.daemon") as spark:
        rows = frame(spark, record_count)
        rows.count()
        columns = "partitionKey string, data string"
        return written_twice(record_count, lambda _: rows.mapInArrow(drop, columns).count())


def empty_sink(stream: str, turn: int, record_count: int) -> Figures:
    """Write to a sink in Python that drops its rows: what Spark's programs for one cost, whatever it does."""
    del stream, turn
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            pass

    class Nowhere(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nowhere"

        def writer(self, schema: Any, overwrite: bool) -> Writer:  # noqa: ARG002 - Spark's names
            return Writer()

    with session(daemon="pyspark.daemon") as spark:
        rows = frame(spark, record_count)
        rows.count()

        def write(time_no: int) -> None:
            if not time_no:
                # Spark looks for sources in Python then, as it does for Penstock's
                spark.dataSource.register(Nowhere)
            rows.write.format("nowhere").mode("append").save()

        return written_twice(record_count, write)


if __name__ == "__main__":
    run(
        {
            "penstock": penstock,
            "penstock-aggregated": lambda **options: penstock(aggregation=True, **options),
            "penstock-registered": lambda **options: penstock(is_registered=True, **options),
            "boto3": boto3,
            "nothing": nothing,
            "empty-sink": empty_sink,
        }
    )
