"""Effects in order, and never two writes for one lease."""

import pytest

from penstock.core.leases.lease import Renew, Take
from penstock.core.leases.pending_writes import Outbox


def test_two_writes_for_one_lease_at_once_are_an_error():
    outbox = Outbox(in_flight_max=5)
    outbox.send(Renew("s", 1, "me"), "first", 0.0)
    with pytest.raises(AssertionError, match="two writes for lease s at once"):
        outbox.send(Renew("s", 2, "me"), "second", 0.0)


def test_the_next_write_for_a_lease_begins_after_the_answer_to_the_one_before():
    outbox = Outbox(in_flight_max=5)
    outbox.send(Renew("s", 1, "me"), "first", 0.0)
    assert not outbox.enqueue(Take("s", 1, "me"), "refused")
    errand = outbox.settle(outbox.effects[-1].write_id)
    assert errand is not None
    assert errand.purpose == "first"
    assert outbox.enqueue(Take("s", 1, "me"), "taken")
    outbox.pump(1.0)
    assert outbox.effects[-1].write == Take("s", 1, "me")


def test_heartbeats_do_not_wait_for_room_and_take_none():
    outbox = Outbox(in_flight_max=1)
    for key in ("a", "b"):
        outbox.enqueue(Take(key, 1, "me"), key)
    outbox.send(Renew("s", 1, "me"), "heartbeat", 0.0)
    outbox.pump(0.0)
    assert [effect.write.key for effect in outbox.effects] == ["s", "a"]
    outbox.settle(outbox.effects[0].write_id)
    outbox.pump(1.0)
    assert len(outbox.effects) == 2
    outbox.settle(outbox.effects[1].write_id)
    outbox.pump(2.0)
    assert [effect.write.key for effect in outbox.effects] == ["s", "a", "b"]


def test_an_answer_to_no_write_that_is_under_way_is_nobodys():
    outbox = Outbox(in_flight_max=1)
    outbox.enqueue(Take("a", 1, "me"), "taken")
    outbox.pump(0.0)
    assert outbox.settle(99) is None
    assert outbox.settle(1) is not None
    assert outbox.settle(1) is None
    assert outbox.is_idle()
