"""A query's shards between batches: next starts, releases and promotions."""

from __future__ import annotations

from itertools import zip_longest

import pytest
from msgspec.structs import replace

from penstock.core.batches.claims import (
    BatchStart,
    ClaimedElsewhere,
    ClaimNote,
    Execution,
    ReadFreely,
    ReadTo,
    ReadUnclaimed,
    StartReason,
    plan_read,
)
from penstock.core.batches.offsets import SharedLimits, StreamOffset
from penstock.core.batches.query_shards import QueryShards
from penstock.core.batches.recreation import find_missing_leases, find_skipped_shards
from penstock.core.batches.rewind import plan_rewind
from penstock.core.batches.shard_state import state_at_start
from penstock.core.batches.task_plan import plan_tasks
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.coordinator_effects import StartReader, StopReader, StopWhy
from penstock.core.leases.coordinator_events import ReaderProgress, ReaderStopped, ShardDrained
from penstock.core.leases.lease import (
    BatchClaim,
    Lease,
    PastClaim,
    SeenClaim,
    TipMark,
)
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Claim, Create, Promote, Reset
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import pin_latest
from penstock.core.stream_identity import StreamIdentity

ME, OTHER = "me", "other"
STREAM = StreamIdentity("arn", 77)
TIP = TipMark(at_record("9"), 900)
AT5, AT7, AT9, AT12 = (at_record(number) for number in ("5", "7", "9", "12"))
CHILD = ChildShard("child", ("a",), FULL_RANGE)


def lease(key="a", **changes):
    return Lease(key, **{"counter": 3, "owner": ME, "checkpoint": AT5, **changes})


def claimed(key="a", start=AT5, end=AT9, batch=1, **note):
    note = ClaimNote(**{"record_count": 4, "bytes_count": 2048, "tip_ms": 900, **note})
    claim = BatchClaim(ME, batch, "r1", start, end, note.to_bytes())
    return lease(key, checkpoint=start, pending_checkpoint=end, claims=(claim,))


SEEN = SeenClaim(ME, (1, "r1"))


def bare(events):
    """The events without the counters of the rows on which claims were seen."""
    return [
        each if each.seen_claim is None else replace(each, seen_claim=replace(each.seen_claim, counter=None))
        for each in events
    ]


RUNS = ((1, "r1"),)
"""The query's own run planned all batches."""


def planned(by, *args, **more):
    """A lease with a claim of a batch that a run planned."""
    row = claimed(*args, **more)
    return replace(row, claims=(replace(row.claims[0], planned_by=by),))


def unclaimed_at(position, batch=2, planned_by=None, made_ms=0):
    """The claim on a lease that run `new` has reset to a position, if the end of the location's last batch is not known."""
    return BatchClaim(ME, batch, "new", position, position, made_ms=made_ms, planned_by=planned_by)


def holding(*keys, position=AT5):
    shards = QueryShards(ME)
    for epoch, key in enumerate(keys, start=1):
        shards.on_start_reader(StartReader(key, epoch, position, lease(key), 0.0), 1000)
    return shards


def done(batch=1, shards=("a",), **more):
    return StreamOffset(batch=batch, worker=ME, shards=dict.fromkeys(shards, AT5), **more)


def settle(shards, start, *rows, now_s=10.0):
    return shards.settle(start, {row.key: row for row in rows}, 1000, now_s)


def positions(shards):
    return {key: state.position for key, state in shards.states.items()}


def test_a_shard_goes_on_where_its_batch_claimed():
    shards = holding("a")
    settled = settle(shards, done(), claimed())
    assert positions(shards) == {"a": AT9}
    assert (settled.record_count, settled.bytes_count, settled.claim_count, settled.kept_iterator_count) == (
        4,
        2048,
        1,
        0,
    )
    assert settled.unexpected_starts == ()
    assert settled.progress == (ReaderProgress("a", 1, str(AT9), 0, None, TipMark(AT9, 900)),)
    state = shards.states["a"]
    assert (state.has_news, state.is_whole_record, state.tip_seen_ms, state.is_probed) == (
        False,
        True,
        900,
        False,
    )


def test_throughput_counts_from_settlement_to_settlement():
    shards = holding("a")
    settle(shards, done(), claimed(), now_s=10.0)
    settled = settle(shards, done(2), claimed(start=AT5, batch=2), now_s=14.0)
    assert settled.progress[0].throughput_kbps == 0.5


def test_a_shard_that_came_during_the_batch_starts_at_its_checkpoint():
    shards = holding("a", "b", position=AT7)
    settle(shards, done(), claimed(), lease("b", checkpoint=AT7))
    assert positions(shards) == {"a": AT9, "b": AT7}


def test_a_shard_that_came_with_a_last_word_ahead_of_its_row_starts_there():
    shards = holding("a", position=AT12)
    settle(shards, done(shards=()), lease(checkpoint=AT7))
    assert positions(shards) == {"a": AT12}


def test_a_shard_before_its_rows_sentinel_starts_at_the_coordinators_position():
    shards = holding("a", position=TRIM_HORIZON)
    settle(shards, done(shards=()), lease(checkpoint=pin_latest(LATEST, 7)))
    assert positions(shards) == {"a": TRIM_HORIZON}


