"""`penstock simulate --fleet`: the calls of a fleet of any size, and how soon its shards are read, in virtual time."""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from penstock.cli.progress_line import ProgressLine

if TYPE_CHECKING:
    from penstock_sim.fleet_scenarios import FleetFigures

SCENARIOS: Final = ("start", "calm", "throttled", "zone", "rolling", "doubled")
POLICIES: Final = ("even", "by_throughput", "by_zone", "kcl2")
LEASES_PER_WORKER: Final = 10


def run_fleet_command(args: argparse.Namespace) -> int:
    """Run the scenarios and print the figures of each as it ends."""
    from penstock.core.leases.coordinator_options import BalancePolicy
    from penstock_sim.fleet_scenarios import FleetScenario, length_s, run_fleet

    scenarios = [FleetScenario(name) for name in args.scenario or SCENARIOS]
    lease_count = args.leases or LEASES_PER_WORKER * args.fleet
    line, all_s = ProgressLine(is_shown=not args.json), length_s(scenarios)
    passed_s = 0.0

    def progress(name: str, step_s: float) -> None:
        nonlocal passed_s
        passed_s += step_s
        line.draw(f"{name}, {passed_s:.0f} virtual seconds", passed_s / all_s)

    began_s = time.monotonic()
    if not args.json:
        print(f"{args.fleet} workers, {lease_count} leases, policy {args.policy}")
    was_enabled = gc.isenabled()
    gc.disable()  # each worker keeps an age for each row: millions of objects, none of them in a cycle
    try:
        policy = BalancePolicy(args.policy)
        for figures in run_fleet(
            args.fleet, lease_count, policy=policy, scenarios=scenarios, progress=progress
        ):
            line.clear()
            if args.json:
                print(json.dumps(describe(figures)), flush=True)
            else:
                _show(figures)
    finally:
        if was_enabled:
            gc.enable()
    if not args.json:
        print(f"{passed_s:.0f} virtual seconds in {time.monotonic() - began_s:.0f} s")
    return 0


def describe(figures: FleetFigures) -> dict[str, Any]:
    """Return figures as a JSON document."""
    return {**asdict(figures), "scenario": figures.scenario.value, "policy": figures.policy.value}


def _show(figures: FleetFigures) -> None:
    everything = "some are not" if figures.all_read_s is None else f"all after {figures.all_read_s:.1f} s"
    print(f"\n{figures.scenario.value}: {figures.scenario.description}", flush=True)
    print(f"  read units/s   {figures.reads_per_s:.0f}, {figures.reads_peak_per_s:.0f} in the worst 10 s")
    print(f"  write units/s  {figures.writes_per_s:.0f}, {figures.writes_peak_per_s:.0f} in the worst 10 s")
    print(f"  moves          {figures.moves}; {figures.load_min} to {figures.load_max} shards per worker")
    print(f"  unread shards  {everything}; each at most {figures.unread_max_s:.1f} s", flush=True)
