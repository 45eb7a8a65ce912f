"""A name that may mean another stream by now."""

import pytest

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.coordinator_effects import ListShards
from penstock.core.leases.coordinator_events import (
    CallFailed,
    ListingDone,
    ListingPurpose,
    Problem,
)
from penstock.core.shard import Shard, StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import NotFound, StreamChanged, Throttled
from penstock.ports.kinesis import ShardListing
from penstock.runtime.lease_calls import list_shards
from penstock.runtime.stream_name_check import StreamNameCheck

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ID = "123456789012:orders:1700000000"


class Service:
    """Describes one stream; another one, once it is created again."""

    def __init__(self):
        self.created_ms = 1_700_000_000_000
        self.now_s = 100.0
        self.asked = []
        self.failure = None
        self.name_check = StreamNameCheck(
            "orders", StreamIdentity(ARN, self.created_ms), self.fetch_summary, lambda: self.now_s
        )

    def fetch_summary(self, stream):
        self.asked.append(stream)
        if self.failure is not None:
            raise self.failure
        return StreamSummary(stream, ARN, "ACTIVE", self.created_ms)

    def fetch_shards(self, stream, shard_filter=None):
        if self.failure is not None:
            raise self.failure
        return ShardListing((Shard("shardId-000000000000", HashRange(0, HASH_KEY_MAX)),), 5000)

    def list(self):
        effect = ListShards(ListingPurpose.COMPARE, None, None, ID)
        return list_shards(effect, "orders", self, self.name_check, lambda: 0)


def test_what_was_described_ten_seconds_ago_is_believed():
    service = Service()
    service.now_s += 9.0
    service.name_check.check()
    assert service.asked == []
    service.now_s += 2.0
    service.name_check.check()
    service.name_check.check()
    assert service.asked == ["orders"]


def test_a_stream_that_was_created_again_is_told_from_the_one_that_is_meant():
    service = Service()
    service.now_s += 60.0
    service.created_ms += 5000
    for _ in range(2):
        with pytest.raises(StreamChanged, match="created at 1700000005000 ms, and the one that this worker"):
            service.name_check.check()
    assert len(service.asked) == 2


def test_who_cannot_ask_does_not_know():
    service = Service()
    service.now_s += 60.0
    service.failure = Throttled("slow down")
    with pytest.raises(Throttled):
        service.name_check.check()


def test_a_listing_gives_shards_under_their_lease_keys():
    done = Service().list()
    assert isinstance(done, ListingDone)
    assert [shard.shard_id for shard in done.shards] == [f"{ID}:shardId-000000000000"]
    assert (done.stream_id, done.moment_ms) == (ID, 5000)


def test_the_listing_of_another_stream_is_none():
    service = Service()
    service.now_s += 60.0
    service.created_ms += 5000
    failed = service.list()
    assert isinstance(failed, CallFailed)
    assert (failed.problem, failed.stream_id) == (Problem.REFUSED, ID)
    assert "created again" in failed.detail


def test_a_stream_that_is_gone_is_no_lease_table_that_is_gone():
    service = Service()
    service.failure = NotFound("ListShards on stream orders: ResourceNotFoundException")
    failed = service.list()
    assert isinstance(failed, CallFailed)
    assert failed.problem is Problem.STREAM_MISSING
    assert failed.problem.value == "the stream does not exist"
