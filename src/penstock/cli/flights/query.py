"""The Spark program of the demo: run as a process of its own, so that it can be killed.

    python -m penstock.cli.flights.query WORK_DIR RECORDS_PER_TRIGGER

Two streaming queries on one stream: events to Parquet, one folder per batch, overwritten when the batch is repeated; and
the average departure delay per origin and hour, sent to a second stream. One JSON line per finished batch on standard
output. Ends when WORK_DIR/stop exists and everything is read.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENT_DDL: Final = (
    "id BIGINT, time_hour TIMESTAMP, tailnum STRING, carrier STRING, flight BIGINT, origin STRING, dest STRING, "
    "distance BIGINT, dep_delay DOUBLE, arr_delay DOUBLE"
)
WATERMARK: Final = "400 days"
"""The whole year passes in half a minute, and shards are read at different paces: behind a backlog, after a kill or a
reshard, one shard may be any part of that year ahead of another. A row behind the watermark would be dropped, so the
watermark stays further behind than the data set is long. A live stream would use minutes."""
_POLL_S: Final = 0.2


def start_session(work: Path) -> SparkSession:
    """Start Spark on this machine only, with retries for tasks."""
    from pyspark.sql import SparkSession

    session: SparkSession = (
        SparkSession.builder.master("local[2,8]")
        .appName("penstock demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("WARN")
    return session


def read_flights(session: SparkSession, application: str, records_per_trigger: int) -> DataFrame:
    """Read the stream and parse its events."""
    from pyspark.sql.functions import col, from_json

    return (
        session.readStream.format("kinesis")
        .option("streamName", "flights")
        .option("applicationName", application)
        .option("startingPosition", "TRIM_HORIZON")
        .option("maxRecordsPerTrigger", records_per_trigger)
        .option("leaseDuration", "5s")
        .load()
        .withColumn("event", from_json(col("data").cast("string"), EVENT_DDL))
        .select("shardId", "sequenceNumber", "subSequenceNumber", "partitionKey", "event.*")
    )


def write_events(flights: DataFrame, work: Path) -> StreamingQuery:
    """Write the enriched events to Parquet: the same batch always goes to the same folder."""
    from pyspark.sql.functions import col, lit

    def write(batch: DataFrame, batch_id: int) -> None:
        enriched = batch.withColumn("late", col("dep_delay") > 15).withColumn("batch", lit(batch_id))
        enriched.write.mode("overwrite").parquet(str(work / "events" / f"batch-{batch_id:06d}"))

    return (
        flights.writeStream.queryName("events")
        .foreachBatch(write)
        .option("checkpointLocation", str(work / "checkpoints" / "events"))
        .start()
    )


def write_delays(flights: DataFrame, work: Path) -> StreamingQuery:
    """Send the average departure delay per origin and hour to the second stream, each time it changes."""
    from pyspark.sql.functions import avg, col, concat_ws, count, struct, to_json, unix_timestamp

    delays = (
        flights.withWatermark("time_hour", WATERMARK)
        .groupBy("origin", "time_hour")
        .agg(count("dep_delay").alias("departures"), avg("dep_delay").alias("delay"))
    )
    key = concat_ws(" ", col("origin"), unix_timestamp("time_hour").cast("string"))
    value = struct(col("origin"), unix_timestamp("time_hour").alias("hour"), col("departures"), col("delay"))
    changed = delays.select(key.alias("partitionKey"), to_json(value).alias("data"))

    # Spark lets sinks written in Python append only; what changed in a batch is written as a batch of its own.
    def send(batch: DataFrame, _batch_id: int) -> None:
        writer = batch.write.format("kinesis").mode("append")
        writer.option("streamName", "delays").option("aggregation", "true").save()

    return (
        changed.writeStream.queryName("delays")
        .outputMode("update")
        .foreachBatch(send)
        .option("checkpointLocation", str(work / "checkpoints" / "delays"))
        .start()
    )


def report(query: StreamingQuery, seen: dict[str, int]) -> None:
    """Print a line for each finished batch that is new, with the rows that it read."""
    for progress in query.recentProgress:
        batch: Any = progress["batchId"]
        if batch <= seen.get(query.name, -1) or not progress["numInputRows"]:
            continue
        seen[query.name] = batch
        line = {
            "query": query.name,
            "batch": batch,
            "rows": progress["numInputRows"],
            "lag_ms": _lag_ms(progress),
        }
        print(json.dumps(line), flush=True)


def _lag_ms(progress: Any) -> int:
    told = progress["sources"][0].get("latestOffset")
    latest = json.loads(told) if isinstance(told, str) and told.startswith("{") else told
    return int(latest.get("maxMillisBehindLatest", 0)) if isinstance(latest, dict) else 0


def main() -> int:
    """Run both queries until the stop file appears; exit code 1 when one of them fails."""
    work, per_trigger = Path(sys.argv[1]), int(sys.argv[2])
    session = start_session(work)
    queries = [
        write_events(read_flights(session, "demo-events", per_trigger), work),
        write_delays(read_flights(session, "demo-delays", per_trigger), work),
    ]
    print(json.dumps({"started": True}), flush=True)
    seen: dict[str, int] = {}
    while not (work / "stop").exists():
        for query in queries:
            report(query, seen)
            if not query.isActive:
                error = query.exception()
                print(json.dumps({"failed": query.name, "error": str(error)[:2000]}), flush=True)
                return 1
        time.sleep(_POLL_S)
    for query in queries:
        query.processAllAvailable()
        report(query, seen)
        query.stop()
    session.stop()
    print(json.dumps({"finished": True}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
