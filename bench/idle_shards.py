"""Measure how long one record on a stream of idle shards takes to reach `foreachBatch`, with default options.

    python bench/idle_shards.py [--shards 20 100 500 1000] [--records 10] [--json]

An embedded server runs in a separate process, with quotas. Spark runs in this process's JVM, with no limits and the default
probe interval. Records are put one at a time on one shard, the next one when the one before has arrived and the query is idle
again. Beside it, in the same run, boto3 asks every shard for records, one after the other, which is what a reader without
leases and batches has to do to find one. The bench also counts the calls per record.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

DEADLINE_S = 120.0
COUNTED = ("GetRecords", "dynamodb.UpdateItem", "dynamodb.Scan", "dynamodb.GetItem", "dynamodb.BatchGetItem")


def sweep(client: Any, stream: str) -> float:
    """Ask every shard once, from its tip."""
    iterators = [
        client.get_shard_iterator(StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="LATEST")[
            "ShardIterator"
        ]
        for page in client.get_paginator("list_shards").paginate(StreamName=stream)
        for shard in page["Shards"]
    ]
    began_s = time.monotonic()
    for iterator in iterators:
        client.get_records(ShardIterator=iterator)
    return time.monotonic() - began_s


def wait_for(query: Any, arrived: dict[bytes, float], data: bytes) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while data not in arrived:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{data!r} has not come in {DEADLINE_S:g} s")
        time.sleep(0.002)


def measure(spark: Any, server: Any, shards: int, records: int) -> dict[str, Any]:
    stream = f"idle-{shards}"
    server.create_stream(stream, shards=shards)
    client = server.client("kinesis")
    arrived: dict[bytes, float] = {}

    def note(batch: Any, _: int) -> None:
        rows = batch.select("data").collect()
        now_s = time.monotonic()
        arrived.update({bytes(row.data): now_s for row in rows})

    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("kinesis")
            .option("streamName", stream)
            .option("startingPosition", "TRIM_HORIZON")
            .load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", folder)
            .start()
        )
        client.put_record(StreamName=stream, PartitionKey="k", Data=b"first")
        wait_for(query, arrived, b"first")
        times = []
        server.reset_calls()
        for number in range(records):
            data = b"%d" % number
            began_s = time.monotonic()
            client.put_record(StreamName=stream, PartitionKey="k", Data=data)
            wait_for(query, arrived, data)
            times.append(arrived[data] - began_s)
            time.sleep(1.0)
        calls = server.calls()
        query.stop()
    return {
        "shards": shards,
        "median_s": round(statistics.median(times), 2),
        "max_s": round(max(times), 2),
        "boto3_sweep_s": round(sweep(client, stream), 2),
        "calls_per_record": {name: round(calls.count(name) / records, 1) for name in COUNTED},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, nargs="+", default=[20, 100, 500, 1000])
    parser.add_argument("--records", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from penstock.local import LocalKinesisProcess

    with LocalKinesisProcess(limits=True) as server:
        os.environ.update(server.environ())
        spark = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        rows = [measure(spark, server, shards, options.records) for shards in options.shards]
        spark.stop()
    if options.json:
        print(json.dumps(rows))
        return 0
    print(f"{'idle shards':>12} {'median s':>9} {'max s':>7} {'boto3 asks all, s':>18}   calls per record")
    for row in rows:
        calls = ", ".join(
            f"{name.partition('.')[2] or name} {count}" for name, count in row["calls_per_record"].items()
        )
        print(
            f"{row['shards']:>12} {row['median_s']:>9} {row['max_s']:>7} {row['boto3_sweep_s']:>18}   {calls}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