def test_a_claim_of_an_earlier_batch_that_nobody_promoted_still_counts():
    shards = holding("a", position=AT5)
    settle(shards, done(4, shards=()), claimed(batch=2))
    assert positions(shards) == {"a": AT9}


def test_a_shard_that_comes_back_while_idle_goes_on_behind_its_claim():
    shards = holding("b")
    settle(shards, done(shards=("a", "b")), claimed("b"))
    shards.on_start_reader(StartReader("a", 9, AT5, claimed("a"), 0.0), 1000)
    assert positions(shards) == {"a": AT9, "b": AT9}
    assert shards.promotions() == [Promote("b", ME, 1, AT9, 900), Promote("a", ME, 1, AT9, 900)]


@pytest.mark.parametrize(("position", "expected"), [(AT5, AT9), (AT9, AT9), (AT12, AT12)])
def test_a_released_shard_that_is_added_again_goes_on_despite_an_older_row(position, expected):
    shards = holding("a")
    settle(shards, done(), claimed())
    shards.on_stop_reader(StopReader("a", 1, StopWhy.EXPIRED))
    assert bare(shards.release_stopped()) == [ReaderStopped("a", 1, AT9, TIP, SEEN)]
    assert shards.promotions() == []
    shards.on_start_reader(StartReader("a", 2, position, lease(), 0.0), 1000)
    assert positions(shards) == {"a": expected}
    assert shards.promotions() == ([] if position == AT12 else [Promote("a", ME, 1, AT9, 900)])


@pytest.mark.parametrize(("counter", "expected"), [(2, AT9), (3, AT9), (4, AT5)])
def test_a_shard_added_after_its_batch_goes_on_at_its_claim_despite_an_older_row(counter, expected):
    shards = holding("b")
    settle(shards, done(shards=("a", "b")), claimed("b"), claimed("a"))
    shards.on_start_reader(StartReader("a", 9, AT5, lease(counter=counter), 0.0), 1000)
    assert positions(shards) == {"a": expected, "b": AT9}
    assert shards.last_claim("a") == ((1, "r1") if expected == AT9 else None)


def test_a_recreated_lease_that_was_another_workers_starts_by_its_new_row():
    shards = holding("b")
    settle(shards, done(shards=("a", "b")), claimed("b"), replace(lease("a", counter=25), owner=OTHER))
    shards.on_start_reader(StartReader("a", 9, AT5, lease(counter=1), 0.0), 1000)
    assert positions(shards) == {"a": AT5, "b": AT9}


def test_a_shard_that_was_given_back_without_a_claim_comes_again_without_one():
    shards = holding("a", position=AT7)
    settle(shards, done(shards=()), lease(checkpoint=AT7))
    shards.on_stop_reader(StopReader("a", 1, StopWhy.EXPIRED))
    assert bare(shards.release_stopped()) == [ReaderStopped("a", 1, AT7, seen_claim=SeenClaim(ME))]
    shards.on_start_reader(StartReader("a", 2, AT7, lease(checkpoint=AT7), 0.0), 1000)
    assert (positions(shards), shards.promotions()) == ({"a": AT7}, [])


def test_a_shard_that_was_drained_and_comes_again_is_drained_again():
    shards = holding("a")
    settle(shards, done(), claimed(end=SHARD_END, children=(CHILD,)))
    assert shards.release_finished() == [ShardDrained("a", 1, (CHILD,))]
    shards.on_start_reader(StartReader("a", 2, AT5, lease(), 0.0), 1000)
    assert shards.release_finished() == [ShardDrained("a", 2, (CHILD,))]


def test_a_shard_that_comes_back_as_somebody_elses_has_no_start():
    shards = holding("b")
    settle(shards, done(shards=("a", "b")), claimed("b"))
    shards.on_start_reader(StartReader("a", 9, AT5, replace(lease(), owner=OTHER), 0.0), 1000)
    assert positions(shards) == {"b": AT9}


@pytest.mark.parametrize(
    ("row", "limit", "expected"),
    [
        (lease(), None, StartReason.NOT_READ),
        (lease(), SharedLimits(10, None, ("a",)), StartReason.NOT_READ),
        (lease(), SharedLimits(10, None, ("b",)), None),
        (None, None, StartReason.LEASE_GONE),
    ],
)
def test_what_a_user_should_hear_of_is_told(row, limit, expected):
    shards = holding("a")
    settled = settle(shards, done(limit=limit), *([] if row is None else [row]))
    assert settled.unexpected_starts == (() if expected is None else (("a", expected),))
    assert positions(shards) == {"a": AT5}


def test_a_finished_shard_is_drained_with_its_children():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed(end=SHARD_END, children=(CHILD,)), claimed("b"))
    assert shards.release_finished() == [ShardDrained("a", 1, (CHILD,))]
    assert shards.release_finished() == []
    assert (shards.shard_ids, positions(shards)) == ({"b"}, {"b": AT9})


