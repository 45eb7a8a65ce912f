"""Samples of shards whose read quota other readers use up."""

import pytest

pytest.importorskip("httptools")

from penstock import wiring
from penstock.ports.kinesis import ShardFilter
from penstock.sizing.sampling import sample_shards
from penstock_local import LocalKinesis

SECONDS = 30
PER_SECOND = 100


class NoWait(wiring.SystemClock):
    """A clock whose sleeps return at once."""

    def sleep(self, duration_s):
        """Return at once."""


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(time_factor=0, limits=False) as server:
        server.create_stream("orders", 1)
        client = server.client("kinesis")
        for _ in range(SECONDS):
            records = [{"Data": b"x" * 100, "PartitionKey": f"k{n}"} for n in range(PER_SECOND)]
            client.put_records(StreamName="orders", Records=records)
            server.clock.advance(1)
        yield server


@pytest.fixture
def sampled(server):
    def sample():
        kinesis = wiring.open_kinesis(wiring.AwsOptions(**server.connection()))
        shards = kinesis.fetch_shards("orders", ShardFilter("AT_LATEST")).shards
        return sample_shards(
            kinesis, "orders", shards, NoWait(), window_s=float(SECONDS), now_ms=server.clock.now_ms()
        )

    yield sample
    server.faults.clear()


def test_a_short_throttling_leaves_the_sample_whole(server, sampled):
    server.faults.throttle("GetRecords", count=2)
    (sample,), problems = sampled()
    assert problems == []
    assert sample.covered_s == SECONDS
    assert sample.records_per_s == PER_SECOND


@pytest.mark.parametrize("pages", [2, 3], ids=["between two moments", "within the second moment"])
def test_a_shard_that_is_throttled_on_is_sampled_by_the_moments_before(server, sampled, pages):
    """Without them, a full shard would look idle in the plan."""
    server.faults.throttle("GetRecords", skip=pages, count=None)
    (sample,), (problem,) = sampled()
    assert sample.covered_s == SECONDS / 3
    assert sample.records_per_s == PER_SECOND
    assert problem.startswith(
        "shardId-000000000000 was sampled at 1 of 3 moments: GetRecords on stream orders: "
    )


def test_a_shard_that_is_throttled_from_the_beginning_has_no_sample(server, sampled):
    server.faults.throttle("GetRecords", count=None)
    samples, (problem,) = sampled()
    assert samples == []
    assert problem.startswith("shardId-000000000000 could not be sampled: ")
