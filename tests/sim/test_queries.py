"""Spark queries in the simulator: the production's planner and tasks under deaths, races, lost answers and stolen leases."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from penstock.cli.main import main
from penstock.core.batches.offsets import StreamOffset
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Claim, Promote, Renew, Reset, Take
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.spark.tasks.task_subscription import TaskSubscription
from penstock_sim.events.base import name_of
from penstock_sim.events.leases import LeaseDeleted, LeaseWritten
from penstock_sim.events.processes import (
    CoordinatorReported,
    MessageLogged,
    ProcessExited,
    ProcessStarted,
    WallClockJumped,
)
from penstock_sim.events.queries import (
    BatchBounded,
    BatchCommitted,
    BatchPlanned,
    BatchRead,
    BatchReadInPart,
    BatchUnread,
    LocationCopied,
    LocationRestored,
    QueryFailed,
    ReadTaskFailed,
    ReadTaskStarted,
    SecondDriverStarted,
    TipProbed,
)
from penstock_sim.events.reading import ReaderEnded, ReaderStarted, RecordsHandled
from penstock_sim.events.streams import RecordPut, RecordsTrimmed, ShardCreated
from penstock_sim.kinds import SeedKind
from penstock_sim.plan import EPOCH_MS
from penstock_sim.query import QueryLog
from penstock_sim.query_checkers import QUERIES
from penstock_sim.query_loss_checkers import QueryLossesReported
from penstock_sim.reading_presets import draw_query_scenario
from penstock_sim.run import run_seed
from penstock_sim.situations import never_met
from penstock_sim.spark_processes import LogConflict
from sim.judging import judge, show

FAN_OUT = {"consumerType": "fan-out"}
PUSHED_SEEDS = {
    8: "a planted bug is found here",
    9: "closing the subscriptions that nobody uses was due again and again at the same moment",
}
"""Seeds that are run with subscriptions too; test_many_seeds.py has more."""


@pytest.mark.parametrize("seed", PUSHED_SEEDS)
def test_no_guarantee_of_a_query_is_broken_where_subscriptions_bring_the_pages(seed):
    result = run_seed(seed, SeedKind.QUERIES, FAN_OUT)
    assert result.violation is None, show(result)
    assert result.met["fan-out: events"] > 0


def test_subscriptions_that_leave_the_rest_of_an_event_behind_are_found(monkeypatch):
    def goes_on(self, _sequence_number, *, is_cut):
        return self.end is None

    monkeypatch.setattr(TaskSubscription, "continue_from", goes_on)
    assert any(run_seed(seed, SeedKind.QUERIES, FAN_OUT).violation for seed in PUSHED_SEEDS)


def test_the_seeds_draw_fleets_of_queries_and_of_queries_with_consumers():
    fleets = {
        (len(scenario.queries), len(scenario.workers) - len(scenario.queries))
        for scenario in map(draw_query_scenario, range(60))
    }
    assert fleets == {(queries, plain) for queries in (1, 2) for plain in (0, 1, 2)}


# --- a checkpoint location ---------------------------------------------------------------------------------------


def offset(batch):
    return StreamOffset(batch=batch, worker="q", shards={"s": at_record(str(batch))})


def test_a_log_takes_each_entry_once_whoever_writes_it():
    log = QueryLog()
    log.add_offset(0, offset(1))
    with pytest.raises(LogConflict, match="offsets/0"):
        log.add_offset(0, offset(1))
    log.commit(0)
    with pytest.raises(LogConflict, match="commits/0"):
        log.commit(0)
    assert log.offset(0) == offset(1)
    assert log.offset(-1) == StreamOffset()


def test_a_log_goes_back_to_an_earlier_state_and_a_copy_does_not():
    log = QueryLog()
    assert not log.restore(0.5)
    for batch in (1, 2, 3):
        log.add_offset(batch - 1, offset(batch))
        log.commit(batch - 1)
    copy = log.copy()
    assert log.restore(0.0)
    assert (len(log.offsets), log.committed_count) == (1, 0)
    assert (len(copy.offsets), copy.committed_count) == (3, 3)


# --- the checkers fail on a history that is made to break them ---------------------------------------------------

SHARDS = [
    ShardCreated("a", ()),
    RecordPut("a", 5, 1),
    RecordPut("a", 6, 1),
    ShardCreated("b", ("a",)),
    RecordPut("b", 9, 1),
]
AT5, AT6 = at_record("5"), at_record("6")
MINE = Lease("a", owner="q", checkpoint=TRIM_HORIZON)
TAKEN = LeaseWritten("w#1", Take("a", 0, "w"), MINE, Lease("a", owner="w", checkpoint=TRIM_HORIZON))
TAKEN_BEHIND = LeaseWritten("w#1", Take("a", 0, "w"), MINE, Lease("a", owner="w", checkpoint=AT5))
DONE = RecordsHandled("q#1", "a", -1, (5,))
UNREAD = BatchUnread("q", 1, ("a",))
OWNED = LeaseWritten("q#1", Take("a", 0, "q"), Lease("a"), MINE)
RESTORED = (
    "the checkpoint location has no record of claims on the leases in table t (it was restored from a copy)"
)
SET_BACK = MessageLogged("q#2", "WARNING", RESTORED, "")


HANDLED = [
    LeaseWritten("w#1", Take("a", 0, "w"), Lease("a"), Lease("a", owner="w", checkpoint=TRIM_HORIZON)),
    ReaderStarted("w#1", "a", 1, TRIM_HORIZON),
    RecordsHandled("w#1", "a", 1, (5,)),
    ReaderEnded("w#1", "a", 1),
]
TAKEN_JUST_NOW = [
    LeaseWritten(
        "p#1", Take("a", 1, "p"), Lease("a", owner="w"), Lease("a", owner="p", checkpoint=TRIM_HORIZON)
    ),
    ReaderStarted("p#1", "a", 1, TRIM_HORIZON),
    RecordsHandled("p#1", "a", 1, (5,)),
    ReaderStarted("w#2", "a", 1, TRIM_HORIZON),
]
"""Another worker takes a lease from one that is starting again, and both read for as long as the first does not know."""
LATER = RecordPut("a", 7, EPOCH_MS + 60_000)
"""A record that comes long after all that happened before."""
CLAIMED = (BatchClaim("q", 1, "run", TRIM_HORIZON, AT5),)
BACK = [
    LeaseWritten("w#1", Take("a", 0, "w"), Lease("a"), Lease("a", owner="w", claims=CLAIMED)),
    RecordsHandled("w#1", "a", 1, (5,)),
    LeaseWritten("q#1", Take("a", 1, "q"), Lease("a"), Lease("a", owner="q", claims=CLAIMED)),
]
"""A worker handles once more what a query has claimed and given out, and the query comes back."""


SET_BACK_BY_ANOTHER = LeaseWritten(
    "p#2",
    Reset("a", 0, TRIM_HORIZON, claim_worker="p"),
    Lease("a", checkpoint=SHARD_END),
    Lease("a", checkpoint=TRIM_HORIZON),
)


def executed(*rows, who="q#1", batch=1):
    return BatchRead(who, batch, "a", rows)


def committed(batch, **rows):
    return BatchCommitted("q", batch, tuple(rows.items()))


def claims(before, end):
    made = BatchClaim("q", 1, "run", TRIM_HORIZON, end)
    return LeaseWritten("x#1", Claim("a", made, TRIM_HORIZON), before, replace(before, claims=(made,)))


def bounded(until_ms, batch=1):
    return BatchBounded("q#1", batch, until_ms, ("a",))


def logged(batch, start, *read):
    return BatchPlanned("q#1", batch, (("a", start),), read)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([executed(5), executed(5)], None),
        ([executed(5), executed(5, 6)], "Q1"),
        ([executed(5), TAKEN, executed(5, 6)], "Q1"),
        ([executed(5), committed(1, a=(5,)), executed(who="q#1")], "Q1"),
        ([executed(5), LeaseDeleted("a", "q"), executed()], None),
        ([executed(5), SET_BACK, executed(5, 6, who="q#2")], None),
        ([executed(5), SET_BACK, executed(who="q#2"), executed(6, who="q#2")], "Q1"),
        ([executed(5), MessageLogged("q#2", "WARNING", "another text", ""), executed(who="q#2")], "Q1"),
        ([executed(5), SET_BACK, executed(6, who="q#2"), executed(5)], None),
        ([executed(5), LocationRestored("q", 0), ProcessStarted("q#2"), executed(6, who="q#2")], None),
        ([executed(5), LocationRestored("q", 1), ProcessStarted("q#2"), executed(6, who="q#2")], "Q1"),
        (
            [
                claims(MINE, AT5),
                executed(5),
                LocationRestored("q", 0),
                ProcessStarted("q#2"),
                executed(6, who="q#2"),
            ],
            "Q1",
        ),
        ([executed(5, 6), BatchReadInPart("q#1", 1, "a", (5,))], None),
        ([BatchReadInPart("q#1", 1, "a", (6,)), executed(5, 6)], "Q1"),
        ([BatchReadInPart("q#1", 1, "a", (5,)), RecordsTrimmed("a", 1, 5), executed(6)], None),
        ([BatchReadInPart("q#1", 1, "a", (5, 6)), RecordsTrimmed("a", 1, 5), executed(7)], "Q1"),
        ([committed(1, a=(5,)), committed(2, a=(6,))], None),
        ([committed(1, a=(5,)), committed(1, a=(5,))], None),
        ([committed(1, a=(5,)), committed(2, a=(5, 6))], "Q2"),
        ([OWNED, TAKEN, committed(1, a=(5,)), RecordsHandled("w#1", "a", 1, (5,))], None),
        ([DONE, committed(1, a=(5,)), OWNED, TAKEN_BEHIND, RecordsHandled("w#1", "a", 1, (5,))], "Q2"),
        ([OWNED, committed(1, a=(5,)), RecordsHandled("w#1", "a", 1, (5,))], "Q2"),
        ([*HANDLED, RecordsHandled("w#2", "a", 1, (5,))], "Q2"),
        ([*HANDLED, ReaderStarted("w#2", "a", 1, TRIM_HORIZON), RecordsHandled("w#2", "a", 1, (5,))], None),
        ([*HANDLED, ReaderStarted("w#2", "a", 1, AT5), RecordsHandled("w#2", "a", 1, (5,))], "Q2"),
        ([*HANDLED, *TAKEN_JUST_NOW, RecordsHandled("w#2", "a", 1, (5,))], None),
        ([*HANDLED, *TAKEN_JUST_NOW[:-1], RecordsHandled("w#2", "a", 1, (5,))], "Q2"),
        (
            [
                *HANDLED,
                *TAKEN_JUST_NOW[:-1],
                ReaderStarted("w#1", "a", 2, TRIM_HORIZON),
                RecordsHandled("w#1", "a", 2, (5,)),
            ],
            "Q2",
        ),
        (
            [
                OWNED,
                TAKEN,
                LATER,
                RecordsHandled("w#1", "a", 1, (7,)),
                BatchCommitted("p", 1, (("a", (7,)),)),
            ],
            "Q2",
        ),
        ([OWNED, committed(1, a=(5,)), *BACK, committed(2, a=(5,))], "Q2"),
        ([OWNED, committed(1, a=(5,)), LocationRestored("q"), *BACK, committed(2, a=(5,))], None),
        ([OWNED, LocationCopied("q", "q#2"), committed(1, a=(5,)), *BACK, committed(2, a=(5,))], None),
        ([committed(1, a=(5, 6)), committed(2, b=(9,))], None),
        ([committed(1, a=(5, 6), b=(9,))], "Q3"),
        ([committed(1, a=(5, 6)), committed(1, b=(9,))], "Q3"),
        ([LocationCopied("q", "q#2"), committed(1, a=(5, 6)), committed(1, b=(9,))], None),
        ([LocationCopied("q", "q#2"), committed(1, a=(5, 6), b=(9,))], "Q3"),
        ([committed(1, b=(9,)), committed(2, a=(5,))], "Q3"),
        ([committed(1, a=(5, 6)), LocationRestored("q"), committed(1, b=(9,))], None),
        ([LocationRestored("q"), committed(1, a=(5, 6)), committed(1, b=(9,))], "Q3"),
        (
            [
                committed(1, b=(9,)),
                SET_BACK_BY_ANOTHER,
                committed(2, a=(5,)),
                RecordPut("b", 10, 1),
                committed(3, b=(10,)),
            ],
            None,
        ),
        ([logged(1, TRIM_HORIZON, "b")], "Q3"),
        ([logged(1, TRIM_HORIZON, "a")], None),
        ([logged(1, AT5, "a")], "Q4"),
        ([LocationCopied("q", "q#2"), logged(1, AT5, "a")], None),
        ([LocationCopied("q", "q#2"), executed(5), executed(6, who="q#2")], None),
        ([LocationCopied("q", "q#2"), executed(5, who="q#2"), executed(6, who="q#2")], "Q1"),
        ([QueryFailed("q#1", "AnotherDriver", "text")], "Q5"),
        ([QueryFailed("q#1", "JobFailed", "AnotherDriver(...)")], "Q5"),
        ([SecondDriverStarted("q"), QueryFailed("q#1", "AnotherDriver", "text")], None),
        ([QueryFailed("q#1", "DataLossError", "text")], "Q5"),
        ([ReadTaskFailed("q#1", "x#1", "DataLossError", "text")], "Q5"),
        ([ReadTaskFailed("q#1", "x#1", "AnotherDriver", "text")], None),
        ([QueryFailed("q#1", "OptionError", "text")], "Q5"),
        ([QueryFailed("z/stranger#1", "OptionError", "text")], None),
        ([claims(MINE, AT5)], None),
        ([claims(MINE, TRIM_HORIZON)], None),
        ([claims(Lease("a", owner="w"), AT5)], "Q6"),
        ([claims(Lease("a", owner="w"), TRIM_HORIZON)], None),
        ([claims(Lease("a", owner="w", checkpoint_owner="q"), AT5)], None),
        ([DONE, claims(Lease("a", owner="q", checkpoint=AT5), AT6)], "Q6"),
        ([committed(1, a=(5,)), DONE, logged(2, AT5, "a")], None),
        ([committed(1, a=(5,)), DONE, logged(2, TRIM_HORIZON, "a")], "Q8"),
        ([OWNED, committed(1, a=(5,)), DONE, TAKEN, logged(2, TRIM_HORIZON, "a")], None),
        ([committed(1), DONE, logged(2, TRIM_HORIZON, "a")], None),
        ([committed(number, a=()) for number in range(10)], None),
        ([committed(number, a=()) for number in range(11)], "Q9"),
        ([committed(number, a=(5,) if number == 5 else ()) for number in range(11)], None),
        ([logged(1, TRIM_HORIZON, "a"), UNREAD, DONE, logged(2, AT5, "a")], None),
        ([logged(1, TRIM_HORIZON, "a"), UNREAD, logged(2, TRIM_HORIZON, "a")], "Q8"),
        ([logged(1, TRIM_HORIZON), UNREAD, logged(2, TRIM_HORIZON, "a")], None),
        ([bounded(1), logged(1, TRIM_HORIZON, "a"), UNREAD, logged(2, TRIM_HORIZON, "a")], None),
        ([bounded(2), logged(1, TRIM_HORIZON, "a"), UNREAD, logged(2, TRIM_HORIZON, "a")], "Q8"),
        (
            [SecondDriverStarted("q"), logged(1, TRIM_HORIZON, "a"), UNREAD, logged(2, TRIM_HORIZON, "a")],
            None,
        ),
        ([WallClockJumped(9), logged(1, TRIM_HORIZON, "a"), UNREAD, logged(2, TRIM_HORIZON, "a")], None),
        ([MessageLogged("q#1", "WARNING", "text", "")], None),
        ([MessageLogged("q#1", "CRITICAL", "text", "KeyError()")], "Q5"),
    ],
)
def test_a_checker_finds_what_it_is_for(lines, expected):
    assert judge(SHARDS, 1, lines, more=QUERIES) == expected


NAMELESS = LeaseWritten(
    "z/namesake#1", Take("a", 0, "z/namesake"), Lease("a"), Lease("a", owner="z/namesake")
)
STRANGE = replace(TAKEN, who="z/stranger#1")


def renewed(who="w#1"):
    before = Lease("a", 1, name_of(who))
    return LeaseWritten(who, Renew("a", 1, name_of(who)), before, replace(before, counter=2))


UP = ProcessStarted("z/namesake#1")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([1, renewed(), 4, renewed(), 5, UP, 7, renewed(), 8, NAMELESS], "Q7"),
        ([1, renewed(), 4, renewed(), 5, UP, 18, NAMELESS], None),
        ([1, renewed(), 4, renewed(), 5, UP, 19, renewed(), 20, NAMELESS], None),
        ([1, renewed(), 4, ProcessExited("w#1", "crashed"), 5, UP, 6, NAMELESS], None),
        ([1, UP, 4, renewed(), 5, NAMELESS], None),
        ([1, STRANGE], "Q5"),
    ],
)
def test_who_names_no_application_takes_nothing_where_somebody_lives(lines, expected):
    assert judge(SHARDS, lines, more=QUERIES) == expected


ALL_DONE_A = [RecordsHandled("q#1", "a", -1, (5, 6)), RecordsHandled("q#1", "b", -1, (9,))]
ENDS = ProcessExited("q#1", "done")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([ENDS], "Q10"),
        ([*ALL_DONE_A, ENDS], None),
        ([OWNED, ENDS], "Q10"),
        ([TAKEN, ENDS], "Q10"),
        ([ProcessStarted("w#1"), TAKEN, ENDS], None),
        ([ProcessStarted("w#1"), TAKEN, ProcessExited("w#1", "crashed"), ENDS], None),
        ([LeaseDeleted("a", "q"), ENDS], None),
        ([LocationRestored("q"), ENDS], None),
        ([ProcessExited("q#1", "stopped")], None),
    ],
)
def test_a_query_that_reads_what_is_there_ends_when_all_of_it_is_read(lines, expected):
    assert judge(SHARDS, 100, ProcessStarted("q#1"), 101, lines, more=QUERIES) == expected


def test_two_loads_of_one_query_do_not_go_on_beside_each_other():
    def both_loads(batch_count):
        for batch in range(batch_count):
            for twin in ("z/twin0", "z/twin1"):
                key = f"s{batch} of {twin}"
                yield from (ShardCreated(key, ()), RecordPut(key, 1, 1))
                yield BatchCommitted(twin, batch, ((key, (1,)),))

    assert judge(1, *both_loads(4), more=QUERIES) is None
    assert judge(1, *both_loads(5), more=QUERIES) == "Q7"


# --- losses -----------------------------------------------------------------------------------------------------

KEY = "shardId-1"
LOST = f"shard {KEY}: the record is gone. It goes on (failOnDataLoss=false)"
TRIM_6 = RecordsTrimmed(KEY, 2, 6)
DONE_5 = [1, ShardCreated(KEY, ()), *(RecordPut(KEY, each, EPOCH_MS) for each in (5, 6, 7))]
DONE_5 += [2, RecordsHandled("q#1", KEY, -1, (5,))]
READS_ON = [40, BatchPlanned("q#1", 2, ((KEY, AT5),), (KEY,))]
READS_ON += [41, ReadTaskStarted("q#1", "executor0#1", 2, KEY)]
PASSES = [42, BatchCommitted("q", 2, ((KEY, (7,)),))]
REPORTS = [41.5, MessageLogged("executor0#1", "WARNING", LOST, "")]
FAILS = [41.5, ReadTaskFailed("q#1", "executor0#1", "DataLossError", LOST)]
TRIMS = [20, TRIM_6]
ALL_DONE = [3, RecordsHandled("q#1", KEY, -1, (6, 7))]
LATE_TIP = [39, TipProbed("q#1", KEY, EPOCH_MS + 39_000)]
LOSES_LEASE = [39.5, CoordinatorReported("q#1", "LOST", "same_name", KEY)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([TRIMS, READS_ON, PASSES], "S9"),
        ([TRIMS, READS_ON, REPORTS, PASSES], None),
        ([READS_ON, 41.5, TRIM_6, PASSES], None),
        ([ALL_DONE, TRIMS, READS_ON, PASSES], None),
        ([TRIMS, READS_ON, LocationCopied("q", "q#2"), PASSES], None),
        ([READS_ON, REPORTS], "S9"),
        ([ALL_DONE, TRIMS, LATE_TIP, READS_ON, REPORTS], "S9"),
        ([ALL_DONE, TRIMS, READS_ON, REPORTS], None),
        ([ALL_DONE, TRIMS, LATE_TIP, LOSES_LEASE, READS_ON, REPORTS], None),
        ([ALL_DONE, TRIMS, LATE_TIP, READS_ON, FAILS], "S9"),
        ([TRIMS, LATE_TIP, READS_ON, FAILS], None),
    ],
)
def test_a_query_tells_losses_and_raises_no_false_alarm(lines, expected):
    assert judge(DONE_5, *lines, more=(QueryLossesReported,), retention_ms=30_000) == expected


def test_an_execution_that_comes_after_records_have_left_the_stream_holds_the_others():
    shortened = [*SHARDS, 1, executed(5, 6), RecordsTrimmed("a", 1, 5), executed(6)]
    assert judge(shortened, more=QUERIES) is None
    assert judge(shortened, executed(), more=QUERIES) == "Q1"


def claim(end, batch=1):
    made = BatchClaim("q", batch, "run", TRIM_HORIZON, end)
    return LeaseWritten("q#1", Claim("a", made, TRIM_HORIZON), MINE, replace(MINE, claims=(made,)))


@pytest.mark.parametrize(
    ("lines", "is_broken"),
    [
        ([logged(1, TRIM_HORIZON, "a"), BatchUnread("q", 1, ("a",)), claim(AT6)], False),
        ([logged(1, TRIM_HORIZON, "a"), claim(AT6), BatchUnread("q", 1, ("a",))], False),
        ([logged(1, TRIM_HORIZON, "a"), BatchUnread("q", 1, ("a",)), claim(AT5)], True),
        ([logged(1, TRIM_HORIZON, "a"), BatchUnread("q", 1, ("a",)), claim(AT6, batch=2)], True),
        ([logged(1, TRIM_HORIZON, "a"), claim(AT6)], True),
    ],
)
def test_what_a_done_batch_held_and_nobody_read_counts_as_done(lines, is_broken):
    passed = Lease("a", owner="q", checkpoint=AT6)
    promoted = LeaseWritten("q#1", Promote("a", "q", 1, AT6), MINE, passed)
    assert (judge(SHARDS, 1, lines, promoted, more=QUERIES) is not None) is is_broken


# --- situations -----------------------------------------------------------------------------------------------------


def test_a_long_run_says_what_never_came_up(capsys, monkeypatch):
    monkeypatch.setattr("penstock_sim.command._TELLING_SEEDS_MIN", 1)
    assert main(["simulate", "--queries", "--seeds", "1", "--start", "3"]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if line.startswith("never came up: ")]
    assert len(last) == 1
    assert "fault: table_drops_per_min" in last[0]


def test_the_command_runs_fleets_of_queries(capsys):
    assert main(["simulate", "--queries", "--seeds", "5", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["seeds"], summary["violations"]) == (5, 0)
    assert summary["met"]["task: ReadFreely"] > 0
    assert set(summary["never_met"]) == set(never_met(summary["met"], SeedKind.QUERIES))