def test_a_shard_is_given_back_only_between_batches_and_with_what_is_done():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed(), claimed("b"))
    shards.on_batch_start()
    shards.on_stop_reader(StopReader("a", 1, StopWhy.HANDOVER))
    assert (shards.release_stopped(), shards.release_all(), shards.is_settled) == ([], [], False)
    settle(shards, done(2, shards=("a", "b")), claimed(end=AT12, batch=2), claimed("b", batch=2))
    assert bare(shards.release_stopped()) == [
        ReaderStopped("a", 1, AT12, TipMark(AT12, 900), SeenClaim(ME, (2, "r1")))
    ]
    assert shards.shard_ids == {"b"}
    assert bare(shards.release_all()) == [ReaderStopped("b", 2, AT9, TIP, SeenClaim(ME, (2, "r1")))]
    assert shards.shard_ids == frozenset()


def test_a_stop_for_an_earlier_ownership_or_an_unknown_shard_means_nothing():
    shards = holding("a")
    settle(shards, done(), claimed())
    shards.on_stop_reader(StopReader("a", 7, StopWhy.HANDOVER))
    shards.on_stop_reader(StopReader("z", 1, StopWhy.HANDOVER))
    assert bare(shards.release_stopped()) == []


def test_what_is_lost_stays_lost_whatever_is_asked_for_later():
    shards = holding("a")
    settle(shards, done(), claimed())
    shards.on_stop_reader(StopReader("a", 1, StopWhy.LOST))
    shards.on_stop_reader(StopReader("a", 1, StopWhy.HANDOVER))
    assert bare(shards.release_stopped()) == [ReaderStopped("a", 1, AT9, TIP, SEEN)]


def test_a_stolen_shard_is_given_back_with_its_claim_where_the_thief_left_it():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), replace(claimed(), owner=OTHER), replace(lease("b"), owner=OTHER))
    assert bare(shards.release_stopped()) == [
        ReaderStopped("a", 1, AT9, TIP, SEEN),
        ReaderStopped("b", 2, None),
    ]


def test_where_nothing_is_done_yet_nothing_is_said():
    shards = holding("a", position=TRIM_HORIZON)
    settle(shards, done(shards=()), lease(checkpoint=TRIM_HORIZON))
    assert bare(shards.release_all()) == [ReaderStopped("a", 1, None)]


def test_claims_are_promoted_once_and_only_forwards():
    shards = holding("a", "b", "c")
    behind = replace(claimed("b"), checkpoint=AT12)
    ended = claimed("c", end=SHARD_END)
    settle(shards, done(shards=("a", "b", "c")), claimed(), behind, ended)
    assert shards.promotions() == [Promote("a", ME, 1, AT9, 900)]
    shards.on_promoted([""])
    assert shards.promotions() == [Promote("a", ME, 1, AT9, 900)]
    shards.on_promoted(["a"])
    assert shards.promotions() == []


def test_a_claim_waits_for_its_promotion_while_batches_read_other_shards():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed("a"), claimed("b"))
    second = StreamOffset(batch=2, worker=ME, shards={"b": AT9})
    shards.settle(second, {"b": claimed("b", AT9, AT12, batch=2)}, 1000, 0.0, keys_read=["b"])
    assert shards.promotions() == [Promote("a", ME, 1, AT9, 900), Promote("b", ME, 2, AT12, 900)]
    third = StreamOffset(batch=3, worker=ME, shards={"a": AT9})
    shards.settle(third, {"a": claimed("a", AT9, AT12, batch=3)}, 1000, 0.0, keys_read=["a"])
    assert shards.promotions() == [Promote("b", ME, 2, AT12, 900), Promote("a", ME, 3, AT12, 900)]


def test_a_claim_of_a_batch_before_is_promoted_too_when_nothing_was_read_since():
    shards = holding("a")
    settle(shards, StreamOffset(batch=3, worker=ME, shards={"a": AT9}), claimed(batch=2))
    assert shards.promotions() == [Promote("a", ME, 2, AT9)]


def test_a_table_that_lacks_what_the_offset_knows_gets_it_where_the_offset_says():
    rows = {"b": lease("b"), "d": lease("d", parents=frozenset({"c"}))}
    known = done(shards=("a", "b", "c", "e"))
    assert find_missing_leases(rows, known, {}) == {"a": AT5, "e": AT5}
    assert find_missing_leases(rows, known, {"c": ("e", "f"), "f": ("e",)}) == {"a": AT5}


def test_the_next_offset_says_where_every_shard_starts_and_numbers_rise():
    shards = holding("a", "b")
    settle(shards, done(6, shards=("a", "b")), claimed(batch=6), lease("b"))
    offset = shards.next_offset(
        done(), ["b", "a"], run="r1", stream=STREAM, record_count_max=10, bytes_max=None, until_ms=None
    )
    assert offset == StreamOffset(
        batch=7,
        worker=ME,
        stream_arn="arn",
        stream_created_ms=77,
        shards={"a": AT9, "b": AT5},
        limit=SharedLimits(10, None, ("b", "a")),
        tips={"a": 900},
        runs=((2, "r1"),),
    )
    following = shards.next_offset(
        StreamOffset(),
        ["a"],
        run="r1",
        stream=STREAM,
        record_count_max=None,
        bytes_max=None,
        until_ms=None,
        deaggregates=False,
    )
    assert (following.batch, following.worker, following.limit) == (8, ME, SharedLimits(None, None, ("a",)))
    assert not following.deaggregates


