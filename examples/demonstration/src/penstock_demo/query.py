"""The Spark program of the main job: `python -m penstock_demo.query SETTINGS`, a process of its own.

Two queries in one session read the stream of flights, each as an application of its own:

* `events` parses and enriches the flights and writes each batch to a Parquet folder of that batch;
* `averages` keeps the average delay per origin and hour and writes each change to a second stream.

It may be killed at any moment and started again with the same settings; it then goes on from its checkpoints. It prints
one JSON line for each finished batch. When the stop file appears it stops gracefully.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS: Final = "events"
AVERAGES: Final = "averages"
_POLL_S: Final = 0.1

# The whole year passes in half a minute, and each shard is read at its own pace: one that waits five seconds for the
# service's read limit, or for its parents after a reshard, is months behind the others in event time, and a row behind
# the watermark would be dropped. Only a delay longer than the data set is safe. It costs little: the state that is never
# dropped is one row for each origin and hour, 20,000 in all.
WATERMARK: Final = "400 days"

LATE_MINUTES: Final = 15
"""A flight that arrives later than this counts as late, as the authorities count."""

FLIGHT_FIELDS: Final = (
    "id BIGINT, event_time TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "sched_dep_time INT, dep_time INT, dep_delay INT, sched_arr_time INT, arr_time INT, arr_delay INT, air_time INT, "
    "distance INT"
)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Settings of the program, passed as one JSON document.

    Args:
        folder: Where checkpoints, Parquet files and the stop file are.
        endpoint_url: Of the stream service and the lease tables.
        region: AWS region.
        source: Name of the stream of flights.
        target: Name of the stream of averages.
        batch_records_max: Flights in one batch of one query.
        fetch_records_max: Kinesis records in one GetRecords answer.
        fetch_interval_s: Between two GetRecords calls of one query to one shard.
    """

    folder: str
    endpoint_url: str
    region: str
    source: str
    target: str
    batch_records_max: int
    fetch_records_max: int
    fetch_interval_s: float

    @property
    def events_dir(self) -> Path:
        """Parquet files of the flights, one folder per batch."""
        return Path(self.folder) / "events"

    @property
    def stop_file(self) -> Path:
        """Its appearing asks the program to end."""
        return Path(self.folder) / "stop"

    def checkpoint_dir(self, query: str) -> Path:
        """Where a query keeps its offsets and commits."""
        return Path(self.folder) / "checkpoints" / query

    def to_text(self) -> str:
        """Return the document."""
        return json.dumps(asdict(self))


def parse_settings(text: str) -> QuerySettings:
    """Read what `QuerySettings.to_text` gave."""
    return QuerySettings(**json.loads(text))


def open_session(folder: str) -> SparkSession:
    """Start Spark in this process, on this machine only."""
    from pyspark.sql import SparkSession

    return (
        # The second number lets a task fail seven times: plain local[2] fails at the first lost Python worker.
        SparkSession.builder.master("local[2,8]")
        .appName("penstock demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # The program lives for seconds: the second compiler would cost more time than it saves.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.python.daemon.module", "penstock.spark.daemon")
        .config("spark.local.dir", f"{folder}/spark-local")
        .config("spark.sql.warehouse.dir", f"{folder}/spark-warehouse")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # An idle query reports its lag each second.
        .config("spark.sql.streaming.noDataProgressEventInterval", "1000")
        # The default, INT96, does not record that it is UTC.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # Killed while Spark writes the first offset, a query finds that half-written file, and must start nevertheless.
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        .getOrCreate()
    )


def read_flights(spark: SparkSession, settings: QuerySettings, application: str) -> DataFrame:
    """Return the stream's records with their position and the flight's fields."""
    from pyspark.sql import functions as f

    records = (
        spark.readStream.format("kinesis")
        .option("streamName", settings.source)
        .option("endpointUrl", settings.endpoint_url)
        .option("region", settings.region)
        .option("applicationName", application)
        # A fixed name: a run that was killed before its first offset was logged finds its own leases again.
        .option("workerId", application)
        .option("startingPosition", "TRIM_HORIZON")
        .option("maxRecordsPerTrigger", str(settings.batch_records_max))
        .option("recordsPerFetch", str(settings.fetch_records_max))
        .option("fetchInterval", f"{round(settings.fetch_interval_s * 1000)}ms")
        .option("probeInterval", "500ms")
        .load()
    )
    flight = f.from_json(f.col("data").cast("string"), FLIGHT_FIELDS, {"mode": "FAILFAST"})
    return records.select(
        "shardId", "sequenceNumber", "subSequenceNumber", "partitionKey", flight.alias("flight")
    ).select(
        f.col("shardId").alias("shard_id"),
        f.col("sequenceNumber").alias("sequence_number"),
        f.col("subSequenceNumber").alias("sub_sequence_number"),
        f.col("partitionKey").alias("partition_key"),
        "flight.*",
    )


