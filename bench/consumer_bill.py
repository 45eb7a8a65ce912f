"""Measure the calls of one consumer, their price a month and its CPU time, idle or under a steady load.

    python bench/consumer_bill.py [--shards 4 16 100] [--per-s 0 20] [--seconds 30] [--json]

The consumer has the default options and is alone. An embedded server runs in a process of its own and counts the calls of the measured
time; the consumer's CPU time is that of a process of its own, without the writer's. Prices are those of docs/costs.md.
"""

from __future__ import annotations

import math
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from row_printing import parser_of, print_rows

from penstock import Consumer
from penstock.core.sizing.prices import HOURS_PER_MONTH
from penstock.sizing.price_table import load_prices
from penstock_local import LocalKinesisProcess

MONTH_S = HOURS_PER_MONTH * 3600
WARM_UP_S = 8.0
ROWS_PER_UNIT = 4


def consume(stream: str) -> None:
    """Run a consumer until the input ends; print a line and the CPU seconds at each line of it."""
    with Consumer(stream, stream, lambda _batch: None, starting_position="TRIM_HORIZON"):
        for _ in sys.stdin:
            used = resource.getrusage(resource.RUSAGE_SELF)
            print(used.ru_utime + used.ru_stime, flush=True)


def measure(shards: int, per_s: float, seconds: float) -> dict[str, Any]:
    """Run a consumer of so many shards; return its row."""
    stream, chance = f"bill-{shards}", random.Random(1)
    with LocalKinesisProcess(limits=True) as server:
        server.create_stream(stream, shards=shards)
        client = server.client()
        line = [sys.executable, __file__, "consume", stream]
        environ = {**os.environ, **server.environ()}
        with subprocess.Popen(
            line, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:

            def cpu_s() -> float:
                assert reader.stdin is not None
                assert reader.stdout is not None
                reader.stdin.write("\n")
                reader.stdin.flush()
                return float(reader.stdout.readline())

            def load(until_s: float) -> None:
                while (now_s := time.monotonic()) < until_s:
                    if not per_s:
                        time.sleep(until_s - now_s)
                        return
                    time.sleep(min(until_s - now_s, chance.expovariate(per_s)))
                    key = str(chance.randrange(2**128))
                    client.put_record(
                        StreamName=stream, Data=b"x" * 200, PartitionKey="k", ExplicitHashKey=key
                    )

            load(time.monotonic() + WARM_UP_S + shards / 10)
            began_cpu_s, before, began_s = cpu_s(), Counter(server.calls().total), time.monotonic()
            load(began_s + seconds)
            used_s, calls, took_s = (
                cpu_s() - began_cpu_s,
                Counter(server.calls().total),
                time.monotonic() - began_s,
            )
            assert reader.stdin is not None
            reader.stdin.close()
    calls.subtract(before)
    prices = load_prices()
    writes = (calls["dynamodb.UpdateItem"] + calls["dynamodb.PutItem"]) / took_s
    scanned = calls["dynamodb.Scan"] / took_s * math.ceil(shards / ROWS_PER_UNIT)
    fetched = calls["dynamodb.GetItem"] / took_s
    month = writes * prices.lease_write_million + (scanned + fetched) * prices.lease_read_million
    return {
        "name": f"{shards} shards, {per_s:g} records/s",
        "lease writes/s": round(writes, 1),
        "scans/s": round(calls["dynamodb.Scan"] / took_s, 2),
        "reads per shard and s": round(calls["kinesis.GetRecords"] / took_s / shards, 2),
        "other calls/s": round(
            (
                calls.total()
                - sum(
                    calls[name]
                    for name in calls
                    if name.endswith(("UpdateItem", "Scan", "GetRecords", "PutRecord"))
                )
            )
            / took_s,
            2,
        ),
        "leases a month, $": round(month * MONTH_S / 1e6, 2),
        "CPU ms per s": round(1000 * used_s / took_s, 1),
    }


def main() -> None:
    """Measure each pair and print its row."""
    if sys.argv[1:2] == ["consume"]:
        consume(sys.argv[2])
        return
    parser = parser_of(__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[4, 16, 100])
    parser.add_argument(
        "--per-s", type=float, nargs="+", default=[0.0, 20.0], help="records per second over all shards"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time")
    arguments = parser.parse_args()
    rows = [
        measure(shards, per_s, arguments.seconds) for shards in arguments.shards for per_s in arguments.per_s
    ]
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
