"""Run seeds of the simulator on all cores, from where the last run ended.

`python tools/soak_seeds.py --seeds 2000 [--state .soak-seeds.json]` runs so many seeds of consumers and as many of Spark queries, and
notes in the state file how far it came: ended at any moment, it goes on there. A seed that breaks an invariant is told in plain words,
and printed as a test with as few faults as still break it. The exit code is 1 when there was one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from penstock.sim.faults import Scenario, draw_query_scenario, draw_scenario
from penstock.sim.run import SeedResult, run_scenario
from penstock.sim.shrinking import as_test, shrink

KINDS = {"consumers": draw_scenario, "queries": draw_query_scenario}
BEGIN = {"consumers": 350, "queries": 240}
"""The seeds before are run by the tests."""
CHUNK = 50
STORY_LINES = 60


def run(task: tuple[str, int]) -> tuple[str, int, str | None]:
    """Run one seed in a process of the pool; return what is to be told of it."""
    kind, seed = task
    scenario = KINDS[kind](seed)
    result = run_scenario(scenario)
    return kind, seed, None if result.violation is None else _describe(kind, scenario, result)


def _describe(kind: str, scenario: Scenario, result: SeedResult) -> str:
    assert result.violation is not None
    broken = result.violation.invariant

    def breaks(candidate: Scenario) -> bool:
        violation = run_scenario(candidate).violation
        return violation is not None and violation.invariant == broken

    smaller = shrink(scenario, breaks)
    test = as_test(smaller, scenario, queries=kind == "queries")
    story = "\n".join(f"  {line}" for line in run_scenario(smaller).story(STORY_LINES))
    return f"seed {scenario.seed} of {kind}: {result.violation}\n{story}\n\n{test}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2_000, help="of each kind (default: 2000)")
    parser.add_argument(
        "--state", type=Path, default=Path(".soak-seeds.json"), help="how far the runs before came"
    )
    args = parser.parse_args()
    reached = {**BEGIN, **(json.loads(args.state.read_text()) if args.state.exists() else {})}
    failures, began_s = 0, time.monotonic()
    # Forked processes would share the locks of logging and of pyarrow.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for begin in range(0, args.seeds, CHUNK):
            count = min(CHUNK, args.seeds - begin)
            tasks = [(kind, reached[kind] + place) for place in range(count) for kind in KINDS]
            for _, _, told in pool.imap_unordered(run, tasks):
                if told is not None:
                    failures += 1
                    print(told, flush=True)
            reached = {kind: seed + count for kind, seed in reached.items()}
            args.state.write_text(json.dumps(reached))
    per_s = 2 * args.seeds / (time.monotonic() - began_s)
    print(f"{2 * args.seeds} seeds, {failures} violations, {per_s:.1f} seeds/s; next: {reached}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
