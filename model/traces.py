"""Compare histories with the models: TLC decides whether each is a behaviour of `Leases.tla` or `Batches.tla`.

`python model/traces.py --seeds 0:2000` runs fleets of the simulator and compares their histories; with `--kind queries` it
compares those of Spark queries. `--file history.json` compares histories of fleets that a test has saved. The exit status is 1 if a history is refused: its first event that no action of
the model produces is printed, with the row before it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from check import fail, run_tlc

from penstock_sim.kinds import SeedKind
from penstock_sim.model_batches import BatchTrace, batch_traces
from penstock_sim.model_trace import Trace, trace_of
from penstock_sim.run import run_scenario
from penstock_sim.seed_kinds import DRAW

HERE = Path(__file__).resolve().parent
_ACCEPTED = re.compile(r'<<"accepted", (\d+)>>')
_AT = re.compile(r'<<\s*"at",\s*(\d+),\s*(\d+),(.*?)>>\n', re.DOTALL)
CHUNK = 50
_REFUSED_MIN = {SeedKind.CONSUMERS: 0.95, SeedKind.QUERIES: 0.8}
"""The share of the planted bugs that are refused."""
AnyTrace: TypeAlias = Trace | BatchTrace
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


def seed_traces(kind: SeedKind, seed: int) -> Sequence[AnyTrace]:
    """Run a seed and return its history as a trace, or the histories of its queries as one each."""
    scenario = DRAW[kind](seed)
    name, result = f"seed {seed} of {kind.value}", run_scenario(scenario)
    if kind is SeedKind.QUERIES:
        return batch_traces(name, scenario, result)
    return [trace_of(name, scenario, result)]


def compare(traces: Sequence[AnyTrace], deadline_s: float) -> list[Refused]:
    """Compare histories in one run of TLC; return those that are no behaviours of the model."""
    accepted = {int(number) for number in _ACCEPTED.findall(_run(traces, deadline_s))}
    refused = [
        trace for number, trace in enumerate(traces, start=1) if number not in accepted and trace.events
    ]
    return _explain(refused, deadline_s) if refused else []


def _explain(traces: Sequence[AnyTrace], deadline_s: float) -> list[Refused]:
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


def _run(traces: Sequence[AnyTrace], deadline_s: float, *, is_verbose: bool = False) -> str:
    module = "Batches" if isinstance(traces[0], BatchTrace) else "Leases"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in (module, f"Trace{module}"):
            (folder / f"{each}.tla").write_text((HERE / f"{each}.tla").read_text())
        (folder / "Traces.tla").write_text(_module(traces, is_verbose=is_verbose))
        (folder / f"Trace{module}.cfg").write_text("SPECIFICATION Spec\nVIEW View\n")
        done = run_tlc("histories", folder, f"Trace{module}", ["-workers", "1"], deadline_s, *_QUICK_START)
        if "states left on queue" not in done.stdout or "Error:" in done.stdout:
            fail(f"TLC could not compare the histories:\n{done.stdout[-6000:]}{done.stderr}")
    return done.stdout


def _module(traces: Sequence[AnyTrace], *, is_verbose: bool) -> str:
    lines = ["---- MODULE Traces ----", "LOCAL INSTANCE TLC", f"Verbose == {_tla(is_verbose)}"]
    for number, trace in enumerate(traces, start=1):
        # TLC's parser takes a time that is quadratic in the length of a line.
        lines += [f"E{number} == <<", ",\n".join(map(_tla, trace.events)), ">>"]
        constants = {
            "shards": frozenset(trace.parents),
            "parents": {shard: frozenset(parents) for shard, parents in trace.parents.items()},
            "records": trace.records,
        }
        if isinstance(trace, BatchTrace):
            constants |= {"holds": {shard: frozenset(found) for shard, found in trace.holds.items()}}
        else:
            sets = {
                name: frozenset(getattr(trace, name)) for name in ("workers", "java", "unasked", "unaware")
            }
            constants |= {**sets, "isLog": trace.is_log}
        lines.append(f"T{number} == [events |-> E{number}, {_tla(constants)[1:]}")
    names = ",".join(f"T{number}" for number in range(1, len(traces) + 1))
    return "\n".join([*lines, f"Traces == <<{names}>>", "===="])


def _tla(value: Any) -> str:
    match value:
        case bool():
            text = "TRUE" if value else "FALSE"
        case frozenset():
            text = f"{{{','.join(map(_tla, sorted(value)))}}}"
        case list():
            text = f"<<{','.join(map(_tla, value))}>>"
        case dict() if value and all(key.isidentifier() for key in value):
            text = f"[{','.join(f'{key} |-> {_tla(each)}' for key, each in value.items())}]"
        case dict():
            text = " @@ ".join(f"({_tla(key)} :> {_tla(each)})" for key, each in value.items()) or "<<>>"
        case str():
            text = f'"{value}"'
        case _:
            text = str(value)
    return text


def mutant_traces(kind: SeedKind) -> tuple[list[AnyTrace], list[str]]:
    """Run the planted bugs of the simulator's tests; return the histories of those that the model can see, and the other names."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from sim.claim_mutants import CLAIM_MUTANTS
    from sim.claim_mutants import UNSEEN as UNSEEN_CLAIMS
    from sim.lease_mutants import LONGER, UNSEEN
    from sim.mutants_by_kind import MUTANTS_BY_KIND

    traces: list[AnyTrace] = []
    unseen = []
    for mutant in MUTANTS_BY_KIND[kind]:
        name, seed = mutant.name, LONGER.get(mutant.name, mutant.seed)
        if kind is SeedKind.QUERIES:
            seed = CLAIM_MUTANTS.get(name, -1)
        why = (UNSEEN | UNSEEN_CLAIMS).get(name)
        if why or seed < 0:
            unseen.append(f"{name}: {why or 'see OUTSIDE in tests/model/test_batches.py'}")
            continue
        with mutant.planted():
            traces += [replace(trace, name=name) for trace in seed_traces(kind, seed)]
    return traces, unseen


