"""What one round of balance costs a worker's processor, beside reading the same rows of the lease table.

    python bench/balance.py [--repeats 5] [--json]

A newcomer plans against a fleet in which nine workers of ten hold leases at random. The peer of the same run is the
codec: a round reads every row first, so that much has been paid before a plan begins.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.aws.lease_codec import read_item, write_item
from penstock.core.balance import BalancePolicy, plan_balance
from penstock.core.fleet import FleetLease
from penstock.core.lease import Lease
from penstock.core.lease_view import Hold

FLEETS = ((100, 10), (1_000, 100), (10_000, 1_000))
"""Leases and workers."""


def shortest_s(repeats: int, work: Callable[[], object]) -> float:
    """Give the shortest of several runs: what the work takes where nobody disturbs it."""
    times_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)


def measure(lease_count: int, worker_count: int, repeats: int) -> dict[str, Any]:
    chance = random.Random(1)
    workers = [f"{number % 3}/w{number}" for number in range(worker_count)]
    leases = [
        Lease(
            f"shardId-{number:012}",
            owner=chance.choice(workers[: worker_count * 9 // 10]),
            throughput_kbps=chance.random() * 1000,
        )
        for number in range(lease_count)
    ]
    items = [write_item(lease) for lease in leases]
    fleet = [FleetLease(lease, Hold.ALIVE) for lease in leases]
    newcomer = workers[worker_count * 19 // 20]
    return {
        "leases": lease_count,
        "workers": worker_count,
        "read_rows_s": shortest_s(repeats, lambda: [read_item(item) for item in items]),
        "plan_s": {
            policy.value: shortest_s(repeats, lambda policy=policy: plan_balance(fleet, newcomer, policy))
            for policy in BalancePolicy
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of rows")
    args = parser.parse_args()
    found = [measure(leases, workers, args.repeats) for leases, workers in FLEETS]
    if args.json:
        print(json.dumps(found))
        return 0
    for row in found:
        plans = ", ".join(
            f"{policy} {plan_s * 1e3:.1f} ms ({plan_s / row['read_rows_s']:.2f}x)"
            for policy, plan_s in row["plan_s"].items()
        )
        print(
            f"{row['leases']:>6} leases, {row['workers']:>5} workers: rows read in {row['read_rows_s'] * 1e3:.1f} ms; planned: {plans}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
