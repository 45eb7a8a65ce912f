"""Compare histories with the model of the lease protocol: TLC decides whether each is a behaviour of `Leases.tla`.

`python model/traces.py --seeds 0:2000` runs fleets of the simulator and compares their histories; `--file history.json`
compares histories that a test has saved. The exit status is 1 if a history is refused: its first event that no action of
the model produces is printed, with the row before it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from check import fail, run_tlc

from penstock_sim.kinds import SeedKind
from penstock_sim.model_trace import Trace, trace_of
from penstock_sim.run import run_scenario
from penstock_sim.seed_kinds import DRAW

HERE = Path(__file__).resolve().parent
_ACCEPTED = re.compile(r'<<"accepted", (\d+)>>')
_AT = re.compile(r'<<\s*"at",\s*(\d+),\s*(\d+),(.*?)>>\n', re.DOTALL)
CHUNK = 100
_QUICK_START = ("-XX:-DontCompileHugeMethods", "-XX:TieredStopAtLevel=1")
"""A history is short: TLC's evaluator, one method of 10,000 bytecodes, should be compiled, and soon."""


@dataclass(frozen=True)
class Refused:
    """A history that is no behaviour of the model.

    Args:
        name: Of the history.
        event: Number of the first event that no action of the model produces, from 0.
        what: The event.
        states: What the model had of the row and of the worker, before it.
    """

    name: str
    event: int
    what: list[Any]
    states: list[str]


def seed_trace(kind: SeedKind, seed: int) -> Trace:
    """Run a seed and return its history as a trace."""
    scenario = DRAW[kind](seed)
    return trace_of(f"seed {seed} of {kind.value}", scenario, run_scenario(scenario))


def compare(traces: Sequence[Trace], deadline_s: float) -> list[Refused]:
    """Compare histories in one run of TLC; return those that are no behaviours of the model."""
    accepted = {int(number) for number in _ACCEPTED.findall(_run(traces, deadline_s))}
    refused = [
        trace for number, trace in enumerate(traces, start=1) if number not in accepted and trace.events
    ]
    return _explain(refused, deadline_s) if refused else []


def _explain(traces: Sequence[Trace], deadline_s: float) -> list[Refused]:
    output = _run(traces, deadline_s, is_verbose=True)
    reached: dict[int, tuple[int, list[str]]] = {}
    for number, event, state in _AT.findall(output):
        last, states = reached.get(int(number), (0, []))
        if int(event) > last:
            states = []
        if int(event) >= last and state not in states:
            reached[int(number)] = (int(event), [*states, " ".join(state.split())])
    found = []
    for number, trace in enumerate(traces, start=1):
        event, states = reached.get(number, (1, []))
        found.append(Refused(trace.name, event - 1, trace.events[event - 1], states))
    return found


def _run(traces: Sequence[Trace], deadline_s: float, *, is_verbose: bool = False) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module in ("Leases.tla", "TraceLeases.tla"):
            (folder / module).write_text((HERE / module).read_text())
        (folder / "Traces.tla").write_text(_module(traces, is_verbose=is_verbose))
        (folder / "TraceLeases.cfg").write_text("SPECIFICATION Spec\nVIEW View\n")
        done = run_tlc("histories", folder, "TraceLeases", ["-workers", "1"], deadline_s, *_QUICK_START)
        if "states left on queue" not in done.stdout or "Error:" in done.stdout:
            fail(f"TLC could not compare the histories:\n{done.stdout[-6000:]}{done.stderr}")
    return done.stdout


def _module(traces: Sequence[Trace], *, is_verbose: bool) -> str:
    lines = ["---- MODULE Traces ----", "LOCAL INSTANCE TLC", f"Verbose == {_tla(is_verbose)}"]
    for number, trace in enumerate(traces, start=1):
        # TLC's parser takes a time that is quadratic in the length of a line.
        lines += [f"E{number} == <<", ",\n".join(map(_tla, trace.events)), ">>"]
        shards = sorted(trace.parents)
        # A value, which TLC has at hand; a function by CASE is evaluated again for each shard of each step.
        parents = " @@ ".join(f"({_tla(shard)} :> {_set(trace.parents[shard])})" for shard in shards)
        lines.append(
            f"T{number} == [workers |-> {_set(trace.workers)}, java |-> {_set(trace.java)}, shards |-> {_set(shards)},"
            f" parents |-> {parents or '<<>>'}, records |-> {trace.records},"
            f" unasked |-> {_set(trace.unasked)}, unaware |-> {_set(trace.unaware)},"
            f" isLog |-> {_tla(trace.is_log)}, events |-> E{number}]"
        )
    names = ",".join(f"T{number}" for number in range(1, len(traces) + 1))
    return "\n".join([*lines, f"Traces == <<{names}>>", "===="])


