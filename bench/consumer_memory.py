"""Measure a consumer's memory while its handler is busy with KPL aggregates of empty records.

    python bench/consumer_memory.py [--mib 18] [--json]

An embedded server runs in a separate process, without quotas, with one shard. An aggregate of empty records has six bytes for
each of them, and each costs hundreds once it is taken apart: this is the worst that a producer can send. The handler keeps
its first batch until nothing more is read. Then it returns, and everything is counted. For comparison it shows the cost of all
records if they were taken apart at once.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

_AGGREGATE_BYTES = 1_000_000
_QUIET_S = 5.0


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this bench reads /proc/self/status: run it on Linux")


def measure(mib: int) -> dict[str, Any]:
    from penstock import Consumer
    from penstock.core.aggregation import AggregateBuilder
    from penstock.core.reading.record import RECORD_MEMORY_BYTES
    from penstock_local import LocalKinesisProcess

    builder = AggregateBuilder()
    per_aggregate = _AGGREGATE_BYTES // 6
    for _ in range(per_aggregate):
        builder.add(b"", "k")
    data = builder.build().data
    aggregates = max(1, mib * 2**20 // len(data))
    seen = 0
    is_let_go = threading.Event()

    def handle(batch: Any) -> None:
        nonlocal seen
        is_let_go.wait()
        seen += len(batch)

    with LocalKinesisProcess(limits=False, settle_s=0) as server:
        server.create_stream("dense", shards=1)
        client = server.client("kinesis")
        for _ in range(aggregates):
            client.put_record(StreamName="dense", PartitionKey="k", Data=data)
        connection = {"access_key_id": "local", "secret_access_key": "local"}
        del builder
        before_mb = resident_mb()
        consumer = Consumer(
            "dense",
            "memory",
            handle,
            starting_position="TRIM_HORIZON",
            checkpoint_interval_s=60.0,
            region=server.region,
            endpoint_url=server.endpoint_url,
            connection=connection,
        )
        with consumer:
            held_mb, since_s = 0.0, time.monotonic()
            while time.monotonic() - since_s < _QUIET_S:
                time.sleep(0.2)
                now_mb = resident_mb()
                if now_mb > held_mb + 1:
                    held_mb, since_s = now_mb, time.monotonic()
            is_let_go.set()
            while seen < aggregates * per_aggregate:
                time.sleep(0.1)
    return {
        "sent_mib": round(aggregates * len(data) / 2**20, 1),
        "records": aggregates * per_aggregate,
        "before_mb": round(before_mb),
        "handler_busy_mb": round(held_mb),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "all_at_once_mb": round(aggregates * per_aggregate * RECORD_MEMORY_BYTES / 2**20),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=18)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    row = measure(args.mib)
    if args.json:
        print(json.dumps(row))
        return 0
    print(
        f"{row['sent_mib']} MiB of aggregates, {row['records']:,} empty records: {row['before_mb']} MB before, "
        f"{row['handler_busy_mb']} MB while the handler is busy, {row['peak_mb']} MB at the peak; taken apart at once they "
        f"would cost about {row['all_at_once_mb']} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