def test_batch_numbers_go_on_behind_those_that_a_restored_checkpoint_does_not_know():
    shards = QueryShards(ME, 40)
    shards.on_start_reader(StartReader("a", 1, AT5, lease(), 0.0), 1000)
    settle(shards, done(6), claimed(batch=6))
    offset = shards.next_offset(
        done(6), ["a"], run="r1", stream=STREAM, record_count_max=None, bytes_max=None, until_ms=None
    )
    assert offset.batch == 41


def test_a_batch_is_settled_until_the_next_one_begins():
    shards = holding("a")
    assert not shards.is_settled
    settle(shards, done(3), claimed(batch=3))
    assert (shards.is_settled_for(3), shards.is_settled_for(2)) == (True, False)
    shards.on_batch_start()
    assert not shards.is_settled_for(3)


def test_a_state_without_a_note_knows_what_the_lease_says():
    def state(position, **changes):
        return state_at_start(BatchStart(position, StartReason.CHECKPOINT), lease(**changes), 5)

    assert state(AT5).is_whole_record is False
    assert state(TRIM_HORIZON).is_whole_record is True
    assert state(AT5, mark=TipMark(AT5, 70)).tip_seen_ms == 70
    assert state(AT5, mark=TipMark(AT7, 70)).tip_seen_ms is None
    assert state(AT5).is_foreign
    assert not state(AT5, mark=TipMark(AT5)).is_foreign


def test_a_state_with_a_note_knows_what_its_task_told():
    note = ClaimNote(has_more=True, millis_behind_latest=70)
    behind = state_at_start(BatchStart(AT5, StartReason.CLAIMED, note), lease(), 5)
    assert (behind.has_news, behind.tip_seen_ms, behind.millis_behind_latest) == (True, None, 70)


@pytest.mark.parametrize(("told_ms", "on_lease_ms"), [(90, 70), (70, 90), (None, 90), (90, None)])
def test_a_state_knows_when_nothing_was_left_last_whoever_says_so(told_ms, on_lease_ms):
    begin = BatchStart(AT5, StartReason.CLAIMED, ClaimNote(tip_ms=told_ms))
    assert state_at_start(begin, lease(mark=TipMark(AT5, on_lease_ms)), 5).tip_seen_ms == 90


# --- shards that a batch does not read -------------------------------------------------------------------------


def reading(batch, *keys, shards=("a", "b"), **more):
    return done(batch, shards=shards, limit=SharedLimits(None, None, keys), **more)


def test_an_answer_to_a_probe_from_before_probe_again_does_not_count():
    shards = holding("a")
    settle(shards, done(), claimed("a"))
    asked = shards.states["a"]
    shards.probe_again()
    asked.is_probed = True  # the answer arrives: records may have come since its probe was sent
    assert shards.unprobed_shards == ["a"]


def test_a_shard_that_the_batch_did_not_read_keeps_what_its_last_probe_told():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed(), claimed("b"))
    idle = shards.states["b"]
    idle.iterator, idle.is_probed = "kept", True
    following = replace(reading(2, "a"), shards={"a": AT9, "b": AT9})
    settle(shards, following, claimed(start=AT9, end=AT12, batch=2), claimed("b"))
    assert shards.states["b"] is idle


def test_a_shard_whose_lease_was_not_asked_for_stays_as_it_is():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed(), claimed("b"))
    following = replace(reading(2, "a"), shards={"a": AT9, "b": AT9})
    assert shards.rows_to_read(following) == ["a"]
    rows = {"a": claimed(start=AT9, end=AT12, batch=2)}
    settled = shards.settle(following, rows, 1000, 20.0, keys_read=["a"])
    assert positions(shards) == {"a": AT12, "b": AT9}
    assert (settled.claim_count, settled.unexpected_starts) == (1, ())


def test_a_shard_that_came_meanwhile_is_looked_at():
    shards = holding("a")
    settle(shards, done(), claimed())
    shards.on_batch_start()
    shards.on_start_reader(StartReader("b", 2, AT5, lease("b"), 0.0), 1000)
    assert shards.rows_to_read(reading(2, "a", shards=("a",))) == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (lease(), ["a"]),
        (claimed(batch=1), ["a"]),
        (claimed(batch=2), []),
        (planned("r1", batch=2), []),
        (planned("r9", batch=2), ["a"]),
        (replace(lease(), owner=OTHER), []),
        (None, []),
    ],
)
def test_what_no_execution_of_a_batch_fixed_is_left_to_the_driver(row, expected):
    shards = holding("a", "b")
    rows = {} if row is None else {"a": row}
    assert shards.find_unclaimed_shards(reading(2, "a", runs=RUNS), rows) == expected


