"""Search seeds of the simulator that show planted bugs of `tests/sim`; `tests/sim/test_mutants.py` runs each bug's seed alone.

`python tools/mutant_seeds.py "silence" [--seeds 500] [--start 0]` runs seeds of the bug's kind of world, one after the other,
with the bug in place, and prints the first one that breaks an invariant, and that breaks none without the bug. Seeds of
other planted bugs are tried first: they are run anyway. Then follow the seeds with most of the situations that the bug needs.

`python tools/mutant_seeds.py --moved` does so for each bug that its seed no longer shows, as after a change in the
order of calls, and replaces the old seed by the one that it finds.

The exit code is 1 when none was found for a bug, and 2 when there is no such bug.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from penstock_sim.checker import Violation  # noqa: E402
from penstock_sim.kinds import SeedKind  # noqa: E402
from penstock_sim.run import run_seed  # noqa: E402
from penstock_sim.seed_kinds import DRAW  # noqa: E402
from sim.mutants import Mutant, is_a_finding  # noqa: E402
from sim.mutants_by_kind import MUTANTS_BY_KIND  # noqa: E402

BY_NAME = {mutant.name: (kind, mutant) for kind, mutants in MUTANTS_BY_KIND.items() for mutant in mutants}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mutant", nargs="?", help="the name of the planted bug")
    parser.add_argument(
        "--moved", action="store_true", help="all that their seeds no longer show; write what is found"
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many to try (default: 500)")
    parser.add_argument("--start", type=int, default=0, help="the first (default: 0)")
    args = parser.parse_args(arguments)
    seeds = range(args.start, args.start + args.seeds)
    if args.moved:
        return _replace_moved(seeds)
    if args.mutant not in BY_NAME:
        print(f"there is no planted bug {args.mutant!r}: choose one of {sorted(BY_NAME)}", file=sys.stderr)
        return 2
    return 1 if _search(args.mutant, seeds) is None else 0


def _replace_moved(seeds: range) -> int:
    code = 0
    with multiprocessing.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        moved = [name for name, shown in pool.imap(_shown, BY_NAME, chunksize=1) if not is_a_finding(shown)]
        print(
            f"{len(moved)} of {len(BY_NAME)} planted bugs are not shown by their seeds: {sorted(moved)}",
            flush=True,
        )
        for name, found in zip(
            moved, pool.imap(partial(_search, seeds=seeds), moved, chunksize=1), strict=True
        ):
            if found is None:
                code = 1
            else:
                _write(name, found)
    return code


def _shown(name: str) -> tuple[str, Violation | None]:
    kind, mutant = BY_NAME[name]
    return name, _violation(kind, mutant.seed, mutant)


def _search(name: str, seeds: range) -> int | None:
    """Print the first of the seeds that shows a planted bug, and return it."""
    kind, mutant = BY_NAME[name]
    for seed in _candidates(kind, mutant, seeds):
        violation = _violation(kind, seed, mutant)
        if not is_a_finding(violation):
            continue
        without = _violation(kind, seed)
        if without is None:
            print(f"{name}: seed {seed} of {kind.value}, {violation}", flush=True)
            return seed
        print(f"without a planted bug, too: seed {seed} of {kind.value}, {without}", flush=True)
    print(
        f"{name}: not shown by the seeds of {kind.value} from {seeds.start} to {seeds.stop - 1}", flush=True
    )
    return None


def _candidates(kind: SeedKind, mutant: Mutant, seeds: range) -> list[int]:
    known = {other.seed for other in MUTANTS_BY_KIND[kind]}
    rates = {seed: 1.0 if mutant.needs is None else mutant.needs(DRAW[kind](seed)) for seed in seeds}
    tried = (seed for seed, rate in rates.items() if rate > 0.0)
    return sorted(tried, key=lambda seed: (seed not in known, -rates[seed], seed))


def _violation(kind: SeedKind, seed: int, mutant: Mutant | None = None) -> Violation | None:
    """Return the violation of a seed, with a planted bug or without."""
    if mutant is None:
        return run_seed(seed, kind).violation
    with mutant.planted():
        return run_seed(seed, kind).violation


def _write(name: str, seed: int) -> None:
    """Put a seed into the sources, in the place of the one that the bug has there: behind its name and who had it."""
    place = re.compile(rf'(\bplanted\(\s*"{re.escape(name)}",\s*(?:"[^"]*"|\w+),\s*)\d+\b')
    for path in (TESTS / "sim").glob("*mutants.py"):
        text = path.read_text()
        if place.search(text):
            path.write_text(place.sub(rf"\g<1>{seed}", text, count=1))
            return
    raise LookupError(f"no planted({name!r}, …, seed, …) in {TESTS / 'sim'}")


if __name__ == "__main__":
    sys.exit(main())
