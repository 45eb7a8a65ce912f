"""Effects come in order, and a lease never has two writes at once."""

import pytest

from penstock.core.leases.lease import Renew, Take
from penstock.core.leases.pending_writes import PendingWrites


def test_two_writes_for_one_lease_at_once_are_an_error():
    writes = PendingWrites(in_flight_max=5)
    writes.send(Renew("s", 1, "me"), "first", 0.0)
    with pytest.raises(AssertionError, match="two writes for lease s at once"):
        writes.send(Renew("s", 2, "me"), "second", 0.0)


def test_the_next_write_for_a_lease_begins_after_the_answer_to_the_one_before():
    writes = PendingWrites(in_flight_max=5)
    writes.send(Renew("s", 1, "me"), "first", 0.0)
    assert not writes.enqueue(Take("s", 1, "me"), "refused")
    pending = writes.settle(writes.effects[-1].write_id)
    assert pending is not None
    assert pending.purpose == "first"
    assert writes.enqueue(Take("s", 1, "me"), "taken")
    writes.pump(1.0)
    assert writes.effects[-1].write == Take("s", 1, "me")


def test_heartbeats_do_not_wait_for_room_and_take_none():
    writes = PendingWrites(in_flight_max=1)
    for key in ("a", "b"):
        writes.enqueue(Take(key, 1, "me"), key)
    writes.send(Renew("s", 1, "me"), "heartbeat", 0.0)
    writes.pump(0.0)
    assert [effect.write.key for effect in writes.effects] == ["s", "a"]
    writes.settle(writes.effects[0].write_id)
    writes.pump(1.0)
    assert len(writes.effects) == 2
    writes.settle(writes.effects[1].write_id)
    writes.pump(2.0)
    assert [effect.write.key for effect in writes.effects] == ["s", "a", "b"]


def test_an_answer_to_no_write_that_is_under_way_is_nobodys():
    writes = PendingWrites(in_flight_max=1)
    writes.enqueue(Take("a", 1, "me"), "taken")
    writes.pump(0.0)
    assert writes.settle(99) is None
    assert writes.settle(1) is not None
    assert writes.settle(1) is None
    assert writes.is_idle()