def test_the_claim_that_was_seen_last_is_remembered_whatever_older_rows_say():
    shards = holding("a")
    assert shards.last_claim("a") is None
    settle(shards, done(2), claimed(batch=2))
    shards.on_row(claimed(batch=1))
    assert shards.last_claim("a") == (2, "r1")


def test_idle_shards_tell_since_when_nothing_is_left():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed(), claimed("b", tip_ms=None, has_more=True))
    assert shards.progress_of_idle_shards() == [ReaderProgress("a", 1, str(AT9), 0, None, TipMark(AT9, 900))]


def test_a_claim_that_was_seen_and_may_be_gone_is_looked_up_before_it_counts():
    shards = holding("a")
    settle(shards, done(2), claimed(batch=2))
    shards.on_stop_reader(StopReader("a", 1, StopWhy.LOST))
    shards.release_stopped()
    shards.on_start_reader(StartReader("a", 2, AT9, lease(), 0.0), 1000)
    assert (shards.last_claim("a"), shards.unverified_claims) == ((2, "r1"), {"a"})
    shards.on_fresh_rows(["a"], {"a": lease()})
    assert (shards.last_claim("a"), shards.unverified_claims) == (None, set())
    shards.on_fresh_rows(["a", "b"], {"a": claimed(batch=3)})
    assert (shards.last_claim("a"), shards.last_claim("b")) == ((3, "r1"), None)


def test_a_restored_copy_keeps_its_last_batchs_end_if_a_later_claim_has_it():
    row = claimed("a", start=AT9, end=AT12, batch=4)
    claim = replace(row.claims[0], earlier=(PastClaim(3, AT5, AT9),), made_ms=7)
    row = replace(row, claims=(claim,))
    standing = BatchClaim(ME, 3, "new", AT5, AT9, b"", 7)
    back = Reset("a", 3, AT5, claim_worker=ME, has_later_records=True)
    assert plan_rewind({"a": row}, done(3), ME, {}, "new") == {"a": replace(back, claim=standing)}
    assert plan_rewind({"a": row}, done(2), ME, {}, "new") == {
        "a": replace(back, claim=unclaimed_at(AT5, batch=1, made_ms=7))
    }


# --- a checkpoint location that was restored from an older copy -----------------------------------------------


def test_leases_go_back_to_an_older_copy_of_the_checkpoint_location():
    listed = {"gone": Shard("gone", FULL_RANGE, ("p",))}
    rows = [
        claimed("child", batch=6),
        claimed("a", batch=5),
        replace(claimed("ended", end=SHARD_END, batch=4), owner=None, checkpoint=SHARD_END),
        claimed("quiet", batch=3),
        replace(claimed("theirs", batch=9), owner=OTHER),
        lease("new"),
    ]
    known = done(3, shards=("a", "ended", "quiet", "theirs", "gone", "vanished"))
    writes = plan_rewind({row.key: row for row in rows}, known, ME, listed, "new")
    assert list(writes.values()) == [
        Create(Lease("gone", checkpoint=AT5, parents=frozenset({"p"}), hash_range=FULL_RANGE)),
        Reset("ended", 3, AT5, claim_worker=ME, claim=unclaimed_at(AT5)),
        Reset("a", 3, AT5, claim_worker=ME, claim=unclaimed_at(AT5), has_later_records=True),
        Reset(
            "child",
            3,
            TRIM_HORIZON,
            claim_worker=ME,
            claim=unclaimed_at(TRIM_HORIZON),
            has_later_records=True,
        ),
    ]


def test_what_comes_before_a_shard_that_the_location_knows_stays_done():
    shards = {
        "old": Shard("old", FULL_RANGE),
        "p": Shard("p", FULL_RANGE, ("old",)),
        "child": Shard("child", FULL_RANGE, ("p", "gone")),
        "new": Shard("new", FULL_RANGE, ("q",)),
        "q": Shard("q", FULL_RANGE),
    }
    rows = {key: claimed(key, TRIM_HORIZON, batch=6) for key in ("child", "new")}
    known = StreamOffset(batch=3, worker=ME, shards={"p": AT5, "child": TRIM_HORIZON})
    # The ancestors of `new` may have been read by a batch that the location has no record of.
    assert list(plan_rewind(rows, known, ME, shards, "new").values()) == [
        Create(Lease("p", checkpoint=SHARD_END, parents=frozenset({"old"}), hash_range=FULL_RANGE)),
        Reset(
            "child",
            3,
            TRIM_HORIZON,
            claim_worker=ME,
            claim=unclaimed_at(TRIM_HORIZON),
            has_later_records=True,
        ),
        Reset(
            "new", 3, TRIM_HORIZON, claim_worker=ME, claim=unclaimed_at(TRIM_HORIZON), has_later_records=True
        ),
    ]
    assert find_missing_leases({}, known, {key: shard.parents for key, shard in shards.items()}) == {
        "child": TRIM_HORIZON
    }


