"""Write a frame with Spark: Penstock's sink, plain and aggregated, boto3 in `foreachPartition`, and what Spark costs alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from program import Figures, Meter, run, twice
from spark_session import register, session, task_times_s

DATA_BYTES = 1024
QUOTA_DATA_BYTES = 300
QUOTA_TASKS = 4
BOTO3_PAUSE_S = 0.1


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


# --- near the quota ---------------------------------------------------------------------------------------------


def quota_rows(spark: Any, record_count: int) -> Any:
    """Return rows with a key of their own, for one task each slot."""
    rows = spark.range(0, record_count, numPartitions=QUOTA_TASKS).selectExpr(
        "cast(id as string) as partitionKey", f"rpad(cast(id as string), {QUOTA_DATA_BYTES}, 'x') as data"
    )
    rows.count()
    return rows


def quota_figures(spark: Any, record_count: int, shard_count: int, write: Callable[[], object]) -> Figures:
    """Write twice in a session; return the time, the share of the quota and how unlike the tasks were."""

    def measured(time_no: int) -> Figures:
        if time_no:
            time.sleep(1.5)  # a shard accepts one second's worth at once again
        meter = Meter()
        times_s = task_times_s(spark, write)
        found = meter.read()
        return {
            **found,
            "quota_percent": 100 * record_count / (1000 * shard_count) / found["wall_s"],
            "slowest_by_fastest": max(times_s) / min(times_s),
            "tasks_s": max(times_s),
        }

    return twice(measured)


def penstock_quota(stream: str, turn: int, record_count: int, shard_count: int) -> Figures:
    del turn
    with session(slots=QUOTA_TASKS) as spark:
        rows = quota_rows(spark, record_count)
        writer = rows.write.format("kinesis").option("streamName", stream).mode("append")
        return quota_figures(spark, record_count, shard_count, writer.save)


def boto3_quota(stream: str, turn: int, record_count: int, shard_count: int) -> Figures:
    """Send 500 at a time, and refused entries with the next rows after a tenth of a second."""
    del turn

    def write(rows: Iterator[Any]) -> None:
        import boto3

        client = boto3.client("kinesis")
        batch: list[dict[str, Any]] = []
        for row in rows:
            batch.append({"Data": row.data.encode(), "PartitionKey": row.partitionKey})
            while len(batch) >= 500:
                batch = send(client, batch)
        while batch:
            batch = send(client, batch)

    def send(client: Any, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answer = client.put_records(StreamName=stream, Records=batch)
        refused = [entry for entry, word in zip(batch, answer["Records"], strict=True) if "ErrorCode" in word]
        if refused:
            time.sleep(BOTO3_PAUSE_S)
        return refused

    with session(daemon="pyspark.daemon", slots=QUOTA_TASKS) as spark:
        rows = quota_rows(spark, record_count)
        return quota_figures(spark, record_count, shard_count, lambda: rows.foreachPartition(write))


if __name__ == "__main__":
    run(
        {
            "penstock": penstock,
            "penstock-aggregated": lambda **options: penstock(aggregation=True, **options),
            "penstock-registered": lambda **options: penstock(is_registered=True, **options),
            "boto3": boto3,
            "nothing": nothing,
            "empty-sink": empty_sink,
            "penstock-quota": penstock_quota,
            "boto3-quota": boto3_quota,
        }
    )
