"""A user's program behind Spark Connect: `python connect_program.py REMOTE FOLDER ENDPOINT STREAM COPY`; prints JSON."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from penstock.errors import UsageError
from penstock.spark import align_to_shards, lag, sink_report

remote, folder, endpoint, stream, copy = sys.argv[1:6]
WHERE = {"endpointUrl": endpoint, "region": "us-east-1"}

spark = SparkSession.builder.remote(remote).getOrCreate()


def source():
    reader = spark.readStream.format("kinesis").option("streamName", stream).options(**WHERE)
    return (
        reader.option("startingPosition", "TRIM_HORIZON")
        .option("applicationName", f"connect-{stream}")
        .load()
    )


query = (
    source()
    .select("partitionKey", "data")
    .writeStream.format("kinesis")
    .option("streamName", copy)
    .options(**WHERE)
    .option("checkpointLocation", f"{folder}/checkpoint")
    .start()
)
deadline_s = time.monotonic() + 180
report = shards_behind = None
while time.monotonic() < deadline_s and query.isActive:
    report = sink_report(query, checkpoint_location=f"{folder}/checkpoint")
    is_copied = report is not None and report.total[copy].user_record_count >= 200
    lags = lag(query)
    shards_behind = lags[0].max_millis_behind_latest if lags else None
    if is_copied and shards_behind == 0:
        break
    time.sleep(0.2)
try:
    sink_report(query)
    asked = "told"
except UsageError as error:
    asked = str(error)
query.stop()
frame = spark.range(300).selectExpr("cast(id as string) as partitionKey", "cast(id as string) as data")
aligned = align_to_shards(frame, copy, order_by="data", **WHERE)
aligned.write.format("kinesis").option("streamName", copy).options(**WHERE).mode("append").save()
batch = spark.read.format("kinesis").option("streamName", copy).options(**WHERE).load().count()
print(  # noqa: T201 - the test reads it
    json.dumps(
        {
            "copied": report.total[copy].user_record_count,
            "behind": shards_behind,
            "asked": asked,
            "read": batch,
            "session": type(spark).__module__,
        }
    )
)
spark.stop()
