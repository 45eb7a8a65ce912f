"""Measure how long a record takes from PutRecord to `foreachBatch`, with a zero trigger.

    python bench/latency.py [--records 200] [--json]

An embedded server with two shards runs in a separate process, with quotas. Spark runs in this process's JVM, with its checkpoint
on the local disk. Records are put one by one at random moments, about five a second, so that most batches hold one. Each carries the moment
before its put; the time is taken when `foreachBatch` has collected it. The first batches, in which Spark warms up, are left out.
Beside it, in the same run and on the same stream, a loop with boto3 polls each shard five times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

WARM_UP = 20
PER_S = 5.0
DEADLINE_S = 120.0


def percentile(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def poll(client: Any, stream: str, seen: dict[str, float], ended: threading.Event) -> None:
    """Read as plain programs do."""
    iterators = {
        shard["ShardId"]: client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        for shard in client.list_shards(StreamName=stream)["Shards"]
    }
    while not ended.is_set():
        for shard, iterator in iterators.items():
            page = client.get_records(ShardIterator=iterator)
            iterators[shard] = page["NextShardIterator"]
            for record in page["Records"]:
                seen.setdefault(record["Data"].decode(), time.time())
        # Two readers share a shard's five reads per second: the query probes once a second and reads when there is news.
        ended.wait(0.5)


def measure(records: int) -> list[dict[str, Any]]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from penstock.local import LocalKinesisProcess

    chance = random.Random(1)
    with LocalKinesisProcess(limits=True) as server, tempfile.TemporaryDirectory() as folder:
        os.environ.update(server.environ())
        server.create_stream("latency", shards=2)
        client = server.client("kinesis")
        spark = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        by_spark: dict[str, float] = {}
        by_boto3: dict[str, float] = {}

        def note(batch: Any, _: int) -> None:
            rows = batch.select("data").collect()
            now_s = time.time()
            for row in rows:
                by_spark.setdefault(bytes(row.data).decode(), now_s)

        query = (
            spark.readStream.format("kinesis")
            .option("streamName", "latency")
            .option("startingPosition", "TRIM_HORIZON")
            .load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", folder)
            .start()
        )
        ended = threading.Event()
        poller = threading.Thread(target=poll, args=(client, "latency", by_boto3, ended), daemon=True)
        poller.start()
        put: dict[str, float] = {}
        for number in range(records + WARM_UP):
            name = f"record-{number}"
            put[name] = time.time()
            client.put_record(StreamName="latency", PartitionKey=name, Data=name.encode())
            time.sleep(2.0 if number < 3 else chance.expovariate(PER_S))
        deadline_s = time.monotonic() + DEADLINE_S
        while (by_spark.keys() & by_boto3.keys()) != put.keys():
            if time.monotonic() > deadline_s:
                raise SystemExit(
                    f"{len(put.keys() - by_spark.keys())} records did not come within {DEADLINE_S:g} s"
                )
            time.sleep(0.1)
        ended.set()
        poller.join(10)
        query.stop()
        spark.stop()
    counted = [f"record-{number}" for number in range(WARM_UP, records + WARM_UP)]
    rows = []
    for reader, seen in (("penstock, Spark", by_spark), ("boto3 poll, 0.5 s", by_boto3)):
        times = [seen[name] - put[name] for name in counted]
        rows.append(
            {
                "reader": reader,
                "records": len(times),
                "median_s": round(statistics.median(times), 3),
                "p99_s": round(percentile(times, 0.99), 3),
                "max_s": round(max(times), 3),
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of rows")
    args = parser.parse_args()
    rows = measure(args.records)
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                f"{row['reader']:20} median {row['median_s']:.3f} s  99th percentile {row['p99_s']:.3f} s  longest "
                f"{row['max_s']:.3f} s  ({row['records']} records)"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
