"""Histories of the simulator are behaviours of the model, and those of planted bugs are not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from model.test_batches import PLANTED_BUGS
from penstock.core.batches.offsets import SharedLimits, StreamOffset
from penstock.core.leases.lease import BatchClaim, Lease, WorkerRun, name_run
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock_sim.kinds import SeedKind
from penstock_sim.model_batch_log import (
    Changed,
    Committed,
    Entry,
    Planned,
    ReadByAction,
    trace_of_query,
)
from penstock_sim.model_batches import BatchTrace
from penstock_sim.model_log import trace_of_log
from penstock_sim.model_trace import Event, Trace, trace_of
from penstock_sim.run import run_scenario
from penstock_sim.seed_kinds import DRAW
from sim.claim_mutants import CLAIM_MUTANTS, UNSEEN
from sim.mutants import MUTANTS

TRACES = Path(__file__).parents[2] / "model" / "traces.py"
SECOND_CREATION = "a deleted lease is created again"
REFUSED = {
    "delivery without a deadline": "Begin",
    "end before the children": "End",
    "first sight counts as dead": "Take",
    SECOND_CREATION: "Create",
}


def compared(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TRACES, "--deadline", "500", *arguments], capture_output=True, text=True, check=False
    )


def test_histories_of_the_simulator_are_behaviours_of_the_model() -> None:
    done = compared("--seeds", "0:20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("20 of 20 histories are behaviours of the model")


def test_histories_of_queries_are_behaviours_of_the_model() -> None:
    done = compared("--kind", "queries", "--seeds", "0:12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("18 of 18 histories are behaviours of the model")


def test_histories_of_queries_with_planted_bugs_are_refused() -> None:
    assert CLAIM_MUTANTS.keys() | UNSEEN.keys() == PLANTED_BUGS.keys()
    done = compared("--kind", "queries", "--mutants")
    assert done.returncode == 0, done.stdout + done.stderr


def trace_with_second_creation() -> Trace:
    scenario = DRAW[SeedKind.CONSUMERS](4)
    trace = trace_of(SECOND_CREATION, scenario, run_scenario(scenario))
    deleted = next(event for event in trace.events if event[0] == "Delete" and event[3] == "answered")
    row = [True, 0, "none", "none", 0, 0]
    trace.events.append(["Create", deleted[1], deleted[2], "answered", row, 0, False])
    return trace


def wrote(kind: str, key: str, counter: int, owner: str, at: int, position: int = 0) -> Event:
    row = [counter >= 0, max(counter, 0), owner, "none", at, int(counter > 0)]
    return [kind, "w", key, "answered", row, position, False]


def small_trace(name: str, parents: dict[str, list[str]], *events: Event) -> Trace:
    return Trace(name, ["w"], [], parents, 3, [], [], list(events))


def trace_with_deleted_row() -> Trace:
    """A user deletes the row of a merged shard that is being read, after the row of one parent has been deleted."""
    parents: dict[str, list[str]] = {"p": [], "q": [], "m": ["p", "q"]}
    events = [wrote("Create", key, 0, "none", 0) for key in parents]
    for key in "pq":
        events += [wrote("Take", key, 1, "w", 0), ["Drain", "w", key, 0], wrote("End", key, 2, "none", 4)]
    events += [wrote("Take", "m", 1, "w", 0), ["Begin", "w", "m", False], ["Deliver", "w", "m", 1, False]]
    events += [wrote("Checkpoint", "m", 2, "w", 1, 1), wrote("Delete", "p", -1, "none", 0)]
    events += [["Gone", "none", "m"], ["Begin", "w", "m", False], ["Deliver", "w", "m", 2, False]]
    return small_trace("deleted row", parents, *events)


def trace_with_second_adoption() -> Trace:
    """A worker gives up a lease whose deadline has passed, and renews the row, which still has its name."""
    return small_trace(
        "adopted again",
        {"s": []},
        wrote("Create", "s", 0, "none", 0),
        wrote("Take", "s", 1, "w", 0),
        ["Deliver", "w", "s", 1, False],
        wrote("Checkpoint", "s", 2, "w", 1, 1),
        ["Deliver", "w", "s", 2, False],
        ["Pause", "w", "s"],
        wrote("Renew", "s", 3, "w", 1),
        wrote("Release", "s", 4, "none", 1),
    )


def trace_with_handover_to_kcl_3() -> Trace:
    """A worker of KCL 3 gets a lease that it has asked for; its first write is a checkpoint."""
    events = [
        wrote("Create", "s", 0, "none", 0),
        wrote("Take", "s", 1, "w", 0),
        ["RequestHandover", "kcl", "s", "answered", [True, 1, "kcl", "w", 0, 0], 0, False],
        wrote("Release", "s", 2, "kcl", 1, 1),
        ["JavaCheckpoint", "kcl", "s", "answered", [True, 3, "kcl", "none", 2, 0], 2, False],
    ]
    return Trace("KCL 3", ["w"], ["kcl"], {"s": []}, 3, ["kcl"], [], events, is_log=True)


AT = [at_record(str(number)) for number in range(4)]
RUN, NEXT_RUN = WorkerRun(1, name_run("q", "a")), WorkerRun(2, name_run("q", "b"))
BATCH = StreamOffset(
    1, "q", shards={"s": TRIM_HORIZON}, limit=SharedLimits(10, None, ("s",)), runs=((1, RUN.name),)
)
CLAIM = BatchClaim("q", 1, RUN.name, TRIM_HORIZON, AT[2], b"note", planned_by=RUN.name)
TAKEN = Lease("s", 1, "q", run=RUN)
CLAIMED = replace(TAKEN, claims=(CLAIM,))
AGAIN = replace(CLAIMED, counter=2, run=NEXT_RUN)
KILLED_QUERY: dict[str, Entry] = {
    "created": Changed(1, "s", Lease("s")),
    "taken": Changed(2, "s", TAKEN),
    "planned": Planned(3, BATCH),
    "claimed": Changed(4, "s", CLAIMED),
    "read": ReadByAction(5, 1, {"s": (AT[1], AT[2])}),
    "the next process": Changed(6, "s", AGAIN),
    "read again": ReadByAction(7, 1, {"s": (AT[1], AT[2])}),
    "committed": Committed(8, 1),
    "promoted": Changed(9, "s", replace(AGAIN, checkpoint=AT[2])),
    "planned again": Planned(10, replace(BATCH, batch=2, shards={"s": AT[2]})),
}
"""A driver is killed in its first batch, which holds the first two of three records."""
ALTERED: dict[str, tuple[str, Entry]] = {
    "a repeated batch has another end": ("Read", ReadByAction(7, 1, {"s": (AT[1], AT[3])})),
    "a repeated batch lacks its first record": ("Read", ReadByAction(7, 1, {"s": (AT[2], AT[2])})),
    "promoted before the commit": ("Promote", Changed(7, "s", replace(AGAIN, checkpoint=AT[2]))),
    "claimed again": (
        "Claim",
        Changed(7, "s", replace(AGAIN, claims=(replace(CLAIM, run=NEXT_RUN.name, end=AT[3]),))),
    ),
}


def query_trace(name: str, entry: Entry | None = None) -> BatchTrace:
    entries = KILLED_QUERY if entry is None else {**KILLED_QUERY, "read again": entry}
    return trace_of_query(name, "q", entries.values(), {"s": ()}, {"s": AT[1:]})


def test_a_killed_query_behaves_as_the_model_unless_a_repeated_batch_differs(tmp_path: Path) -> None:
    log = [(entry.key, entry.row) for entry in KILLED_QUERY.values() if isinstance(entry, Changed)]
    leases = trace_of_log("its leases", log, (), {"s": []})
    assert ["Exit", "q", "none"] in leases.events
    traces = [
        leases,
        query_trace("killed"),
        *(query_trace(name, entry) for name, (_, entry) in ALTERED.items()),
    ]
    arguments = list[str | Path]()
    for number, trace in enumerate(traces):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(asdict(trace), default=sorted))
        arguments += ["--file", path]
    done = compared(*arguments)
    assert f"2 of {len(ALTERED) + 2} histories are behaviours of the model" in done.stdout, done.stderr
    for name, (event, _) in ALTERED.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{name}, "))
        assert f"is refused: {{'name': '{event}', " in line


def test_any_worker_that_has_lost_a_lease_may_have_written_a_late_checkpoint(tmp_path: Path) -> None:
    """The first reader has lost the lease; the second one, which is the last before the present reader, has released it."""
    lost = [Lease("s"), Lease("s", 1, "a"), Lease("s", 2, "b"), Lease("s", 3), Lease("s", 4, "c")]
    released = [Lease("s"), Lease("s", 1, "b"), Lease("s", 2)]
    arguments = list[str | Path]()
    for name, rows in {"lost": lost, "released": released}.items():
        log = [("s", row) for row in (*rows, replace(rows[-1], checkpoint=AT[2]))]
        (tmp_path / f"{name}.json").write_text(
            json.dumps(asdict(trace_of_log(name, log, (), {"s": []})), default=sorted)
        )
        arguments += ["--file", tmp_path / f"{name}.json"]
    done = compared(*arguments)
    assert "1 of 2 histories are behaviours of the model" in done.stdout, done.stdout + done.stderr
    assert any(line.startswith("released: ") and "is refused" in line for line in done.stdout.splitlines())


def trace_with_bug(name: str) -> Trace:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    scenario = DRAW[SeedKind.CONSUMERS](mutant.seed)
    with mutant.planted():
        return trace_of(name, scenario, run_scenario(scenario))


def trace_with_assigned_end() -> Trace:
    """A leader of KCL 3 assigns an ended lease, which has no owner any more, to the worker that has read it."""
    taken = Lease("s", 1, "q", run=RUN)
    ended = replace(taken, counter=2, owner=None, checkpoint=SHARD_END)
    log = [("s", row) for row in (Lease("s"), taken, ended, replace(ended, counter=3, owner="q"))]
    return trace_of_log("assigned after its end", log, ["kcl"], {"s": []})


RIGHT = (
    trace_with_deleted_row(),
    trace_with_second_adoption(),
    trace_with_handover_to_kcl_3(),
    trace_with_assigned_end(),
)


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, arguments = tmp_path_factory.mktemp("traces"), list[str | Path]()
    for name in REFUSED:
        path = folder / f"{name}.json"
        trace = trace_with_second_creation() if name == SECOND_CREATION else trace_with_bug(name)
        path.write_text(json.dumps(asdict(trace)))
        arguments += ["--file", path]
    for trace in RIGHT:
        path = folder / f"{trace.name}.json"
        path.write_text(json.dumps(asdict(trace)))
        arguments += ["--file", path]
    done = compared(*arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", REFUSED)
def test_a_history_with_a_planted_bug_is_refused_at_the_event_that_breaks_a_rule(
    name: str, refusals: str
) -> None:
    line = next(line for line in refusals.splitlines() if line.startswith(f"{name}: "))
    assert f"is refused: ['{REFUSED[name]}', " in line


def test_deleted_rows_leases_that_are_adopted_again_and_writes_of_kcl_3_are_behaviours_of_the_model(
    refusals: str,
) -> None:
    assert f"{len(RIGHT)} of {len(REFUSED) + len(RIGHT)} histories are behaviours of the model" in refusals
