"""Measure what planning a batch costs a query's driver on a stream of many shards: time, calls, bytes of the offset.

    python bench/planning.py [--shards 1000] [--batches 5] [--json]

An embedded server runs in a separate process, without quotas. Every shard is behind, as in a busy query. Instead of running
tasks, the bench writes their claims as tasks do. It times what Spark waits for between two batches: `latestOffset` and
`partitions`. moto serves the lease table here; DynamoDB answers a scan of a thousand rows faster. Beside it, for the ratio,
is one plain scan of the table with boto3 in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any


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


def measure(shards: int, batches: int) -> dict[str, Any]:
    from penstock.core.batches.offsets import parse_offset
    from penstock.local import LocalKinesisProcess
    from penstock.spark.spark_options import parse_source
    from penstock.spark.stream_reader import KinesisStreamReader
    from penstock.wiring import open_lease_table

    with LocalKinesisProcess(limits=False, settle_s=0) as server:
        server.create_stream("wide", shards=shards)
        options, _ = parse_source(
            {
                "streamName": "wide",
                "endpointUrl": server.endpoint_url,
                "region": server.region,
                "awsAccessKeyId": "local",
                "awsSecretKey": "local",
                "applicationName": "planning",
                "startingPosition": "TRIM_HORIZON",
                "leaseDuration": "60s",
                "shardsPerTask": "10",
            }
        )
        client = server.client("kinesis")
        for place in range(0, shards * 3, 500):
            entries = [
                {
                    "Data": b"x",
                    "PartitionKey": f"k{number}",
                    "ExplicitHashKey": str(number * (2**128 // (shards * 3))),
                }
                for number in range(place, min(place + 500, shards * 3))
            ]
            client.put_records(StreamName="wide", Records=entries)
        table = open_lease_table("planning", options.connection)
        reader = KinesisStreamReader(options)
        began_s = time.perf_counter()
        offset = reader.latestOffset(reader.initialOffset(), None)
        first_s = time.perf_counter() - began_s
        times_s, calls = [], []
        try:
            for number in range(batches):
                reader.partitions({}, offset)
                claim_all(table, parse_offset(offset), number)
                server.reset_calls()
                began_s = time.perf_counter()
                following = reader.latestOffset(offset, None)
                reader.partitions(offset, following)
                times_s.append(time.perf_counter() - began_s)
                told = server.calls().total
                calls.append({name: count for name, count in told.items() if name != "dynamodb.UpdateItem"})
                offset = following
            dynamodb = server.client("dynamodb")
            began_s = time.perf_counter()
            for _ in dynamodb.get_paginator("scan").paginate(TableName="planning", ConsistentRead=True):
                pass
            scan_s = time.perf_counter() - began_s
        finally:
            reader.stop()
    return {
        "shards": shards,
        "first_plan_s": round(first_s, 2),
        "plan_s": round(statistics.median(times_s), 3),
        "plan_max_s": round(max(times_s), 3),
        "boto3_scan_s": round(scan_s, 3),
        "offset_bytes": len(json.dumps(offset)),
        "calls_per_plan": calls[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of rows")
    args = parser.parse_args()
    found = measure(args.shards, args.batches)
    if args.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['shards']} shards: planned in {found['plan_s']:.3f} s (longest {found['plan_max_s']:.3f} s; a scan of the "
            f"table with boto3 {found['boto3_scan_s']:.3f} s), first plan with its leases {found['first_plan_s']:.1f} s, offset "
            f"{found['offset_bytes'] / 1e6:.2f} MB"
        )
        print(f"calls of a plan, renewals left out: {found['calls_per_plan']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
