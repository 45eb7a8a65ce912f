"""A stream whose shards were split, and its lease table before an operator's reset."""

from __future__ import annotations

from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.core.leases.lease import Lease
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position, Sentinel, at_record
from penstock.core.shard import Shard

NOW = Position(sentinel=Sentinel.LATEST, timestamp_ms=99)

# p is finished and split into a and b; a was split again, into c and d.
LINEAGE = (
    Shard("s0-p", HashRange(0, 99), (), "0", "9"),
    Shard("s1-a", HashRange(0, 49), ("s0-p",), "0", "9"),
    Shard("s2-b", HashRange(50, 99), ("s0-p",)),
    Shard("s3-c", HashRange(0, 24), ("s1-a",)),
    Shard("s4-d", HashRange(25, 49), ("s1-a",)),
)


def lease(key, checkpoint=TRIM_HORIZON, parents=(), **rest):
    keys = next((shard.hash_range for shard in LINEAGE if shard.shard_id == key), FULL_RANGE)
    return Lease(key, checkpoint=checkpoint, parents=frozenset(parents), hash_range=keys, **rest)


TABLE = (
    lease("s0-p", SHARD_END),
    lease("s1-a", at_record("5"), ["s0-p"]),
    lease("s2-b", at_record("7"), ["s0-p"]),
)
