"""Measure how long one record on a stream of idle shards takes to reach `foreachBatch`, with default options or those of a contender.

Records are put one at a time on random shards at random moments, the next one when the one before has arrived and the query is idle
again: a shard that was just read is probed more often, so the same shard again would be found too soon.
boto3 asks every shard for records, one after the other, as a reader without leases and batches has to do to
find one.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from program import Figures, run
from spark_session import kinesis, running, session, wait_until

RECORDS = 9


def boto3(stream: str, turn: int) -> Figures:
    del turn
    import boto3

    client = boto3.client("kinesis")
    iterators = [
        client.get_shard_iterator(StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="LATEST")[
            "ShardIterator"
        ]
        for page in client.get_paginator("list_shards").paginate(StreamName=stream)
        for shard in page["Shards"]
    ]
    times = []
    for _ in range(2):
        began_s = time.monotonic()
        for iterator in iterators:
            client.get_records(ShardIterator=iterator)
        times.append(time.monotonic() - began_s)
    return {"median_s": statistics.median(times)}


def penstock(stream: str, turn: int, **options: str) -> Figures:
    import boto3

    client, chance = boto3.client("kinesis"), random.Random(turn)
    arrived: dict[bytes, float] = {}

    def note(batch: Any, _: int) -> None:
        rows = batch.select("data").collect()
        now_s = time.monotonic()
        arrived.update({bytes(row.data): now_s for row in rows})

    def put(query: Any, data: bytes) -> float:
        began_s = time.monotonic()
        client.put_record(
            StreamName=stream, PartitionKey="k", Data=data, ExplicitHashKey=str(chance.randrange(2**128))
        )
        wait_until(query, lambda: data in arrived, f"record {data!r}")
        return arrived[data] - began_s

    application = "-".join([stream, str(turn), *options.values()])
    with session() as spark, running(kinesis(spark, stream, application, **options), note) as query:
        first_s = put(query, f"{application} first".encode())
        times = []
        for number in range(RECORDS):
            time.sleep(1.0 + chance.random())
            times.append(put(query, f"{application} {number}".encode()))
    return {"median_s": statistics.median(times), "longest_s": max(times), "first_s": first_s}


if __name__ == "__main__":
    run({"penstock": penstock, "boto3": boto3})
