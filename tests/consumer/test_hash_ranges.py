"""When a reader asks for the hash-key ranges of its shards, and how old an answer may be."""

from __future__ import annotations

import logging

import pytest
from virtual_world import TinyKinesis

from moved_clock import MovedClock
from penstock.core.hash_key import FULL_RANGE
from penstock.errors import AccessDenied, Throttled
from penstock.runtime.hash_ranges import HashRanges

FIRST = "shardId-000000000000"


class Listing(TinyKinesis):
    """Counts how often its shards are listed; refuses on demand."""

    def __init__(self, clock):
        super().__init__(clock, 1)
        self.listings = 0
        self.error = None

    def fetch_shards(self, stream, shard_filter=None):
        self.listings += 1
        if self.error is not None:
            raise self.error
        return super().fetch_shards(stream, shard_filter)


@pytest.fixture
def clock():
    return MovedClock(1000.0)


@pytest.fixture
def stream(clock):
    return Listing(clock)


@pytest.fixture
def ranges(stream, clock):
    return HashRanges(stream, "orders", clock.monotonic_s)


def test_one_listing_serves_every_shard_for_long(ranges, stream, clock):
    shard = ranges.of(FIRST)
    assert stream.listings == 0
    assert shard() == FULL_RANGE
    clock.sleep(100_000)
    assert shard() == FULL_RANGE
    assert stream.listings == 1


def test_a_word_that_is_asked_again_is_at_most_a_minute_old(ranges, stream, clock):
    shard = ranges.of(FIRST)
    shard()
    clock.sleep(60)
    shard(60.0)
    assert stream.listings == 1
    clock.sleep(1)
    shard(60.0)
    assert stream.listings == 2


def test_a_child_that_is_younger_than_the_listing_is_looked_for_at_once(ranges, stream):
    assert ranges.of(FIRST)() == FULL_RANGE
    stream.split(FIRST)
    child = ranges.of("shardId-000000000001")()
    assert (child.start, child.end) == (0, FULL_RANGE.end // 2)
    assert stream.listings == 2


def test_a_shard_that_is_in_no_listing_is_not_looked_for_with_every_record(ranges, stream, clock):
    gone = ranges.of("shardId-000000000009")
    assert [gone() for _ in range(5)] == [None] * 5
    assert stream.listings == 1
    clock.sleep(1.1)
    assert gone() is None
    assert stream.listings == 2


def test_without_the_permission_to_list_nothing_is_known_and_the_log_says_so_once(ranges, stream, caplog):
    stream.error = AccessDenied("not for you", operation="ListShards")
    with caplog.at_level(logging.WARNING):
        assert [ranges.of(FIRST)() for _ in range(5)] == [None] * 5
        assert ranges.of("another")(60.0) is None
    assert stream.listings == 1
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["stream orders"]


def test_a_listing_that_fails_for_now_fails_the_read_and_is_tried_again_by_the_next(ranges, stream):
    stream.error = Throttled("slowly", operation="ListShards")
    with pytest.raises(Throttled):
        ranges.of(FIRST)()
    stream.error = None
    assert ranges.of(FIRST)() == FULL_RANGE
