"""The claim protocol: a task's range, a refused claim, the start of the next batch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.batches.claims import (
    CLAIMS_MAX,
    PAST_CLAIMS_MAX,
    ClaimedElsewhere,
    ClaimNote,
    ClaimRefusal,
    Execution,
    NothingReason,
    ReadFreely,
    ReadNothing,
    ReadTo,
    ReadUnclaimed,
    StartReason,
    find_unknown_claims,
    judge_refused_claim,
    last_claimed_batch,
    may_promote,
    parse_note,
    plan_dropped_claims,
    plan_read,
    resolve_start,
)
from penstock.core.batches.known_batches import KnownBatches
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Claim,
    Refusal,
    Refused,
    Release,
    Take,
)
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position, Sentinel, at_record
from penstock.core.shard import ChildShard

ME, OTHER = "query", "worker"
START, END, FURTHER = at_record("100"), at_record("200", 3), at_record("300")
NOTE = ClaimNote(tip_ms=5, record_count=7, bytes_count=70)
CLAIM = BatchClaim(ME, 4, "r1", START, END, NOTE.to_bytes())
MINE = Lease("shard", counter=5, owner=ME, checkpoint=START)
CLAIMED = replace(MINE, pending_checkpoint=END, claims=(CLAIM,))
FIRST = Execution(ME, 4, "r1", START)
"""The first execution of batch 4: its driver saw no claim."""


def claimed(**change):
    return replace(CLAIMED, claims=(replace(CLAIM, **change),))


CHILD = ChildShard("child", ("shard", "other"), FULL_RANGE)


@pytest.mark.parametrize(
    "note",
    [
        ClaimNote(True, 1, False, 3, 4, None, 6, (CHILD,), began_with_kept_iterator=True, query="q"),
        ClaimNote(),
        ClaimNote(millis_behind_latest=None),
        ClaimNote(has_more=True, is_whole_record=False, last_arrival_ms=0, process="p"),
        ClaimNote(pushed_count=3),
        ClaimNote(subscription_ends={"expired": 2}),
    ],
)
def test_a_note_comes_back_as_it_was_written(note):
    assert parse_note(note.to_bytes()) == note


@pytest.mark.parametrize(
    "note", [b"", b"not json", b"{}", b"[1]", b"[]", b"[3]", b'{"tip":null}', b"\xff\xfe"]
)
def test_bytes_that_are_no_note_are_none(note):
    assert parse_note(note) is None


# --- a task looks at its lease ------------------------------------------------------------------------------


def test_a_task_reads_freely_where_nothing_is_claimed():
    assert plan_read(MINE, FIRST) == ReadFreely()


def test_a_task_reads_freely_after_the_claim_of_an_earlier_batch_that_its_driver_saw():
    assert plan_read(CLAIMED, Execution(ME, 5, "r1", END, (4, "r1"))) == ReadFreely()


def test_a_second_execution_reads_exactly_to_the_claim():
    assert plan_read(CLAIMED, FIRST) == ReadTo(END)


def test_a_replay_under_a_new_driver_reads_exactly_to_the_claim():
    assert plan_read(CLAIMED, Execution(ME, 4, "r2", START, (4, "r1"))) == ReadTo(END)


def test_a_replay_reads_to_the_claim_whoever_had_the_lease_in_between():
    row = CLAIMED
    for write in (
        Take("shard", 5, OTHER),
        Checkpoint("shard", 6, OTHER, at_record("150")),
        Checkpoint("shard", 7, OTHER, FURTHER),
        Release("shard", 8, OTHER, at_record("400")),
        Take("shard", 9, ME),
    ):
        row = apply_write(row, write).lease
        assert plan_read(row, FIRST) == ReadTo(END)


def after(claim, batches):
    """The claim of a query that went on for some batches."""
    for number in range(batches):
        start, end = claim.end, at_record(str(1000 + number))
        claim = replace(
            claim, batch=claim.batch + 1, start=start, end=end, earlier=claim.past_claims(PAST_CLAIMS_MAX)
        )
    return replace(CLAIMED, claims=(claim,))


@pytest.mark.parametrize("batches", range(PAST_CLAIMS_MAX + 1))
def test_a_paused_driver_finishes_its_batch_with_the_same_records(batches):
    assert plan_read(after(CLAIM, batches), FIRST) == ReadTo(END)


def test_a_paused_driver_fails_when_nothing_is_known_of_its_batch_any_more():
    row = after(CLAIM, PAST_CLAIMS_MAX + 1)
    assert plan_read(row, FIRST) == ClaimedElsewhere(row.claims[0])


@pytest.mark.parametrize("seen", [None, (2, "r1")])
def test_a_claim_of_a_later_batch_that_the_driver_did_not_see_is_another_drivers(seen):
    later = claimed(batch=6, run="r2", start=END, end=FURTHER)
    assert plan_read(later, replace(FIRST, expected_claim=seen)) == ClaimedElsewhere(later.claims[0])


def test_a_claim_of_the_same_number_and_another_start_is_another_drivers():
    assert plan_read(CLAIMED, replace(FIRST, start=at_record("150"))) == ClaimedElsewhere(CLAIM)


def test_a_batch_holds_nothing_of_a_shard_whose_row_was_created_again_under_the_driver():
    assert plan_read(MINE, replace(FIRST, expected_claim=(3, "r1"))) == ReadNothing(
        NothingReason.ROW_RECREATED
    )


def test_a_row_that_was_made_anew_and_is_another_workers_gives_nothing():
    row = replace(MINE, owner="other")
    assert plan_read(row, replace(FIRST, expected_claim=(3, "r1"))) == ReadNothing(NothingReason.LEASE_LOST)


def test_an_earlier_claim_that_the_driver_did_not_see_is_another_drivers():
    assert isinstance(
        plan_read(claimed(batch=3, run="r9"), replace(FIRST, expected_claim=(3, "r1"))), ClaimedElsewhere
    )


def test_another_querys_claim_says_nothing():
    assert plan_read(claimed(worker=OTHER, batch=900), FIRST) == ReadFreely()


def test_a_batch_gives_up_a_shard_that_another_worker_has():
    assert plan_read(replace(MINE, owner=OTHER), FIRST) == ReadNothing(NothingReason.LEASE_LOST)


def test_a_batch_gives_up_a_shard_that_another_worker_has_read_further():
    assert plan_read(replace(MINE, checkpoint=at_record("101")), FIRST) == ReadNothing(
        NothingReason.DONE_ELSEWHERE
    )


@pytest.mark.parametrize("row", [LATEST, Position(sentinel=Sentinel.LATEST, timestamp_ms=9)])
def test_a_child_whose_row_says_latest_is_read_from_its_beginning(row):
    lease = replace(MINE, checkpoint=row)
    assert plan_read(lease, replace(FIRST, start=TRIM_HORIZON)) == ReadFreely()
    start = resolve_start(lease, ME, KnownBatches(4), TRIM_HORIZON)
    assert (start.position, start.reason) == (TRIM_HORIZON, StartReason.NOT_READ)


def test_a_batch_that_gave_a_shard_up_holds_nothing_of_it_when_the_lease_is_back():
    given_up = replace(MINE, claims=(replace(CLAIM, end=START, note=b""),))
    assert plan_read(given_up, FIRST) == ReadTo(START)


def test_a_task_reads_on_while_a_handover_waits_for_it():
    assert plan_read(replace(MINE, owner=OTHER, checkpoint_owner=ME), FIRST) == ReadFreely()


def test_a_task_without_a_lease_reads_unclaimed():
    assert plan_read(None, FIRST) == ReadUnclaimed()


@pytest.mark.parametrize(
    ("row", "mine", "expected"),
    [
        (CLAIMED, END, (ClaimRefusal.AGREES, END)),
        (CLAIMED, at_record("150"), (ClaimRefusal.READ_ON, END)),
        (CLAIMED, FURTHER, (ClaimRefusal.REPEAT, END)),
        (CLAIMED, SHARD_END, (ClaimRefusal.REPEAT, END)),
        (replace(MINE, checkpoint=TRIM_HORIZON), END, (ClaimRefusal.CLAIM_AGAIN, END)),
        (replace(MINE, owner=OTHER), END, (ClaimRefusal.LOST, END)),
        (claimed(batch=9), END, (ClaimRefusal.ANOTHER_DRIVER, END)),
        (None, END, (ClaimRefusal.GONE, END)),
    ],
)
def test_a_refused_claim_means(row, mine, expected):
    assert judge_refused_claim(row, FIRST, mine) == expected


@pytest.mark.parametrize("row", [MINE, replace(MINE, owner=OTHER)], ids=["back at once", "another's by now"])
def test_a_task_whose_seen_claim_disappears_while_it_reads_is_repeated(row):
    batch = Execution(ME, 5, "r1", END, expected_claim=(4, "r1"))
    assert judge_refused_claim(row, batch, FURTHER) == (ClaimRefusal.LOST, FURTHER)


# --- claims that are not needed any more ----------------------------------------------------------------------


def of(worker, made_ms):
    return BatchClaim(worker, 1, "r", START, END, b"", made_ms)


def test_claims_whose_records_have_left_the_stream_go_and_the_own_one_stays():
    row = replace(MINE, claims=(of("gone", 10), of("lives", 30), of(ME, 5)))
    assert plan_dropped_claims(row, ME, 20) == (("gone", 1),)


def test_a_row_keeps_a_bounded_number_of_claims_and_the_oldest_go_first():
    row = replace(MINE, claims=tuple(of(f"q{number:02}", 100 + number) for number in range(CLAIMS_MAX + 2)))
    assert plan_dropped_claims(row, ME, 0) == (("q00", 1), ("q01", 1))


# --- the driver plans the next batch --------------------------------------------------------------------------


def start_of(lease, batch=4, planned=START, runs=()):
    start = resolve_start(lease, ME, KnownBatches(batch, runs), planned)
    return None if start is None else (start.position, start.reason, start.note)


def test_the_next_batch_starts_where_the_last_one_claimed():
    assert start_of(CLAIMED) == (END, StartReason.CLAIMED, NOTE)


def test_the_next_batch_starts_at_the_last_claim_that_is_the_checkpoint():
    assert start_of(replace(CLAIMED, checkpoint=END, pending_checkpoint=None)) == (
        END,
        StartReason.CLAIMED,
        NOTE,
    )


def test_a_shard_new_to_the_query_starts_at_its_checkpoint():
    assert start_of(replace(MINE, checkpoint=END), planned=None) == (END, StartReason.CHECKPOINT, None)


def test_a_shard_that_was_out_of_sight_goes_on_at_its_last_claim():
    assert start_of(CLAIMED, batch=5, planned=None) == (END, StartReason.CLAIMED, NOTE)


def test_a_batch_that_did_not_read_a_shard_is_offered_again():
    assert start_of(MINE) == (START, StartReason.NOT_READ, None)


@pytest.mark.parametrize("lease", [MINE, CLAIMED, claimed(end=START, note=b"")])
@pytest.mark.parametrize("planned", [START, None])
def test_a_shard_that_another_owner_took_further_starts_there(lease, planned):
    batch = 4 if planned is not None else 5
    further = replace(lease, checkpoint=FURTHER)
    assert start_of(further, batch, planned) == (FURTHER, StartReason.CHECKPOINT, None)


def test_a_deleted_lease_starts_where_the_last_batch_did():
    assert start_of(None) == (START, StartReason.LEASE_GONE, None)


def test_nothing_is_known_of_a_shard_without_lease_that_was_not_in_the_batch():
    assert start_of(None, planned=None) is None


def test_a_claim_of_nothing_at_the_checkpoint_starts_there():
    nothing = replace(claimed(end=START, note=b""), checkpoint=START)
    assert start_of(nothing) == (START, StartReason.CHECKPOINT, None)


def test_the_last_claimed_batch_is_the_highest_on_any_lease():
    rows = [MINE, CLAIMED, claimed(batch=5), claimed(worker=OTHER, batch=9)]
    assert last_claimed_batch(rows, ME) == 5
    assert last_claimed_batch([MINE], ME) == -1


def test_claims_of_batches_that_are_not_known_are_found():
    rows = [
        CLAIMED,
        replace(claimed(batch=5), key="later"),
        replace(claimed(worker=OTHER, batch=9), key="another query's"),
        replace(claimed(planned_by="r1"), key="ours"),
        replace(claimed(planned_by="r9"), key="a copy's"),
        replace(claimed(batch=2, planned_by="r9"), key="before"),
    ]
    known = KnownBatches(4, ((3, "r1"),))
    assert [row.key for row, _ in find_unknown_claims(rows, ME, known)] == ["later", "a copy's"]


@pytest.mark.parametrize(
    ("lease", "batch", "done", "expected"),
    [
        (CLAIMED, 4, END, True),
        (CLAIMED, 5, END, True),
        (CLAIMED, 3, END, False),
        (CLAIMED, 4, START, False),
        (claimed(worker=OTHER), 4, END, False),
        (MINE, 4, END, False),
        (replace(CLAIMED, checkpoint=FURTHER), 4, END, False),
        (claimed(end=START), 4, END, False),
    ],
)
def test_a_claim_may_become_the_checkpoint(lease, batch, done, expected):
    assert may_promote(lease, ME, KnownBatches(batch), done) is expected


# --- another line of history ----------------------------------------------------------------------------------

PLANNED = replace(FIRST, planned_by="r1")
THEIRS = claimed(run="r2", planned_by="r2")
"""The claim of a batch 4 that starts at the same place, and that the driver of a copied location planned."""


def test_a_task_takes_no_end_from_a_batch_of_its_number_that_a_copy_planned():
    assert plan_read(THEIRS, PLANNED) == ClaimedElsewhere(THEIRS.claims[0])
    assert judge_refused_claim(THEIRS, PLANNED, END) == (ClaimRefusal.ANOTHER_DRIVER, END)
    assert plan_read(claimed(planned_by="r1"), PLANNED) == ReadTo(END)


def test_a_replay_under_a_new_driver_finds_the_claim_of_the_one_that_planned_it():
    replay = replace(PLANNED, run="r2", expected_claim=(4, "r1"))
    assert plan_read(claimed(planned_by="r1"), replay) == ReadTo(END)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(None, "r1"), ("r1", None), (None, None)],
    ids=["an old claim", "an old offset", "both"],
)
def test_where_nobody_knows_who_planned_the_number_decides(theirs, ours):
    assert plan_read(claimed(planned_by=theirs), replace(FIRST, planned_by=ours)) == ReadTo(END)
    runs = () if ours is None else ((1, ours),)
    assert start_of(claimed(planned_by=theirs), runs=runs) == (END, StartReason.CLAIMED, NOTE)
    assert may_promote(claimed(planned_by=theirs), ME, KnownBatches(4, runs), END)


def test_a_paused_driver_knows_its_batch_among_those_that_its_successor_went_on_from():
    row = after(replace(CLAIM, planned_by="r1"), 2)
    later = replace(row, claims=(replace(row.claims[0], run="r2", planned_by="r2"),))
    assert plan_read(later, PLANNED) == ReadTo(END)
    assert plan_read(later, replace(PLANNED, planned_by="r3")) == ClaimedElsewhere(later.claims[0])


def test_the_end_of_a_batch_that_another_line_of_history_planned_is_no_start():
    runs = ((1, "r1"),)
    assert start_of(THEIRS, runs=runs) == (START, StartReason.NOT_READ, None)
    assert start_of(THEIRS, batch=5, planned=None, runs=runs) == (START, StartReason.CHECKPOINT, None)
    assert start_of(THEIRS, batch=5, planned=None, runs=((1, "r2"),)) == (END, StartReason.CLAIMED, NOTE)


def test_the_claim_of_another_line_of_history_is_not_promoted():
    assert not may_promote(THEIRS, ME, KnownBatches(4, ((1, "r1"),)), END)
    assert may_promote(THEIRS, ME, KnownBatches(4, ((1, "r1"), (4, "r2"))), END)


def test_two_executions_race_and_the_first_claim_stands():
    def claim(end):
        return Claim("shard", replace(CLAIM, end=end), START)

    first = apply_write(MINE, claim(END))
    assert isinstance(first, Applied)
    second = apply_write(first.lease, claim(FURTHER))
    assert second == Refused(Refusal.CLAIMED, first.lease)
    assert judge_refused_claim(first.lease, FIRST, FURTHER) == (ClaimRefusal.REPEAT, END)
    assert plan_read(first.lease, FIRST) == ReadTo(END)
