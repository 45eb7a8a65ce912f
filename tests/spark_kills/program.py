"""The program that is killed: two queries on one stream, each started again whenever it dies.

`python program.py FOLDER ENDPOINT MASTER QUERIES CONSUMER_TYPE` reads the stream `numbers` with the named queries (separated by
commas). `parquet` writes each batch to its own folder, after an action that hashes the same rows, and records each
execution. `copy` writes to the stream `copy` with the Kinesis sink. Each of the two has its own application. `first` and
`second` work like `parquet`, and share one application with each other and with any workers that join it.
When FOLDER/stop appears, all read to the end and the program ends with status 0.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

BATCH_RECORDS = 4000
FAILING_EVERY, FAILING = 10, 3
"""Every tenth batch fails once after its first action, so that batches are repeated wherever the kills hit."""
RESTARTS_MAX = 200
SHARED = "shared"
"""The application of several queries and workers."""

folder, endpoint, master, chosen = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split(",")
consumer_type = sys.argv[5]


def end_with_parent():
    """End when the harness is gone, however it went."""

    def wait():
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def open_session():
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .appName("penstock kills")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.local.dir", f"{folder}/spark-local")
        .config("spark.sql.warehouse.dir", f"{folder}/spark-warehouse")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Spark deletes the offsets and commits of all but the last hundred batches.
        .config("spark.sql.streaming.minBatchesToRetain", "1000000")
        # Else a kill while Spark writes the first offset is the end of the query (docs/operations.md, "Failover").
        .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        .getOrCreate()
    )


def read(spark, application, worker, lease_duration="5s"):
    return (
        spark.readStream.format("kinesis")
        .option("streamName", "numbers")
        .option("endpointUrl", endpoint)
        .option("region", "us-east-1")
        .option("applicationName", application)
        .option("workerId", worker)
        .option("consumerType", consumer_type)
        .option("consumerName", worker)
        .option("leaseDuration", lease_duration)
        .option("startingPosition", "TRIM_HORIZON")
        .option("maxRecordsPerTrigger", str(BATCH_RECORDS))
        .option("fetchInterval", "0ms")
        .option("probeInterval", "200ms")
        .load()
    )


def count_executions(name, batch_id):
    """Count how often a batch was noted; the last line may be cut off by a kill."""
    begin = f'{{"batch": {batch_id},'
    return sum(line.startswith(begin) for line in (folder / f"{name}.jsonl").read_text().splitlines())


def start_parquet(spark, name, **reading):
    from pyspark.sql import functions as f

    def write(batch, batch_id):
        rows = batch.select(
            "shardId",
            "sequenceNumber",
            "subSequenceNumber",
            "partitionKey",
            f.col("data").cast("string").alias("data"),
        )
        # Two actions on one batch, and nothing cached: they must see the same rows. The first one is noted at once, so that
        # an execution that dies later is compared too.
        place = f.struct(f.length("sequenceNumber"), "sequenceNumber", "subSequenceNumber")
        told = (
            rows.groupBy("shardId")
            .agg(
                f.count("*").alias("count"),
                f.sum(f.xxhash64(*rows.columns).cast("decimal(38,0)")).alias("hash"),
                f.min(place).alias("first"),
                f.max(place).alias("last"),
            )
            .collect()
        )
        note = {
            "batch": batch_id,
            "count": sum(each["count"] for each in told),
            "hash": str(sum(each["hash"] for each in told)),
            "at_s": time.time(),
            "shards": {each["shardId"]: [list(each["first"])[1:], list(each["last"])[1:]] for each in told},
        }
        line = json.dumps(note) + "\n"
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if batch_id % FAILING_EVERY == FAILING and count_executions(name, batch_id) == 1:
            raise RuntimeError(f"batch {batch_id} is to be repeated")
        rows.write.mode("overwrite").parquet(f"{folder}/{name}/batch={batch_id}")

    return (
        read(spark, worker=name, **reading)
        .writeStream.queryName(name)
        .foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .start()
    )


def start_copy(spark):
    return (
        read(spark, "copy", "copy")
        .select("partitionKey", "data")
        .writeStream.queryName("copy")
        .format("kinesis")
        .option("streamName", "copy")
        .option("endpointUrl", endpoint)
        .option("region", "us-east-1")
        .option("checkpointLocation", str(folder / "checkpoints" / "copy"))
        .start()
    )


STARTS = {
    "parquet": lambda spark: start_parquet(spark, "parquet", application="parquet"),
    "copy": start_copy,
    "first": lambda spark: start_parquet(spark, "first", application=SHARED, lease_duration="3s"),
    "second": lambda spark: start_parquet(spark, "second", application=SHARED, lease_duration="3s"),
}


def start(spark, name):
    """Start a query. Spark refuses to begin beside the temporary file of a first offset that a kill has left."""
    offsets = folder / "checkpoints" / name / "offsets"
    left = list(offsets.iterdir()) if offsets.is_dir() else []
    if all(file.name.startswith(".") for file in left):
        for file in left:
            file.unlink()
    return STARTS[name](spark)


class Queries:
    """The chosen queries, each started again whenever it died."""

    def __init__(self, spark):
        self.spark = spark
        self.active = {name: start(spark, name) for name in chosen}
        self.restarts = 0

    def revive(self):
        """Start what has died, and say whether anything had."""
        dead = [name for name, query in self.active.items() if not query.isActive]
        for name in dead:
            self.restarts += 1
            failure = self.active[name].exception()
            if self.restarts > RESTARTS_MAX:
                raise SystemExit(f"{name} died for the {self.restarts}. time: {failure}")
            with (folder / "failures.jsonl").open("a") as file:
                file.write(json.dumps({"query": name, "at_s": time.time(), "text": str(failure)}) + "\n")
            self.active[name] = start(self.spark, name)
        return bool(dead)

    def read_to_the_end(self):
        """Wait until nothing is left; a query may die of the last kill here too."""
        from pyspark.errors import StreamingQueryException

        quiet_count = 0
        # An idle moment is not the end: children of a shard that has just ended take a moment.
        while quiet_count < 3:
            try:
                for query in self.active.values():
                    query.processAllAvailable()
            except StreamingQueryException:  # what it died of is noted when it is started again
                quiet_count = 0
            else:
                quiet_count += 1
                time.sleep(2)
            if self.revive():
                quiet_count = 0


def main():
    end_with_parent()
    spark = open_session()
    spark.sparkContext.setLogLevel("ERROR")
    queries = Queries(spark)
    sys.stdout.write("started\n")
    sys.stdout.flush()
    while not (folder / "stop").exists():
        queries.revive()
        time.sleep(0.1)
    queries.read_to_the_end()
    for query in queries.active.values():
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
