"""When all records are read that had arrived before a command began."""

import threading
import time
import types

import pytest

from penstock.cli.caught_up import when_caught_up
from penstock.core.hash_key import HASH_KEYS, HashRange
from penstock.core.leases.lease import Lease
from waiting import wait_until

ROW = Lease("shardId-000000000000", hash_range=HashRange(0, HASH_KEYS - 1))
TABLE = types.SimpleNamespace(scan=lambda: types.SimpleNamespace(leases=[ROW]))


class Reader:
    """A consumer of one shard, whose lag a test sets."""

    def __init__(self, lag_ms):
        self.lag_ms = lag_ms
        self.asked = 0

    def health(self):
        self.asked += 1
        shard = types.SimpleNamespace(shard_id=ROW.key, state="reading", lag_ms=self.lag_ms)
        return types.SimpleNamespace(shards=[shard])


def test_a_shard_without_unread_records_is_caught_up_at_once():
    told = threading.Event()
    with when_caught_up(Reader(0), TABLE, told.set, lag_error_ms=3_600_000):
        wait_until(told.is_set)


@pytest.mark.parametrize("lag_ms", [1, None])
def test_an_unread_record_that_may_be_older_than_the_beginning_is_waited_for(lag_ms):
    reader, told = Reader(lag_ms), threading.Event()
    with when_caught_up(reader, TABLE, told.set, lag_error_ms=3_600_000):
        wait_until(lambda: reader.asked >= 5)
        assert not told.is_set()
        reader.lag_ms = 0
        wait_until(told.is_set)


def test_records_that_have_arrived_since_are_not_waited_for():
    told, began_s = threading.Event(), time.monotonic()
    with when_caught_up(Reader(50), TABLE, told.set, lag_error_ms=200):
        wait_until(told.is_set)
    assert time.monotonic() - began_s >= 0.25