def compare_mutants(kind: SeedKind, deadline_s: float) -> int:
    """Compare the histories of planted bugs, and print which the model refuses."""
    traces, unseen = mutant_traces(kind)
    refused = {each.name: each for each in compare(traces, deadline_s)}
    names = list(dict.fromkeys(trace.name for trace in traces))
    for name in names:
        found = refused.get(name)
        print(
            f"{name}: " + ("accepted" if found is None else f"refused at event {found.event}, {found.what}")
        )
    for line in unseen:
        print(f"not in the model, {line}")
    print(
        f"{len(refused)} of {len(names)} planted bugs are refused; {len(unseen)} concern nothing that the model has"
    )
    return int(len(refused) < _REFUSED_MIN[kind] * len(names))


def main() -> int:
    """Compare what the command line names."""
    parser = argparse.ArgumentParser(description="Compare histories with the models of leases and batches.")
    parser.add_argument("--seeds", metavar="FROM:TO", help="seeds of the simulator")
    parser.add_argument("--kind", choices=["consumers", "queries"], default="consumers")
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
        return compare_mutants(SeedKind(args.kind), args.deadline)
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


def _batches(args: argparse.Namespace) -> Iterator[Sequence[AnyTrace]]:
    saved = [_load(path) for path in args.file]
    for kind in (Trace, BatchTrace):
        of_kind = [trace for trace in saved if isinstance(trace, kind)]
        if of_kind:
            yield of_kind
    seeds = range(*map(int, args.seeds.split(":"))) if args.seeds else range(0)
    for begin in range(0, len(seeds), CHUNK):
        yield [
            trace for seed in seeds[begin : begin + CHUNK] for trace in seed_traces(SeedKind(args.kind), seed)
        ]


def _load(path: Path) -> AnyTrace:
    saved = json.loads(path.read_text())
    if "holds" not in saved:
        return Trace(**saved)
    sets = ("reads", "unread")
    events = [
        {name: frozenset(value) if name in sets else value for name, value in event.items()}
        for event in saved.pop("events")
    ]
    return BatchTrace(**saved, events=events)


def _save(trace: AnyTrace, folder: Path) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{trace.name.replace(' ', '-')}.json").write_text(json.dumps(asdict(trace), default=sorted))


if __name__ == "__main__":
    sys.exit(main())
