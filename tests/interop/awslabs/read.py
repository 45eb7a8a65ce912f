"""A Spark program that reads the stream `numbers`, with awslabs' connector or with Penstock's.

`python read.py CONNECTOR FOLDER COUNT` notes what it reads in FOLDER/CONNECTOR.jsonl and ends after COUNT records. CONNECTOR is
`awslabs`, with the jars of PENSTOCK_AWSLABS_JARS, or `penstock`, which goes on where the first has stopped.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

DEADLINE_S = 300
connector, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
old = str(folder / "awslabs")
endpoint = os.environ["AWS_ENDPOINT_URL"]
session = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
session = session.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
if connector == "awslabs":
    spark = session.config("spark.jars", os.environ["PENSTOCK_AWSLABS_JARS"]).getOrCreate()
    options = {
        "kinesis.streamName": "numbers",
        "kinesis.region": "us-east-1",
        "kinesis.kinesisRegion": "us-east-1",
        "kinesis.endpointUrl": endpoint,
        "kinesis.consumerType": "GetRecords",
        "kinesis.startingPosition": "TRIM_HORIZON",
    }
    source = spark.readStream.format("aws-kinesis").options(**options)
else:
    from penstock.spark import saved_positions

    spark = session.getOrCreate()
    options = {"streamName": "numbers", "startingPosition": saved_positions(spark, old)}
    source = spark.readStream.format("kinesis").options(**options)
spark.sparkContext.setLogLevel("WARN")
seen: set[tuple[str, str]] = set()
done = threading.Event()


def note(batch, _):
    rows = [[row.partitionKey, bytes(row.data).decode()] for row in batch.collect()]
    with (folder / f"{connector}.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    seen.update(map(tuple, rows))
    if len(seen) >= count:
        done.set()


checkpoint = str(folder / connector)
query = source.load().writeStream.foreachBatch(note).option("checkpointLocation", checkpoint).start()
is_done = done.wait(DEADLINE_S)
if is_done and query.isActive:
    query.processAllAvailable()
query.stop()
spark.stop()
sys.exit(0 if is_done else f"{len(seen)} of {count} records after {DEADLINE_S} s: {query.exception()}")
