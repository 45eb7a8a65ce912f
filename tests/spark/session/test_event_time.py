"""The time of arrival as event time: windows are complete across a reshard and a restart, with a tight watermark."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

from spark_support import read_available

MINUTES = 6
PER_MINUTE = 20
PARENT = "shardId-000000000000"
HALF = 2**127


@pytest.fixture
def own_server():
    """A server whose clock this test moves."""
    from penstock_local import LocalKinesis

    with LocalKinesis(limits=False, settle_s=0) as server:
        yield server


def put_minute(server, stream, minute):
    """Put a minute's records, evenly over the halves of the hash range, then let the minute go by."""
    server.client("kinesis").put_records(
        StreamName=stream,
        Records=[
            {
                "PartitionKey": f"k{number % 5}",
                "ExplicitHashKey": str((number % 2) * HALF + number),
                "Data": f"{minute}/{number}".encode(),
            }
            for number in range(PER_MINUTE)
        ],
    )
    server.clock.advance(60)


def test_no_window_loses_rows_over_a_split_and_a_restart(spark, own_server, tmp_path):
    own_server.create_stream("times")
    environ = own_server.environ()

    def run():
        rows = (
            spark.readStream.format("kinesis")
            .option("streamName", "times")
            .option("endpointUrl", own_server.endpoint_url)
            .option("awsAccessKeyId", environ["AWS_ACCESS_KEY_ID"])
            .option("awsSecretKey", environ["AWS_SECRET_ACCESS_KEY"])
            .option("region", "us-east-1")
            .option("applicationName", "times-app")
            .option("startingPosition", "TRIM_HORIZON")
            .option("maxRecordsPerTrigger", "14")
            .option("leaseDuration", "5s")
            .option("fetchInterval", "0ms")
            .option("probeInterval", "200ms")
            .load()
        )
        # A row that arrives ten seconds of event time too late is silently dropped by Spark.
        windows = (
            rows.withWatermark("approximateArrivalTimestamp", "10 seconds")
            .groupBy(f.window("approximateArrivalTimestamp", "1 minute"))
            .agg(
                f.count("*").alias("count"),
                f.collect_set(f.split(f.col("data").cast("string"), "/")[0]).alias("minutes"),
            )
        )
        writer = (
            windows.select("window.start", "count", "minutes")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "windows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        return [
            progress.get("numRowsDroppedByWatermark", 0)
            for query in read_available(writer.start)
            for each in query.recentProgress
            for progress in each["stateOperators"]
        ]

    for minute in range(2):
        put_minute(own_server, "times", minute)
    own_server.client("kinesis").split_shard(
        StreamName="times", ShardToSplit=PARENT, NewStartingHashKey=str(HALF)
    )
    put_minute(own_server, "times", 2)
    dropped = run()
    for minute in range(3, MINUTES):
        put_minute(own_server, "times", minute)
    dropped += run()
    own_server.clock.advance(60)  # at whatever second of its minute the last one was put
    put_minute(own_server, "times", MINUTES)  # moves the watermark beyond the earlier rows
    dropped += run()
    found = {
        row["start"]: (row["count"], row["minutes"])
        for row in spark.read.parquet(str(tmp_path / "windows")).collect()
    }
    assert sum(dropped) == 0
    by_minute = {}
    for count, minutes in found.values():
        for minute in minutes:
            by_minute[minute] = by_minute.get(minute, 0) + count / len(minutes)
    assert {minute: by_minute[str(minute)] for minute in range(MINUTES)} == dict.fromkeys(
        range(MINUTES), PER_MINUTE
    )