def _set(values: Iterable[str]) -> str:
    return "{" + ",".join(map(_tla, values)) + "}"


def _tla(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, list):
        return f"<<{','.join(map(_tla, value))}>>"
    return f'"{value}"' if isinstance(value, str) else str(value)


def mutant_traces() -> tuple[list[Trace], list[str]]:
    """Run each planted bug of the simulator's tests; return the histories of those that the model can see, and the other names."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from sim.lease_mutants import LONGER, UNSEEN
    from sim.mutants import MUTANTS

    traces, unseen = [], []
    for mutant in MUTANTS:
        if mutant.name in UNSEEN:
            unseen.append(f"{mutant.name}: {UNSEEN[mutant.name]}")
            continue
        scenario = DRAW[SeedKind.CONSUMERS](LONGER.get(mutant.name, mutant.seed))
        with mutant.planted():
            traces.append(trace_of(mutant.name, scenario, run_scenario(scenario)))
    return traces, unseen


def compare_mutants(deadline_s: float) -> int:
    """Compare the histories of planted bugs, and print which the model refuses."""
    traces, unseen = mutant_traces()
    refused = {each.name: each for each in compare(traces, deadline_s)}
    for trace in traces:
        found = refused.get(trace.name)
        print(
            f"{trace.name}: "
            + ("accepted" if found is None else f"refused at event {found.event}, {found.what}")
        )
    for line in unseen:
        print(f"not in the model, {line}")
    print(
        f"{len(refused)} of {len(traces)} planted bugs are refused; {len(unseen)} concern nothing that the model has"
    )
    return int(len(refused) < 0.95 * len(traces))


def main() -> int:
    """Compare what the command line names."""
    parser = argparse.ArgumentParser(description="Compare histories with the model of the lease protocol.")
    parser.add_argument("--seeds", metavar="FROM:TO", help="seeds of the simulator")
    parser.add_argument("--kind", choices=[kind.value for kind in SeedKind], default="consumers")
    parser.add_argument(
        "--file", type=Path, action="append", default=[], metavar="JSON", help="a saved history"
    )
    parser.add_argument("--mutants", action="store_true", help="histories of planted bugs, which are refused")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write each refused history to it")
    parser.add_argument(
        "--deadline", type=float, default=1800.0, metavar="S", help="seconds for each run of TLC"
    )
    args = parser.parse_args()
    if args.mutants:
        return compare_mutants(args.deadline)
    began_s, count, event_count, refused_count, short = time.monotonic(), 0, 0, 0, 0
    for traces in _batches(args):
        refused = compare(traces, args.deadline)
        count += len(traces)
        event_count += sum(len(trace.events) for trace in traces)
        refused_count += len(refused)
        short += sum(bool(trace.left_out) for trace in traces)
        for each in refused:
            print(
                f"{each.name}: event {each.event} is refused: {each.what}",
                *each.states,
                sep="\n    ",
                flush=True,
            )
            if args.save:
                _save(next(trace for trace in traces if trace.name == each.name), args.save)
        print(
            f"{count} histories, {refused_count} refused, {time.monotonic() - began_s:.0f} s", file=sys.stderr
        )
    print(
        f"{count - refused_count} of {count} histories are behaviours of the model: {event_count:,} events,"
        f" {time.monotonic() - began_s:.0f} s; {short} of them are compared up to an event that the model does not have"
    )
    return int(refused_count > 0)


def _batches(args: argparse.Namespace) -> Iterator[list[Trace]]:
    if args.file:
        yield [Trace(**json.loads(path.read_text())) for path in args.file]
    seeds = range(*map(int, args.seeds.split(":"))) if args.seeds else range(0)
    for begin in range(0, len(seeds), CHUNK):
        yield [seed_trace(SeedKind(args.kind), seed) for seed in seeds[begin : begin + CHUNK]]


def _save(trace: Trace, folder: Path) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{trace.name.replace(' ', '-')}.json").write_text(json.dumps(asdict(trace)))


if __name__ == "__main__":
    sys.exit(main())
