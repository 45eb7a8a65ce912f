"""Several streams in one lease table in the simulator: each is read by itself, whatever happens to another."""

import pytest
from msgspec.structs import replace

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create, Take
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.core.stream_identity import StreamIdentity
from penstock_sim.events.base import HistoryEntry
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import ProcessPaused
from penstock_sim.events.reading import DeliveredFrom, ReaderStarted, RecordsHandled
from penstock_sim.events.streams import (
    ListChanged,
    RecordPut,
    ShardCreated,
    StreamCreated,
    StreamDeleted,
    StreamsChosen,
    StreamUnlisted,
)
from penstock_sim.history import History
from penstock_sim.plan import EPOCH_MS, FaultPlan
from penstock_sim.reading_presets import draw_streams_scenario
from penstock_sim.run import run_scenario
from penstock_sim.shrinking import as_test, shrink
from penstock_sim.streams_checkers import DeletedStaysAsItWas, OthersGoOn, OwnStreamOnly
from sim.judging import verdict


def test_worlds_have_two_to_four_streams_that_differ_and_every_cold_start():
    plans = [draw_streams_scenario(seed).streams for seed in range(100)]
    assert {len(plan.streams) for plan in plans} == {2, 3, 4}
    assert {plan.cold_start_s for plan in plans} == {None, 1.0, 5.0}
    assert any(len({stream.start for stream in plan.streams}) > 1 for plan in plans)
    assert any(len({stream.retention_s for stream in plan.streams}) > 1 for plan in plans)
    assert any(stream.epoch is not None for plan in plans for stream in plan.streams)
    assert sum(plan.is_calm for plan in plans) == 25


def test_a_world_without_anything_that_happens_to_its_streams_is_clean():
    drawn = draw_streams_scenario(3)
    plan = replace(
        drawn.streams,
        listed=tuple(stream.name for stream in drawn.streams.streams),
        rollouts=(),
        deletions=(),
    )
    faults = replace(drawn.faults, refusals_per_min=0.0)
    assert run_scenario(replace(drawn, streams=plan, faults=faults)).violation is None


def test_a_failing_world_is_shrunk_to_what_happens_to_its_streams():
    drawn = next(scenario for scenario in map(draw_streams_scenario, range(50)) if scenario.streams.deletions)
    found = shrink(drawn, lambda scenario: bool(scenario.streams.deletions), runs_max=1000)
    assert (found.streams.deletions, found.streams.rollouts) == (drawn.streams.deletions, ())
    assert found.faults == FaultPlan()
    assert "StreamsPlan(streams=(PlannedStream(" in as_test(found, drawn, draw_streams_scenario)


# --- the checkers -----------------------------------------------------------------------------------------------

A, B = "1:a:1", "1:b:1"
OF_A, OF_B = (StreamIdentity(f"arn:aws:kinesis:eu-west-1:1:stream/{name}", 1000) for name in "ab")
BEGIN = [
    (0.0, StreamCreated(A, "a", str(OF_A), TRIM_HORIZON, None)),
    (0.0, StreamCreated(B, "b", str(OF_B), TRIM_HORIZON, None)),
    (0.0, ShardCreated(f"{A}:s", ())),
    (0.0, ShardCreated(f"{B}:s", ())),
    (1.0, StreamsChosen("w#1", (A,))),
]


def take(key, **more):
    return LeaseWritten("w#1", Take(key, 0, "w"), Lease(key), Lease(key, owner="w", counter=1, **more))


def create(key):
    return LeaseWritten("w#1", Create(Lease(key)), None, Lease(key, checkpoint=at_record("5")))


def put(at_s, key, number):
    return (at_s, RecordPut(key, number, EPOCH_MS + int(at_s * 1000)))


DONE = RecordsHandled("w#1", f"{A}:s", 1, (7,))
DELETED = StreamDeleted(A)
STILL = ProcessPaused("w#1", 90.0)


@pytest.mark.parametrize(
    ("kind", "lines", "expected"),
    [
        (OwnStreamOnly, [(2.0, take(f"{A}:s"))], None),
        (OwnStreamOnly, [(2.0, take(f"{A}:s", stream=OF_A))], None),
        (OwnStreamOnly, [(2.0, take(f"{A}:s", stream=OF_B))], "T1"),
        (OwnStreamOnly, [(2.0, take(f"{B}:s"))], "T1"),
        (OwnStreamOnly, [(2.0, take("s"))], "T1"),
        (OwnStreamOnly, [(2.0, take(f"{A}:s", children=frozenset({f"{B}:s"})))], "T1"),
        (OwnStreamOnly, [(2.0, ReaderStarted("w#1", f"{B}:s", 1, TRIM_HORIZON))], "T1"),
        (OwnStreamOnly, [(2.0, DeliveredFrom("w#1", f"{A}:s", 1, (("a", "s"),)))], None),
        (OwnStreamOnly, [(2.0, DeliveredFrom("w#1", f"{A}:s", 1, (("b", "s"),)))], "T1"),
        (DeletedStaysAsItWas, [(2.0, DELETED), (30.0, create(f"{A}:s"))], "T2"),
        (DeletedStaysAsItWas, [(2.0, DELETED), (30.0, create(f"{B}:s"))], None),
        (DeletedStaysAsItWas, [(2.0, DELETED), (3.0, create(f"{A}:s"))], None),
        (DeletedStaysAsItWas, [(1.5, STILL), (2.0, DELETED), (91.0, create(f"{A}:s"))], None),
        (DeletedStaysAsItWas, [(1.5, STILL), (2.0, DELETED), (120.0, create(f"{A}:s"))], "T2"),
        (DeletedStaysAsItWas, [(2.0, DELETED), (30.0, STILL), (91.0, create(f"{A}:s"))], "T2"),
        (OthersGoOn, [put(2.0, f"{A}:s", 7), put(70.0, f"{A}:s", 8)], "T3"),
        (OthersGoOn, [put(2.0, f"{A}:s", 7), (3.0, DONE), put(70.0, f"{A}:s", 8)], None),
        (OthersGoOn, [put(2.0, f"{A}:s", 7), put(50.0, f"{A}:s", 8)], None),
        (OthersGoOn, [put(2.0, f"{A}:s", 7), (3.0, DELETED), put(70.0, f"{A}:s", 8)], None),
        (OthersGoOn, [put(2.0, f"{B}:s", 7), put(70.0, f"{A}:s", 8)], None),
        (OthersGoOn, [put(2.0, f"{A}:s", 7), (3.0, ListChanged("w", ("b",))), put(70.0, f"{A}:s", 8)], None),
    ],
)
def test_what_a_stream_has_to_do_with_another(kind, lines, expected):
    assert verdict(kind, [*BEGIN, *lines]) == expected


def test_a_stream_that_is_gone_or_left_out_owes_nothing():
    history = History(TRIM_HORIZON)
    for at_s, line in [*BEGIN, (2.0, DELETED), (3.0, StreamUnlisted(B))]:
        history.take_in(HistoryEntry(at_s, line))
    assert not history.is_owed(f"{A}:s")
    assert not history.is_owed(f"{B}:s")
    assert (history.stream_of(f"{A}:s").is_deleted, history.stream_of(f"{B}:s").is_deleted) == (True, False)
