"""Run seeds of the simulator on all cores, from where the last run ended.

`python tools/soak_seeds.py --seeds 2000 [--state .soak-seeds.json]` runs so many seeds of each kind of world, and
records its progress in the state file: ended at any moment, it resumes there. A seed that breaks an invariant is printed with its
last events, and as a test with as few faults as still break it. The exit code is 1 when there was one, and 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from penstock_sim.plan import Scenario
from penstock_sim.run import SeedResult, run_scenario
from penstock_sim.seed_kinds import DRAW
from penstock_sim.shrinking import as_test, shrink

KINDS = {kind.value: draw for kind, draw in DRAW.items()}
BEGIN = {
    "consumers": 100,
    "queries": 180,
    "kcl3": 38,
    "producers": 64,
    "sinks": 201,
    "streams": 130,
    "queues": 106,
}
"""The seeds before are run by the tests."""
CHUNK = 20
STORY_LINES = 60

Seed: TypeAlias = tuple[str, int]
"""A kind and a number."""


def run(seed: Seed) -> str | None:
    """Run one seed in a process of the pool; return its report, or None."""
    kind, number = seed
    try:
        scenario = KINDS[kind](number)
        result = run_scenario(scenario)
        return None if result.violation is None else _describe(kind, scenario, result)
    except Exception:  # noqa: BLE001 - an assert of the machines is a find like any other, and the other seeds go on
        return f"seed {number} of {kind} ends with an error:\n{traceback.format_exc()}"


def _describe(kind: str, scenario: Scenario, result: SeedResult) -> str:
    assert result.violation is not None
    broken = result.violation.invariant

    def breaks(candidate: Scenario) -> bool:
        violation = run_scenario(candidate).violation
        return violation is not None and violation.invariant == broken

    smaller = shrink(scenario, breaks)
    test = as_test(smaller, scenario, KINDS[kind])
    story = "\n".join(f"  {line}" for line in run_scenario(smaller).story(STORY_LINES))
    return f"seed {scenario.seed} of {kind}: {result.violation}\n{story}\n\n{test}\n"


def read_state(state: Path) -> dict[str, int]:
    """Return the next seed of each kind."""
    return {**BEGIN, **(json.loads(state.read_text()) if state.exists() else {})}


def write_state(state: Path, reached: Mapping[str, int]) -> None:
    """Store the next seed of each kind; a run that is ended here leaves the old state or the new one."""
    beside = state.with_name(f"{state.name}.new")
    beside.write_text(json.dumps(reached))
    beside.replace(state)


def soak(seed_count: int, state: Path, run_all: Callable[[list[Seed]], Iterable[str | None]]) -> int:
    """Run the next seeds of each kind and store the progress; return how many of them failed.

    Args:
        seed_count: Of each kind.
        state: The file that knows the next seeds.
        run_all: Runs seeds, in any order, and yields the report of each.
    """
    failures, began_s = 0, time.monotonic()
    for begin in range(0, seed_count, CHUNK):
        count = min(CHUNK, seed_count - begin)
        reached = read_state(state)
        for report in run_all([(kind, reached[kind] + place) for place in range(count) for kind in KINDS]):
            if report is not None:
                failures += 1
                print(report, flush=True)
        write_state(state, {kind: seed + count for kind, seed in reached.items()})
        done = begin + count
        per_s = done * len(KINDS) / (time.monotonic() - began_s)
        print(
            f"{time.strftime('%H:%M:%S')} {done} of {seed_count} seeds of each kind, {per_s:.1f} seeds/s, {failures} failed",
            file=sys.stderr,
            flush=True,
        )
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2_000, help="of each kind (default: 2000)")
    parser.add_argument(
        "--state", type=Path, default=Path(".soak-seeds.json"), help="how far the runs before came"
    )
    args = parser.parse_args()
    began_s = time.monotonic()
    # Forked processes would share the locks of logging and of pyarrow. Ctrl-C reaches the whole group: the pool's processes
    # are begun with it ignored, and end with the pool.
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        signal.signal(signal.SIGINT, on_interrupt)
        try:
            failures = soak(args.seeds, args.state, lambda seeds: pool.imap_unordered(run, seeds))
        except KeyboardInterrupt:
            print(f"stopped; the next run goes on with {read_state(args.state)}")
            return 130
    count = len(KINDS) * args.seeds
    per_s = count / (time.monotonic() - began_s)
    print(f"{count} seeds, {failures} failed, {per_s:.1f} seeds/s; next: {read_state(args.state)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
