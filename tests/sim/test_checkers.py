"""Every checker fails on a history made to break it, and passes the same history when it is right."""

from functools import partial

import pytest
from msgspec.structs import replace

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Create,
    End,
    LateCheckpoint,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, at_record
from penstock_sim.checker import Broken
from penstock_sim.events.leases import LeaseDeleted, LeaseWritten, TableDropped
from penstock_sim.events.processes import (
    CallMade,
    CoordinatorReported,
    ProcessExited,
    ProcessStarted,
    TimeStoodStill,
)
from penstock_sim.events.reading import (
    HandlerRaised,
    LossReported,
    ReaderEnded,
    ReaderStarted,
    RecordsDeadLettered,
    RecordsDelivered,
    RecordsHandled,
    RecordsRedelivered,
    ShardStopped,
    TipReached,
)
from penstock_sim.events.streams import RecordPut, RecordsTrimmed, ShardClosed, ShardCreated
from penstock_sim.liveness_checkers import must_be_even
from penstock_sim.loss_checkers import LossesReported, OnlyFailuresAreGivenUp
from penstock_sim.plan import EPOCH_MS
from sim.judging import judge

A, B = "a#1", "b#1"


def row(key="s", **more):
    return Lease(key, **more)


def taken(who=A, key="s", counter=1, **more):
    """A worker takes an unowned lease."""
    name = who.partition("#")[0]
    return LeaseWritten(
        who, Take(key, counter - 1, name), row(key, **more), row(key, owner=name, counter=counter, **more)
    )


def stream(*sequences, key="s", parents=()):
    return [
        ShardCreated(key, parents),
        *[RecordPut(key, sequence, 1000 + sequence) for sequence in sequences],
    ]


def reading(who=A, key="s", epoch=1, position=TRIM_HORIZON):
    return ReaderStarted(who, key, epoch, position)


def handled(*sequences, who=A, key="s", epoch=1):
    return [RecordsDelivered(who, key, epoch, sequences), RecordsHandled(who, key, epoch, sequences)]


def checkpoint(sequence, who=A, counter=1, key="s", before=TRIM_HORIZON):
    name = who.partition("#")[0]
    old = row(key, owner=name, counter=counter, checkpoint=before)
    new = row(key, owner=name, counter=counter + 1, checkpoint=at_record(str(sequence)))
    return LeaseWritten(who, Checkpoint(key, counter, name, at_record(str(sequence))), old, new)


def ended(who=A, key="s", counter=1, parents=()):
    name = who.partition("#")[0]
    old = row(key, owner=name, counter=counter, parents=frozenset(parents))
    return LeaseWritten(
        who, End(key, counter, name), old, row(key, counter=counter + 1, checkpoint=SHARD_END)
    )


def created(key):
    return LeaseWritten(A, Create(row(key)), None, row(key))


judge_losses = partial(
    judge, start=LATEST, more=(LossesReported, OnlyFailuresAreGivenUp), retention_ms=30_000
)


UP = [ProcessStarted(A), ProcessStarted(B)]
RELEASED_BEHIND = [*UP, *stream(5, 6), taken(), reading(), *handled(5, 6), ReaderEnded(A, "s", 1)]
TWIN = "a#2"
RELEASE = LeaseWritten(A, Release("s", 1, "a"), row(owner="a", counter=1), row(counter=2))

AT_6 = at_record("6")
HELD = row(owner="a", counter=1)
ASKED = row(owner="b", checkpoint_owner="a", counter=1)
CHILD = stream(6, key="c", parents=("s",))
READ_CHILD = [taken(key="c"), reading(key="c"), *handled(6, key="c")]


def takes(before):
    return LeaseWritten(B, Take("s", 1, "b"), before, row(owner="b", counter=2))


def late(sequence, before):
    position = at_record(str(sequence))
    old, new = row(checkpoint=at_record(str(before))), row(checkpoint=position)
    return LeaseWritten(B, LateCheckpoint("s", position), old, new)


def skipped(who):
    return CoordinatorReported(who, "ROW_SKIPPED", "", "x")


