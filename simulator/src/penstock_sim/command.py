"""`penstock simulate`: run the deterministic simulator over many seeds, or count the calls of a large fleet.

Every seed is a fleet of workers with its own faults, stream and lease table, in virtual time. A
seed that breaks an invariant is shown with the end of its history and the command that runs it again. With `--fleet`
one fleet of any size goes through starts, crashes and reshards, and its reads, writes and moves are counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from penstock.cli.progress_line import ProgressLine
from penstock.errors import OptionError
from penstock_sim.fleet_command import LEASES_PER_WORKER, POLICIES, SCENARIOS, run_fleet_command

if TYPE_CHECKING:
    from penstock_sim.run import SeedResult

DESCRIPTION = (
    "Prove the coordination of a fleet in a simulated world: many seeds, faults, virtual time. "
    "With --fleet: count the calls of a large fleet."
)
_KINDS: Final = {
    "queries": "fleets of Spark queries and consumers instead of consumers alone (needs pyarrow)",
    "kcl3": "fleets of Java KCL 3 workers, one of which leads, with consumers in them; some of the fleets migrate from 2.x, "
    "some have a Spark query (needs pyarrow)",
    "producers": "producers, whose calls are refused in part, arrive late and lose their answers; with consumers behind some of "
    "them",
    "sinks": "Spark queries that write to a stream, whose tasks and drivers are killed, run twice and refused; with consumers "
    "behind some of them (needs pyarrow)",
    "streams": "consumers of several streams with one lease table: streams that enter the workers' lists and leave them, are "
    "deleted, created anew and denied",
    "queues": "workers of a queue: they crash, freeze and restart, their handlers fail and hang, and their calls are refused in "
    "part, arrive late and lose their answers",
}
"""The kinds of seeds beside fleets of consumers."""
_TAIL_LINES = 30
_TELLING_SEEDS_MIN = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument(
        "--seeds", type=int, default=300, metavar="N", help="how many seeds to run (default: 300)"
    )
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed (default: 0)")
    for kind, description in _KINDS.items():
        parser.add_argument(f"--{kind}", action="store_true", help=description)
    parser.add_argument("--json", action="store_true", help="one JSON document per seed, and one at the end")
    parser.add_argument(
        "--history",
        type=int,
        default=_TAIL_LINES,
        metavar="LINES",
        help=f"events of a failing seed that are shown (default: {_TAIL_LINES})",
    )
    parser.add_argument(
        "--fleet",
        type=int,
        metavar="N",
        help="count the reads, writes and moves of a fleet of N workers instead of running seeds",
    )
    parser.add_argument(
        "--leases",
        type=int,
        metavar="N",
        help=f"with --fleet: leases in the table (default: {LEASES_PER_WORKER} for each worker)",
    )
    parser.add_argument(
        "--scenario",
        action="append",
        choices=SCENARIOS,
        help="with --fleet: only this one; may be given several times",
    )
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        default="even",
        help="with --fleet: who gets which lease; kcl2 is the rule of the KCL 2.x (default: even)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the seeds, or the fleet; 0 when no invariant was broken, else 1."""
    _check(args)
    return _run_seeds(args) if args.fleet is None else run_fleet_command(args)


def _run_seeds(args: argparse.Namespace) -> int:
    from penstock_sim.kinds import SeedKind
    from penstock_sim.run import run_seed
    from penstock_sim.situations import expected, never_met

    kind = next((kind for kind in SeedKind if getattr(args, kind.value, False)), SeedKind.CONSUMERS)
    line = ProgressLine(is_shown=not args.json)
    began_s = time.monotonic()
    violations = 0
    virtual_s = 0.0
    met: Counter[str] = Counter()
    for count, seed in enumerate(range(args.start, args.start + args.seeds), start=1):
        result = run_seed(seed, kind)
        virtual_s += result.virtual_s
        violations += result.violation is not None
        met += result.met
        line.clear()
        if args.json:
            print(json.dumps(_describe(result, args.history)), flush=True)
        elif result.violation is not None:
            _show(result, args.history, "" if kind is SeedKind.CONSUMERS else f" --{kind.value}")
        line.draw(f"{count}/{args.seeds} seeds, {violations} violations", count / args.seeds)
    line.clear()
    per_s = args.seeds / max(time.monotonic() - began_s, 1e-9)
    if args.json:
        summary = {"seeds": args.seeds, "violations": violations, "seeds_per_s": round(per_s, 1)}
        came_up = {"met": dict(sorted(met.items())), "never_met": never_met(met, kind)}
        print(json.dumps({**summary, "virtual_hours": round(virtual_s / 3600, 2), **came_up}))
    else:
        _show_met(met)
        _show_never(never_met(met, kind), len(expected(kind)), args.seeds)
        print(f"{virtual_s / 3600:.1f} virtual hours")
        print(f"{args.seeds} seeds, {violations} violations, {per_s:.1f} seeds/s")
    return 1 if violations else 0


def _show_met(met: Counter[str]) -> None:
    """Print how often each situation occurred, a line for each kind."""
    kinds: dict[str, list[str]] = {}
    for key, count in sorted(met.items()):
        kind, _, what = key.partition(": ")
        kinds.setdefault(kind, []).append(f"{what} {count}")
    for kind, counts in kinds.items():
        print(f"{kind}: {', '.join(counts)}")


def _show_never(never: list[str], expected_count: int, seed_count: int) -> None:
    """Print the situations that never occurred; of a short run only their number, since it lacks most of them."""
    if not never:
        return
    if seed_count >= _TELLING_SEEDS_MIN:
        print(f"never came up: {', '.join(never)}")
        return
    print(
        f"{expected_count - len(never)} of {expected_count} expected situations came up; "
        f"the others are named by --json, or with --seeds {_TELLING_SEEDS_MIN} and more"
    )


def _check(args: argparse.Namespace) -> None:
    for name, smallest in (("seeds", 1), ("start", 0), ("history", 0), ("fleet", 1), ("leases", 2)):
        value = getattr(args, name)
        if value is not None and value < smallest:
            raise OptionError(f"--{name} {value}: expected at least {smallest}")
    if sum(getattr(args, kind) for kind in _KINDS) > 1:
        *names, last = (f"--{kind}" for kind in _KINDS)
        raise OptionError(f"{', '.join(names)} and {last} are different worlds: choose one")
    kind = "--queries" if args.queries else "--kcl3" if args.kcl3 else "--sinks" if args.sinks else None
    if kind is not None and find_spec("pyarrow") is None:
        part = "sink" if args.sinks else "source"
        raise OptionError(
            f"{kind} runs the Spark {part}'s own code, which needs pyarrow: pip install 'penstock[spark]'"
        )
    if args.fleet is None and (args.leases is not None or args.scenario):
        raise OptionError("--leases and --scenario describe a fleet: add --fleet with the number of workers")


def _describe(result: SeedResult, line_count: int) -> dict[str, object]:
    document: dict[str, object] = {
        "seed": result.seed,
        "digest": result.digest,
        "virtual_s": round(result.virtual_s, 3),
        "settled_s": round(result.settled_s, 3),
        "violation": None,
    }
    violation = result.violation
    if violation is not None:
        document["violation"] = {
            "invariant": violation.invariant,
            "at_s": violation.at_s,
            "what": violation.what,
        }
        document["history"] = result.story(line_count)
    return document


def _show(result: SeedResult, line_count: int, kind: str) -> None:
    print(f"seed {result.seed}: {result.violation}")
    for line in result.story(line_count):
        print(f"  {line}")
    print(f"  again: penstock simulate{kind} --seeds 1 --start {result.seed} --history 200")