def test_a_shard_between_known_and_rewound_shards_is_read_again_before_them():
    shards = {
        "p": Shard("p", FULL_RANGE, ("old",)),
        "old": Shard("old", FULL_RANGE),
        "between": Shard("between", FULL_RANGE, ("p", "beside")),
        "beside": Shard("beside", FULL_RANGE),
        "new": Shard("new", FULL_RANGE, ("between",)),
    }
    rows = {key: claimed(key, TRIM_HORIZON, batch=6) for key in ("p", "new")}
    known = StreamOffset(batch=3, worker=ME, shards={"p": AT5})
    # The lease of `between` was cleared away; `new` would be read before it, and before the rest of `p`.
    assert plan_rewind(rows, known, ME, shards, "new")["between"] == Create(
        Lease("between", parents=frozenset({"p", "beside"}), hash_range=FULL_RANGE)
    )
    assert plan_rewind(rows, known, ME, shards, "new").keys() == {"p", "between", "new"}


def test_an_unknown_claims_records_are_known_to_follow_the_reset_position():
    rows = {"read": claimed("read", batch=5), "empty": claimed("empty", start=AT5, end=AT5, batch=6)}
    writes = plan_rewind(rows, done(3, shards=("read", "empty")), ME, {}, "new")
    after = {key: apply_write(rows[key], write).lease for key, write in writes.items()}
    assert {key: row.mark for key, row in after.items()} == {"read": TipMark(AT5, None), "empty": None}
    assert {key for key, row in after.items() if row.has_foreign_checkpoint} == {"empty"}


def test_an_unfinished_shard_whose_children_alone_have_leases_is_skipped():
    rows = {"child": lease("child", parents=frozenset({"a", "done"}))}
    known = StreamOffset(batch=3, worker=ME, shards={"a": AT5, "done": SHARD_END, "gone": AT5})
    assert find_skipped_shards(rows, known) == {"a": AT5}
    assert find_skipped_shards(rows | {"a": lease("a", checkpoint=SHARD_END)}, known) == {}


def test_a_shard_that_the_copy_knows_as_done_stays_done():
    known = StreamOffset(batch=3, worker=ME, shards={"a": SHARD_END})
    assert plan_rewind({"a": lease(checkpoint=SHARD_END)}, known, ME, {}, "new") == {}


# --- a copy of the checkpoint location that was used beside it --------------------------------------------------


def test_the_end_that_a_copys_batch_claimed_is_not_passed_and_not_promoted():
    shards = holding("a")
    settled = settle(shards, done(2, runs=RUNS), planned("r9", batch=2))
    assert positions(shards) == {"a": AT5}
    assert (settled.claim_count, settled.unexpected_starts) == (0, (("a", StartReason.NOT_READ),))
    assert shards.promotions() == []


def test_a_shard_that_comes_back_with_a_copys_claim_begins_at_its_checkpoint():
    shards = holding("b")
    settle(shards, done(4, shards=("b",), runs=RUNS), planned("r1", "b", batch=4))
    for key, by in (("theirs", "r9"), ("ours", "r1")):
        shards.on_start_reader(StartReader(key, 1, AT5, planned(by, key, batch=2), 0.0), 1000)
    assert (shards.states["theirs"].position, shards.states["ours"].position) == (AT5, AT9)


def test_a_lease_that_another_worker_has_is_not_gone_on_with_at_a_copys_claim():
    shards = holding("a", "b")
    rows = [replace(planned(by, key, batch=2), owner=OTHER) for key, by in (("a", "r9"), ("b", "r1"))]
    settle(shards, done(2, shards=("a", "b"), runs=RUNS), *rows)
    assert positions(shards) == {"b": AT9}


def test_leases_go_back_from_a_copys_claims_under_numbers_that_were_used():
    rows = [
        planned("r9", "equal", batch=3),
        planned("r9", "before", batch=2),
        planned("r1", "ours", batch=3),
        replace(planned("r9", "read on", batch=3), checkpoint=AT12),
        replace(planned("r9", "theirs", batch=3), owner=OTHER),
        planned("r9", "unknown", batch=3),
    ]
    known = done(3, shards=("equal", "before", "ours", "read on", "theirs"), runs=RUNS)
    writes = plan_rewind({row.key: row for row in rows}, known, ME, {}, "new")
    assert list(writes.values()) == [
        Reset(
            "before",
            3,
            AT5,
            claim_worker=ME,
            claim=unclaimed_at(AT5, planned_by="r1"),
            has_later_records=True,
        ),
        Reset(
            "equal", 3, AT5, claim_worker=ME, claim=unclaimed_at(AT5, planned_by="r1"), has_later_records=True
        ),
    ]


def test_the_locations_last_end_is_kept_only_if_the_same_run_planned_it():
    row = planned("r9", "a", start=AT9, end=AT12, batch=4)

    def standing(planner):
        claim = replace(row.claims[0], earlier=(PastClaim(3, AT5, AT9, planner),), made_ms=7)
        writes = plan_rewind({"a": replace(row, claims=(claim,))}, done(3, runs=RUNS), ME, {}, "new")
        return writes["a"].claim

    assert standing("r1") == BatchClaim(ME, 3, "new", AT5, AT9, b"", 7, planned_by="r1")
    assert standing("r8") == unclaimed_at(AT5, planned_by="r1", made_ms=7)