BROKEN = {
    "S1 a checkpoint passes what was not handled": (
        "S1",
        [*UP, *stream(5, 6), taken(), reading(), *handled(5)],
        [checkpoint(6)],
        [checkpoint(5)],
    ),
    "S1 compares numbers, not texts": (
        "S1",
        [*UP, *stream(9, 10), taken(), reading()],
        [*handled(9), checkpoint(10)],
        [*handled(9, 10), checkpoint(10)],
    ),
    "S2 the checkpoint of an owner whose lease was stolen is accepted": (
        "S2",
        [*UP, *stream(5), taken(A)],
        [20, taken(B, counter=2), reading(), *handled(5), checkpoint(5, A, counter=2)],
        [reading(), *handled(5), checkpoint(5, A, counter=1), 20, taken(B, counter=3)],
    ),
    "S2 a live lease is taken": ("S2", [*UP, *stream(), taken(A)], [3, takes(HELD)], [11, takes(HELD)]),
    "S2 a hand-over is cut short": (
        "S2",
        [*UP, *stream(), taken(A), LeaseWritten(B, RequestHandover("s", "a", "b"), HELD, ASKED)],
        [3, takes(ASKED)],
        [31, takes(ASKED)],
    ),
    "S2 a lease is given up though nobody took it": (
        "S2",
        [*UP, *stream(), taken(A)],
        [CoordinatorReported(A, "LOST", "taken", "s")],
        [20, taken(B, counter=2), CoordinatorReported(A, "LOST", "taken", "s")],
    ),
    "S3 a checkpoint moves back": (
        "S3",
        [*UP, *stream(5, 10), taken(), reading(), *handled(5, 10)],
        [checkpoint(10), late(5, before=10)],
        [checkpoint(5), late(10, before=5)],
    ),
    "S4 a child is read before its parent is finished": (
        "S4",
        [*UP, *stream(5), *CHILD],
        [taken(), *READ_CHILD],
        [ShardClosed("s"), taken(), reading(), *handled(5), created("c"), ended(), *READ_CHILD],
    ),
    "S4 a child is read although its parent, without a row, is unread": (
        "S4",
        UP,
        [*stream(5), *CHILD, *READ_CHILD],
        [*stream(), *CHILD, *READ_CHILD],
    ),
    "S5 the end comes before the last record": (
        "S5",
        [*UP, *stream(5, 6), ShardClosed("s"), taken(), reading()],
        [*handled(5), ended()],
        [*handled(5, 6), ended()],
    ),
    "S5 the end of an open shard": (
        "S5",
        [*UP, *stream(5), taken(), reading(), *handled(5)],
        [ended()],
        [ShardClosed("s"), ended()],
    ),
    "S5 the end comes before the children's leases": (
        "S5",
        [
            *UP,
            *stream(5),
            *stream(key="c", parents=("s",)),
            ShardClosed("s"),
            taken(),
            reading(),
            *handled(5),
        ],
        [ended()],
        [created("c"), ended()],
    ),
    "S6 a record is left out": (
        "S6",
        [*UP, *stream(5, 6, 7), taken(), reading(), *handled(5)],
        [*handled(7)],
        [*handled(6, 7)],
    ),
    "S6 a record comes twice in one ownership": (
        "S6",
        [*UP, *stream(5, 6), taken(), reading(), *handled(5)],
        [*handled(5)],
        [*handled(6)],
    ),
    "S6 a start leaves records behind": (
        "S6",
        [*UP, *stream(5, 6, 7), taken()],
        [reading(position=AT_6)],
        [reading(position=TRIM_HORIZON)],
    ),
    "S6 two readers of a shard in one process": (
        "S6",
        [*UP, *stream(5), taken(), reading(epoch=1)],
        [reading(epoch=2)],
        [ReaderEnded(A, "s", 1), reading(epoch=2)],
    ),
    "S7 a graceful release and a start before it": (
        "S7",
        RELEASED_BEHIND,
        [RELEASE, taken(B, counter=3), reading(B)],
        [
            LeaseWritten(A, Release("s", 1, "a", AT_6), HELD, row(counter=2, checkpoint=AT_6)),
            taken(B, counter=3, checkpoint=AT_6),
            reading(B, position=AT_6),
        ],
    ),
    "S7 a release after a stop that waited for everything": (
        "S7",
        RELEASED_BEHIND,
        [CoordinatorReported(B, "SHUTDOWN", "", None), RELEASE, taken(B, counter=3), reading(B)],
        [CoordinatorReported(A, "SHUTDOWN", "", None), RELEASE, taken(B, counter=3), reading(B)],
    ),
    "S7 a start before the row's checkpoint": (
        "S7",
        [*UP, *stream(5), taken(), reading(), *handled(5), checkpoint(5), 2, ReaderEnded(A, "s", 1)],
        [reading(epoch=2)],
        [reading(epoch=2, position=at_record("5"))],
    ),
    "S8 delivery after the lease time": (
        "S8",
        [*UP, *stream(5), taken(), reading()],
        [11, *handled(5)],
        [8, LeaseWritten(A, Renew("s", 1, "a"), HELD, row(owner="a", counter=2)), 11, *handled(5)],
    ),
    "S9 a skipped row is reported again and again": ("S9", [*UP, skipped(A)], [skipped(A)], [skipped(B)]),
    "L5 a herd of listings": (
        "L5",
        UP,
        [*[CallMade(A, "list shards", "")] * 15],
        [*[CallMade(A, "list shards", "")] * 14],
    ),
    "L5 more listings than shards that ended beyond the fifth": (
        "L5",
        [*UP, *[CoordinatorReported(A, "ENDED", "", f"s{number}") for number in range(6)]],
        [*[CallMade(A, "list shards", "")] * 16],
        [*[CallMade(A, "list shards", "")] * 15],
    ),
    "L5 a retry storm": (
        "L5",
        UP,
        [*[CallMade(A, "write Renew", "s")] * 17],
        [*[CallMade(A, "write Renew", "s")] * 16],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_history_that_breaks_it_is_found_and_one_that_keeps_it_is_not(name):
    invariant, begin, broken, kept = BROKEN[name]
    assert judge(begin, broken, only=invariant) == invariant
    assert judge(begin, kept) is None


SETTLED = [ProcessStarted(A), *stream(5), taken(), reading(), *handled(5), checkpoint(5)]
CREATED_AGAIN = [60, created("s"), taken(key="s", counter=1), ReaderEnded(A, "s", 1), reading(epoch=2)]
AT_THE_END = {
    "S1 a record was never handled": ("S1", [ProcessStarted(A), *stream(5), taken(), reading()]),
    "L1 the owner is dead": ("L1", [*SETTLED, ProcessStarted(B), ProcessExited(A, "crashed")]),
    "L1 the owner does not read": ("L1", [*SETTLED, ReaderEnded(A, "s", 1)]),
    "L2 one has all": (
        "L2",
        [
            ProcessStarted(A),
            ProcessStarted(B),
            *[line for key in "xyz" for line in (*stream(key=key), taken(key=key), reading(key=key))],
        ],
    ),
    "L3 an open shard without a lease": ("L3", [*SETTLED, *stream(key="t")]),
    "L3 a closed shard that is not finished": ("L3", [*SETTLED, ShardClosed("s")]),
    "L3 handled records without a checkpoint": (
        "L3",
        [ProcessStarted(A), *stream(5, 6), taken(), reading(), *handled(5, 6), checkpoint(5)],
    ),
    "S9 a deleted row in silence": ("S9", [*SETTLED, LeaseDeleted("s", "a"), *CREATED_AGAIN]),
    "S9 a deleted table in silence": ("S9", [*SETTLED, TableDropped(), *CREATED_AGAIN]),
}


@pytest.mark.parametrize("name", AT_THE_END)
def test_what_is_still_wrong_at_the_end_is_found(name):
    invariant, broken = AT_THE_END[name]
    assert judge(broken, at_end=True) == invariant


RESUMED = [*UP, *stream(5, 6, 7), taken(checkpoint=at_record("5")), reading(position=at_record("5"))]


def test_unread_records_that_left_the_stream_are_not_passed_over_in_silence():
    gone = [*RESUMED, RecordsTrimmed("s", 2, 6)]
    assert judge_losses(gone, handled(7)) == "S9"
    assert judge_losses(gone, LossReported(A, "s", 1), handled(7)) is None


def test_unread_records_that_left_within_a_call_are_not_passed_over_in_silence():
    begun = [*RESUMED, RecordPut("s", 8, 1008), RecordsTrimmed("s", 3, 7)]
    assert judge_losses(begun, handled(6, 8)) == "S9"
    assert judge_losses(begun, LossReported(A, "s", 1), handled(6, 8)) is None


@pytest.mark.parametrize(("arrival_ms", "found"), [(1000, None), (EPOCH_MS, "S9")])
def test_a_reader_owes_a_report_once_it_has_left_the_trim_horizon(arrival_ms, found):
    shard = [ShardCreated("s", ()), *[RecordPut("s", number, arrival_ms) for number in (5, 6, 7)]]
    begun = [*UP, *shard, taken(), reading(), *handled(5), RecordsTrimmed("s", 2, 6)]
    assert judge_losses(begun, handled(7)) == found


def test_a_loss_that_was_told_need_not_be_told_again_unless_its_reader_stopped_at_it():
    told = [*RESUMED, RecordsTrimmed("s", 2, 6), LossReported(A, "s", 1)]
    follows = [
        ReaderEnded(A, "s", 1),
        taken(B, checkpoint=at_record("5")),
        reading(B, position=at_record("5")),
    ]
    follows += handled(7, who=B)
    assert judge_losses(told, follows) is None
    assert judge_losses(told, ShardStopped(A, "s", 1, "data_loss"), follows) == "S9"


def test_a_loss_is_not_covered_by_an_earlier_one():
    earlier = [*RESUMED, RecordPut("s", 8, 1008), RecordsTrimmed("s", 2, 6), LossReported(A, "s", 1)]
    assert judge_losses(earlier, RecordsTrimmed("s", 3, 7), handled(8)) == "S9"


def test_a_loss_where_the_reader_was_at_the_tip_is_a_false_alarm():
    at_tip = [*RESUMED, *handled(6, 7), TipReached(A, "s", 1, EPOCH_MS), 5, RecordsTrimmed("s", 3, 7)]
    assert judge_losses(at_tip, LossReported(A, "s", 1)) == "S9"
    assert judge_losses(at_tip, 60, LossReported(A, "s", 1)) is None


def test_a_reader_away_for_a_retention_may_ask_thrice_before_it_reports_a_loss():
    away = [*RESUMED, *handled(6, 7), TipReached(A, "s", 1, EPOCH_MS), 60, RecordsTrimmed("s", 3, 7)]
    asked = [TipReached(A, "s", 1, EPOCH_MS + 60_000)]
    assert judge_losses(away, asked * 3, LossReported(A, "s", 1)) is None
    assert judge_losses(away, asked * 4, LossReported(A, "s", 1)) == "S9"
    assert judge_losses(away, LossReported(A, "s", 1), asked, LossReported(A, "s", 1)) == "S9"


def test_a_loss_where_the_row_notes_the_tip_is_a_false_alarm():
    row_at = row(owner="a", counter=1, checkpoint=at_record("7"))
    noted = [
        *[*RESUMED, *handled(6, 7), TipReached(A, "s", 1, EPOCH_MS), 20],
        LeaseWritten(A, Renew("s", 1, "a"), row_at, row_at),
        *[ReaderEnded(A, "s", 1), RecordsTrimmed("s", 3, 7), reading(B, position=at_record("7"))],
    ]
    assert judge_losses(noted, LossReported(B, "s", 1)) == "S9"
    assert judge_losses(noted, 60, LossReported(B, "s", 1)) is None


def test_a_dead_letter_that_did_not_fail_alone_is_found():
    begun = [*RESUMED, RecordsDelivered(A, "s", 1, (6, 7)), HandlerRaised(A, "s", 1, (6, 7))]
    assert judge_losses(begun, RecordsDeadLettered(A, "s", 1, (6,))) == "S1"
    alone = [
        RecordsRedelivered(A, "s", 1, (6,)),
        HandlerRaised(A, "s", 1, (6,)),
        RecordsDeadLettered(A, "s", 1, (6,)),
    ]
    assert judge_losses(begun, alone) is None


def test_what_did_not_fail_is_not_delivered_again():
    done = [*RESUMED, *handled(6, 7)]
    assert judge_losses(done, RecordsRedelivered(A, "s", 1, (6,))) == "S6"


@pytest.mark.parametrize(
    ("counts", "limits", "found"),
    [
        ({"a": 2, "b": 2, "c": 1}, {}, None),
        ({"a": 3, "b": 1, "c": 1}, {}, "uneven"),
        ({"a": 3, "b": 1, "c": 1}, {"b": 1, "c": 1}, None),
        ({"a": 2, "b": 0}, {"b": 1}, "uneven"),
        ({"a": 1, "b": 2}, {"b": 1}, "over the limits"),
        ({}, {}, None),
    ],
)
def test_leases_are_spread_evenly_as_far_as_limits_allow(counts, limits, found):
    if found is None:
        must_be_even(counts, limits)
    else:
        with pytest.raises(Broken, match=found):
            must_be_even(counts, limits)


def test_what_an_earlier_reader_of_the_worker_left_undone_is_not_released():
    again = [*RELEASED_BEHIND, reading(epoch=2), ReaderEnded(A, "s", 2), RELEASE]
    assert judge(again, taken(B, counter=3), reading(B), only="S7") is None
    assert judge(RELEASED_BEHIND, RELEASE, taken(B, counter=3), reading(B), only="S7") == "S7"
    lost = CoordinatorReported(A, "LOST", "expired", None)
    assert judge(RELEASED_BEHIND, lost, RELEASE, taken(B, counter=3), reading(B), only="S7") is None


def test_a_world_that_does_not_rest_is_found():
    assert judge(*UP, TimeStoodStill(5001)) == "L5"


def test_children_of_a_reset_shard_owe_no_order_until_it_is_finished_again():
    family = [*UP, *stream(5, key="p"), *stream(6, key="c", parents=("p",)), taken(key="p"), reading(key="p")]
    family += [*handled(5, key="p"), ShardClosed("p"), created("c"), ended(key="p"), taken(key="c")]
    finished = row("p", counter=2, checkpoint=SHARD_END)
    set_back = LeaseWritten(B, Reset("p", 2, TRIM_HORIZON), finished, row("p", counter=3))
    child = [reading(key="c"), *handled(6, key="c")]
    assert judge(family, child, only="S4") is None
    assert judge(family, set_back, child, only="S4") is None
    held = row("p", owner="a", counter=4)
    assert (
        judge(
            family,
            set_back,
            ended(key="p"),
            LeaseWritten(A, Renew("p", 4, "a"), held, held),
            child,
            only="S4",
        )
        == "S4"
    )


def test_a_worker_over_its_limit_is_found():
    both = [line for key in "xy" for line in (*stream(key=key), taken(key=key), reading(key=key))]
    assert judge(UP, both, limits={"a": 1, "b": 0}, at_end=True) == "L2"
    assert judge(UP, both, limits={"a": 2, "b": 0}, at_end=True) is None


@pytest.mark.parametrize(("foreign", "found"), [({"b"}, None), (set(), "L1")])
def test_a_lease_asked_for_by_a_worker_that_has_gone_counts_for_its_foreign_owner(foreign, found):
    asked = row(owner="a", checkpoint_owner="b", counter=1)
    request = LeaseWritten(A, RequestHandover("s", "b", "a"), row(owner="b", counter=1), asked)
    lines = [*UP, *stream(), taken(who=B), reading(who=B), request, ProcessExited(A, "crashed")]
    assert judge(lines, foreign=frozenset(foreign), at_end=True) == found


@pytest.mark.parametrize(("first", "second", "found"), [(A, TWIN, "S7"), (TWIN, A, None)])
def test_only_the_elder_of_two_twins_may_start_before_where_the_other_released(first, second, found):
    lines = [ProcessStarted(A), ProcessStarted(TWIN), *stream(5, 6), taken(first), reading(first)]
    lines += [*handled(5, 6, who=first), ReaderEnded(first, "s", 1), replace(RELEASE, who=first)]
    assert judge(lines, taken(second, counter=3), reading(second), only="S7") == found


def test_a_settled_history_is_clean_at_the_end():
    assert judge(SETTLED, at_end=True) is None


def test_a_reported_deletion_is_clean_at_the_end():
    lines = [
        *SETTLED,
        LeaseDeleted("s", "a"),
        CoordinatorReported(A, "ROW_GONE", "", "s"),
        ReaderEnded(A, "s", 1),
        60,
    ]
    assert judge(lines, created("s"), taken(), reading(epoch=2), at_end=True) is None


def test_a_move_after_the_fleet_has_settled_is_found():
    assert judge(UP, stream(), taken(), quiet=True) == "L2"


def test_the_first_violation_stays():
    assert judge(UP, stream(5, 6), taken(), reading(), handled(6), checkpoint(6)) == "S6"
