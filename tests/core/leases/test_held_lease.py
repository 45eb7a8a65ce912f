"""The state machine of one held lease: its phases and actions."""

import pytest
from msgspec import structs

from penstock.core.hash_key import HashRange
from penstock.core.leases.coordinator_effects import FetchLease, StopReader, StopWhy, Turn
from penstock.core.leases.coordinator_events import UNKNOWN, ReaderFailed, ReaderStopped
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.held_lease import HeldLease, RenewalPace
from penstock.core.leases.held_lease_phases import (
    TRANSITIONS,
    CreateChild,
    LeaseLoss,
    LeasePhase,
    SendWrite,
    Trigger,
)
from penstock.core.leases.lease import Lease, LeaseTerm
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Refusal, Refused, Release
from penstock.core.leases.pending_writes import ForHeldLease, PendingWrite
from penstock.core.position import at_record
from penstock.core.shard import ChildShard

ROW = Lease("s", counter=4, owner="me", checkpoint=at_record("5"))


def held(phase=LeasePhase.WAITING):
    options = CoordinatorOptions()
    lease = HeldLease("me", options, RenewalPace(options), 1, ROW, renewed_s=0.0, renew_due_s=3.0)
    lease.phase = phase
    return lease


def advance(lease, now_s=1.0):
    return lease.advance(now_s, LeaseView(10.0), is_busy=False, has_earlier_reader=False)


def test_the_table_has_every_phase_and_each_can_be_reached():
    reached, new = set(), {LeasePhase.WAITING}
    while new:
        reached |= new
        new = {after for phase in new for after in TRANSITIONS[phase].values()} - reached
    assert reached == set(LeasePhase) == set(TRANSITIONS)


@pytest.mark.parametrize("phase", [phase for phase in LeasePhase if phase is not LeasePhase.GONE])
def test_a_lease_can_be_lost_in_every_phase_and_then_nothing_follows(phase):
    lease = held(phase)
    wants = advance(lease, now_s=9.0)
    assert isinstance(wants[-1], LeaseLoss)
    assert wants[-1].has_reader is (phase in {LeasePhase.READING, LeasePhase.STOPPING})
    assert lease.phase is LeasePhase.GONE
    with pytest.raises(AssertionError):
        advance(lease, now_s=9.0)


@pytest.mark.parametrize("phase", [LeasePhase.WAITING, LeasePhase.STOPPED, LeasePhase.DRAINED])
def test_a_reader_that_was_never_started_cannot_stop(phase):
    with pytest.raises(AssertionError, match=f"lease s in phase {phase.name}: READER_STOPPED"):
        held(phase).on_reader_stopped(ReaderStopped("s", 1, None))


def test_giving_up_a_lease_stops_its_reader_once_then_releases_it_at_what_was_done():
    lease = held()
    advance(lease)
    assert lease.begin_release(StopWhy.SURPLUS) == [StopReader("s", 1, StopWhy.SURPLUS)]
    assert lease.begin_release(StopWhy.SHUTDOWN) == []
    assert advance(lease) == []
    lease.on_reader_stopped(ReaderStopped("s", 1, at_record("8")))
    assert advance(lease) == [SendWrite(Release("s", 4, "me", at_record("8")))]


@pytest.mark.parametrize(
    ("before", "release", "after"),
    [
        (LeasePhase.READING, False, LeasePhase.PARKED),
        (LeasePhase.READING, True, LeasePhase.STOPPED),
        (LeasePhase.STOPPING, False, LeasePhase.STOPPED),
        (LeasePhase.STOPPING, True, LeasePhase.STOPPED),
    ],
)
def test_a_reader_that_fails_parks_its_lease_unless_it_was_to_be_given_up(before, release, after):
    lease = held(before)
    lease.on_reader_failed(ReaderFailed("s", 1, None, "poison", release=release))
    assert lease.phase is after


def test_a_waiting_lease_can_only_be_read_released_or_lost():
    assert set(TRANSITIONS[LeasePhase.WAITING]) == {Trigger.START, Trigger.STOP, Trigger.LOST}


@pytest.mark.parametrize("term_s", [10, 60])
def test_children_are_created_only_while_the_lease_is_surely_held(term_s):
    # A query keeps its leases beyond every deadline. While it stood still, another worker may have read and deleted all this.
    options = CoordinatorOptions(keeps_claims=True, lease_duration_s=10.0)
    row = structs.replace(ROW, term=LeaseTerm("me", term_s * 1000))
    lease = HeldLease("me", options, RenewalPace(options), 1, row, renewed_s=0.0, renew_due_s=3.0)
    lease.phase = LeasePhase.READING
    lease.on_shard_drained((ChildShard("child", ("s",), HashRange(0, 9)),))
    assert [type(action) for action in advance(lease, now_s=term_s - 1.5)] == [CreateChild, SendWrite]
    assert [type(action) for action in advance(lease, now_s=3600.0)] == [SendWrite]


def renew(lease, outcome, now_s):
    """Send what is due, answer it, and read the row back unchanged if that is asked for."""
    (sent,) = advance(lease, now_s)
    lease.on_answer(PendingWrite(sent.write, ForHeldLease(1), now_s), outcome, now_s, Turn())
    if lease.unknown_write is not None:
        assert advance(lease, now_s) == [FetchLease("s")]
        lease.on_read_back(ROW, now_s, Turn())


@pytest.mark.parametrize("outcome", [UNKNOWN, Refused(Refusal.COUNTER, None)])
def test_a_write_without_effect_is_repeated_at_once_and_then_after_a_pause(outcome):
    lease = held(LeasePhase.READING)
    for _ in range(2):
        renew(lease, outcome, 3.0)
    assert advance(lease, 3.0) == []
    assert 3.0 < lease.next_due_s(3.0, is_busy=False) < 4.0


def test_a_write_that_was_applied_ends_the_pauses_even_if_its_answer_was_lost():
    lease = held(LeasePhase.READING)
    for _ in range(2):
        renew(lease, UNKNOWN, 3.0)
    (sent,) = advance(lease, 5.0)
    lease.on_answer(PendingWrite(sent.write, ForHeldLease(1), 5.0), UNKNOWN, 5.0, Turn())
    lease.on_read_back_failed(5.0, Turn())
    lease.on_read_back(structs.replace(ROW, counter=5), 5.1, Turn())
    assert (lease.failure_count, lease.retry_due_s) == (0, 0.0)


def test_a_shard_that_stopped_without_a_reason_is_not_renewed_at_once():
    lease = held(LeasePhase.READING)
    lease.on_reader_failed(ReaderFailed("s", 1, None, "poison", short_reason=""))
    assert advance(lease) == []
