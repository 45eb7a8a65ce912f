"""Measure what planning a batch costs a query's driver on a stream of many shards.

Every shard is behind, as in a busy query. Instead of running tasks, the program writes their claims as tasks do, and times
what Spark waits for between two batches: `latestOffset` and `partitions`. moto serves the lease table here; DynamoDB answers
a scan of a thousand rows faster. boto3 scans the same number of rows once, which no planner that looks at its leases can
go without.
"""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from program import Figures, Meter, run

BATCHES = 3


def claim_all(table: Any, offset: Any, number: int) -> None:
    """Write the claim of each shard's task: one record further on, and more to read."""
    from penstock.core.batches.claims import ClaimNote
    from penstock.core.leases.lease import BatchClaim
    from penstock.core.leases.lease_writes import Applied, Claim
    from penstock.core.position import at_record

    rows = {lease.key: lease for lease in table.scan().leases}

    def claim(key: str) -> None:
        start = offset.shards[key]
        note = ClaimNote(has_more=True, record_count=1, bytes_count=100, millis_behind_latest=5000).to_bytes()
        end = at_record(str(10**55 + number))
        made = BatchClaim(offset.worker, offset.batch, "bench", start, end, note, time.time_ns() // 10**6)
        own = rows[key].claim_of(offset.worker)
        write = Claim(key, made, rows[key].checkpoint, None if own is None else own.identity)
        if not isinstance(table.write(write), Applied):
            raise SystemExit(f"the claim of {key} was refused")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, offset.shards))


def opened(stream: str, application: str) -> tuple[Any, Any]:
    """Return a reader of the stream, and its lease table."""
    from penstock.spark.batch_planning import OneStream
    from penstock.spark.options.spark_options import parse_source
    from penstock.spark.stream_reader import KinesisStreamReader
    from penstock.wiring import open_lease_table

    options, _ = parse_source(
        {
            "streamName": stream,
            "endpointUrl": os.environ["AWS_ENDPOINT_URL"],
            "region": os.environ["AWS_REGION"],
            "awsAccessKeyId": "local",
            "awsSecretKey": "local",
            "applicationName": application,
            "startingPosition": "TRIM_HORIZON",
            "leaseDuration": "60s",
        }
    )
    return KinesisStreamReader(OneStream(options)), open_lease_table(application, options.connection)


def look_s(table: Any) -> float:
    """Return how long a look at the whole table takes: the same rows, and nothing planned."""
    began_s = time.perf_counter()
    table.scan()
    return time.perf_counter() - began_s


def penstock(stream: str, turn: int) -> Figures:
    from penstock.core.batches.offsets import parse_offset

    reader, table = opened(stream, f"{stream}-{turn}")
    began_s = time.perf_counter()
    offset = reader.latestOffset(reader.initialOffset(), None)
    first_s = time.perf_counter() - began_s
    times_s, cpu_s, looks_s = [], [], []
    try:
        for number in range(BATCHES):
            reader.partitions({}, offset)
            claim_all(table, parse_offset(offset), number)
            meter = Meter()
            following = reader.latestOffset(offset, None)
            reader.partitions(offset, following)
            found = meter.read()
            times_s.append(found["wall_s"])
            cpu_s.append(found["cpu_s"])
            looks_s.append(look_s(table))
            offset = following
    finally:
        reader.stop()
    return {
        "plan_s": statistics.median(times_s),
        "plan_cpu_s": statistics.median(cpu_s),
        "look_s": statistics.median(looks_s),
        "first_plan_s": first_s,
    }


def boto3(stream: str, turn: int) -> Figures:
    """Scan the leases that a reader has made before."""
    import boto3

    reader, _ = opened(stream, f"{stream}-scanned-{turn}")
    reader.latestOffset(reader.initialOffset(), None)
    reader.stop()
    dynamodb = boto3.client("dynamodb")
    times_s, cpu_s = [], []
    for _ in range(BATCHES):
        meter = Meter()
        pages = dynamodb.get_paginator("scan").paginate(
            TableName=f"{stream}-scanned-{turn}", ConsistentRead=True
        )
        sum(len(page["Items"]) for page in pages)
        found = meter.read()
        times_s.append(found["wall_s"])
        cpu_s.append(found["cpu_s"])
    return {"plan_s": statistics.median(times_s), "plan_cpu_s": statistics.median(cpu_s)}


if __name__ == "__main__":
    run({"penstock": penstock, "boto3": boto3})