def reset_rows(logged):
    """A lease that a run with this location has reset, after which it begins."""
    row = claimed("a", start=AT9, end=AT12, batch=logged.batch + 6)
    write = plan_rewind({"a": row}, logged, ME, {}, "new")["a"]
    return {"a": apply_write(row, write).lease}


def test_a_lease_that_was_reset_is_not_reset_again():
    logged = done(3, runs=RUNS)
    assert plan_rewind(reset_rows(logged), logged, ME, {}, "newer") == {}
    assert plan_rewind(reset_rows(logged), done(1, runs=RUNS), ME, {}, "newer").keys() == {"a"}


@pytest.mark.parametrize("batch", [1, 3])
def test_a_restored_query_reads_freely_from_a_position_that_was_reset(batch):
    logged = done(batch, runs=RUNS)
    row = replace(reset_rows(logged)["a"], owner=ME)
    shards = QueryShards(ME, batch + 6)
    shards.on_row(row)
    execution = Execution(ME, batch, "new", AT5, shards.last_claim("a"), "r1")
    assert plan_read(row, execution) == ReadFreely()
    shards.on_start_reader(StartReader("a", 1, AT5, row, 0.0), 1000)
    assert (
        shards.claims_of_another_driver([row], logged.known_batches),
        shards.find_replaced_claims(logged, {"a": row}),
    ) == ([], [])
    settle(shards, replace(logged, limit=SharedLimits(None, None, ())), row)
    assert (positions(shards), shards.promotions()) == ({"a": AT5}, [])


def test_a_task_of_a_driver_that_was_paused_during_a_reset_does_not_go_on():
    seen = planned("r1", batch=3)
    row = replace(reset_rows(done(2, runs=RUNS))["a"], owner=ME)
    execution = Execution(ME, 4, "old", AT9, seen.claims[0].identity, "r1")
    assert plan_read(row, execution) == ClaimedElsewhere(row.claims[0])


def test_a_lease_that_was_reset_during_a_batch_and_came_back_still_counts_as_reset():
    shards = holding("a")
    settle(shards, done(3, runs=RUNS), planned("r1", batch=3))
    shards.on_batch_start()
    claim = replace(planned("r1", batch=3).claims[0], run="new")
    row = lease(claims=(claim,))
    shards.on_start_reader(StartReader("a", 2, AT5, row, 0.0), 1000)
    assert shards.find_replaced_claims(done(4, runs=RUNS), {"a": row}) == [("a", claim)]


@pytest.mark.parametrize(
    ("kept", "expected"), [(2, 2), (3, None), (None, None)], ids=["earlier", "the same", "missing"]
)
def test_a_lease_that_comes_back_between_batches_with_an_earlier_claim_was_reset(kept, expected):
    shards = holding("a")
    settle(shards, done(3, runs=RUNS), planned("r1", batch=3))
    row = lease() if kept is None else planned("r1", batch=kept)
    claim = shards.find_reset_claim(row)
    assert (None if claim is None else claim.batch) == expected
    shards.on_batch_start()
    assert shards.find_reset_claim(row) is None


# --- which shards share a task ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "task_count", "expected"),
    [
        ({}, 1, []),
        ({"b": 1, "a": 2}, 2, [["a"], ["b"]]),
        ({"a": 100, "b": 1, "c": 1, "d": 1}, 2, [["a"], ["b", "c", "d"]]),
        ({"a": 0, "b": 0, "c": 0, "d": 0}, 2, [["a", "c"], ["b", "d"]]),
        ({"a": 5, "b": 4, "c": 3}, 2, [["a"], ["b", "c"]]),
        ({"a": 5, "b": 4, "c": 3}, 1, [["a", "b", "c"]]),
        ({"a": 5}, 9, [["a"]]),
    ],
)
def test_busy_shards_are_read_alone_and_quiet_ones_together(weights, task_count, expected):
    assert plan_tasks(weights, task_count) == expected


# --- size ---------------------------------------------------------------------------------------------------------


def test_five_thousand_shards_are_settled_and_planned_by_looking_at_each_row_once():
    keys = [f"shardId-{number:012d}" for number in range(5000)]
    shards = holding(*keys)

    class Rows(dict):
        asked = 0

        def get(self, key, default=None):
            Rows.asked += 1
            return super().get(key, default)

    rows = Rows((key, claimed(key)) for key in keys)
    settled = shards.settle(done(shards=keys), rows, 1000, 1.0)
    assert (settled.claim_count, Rows.asked) == (5000, 5000)
    offset = shards.next_offset(
        done(shards=keys),
        keys,
        run="r1",
        stream=STREAM,
        record_count_max=10**6,
        bytes_max=None,
        until_ms=None,
    )
    assert len(offset.shards) == 5000


# --- after a lost lease or an ended shard ----------------------------------------------------------------


def test_an_ended_shard_of_the_offset_stays_until_its_children_are_looked_up():
    shards = holding("a")
    settle(shards, StreamOffset(batch=3, worker=ME, shards={"a": SHARD_END}), lease())
    assert shards.childless_shards() == ["a"]
    assert shards.release_finished() == []
    assert shards.release_finished({"a": (CHILD,)}) == [ShardDrained("a", 1, (CHILD,))]


