"""The claim protocol: what a task reads, what a refused claim means, where the next batch starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.claims import (
    ClaimNote,
    Idle,
    ReadFreely,
    ReadNothing,
    ReadTo,
    ReadUnclaimed,
    Settled,
    StartReason,
    may_promote,
    parse_note,
    plan_read,
    resolve_start,
    settle_claim,
)
from penstock.core.hash_key import FULL_RANGE
from penstock.core.lease import Applied, Claim, Lease, Refusal, Refused, apply_write
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import ChildShard

ME, OTHER = "query", "worker"
START, END, FURTHER = at_record("100"), at_record("200", 3), at_record("300")
NOTE = ClaimNote(start=START, at_tip=True, record_count=7, bytes_count=70)
MINE = Lease("shard", counter=5, owner=ME, checkpoint=START)
CLAIMED = replace(MINE, pending=END, pending_state=NOTE.to_bytes(), claim_batch=4, claim_worker=ME)


def test_a_note_comes_back_as_it_was_written():
    child = ChildShard("child", ("shard", "other"), FULL_RANGE)
    note = ClaimNote(START, True, False, 3, 4, 5, 6, (child,))
    assert parse_note(note.to_bytes()) == note


@pytest.mark.parametrize("state", [None, b"", b"not json", b"{}", b"[1]", b'{"start":["x",0]}', b"\xff\xfe"])
def test_a_state_that_is_not_ours_is_no_note(state):
    assert parse_note(state) is None


def test_a_task_reads_freely_where_nothing_is_claimed():
    assert plan_read(MINE, ME, 4, START) == ReadFreely()


def test_a_task_reads_freely_after_the_claim_of_an_earlier_batch():
    assert plan_read(CLAIMED, ME, 5, END) == ReadFreely()


def test_a_second_execution_reads_exactly_to_the_claim():
    assert plan_read(CLAIMED, ME, 4, START) == ReadTo(END, NOTE)


def test_a_replay_after_the_claim_became_the_checkpoint_reads_to_the_checkpoint():
    promoted = replace(CLAIMED, checkpoint=END, pending=None, pending_state=None)
    assert plan_read(promoted, ME, 4, START) == ReadTo(END)


def test_a_replay_reads_to_the_claim_although_the_lease_is_free_now():
    assert plan_read(replace(CLAIMED, owner=None), ME, 4, START) == ReadTo(END, NOTE)


def test_a_task_of_a_batch_older_than_the_claim_reads_nothing():
    assert plan_read(CLAIMED, ME, 3, START) == ReadNothing(Idle.REWOUND)


def test_a_claim_of_another_start_is_another_timeline():
    assert plan_read(CLAIMED, ME, 4, at_record("150")) == ReadNothing(Idle.REWOUND)


def test_a_task_reads_nothing_where_another_worker_owns_the_lease():
    assert plan_read(replace(MINE, owner=OTHER), ME, 4, START) == ReadNothing(Idle.LEASE_LOST)


def test_a_task_reads_on_while_a_handover_waits_for_it():
    assert plan_read(replace(MINE, owner=OTHER, checkpoint_owner=ME), ME, 4, START) == ReadFreely()


def test_a_task_without_a_lease_reads_unclaimed():
    assert plan_read(None, ME, 4, START) == ReadUnclaimed()


@pytest.mark.parametrize(
    ("row", "mine", "expected"),
    [
        (CLAIMED, END, (Settled.AGREES, END)),
        (CLAIMED, at_record("150"), (Settled.READ_ON, END)),
        (CLAIMED, FURTHER, (Settled.REPEAT, END)),
        (CLAIMED, SHARD_END, (Settled.REPEAT, END)),
        (replace(MINE, checkpoint=TRIM_HORIZON), END, (Settled.CLAIM_AGAIN, END)),
        (replace(MINE, owner=OTHER), END, (Settled.LOST, END)),
        (replace(CLAIMED, claim_batch=9), END, (Settled.REPEAT, END)),
        (None, END, (Settled.GONE, END)),
    ],
)
def test_a_refused_claim_means(row, mine, expected):
    assert settle_claim(row, ME, 4, START, mine) == expected


def test_the_next_batch_starts_where_the_last_one_claimed():
    start = resolve_start(CLAIMED, ME, 4, START)
    assert start is not None
    assert (start.position, start.reason, start.note) == (END, StartReason.CLAIMED, NOTE)


def test_the_next_batch_starts_at_the_checkpoint_once_the_claim_is_promoted():
    promoted = replace(CLAIMED, checkpoint=END, pending=None, pending_state=None)
    start = resolve_start(promoted, ME, 4, START)
    assert start is not None
    assert (start.position, start.reason) == (END, StartReason.CHECKPOINT)


def test_a_shard_new_to_the_query_starts_at_its_checkpoint():
    start = resolve_start(replace(MINE, checkpoint=END), ME, 4, None)
    assert start is not None
    assert (start.position, start.reason) == (END, StartReason.CHECKPOINT)


def test_a_batch_that_did_not_read_a_shard_to_an_end_is_offered_again():
    start = resolve_start(MINE, ME, 4, START)
    assert start is not None
    assert (start.position, start.reason) == (START, StartReason.NOT_READ)


def test_a_shard_that_another_owner_took_further_starts_there():
    start = resolve_start(replace(MINE, checkpoint=FURTHER), ME, 4, START)
    assert start is not None
    assert (start.position, start.reason) == (FURTHER, StartReason.CHECKPOINT)


def test_a_checkpoint_location_older_than_the_lease_rewinds():
    start = resolve_start(replace(CLAIMED, claim_batch=9), ME, 4, START)
    assert start is not None
    assert (start.position, start.reason) == (START, StartReason.REWOUND)


def test_a_claim_of_another_timeline_rewinds():
    start = resolve_start(CLAIMED, ME, 4, at_record("150"))
    assert start is not None
    assert (start.position, start.reason) == (at_record("150"), StartReason.REWOUND)


def test_a_deleted_lease_starts_where_the_last_batch_did():
    start = resolve_start(None, ME, 4, START)
    assert start is not None
    assert (start.position, start.reason) == (START, StartReason.LEASE_GONE)


def test_nothing_is_known_of_a_shard_without_lease_that_was_not_in_the_batch():
    assert resolve_start(None, ME, 4, None) is None


@pytest.mark.parametrize(
    ("lease", "batch", "done", "expected"),
    [
        (CLAIMED, 4, END, True),
        (CLAIMED, 5, END, True),
        (CLAIMED, 3, END, False),
        (CLAIMED, 4, START, False),
        (replace(CLAIMED, claim_worker=OTHER), 4, END, False),
        (replace(CLAIMED, claim_batch=None), 4, END, False),
        (replace(CLAIMED, pending=None), 4, END, False),
        (replace(CLAIMED, checkpoint=FURTHER), 4, END, False),
        (replace(CLAIMED, pending=START), 4, END, False),
    ],
)
def test_a_claim_may_become_the_checkpoint(lease, batch, done, expected):
    assert may_promote(lease, ME, batch, done) is expected


def test_two_executions_race_and_the_first_claim_stands():
    def claim(end):
        return Claim("shard", ME, 4, end, ClaimNote(START).to_bytes(), START, START)

    first = apply_write(MINE, claim(END))
    assert isinstance(first, Applied)
    second = apply_write(first.lease, claim(FURTHER))
    assert second == Refused(Refusal.CLAIMED, first.lease)
    assert settle_claim(first.lease, ME, 4, START, FURTHER) == (Settled.REPEAT, END)
    assert plan_read(first.lease, ME, 4, START) == ReadTo(END, ClaimNote(START))
