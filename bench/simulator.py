"""Measure how many seeds of the simulator a second of one processor runs, and how much simulated time that is.

    python bench/simulator.py [--seeds 40] [--json]

The figure decides how many worlds a change meets before it is merged. Processor time is measured, so that other work on the
machine does not show.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from penstock_sim.kinds import SeedKind
from penstock_sim.run import run_seed

KINDS = (
    ("fleets of consumers", SeedKind.CONSUMERS, 1.0),
    ("fleets with Spark queries", SeedKind.QUERIES, 0.5),
    ("Spark queries that write", SeedKind.SINKS, 1.0),
)
"""What runs, and which share of the seeds that are asked for: queries take twice as long."""


def measure(what: str, kind: SeedKind, seed_count: int) -> dict[str, Any]:
    run_seed(0, kind)  # imports
    began_s, times_s, virtual_s, line_count = time.process_time(), [], 0.0, 0
    for seed in range(seed_count):
        seed_began_s = time.process_time()
        result = run_seed(seed, kind)
        times_s.append(time.process_time() - seed_began_s)
        virtual_s += result.virtual_s
        line_count += len(result.history)
    spent_s = time.process_time() - began_s
    return {
        "what": what,
        "seeds": seed_count,
        "seeds_per_cpu_s": seed_count / spent_s,
        "slowest_s": max(times_s),
        "virtual_s_per_cpu_s": virtual_s / spent_s,
        "events_per_cpu_s": line_count / spent_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of rows")
    args = parser.parse_args()
    found = [measure(what, kind, max(1, round(share * args.seeds))) for what, kind, share in KINDS]
    if args.json:
        print(json.dumps(found))
        return 0
    for row in found:
        print(
            f"{row['what']:<26} {row['seeds_per_cpu_s']:5.1f} seeds/s, {row['virtual_s_per_cpu_s']:6,.0f} times real time, "
            f"{row['events_per_cpu_s']:7,.0f} events/s, slowest seed {row['slowest_s']:.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
