"""Lease writes in order, and never two at once for one lease."""

import pytest

from penstock.core.leases.coordinator_effects import Turn
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.lease_writes import Renew, Take
from penstock.core.leases.pending_writes import ForAcquisition, ForHeldLease, PendingWrites

HELD = ForHeldLease(epoch=1)
GAIN = ForAcquisition(Reason.EXPIRED)


@pytest.fixture
def turn():
    return Turn()


def test_two_writes_for_one_lease_at_once_are_an_error(turn):
    writes = PendingWrites(turn, 5)
    writes.send(Renew("s", 1, "me"), HELD, 0.0, 9.0)
    with pytest.raises(AssertionError, match="two writes for lease s at once"):
        writes.send(Renew("s", 2, "me"), HELD, 0.0, 9.0)


def test_the_next_write_for_a_lease_begins_after_the_answer_to_the_one_before(turn):
    writes = PendingWrites(turn, 5)
    writes.send(Renew("s", 1, "me"), HELD, 0.0, 9.0)
    assert not writes.enqueue(Take("s", 1, "me"), GAIN)
    pending = writes.settle(turn.effects[-1].write_id)
    assert pending is not None
    assert pending.purpose == HELD
    assert writes.enqueue(Take("s", 1, "me"), GAIN)
    writes.send_queued(1.0)
    assert turn.effects[-1].write == Take("s", 1, "me")


def test_renewals_do_not_wait_for_room_and_take_none(turn):
    writes = PendingWrites(turn, 1)
    for key in ("a", "b"):
        writes.enqueue(Take(key, 1, "me"), GAIN)
    writes.send(Renew("s", 1, "me"), HELD, 0.0, 9.0)
    writes.send_queued(0.0)
    assert [effect.write.key for effect in turn.effects] == ["s", "a"]
    writes.settle(turn.effects[0].write_id)
    writes.send_queued(1.0)
    assert len(turn.effects) == 2
    writes.settle(turn.effects[1].write_id)
    writes.send_queued(2.0)
    assert [effect.write.key for effect in turn.effects] == ["s", "a", "b"]


def test_an_answer_to_no_write_that_is_under_way_is_nobodys(turn):
    writes = PendingWrites(turn, 1)
    writes.enqueue(Take("a", 1, "me"), GAIN)
    writes.send_queued(0.0)
    assert writes.settle(99) is None
    assert writes.settle(1) is not None
    assert writes.settle(1) is None
    assert writes.is_idle()
