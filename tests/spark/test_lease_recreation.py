"""Leases that are made again before a query begins: a listing that leaves a shard out is not a loss."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from moved_clock import MovedClock
from penstock.core.batches.offsets import SharedLimits, StreamOffset
from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Create
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import DataLossError, NotFound, Unavailable
from penstock.ports.kinesis import ShardListing
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.spark.driver.lease_recreation import LeaseRecreation
from penstock.spark.options.spark_options import parse_source

OPTIONS, _ = parse_source({"streamName": "s", "applicationName": "app", "region": "r"})
STREAM = StreamIdentity("arn", 1)
KNOWN = StreamOffset(batch=3, worker="q", shards={"shardId-1": at_record("7")})
WHOLE = (Shard("shardId-1", FULL_RANGE, (), "1", None),)


@dataclass
class LaggingKinesis:
    """Returns a test's listings, one after the other; the last one stays."""

    listings: list[tuple[Shard, ...]]
    is_known: bool = True
    clock: MovedClock = field(default_factory=MovedClock)

    def fetch_shards(self, stream, shard_filter=None):
        return ShardListing(self.listings.pop(0) if len(self.listings) > 1 else self.listings[0])

    def fetch_iterator(self, stream, shard_id, start):
        if not self.is_known:
            raise NotFound(f"{shard_id} does not exist")
        return "iterator"


def recreate(kinesis, known=KNOWN, former=None):
    table = MemoryLeaseTable()
    recreation = LeaseRecreation(kinesis, table, OPTIONS, kinesis.clock, {"former": former}.__getitem__)
    recreation.repair_at_start({}, known, STREAM)
    return {lease.key: lease.checkpoint for lease in table.scan().leases}


def test_a_shard_that_one_listing_leaves_out_gets_its_lease_back_when_it_is_listed():
    kinesis = LaggingKinesis([(), (), WHOLE])
    assert recreate(kinesis) == {"shardId-1": at_record("7")}
    assert kinesis.clock.now_s == 2.0


def test_a_shard_that_is_unknown_and_unlisted_twice_is_gone():
    kinesis = LaggingKinesis([(Shard("shardId-2", FULL_RANGE, (), "9"),)], is_known=False)
    with pytest.raises(DataLossError, match="shardId-1 has left the stream"):
        recreate(kinesis)
    assert kinesis.clock.now_s == 1.0


def test_a_shard_that_is_unknown_once_and_listed_then_is_not_gone():
    assert recreate(LaggingKinesis([(), WHOLE], is_known=False)) == {"shardId-1": at_record("7")}


def test_a_shard_that_is_read_and_never_listed_ends_the_query_without_a_loss():
    with pytest.raises(Unavailable, match="leaves out shardId-1, which the service has"):
        recreate(LaggingKinesis([()]))


def test_a_listing_with_a_hole_is_asked_for_again():
    half = Shard("shardId-1", HashRange(0, 9), (), "1")
    rest = Shard("shardId-2", HashRange(10, FULL_RANGE.end), (), "1")
    kinesis = LaggingKinesis([(half,), (half, rest)])
    assert recreate(kinesis) == {"shardId-1": at_record("7")}
    assert kinesis.clock.now_s == 1.0


# --- the log ----------------------------------------------------------------------------------------------------------


def said(caplog, **changes):
    known = StreamOffset(
        batch=3, worker="q", shards=KNOWN.shards, limit=SharedLimits(None, None, ("shardId-1",)), **changes
    )
    caplog.set_level(logging.INFO, logger="penstock.spark")
    former = MemoryLeaseTable()
    claim = BatchClaim("q", 3, "run", at_record("7"), at_record("9"))
    former.write(Create(Lease("shardId-1", hash_range=FULL_RANGE, claims=(claim,), stream=STREAM)))
    recreate(LaggingKinesis([WHOLE]), known, former)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_lease_that_is_lost_is_told_with_what_comes_again(caplog):
    (made, repeated) = said(caplog)
    assert made[0] == repeated[0] == "WARNING"
    assert "has lost the leases of shardId-1" in made[1]
    assert "the end of batch 3 in shardId-1 is unknown" in repeated[1]
    assert "read again: from 7.0 in shardId-1 on" in repeated[1]


def test_the_lease_of_a_child_is_not_told_as_lost(caplog):
    table, kinesis = (
        MemoryLeaseTable(),
        LaggingKinesis([(*WHOLE, Shard("shardId-2", FULL_RANGE, ("shardId-1",), "9"))]),
    )
    table.write(Create(Lease("shardId-1", hash_range=FULL_RANGE, stream=STREAM)))
    recreation = LeaseRecreation(kinesis, table, OPTIONS, kinesis.clock, {}.__getitem__)
    recreation.repair_at_start(
        {lease.key: lease for lease in table.scan().leases},
        StreamOffset(batch=3, worker="q", shards={"shardId-1": SHARD_END}),
        STREAM,
    )
    assert {lease.key: lease.checkpoint for lease in table.scan().leases} == {
        "shardId-1": SHARD_END,
        "shardId-2": TRIM_HORIZON,
    }
    assert caplog.records == []


def test_a_lease_that_is_carried_over_is_told_without_alarm(caplog):
    ((level, text),) = said(caplog, lease_table="former")
    assert level == "INFO"
    assert "were in former" in text
    assert "nothing is read again" in text