def start_events(spark: SparkSession, settings: QuerySettings) -> StreamingQuery:
    """Start the query that writes every flight to Parquet, once."""
    from pyspark.sql import functions as f

    def write(batch: DataFrame, batch_id: int) -> None:
        # A batch that is run again holds the same rows and replaces its folder: no row twice, whatever died.
        batch.write.mode("overwrite").parquet(str(settings.events_dir / f"batch={batch_id}"))

    return (
        read_flights(spark, settings, f"{settings.source}-{EVENTS}")
        .withColumn("is_late", f.col("arr_delay") > LATE_MINUTES)
        .writeStream.queryName(EVENTS)
        .foreachBatch(write)
        .option("checkpointLocation", str(settings.checkpoint_dir(EVENTS)))
        .start()
    )


def start_averages(spark: SparkSession, settings: QuerySettings) -> StreamingQuery:
    """Start the query that writes the average delay per origin and hour to the second stream."""
    from pyspark.sql import functions as f

    groups = (
        read_flights(spark, settings, f"{settings.source}-{AVERAGES}")
        .withWatermark("event_time", WATERMARK)
        .groupBy("origin", f.window("event_time", "1 hour").alias("hour"))
        .agg(
            f.count("*").alias("flights"),
            f.count("dep_delay").alias("departed"),
            f.avg("dep_delay").alias("delay_mean"),
        )
        .select(
            "origin",
            f.date_format("hour.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour"),
            "flights",
            "departed",
            "delay_mean",
        )
    )
    messages = groups.select(
        # One key per group, so that its values stay in order and the last one counts.
        f.concat_ws(" ", "origin", "hour").alias("partitionKey"),
        f.to_json(f.struct("*")).alias("data"),
    )

    def write(batch: DataFrame, _: int) -> None:
        # A Python data source accepts only append mode, and this query runs in update mode: write each batch by an append.
        (
            batch.write.format("kinesis")
            .option("streamName", settings.target)
            .option("endpointUrl", settings.endpoint_url)
            .option("region", settings.region)
            .option("aggregation", "true")
            .mode("append")
            .save()
        )

    return (
        messages.writeStream.queryName(AVERAGES)
        .outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(settings.checkpoint_dir(AVERAGES)))
        .start()
    )


def lag_ms(progress: Any) -> int:
    """Return how far the slowest shard was behind its tip when the trigger was planned."""
    latest = json.loads(progress.json)["sources"][0]["latestOffset"] or {}
    figures = latest.get("report", latest)  # Spark 4.0 and 4.1 show them inside the offset
    return int(figures.get("maxMillisBehindLatest", 0))


def idle_lag_ms(query: StreamingQuery, deadline_s: float = 5.0) -> int:
    """Return the lag that an idle query reports, or that of its last batch if it reports none in time."""
    end_s = time.monotonic() + deadline_s
    while (progress := query.lastProgress) is not None:
        if not progress.numInputRows or time.monotonic() > end_s:
            return lag_ms(progress)
        time.sleep(_POLL_S)
    return 0


def describe_batch(progress: Any) -> dict[str, Any]:
    """Return the status line of a finished batch."""
    return {
        "query": progress.name,
        "batch": progress.batchId,
        "rows": progress.numInputRows,
        "duration_ms": progress.durationMs.get("triggerExecution", 0),
        "lag_ms": lag_ms(progress),
    }


def print_status(document: dict[str, Any]) -> None:
    """Print one line for the process that watches."""
    print(json.dumps(document), flush=True)


class Reporter:
    """Reports every batch once."""

    def __init__(self, queries: list[StreamingQuery]) -> None:
        self._queries = queries
        self._reported = {query.name: -1 for query in queries}

    def report(self) -> None:
        """Report the batches that finished since the last call."""
        for query in self._queries:
            for progress in query.recentProgress:
                # Idle triggers repeat the number of the next batch, with no rows and no end.
                if progress.batchId > self._reported[query.name] and "addBatch" in progress.durationMs:
                    self._reported[query.name] = progress.batchId
                    print_status(describe_batch(progress))

    def raise_failure(self) -> None:
        """Raise what ended a query."""
        for query in self._queries:
            if not query.isActive:
                error = query.exception()
                raise RuntimeError(f"query {query.name} ended by itself") if error is None else error


def end_with_parent() -> None:
    """End at once when the process that started this one is gone, however it went: its end of our input closes."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        # Spark's JVM watches us in the same way, and the workers watch the JVM.
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def run(settings: QuerySettings) -> None:
    """Run both queries until the stop file appears."""
    end_with_parent()
    spark = open_session(settings.folder)
    spark.sparkContext.setLogLevel("WARN")
    queries = [start_events(spark, settings), start_averages(spark, settings)]
    print_status({"started": os.getpid()})
    reporter = Reporter(queries)
    while not settings.stop_file.exists():
        reporter.raise_failure()
        reporter.report()
        time.sleep(_POLL_S)
    for query in queries:
        query.processAllAvailable()
    reporter.report()
    print_status({"ended": max(idle_lag_ms(query) for query in queries)})
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    run(parse_settings(sys.argv[1]))
