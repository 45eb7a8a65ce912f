"""Search a seed of the simulator that shows a planted bug of `tests/sim`.

`python tools/mutant_seeds.py "silence" [--seeds 500] [--start 0]` runs seeds of the bug's kind of world, one after the other,
with the bug in place, and prints the first one that breaks an invariant. `tests/sim/test_mutants.py` runs that seed alone.
The exit code is 1 when none was found, and 2 when there is no such bug.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from penstock.sim.run import run_seeds  # noqa: E402
from penstock.sim.seed_kinds import SeedKind  # noqa: E402
from sim.mutants import Mutant  # noqa: E402
from sim.mutants_by_kind import MUTANTS_BY_KIND  # noqa: E402

BY_NAME = {mutant.name: (kind, mutant) for kind, mutants in MUTANTS_BY_KIND.items() for mutant in mutants}


def search(kind: SeedKind, mutant: Mutant, seeds: range) -> bool:
    """Print the first of the seeds that shows a planted bug; return whether there is one."""
    with mutant.planted():
        for result in run_seeds(seeds, kind):
            if result.violation is not None:
                print(f"{mutant.name}: seed {result.seed} of {kind.value}, {result.violation}")
                return True
    print(f"{mutant.name}: not shown by the seeds of {kind.value} from {seeds.start} to {seeds.stop - 1}")
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mutant", help="the name of the planted bug")
    parser.add_argument("--seeds", type=int, default=500, help="how many to try (default: 500)")
    parser.add_argument("--start", type=int, default=0, help="the first (default: 0)")
    args = parser.parse_args(arguments)
    if args.mutant not in BY_NAME:
        print(f"there is no planted bug {args.mutant!r}: choose one of {sorted(BY_NAME)}", file=sys.stderr)
        return 2
    return 0 if search(*BY_NAME[args.mutant], range(args.start, args.start + args.seeds)) else 1


if __name__ == "__main__":
    sys.exit(main())