def test_the_next_offset_names_a_shard_that_was_read_to_its_end():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed("a", end=SHARD_END, children=(CHILD,)), claimed("b"))
    shards.release_finished()
    named = {"record_count_max": None, "bytes_max": None, "until_ms": None}
    offset = shards.next_offset(done(), ["b"], run="r1", stream=STREAM, lease_table="billing", **named)
    assert offset.shards == {"a": SHARD_END, "b": AT9}
    assert offset.lease_table == "billing"
    child = lease("child", checkpoint=TRIM_HORIZON, parents=frozenset({"a"}))
    shards.on_start_reader(StartReader("child", 3, TRIM_HORIZON, child, 0.0), 1000)
    following = shards.next_offset(offset, ["b"], run="r1", stream=STREAM, **named)
    assert following.shards == {"b": AT9, "child": TRIM_HORIZON}


def test_offsets_keep_an_ended_shard_batch_after_batch():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed("a", end=SHARD_END, children=(CHILD,)), claimed("b"))
    shards.release_finished()
    start = done()
    for _ in range(3):
        start = shards.next_offset(
            start, ["b"], run="r1", stream=STREAM, record_count_max=None, bytes_max=None, until_ms=None
        )
        assert start.shards == {"a": SHARD_END, "b": AT9}
        shards.on_batch_start()


@pytest.mark.parametrize(
    ("says", "before", "now", "why", "expected"),
    [
        ("it was taken and came back", claimed(), claimed(), StopWhy.LOST, set()),
        ("its row was deleted and created again", claimed(), lease(), StopWhy.LOST, {"a"}),
        ("nothing shows which of the two it was", lease(), lease(), StopWhy.LOST, {"a"}),
        ("it is held without a break", lease(), lease(), None, set()),
        ("its new row is read before the loss is reported", claimed(), lease(counter=1_000_007), None, {"a"}),
        ("it was asked for", claimed(), lease(), StopWhy.HANDOVER, set()),
    ],
)
def test_a_lost_lease_was_created_again_unless_it_has_the_last_claim(says, before, now, why, expected):
    del says
    shards = QueryShards(ME)
    shards.on_start_reader(StartReader("a", 1, AT5, before, 0.0), 1000)
    if why is not None:
        shards.on_stop_reader(StopReader("a", 1, why))
    assert shards.find_recreated_leases({"a": now}) == expected
    assert shards.find_recreated_leases({}) == set()


@pytest.mark.parametrize(("counter", "expected"), [(1_000_007, AT9), (0, AT9), (4, None)])
def test_a_lease_that_another_process_creates_again_during_a_batch_repeats_that_batch_at_most(
    counter, expected
):
    shards = holding("a")
    settle(shards, done(), claimed("a"))
    anew = lease("a", counter=counter, owner=None, checkpoint=TRIM_HORIZON)
    settle(shards, StreamOffset(batch=2, worker=ME, shards={"a": AT9}), anew)
    (stopped,) = shards.release_stopped()
    assert (stopped.key, stopped.position) == ("a", expected)


@pytest.mark.parametrize(
    "rows", ["keep", "lose", "new", "keep lose", "keep new", "lose new", "keep lose new"]
)
def test_no_action_of_a_batch_misses_records_before_the_next_batch_if_the_lease_is_deleted(rows):
    """Three actions read one batch; each finds more records at the tip than the one before."""
    shards = holding("a")
    settle(shards, done(), claimed("a"))
    execution = Execution(ME, 2, "r1", AT9, expected_claim=shards.last_claim("a"), planned_by="r1")
    changes = {"lose": None, "new": lease("a", counter=1, checkpoint=TRIM_HORIZON)}  # `new` is taken again
    row, ends = claimed("a"), []
    for change, tip in zip_longest(rows.split(), (AT12, at_record("15"), at_record("18"))):
        row = changes.get(change, row)
        plan = plan_read(row, execution)
        if isinstance(plan, ReadTo):
            ends.append(plan.end)
            continue
        end = tip if isinstance(plan, ReadFreely | ReadUnclaimed) else AT9
        note = b"" if end == AT9 else ClaimNote().to_bytes()
        ends.append(end)
        if row is not None:
            own = row.claim_of(ME)
            claim = BatchClaim(ME, 2, "r1", AT9, end, note, planned_by="r1")
            write = Claim("a", claim, row.checkpoint, None if own is None else own.identity)
            row = apply_write(row, write).lease
    start = StreamOffset(
        batch=2, worker=ME, shards={"a": AT9}, limit=SharedLimits(None, None, ("a",)), runs=((1, "r1"),)
    )
    settle(shards, start, *([] if row is None else [row]))
    assert shards.states["a"].position <= min(ends)


def test_where_a_lost_shard_stands_is_known_until_it_is_given_up():
    shards = holding("a", "b")
    settle(shards, done(shards=("a", "b")), claimed("a"), claimed("b"))
    shards.on_stop_reader(StopReader("a", 1, StopWhy.LOST))
    assert shards.lost_positions() == {"a": TIP}
    shards.release_stopped()
    assert shards.lost_positions() == {}
