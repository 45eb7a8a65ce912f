"""The keys of leases: a shard's id, prefixed with its stream's id if several streams share a table.

A table of several streams has the format of the KCL's multi-stream mode. There a key is `account:stream:epoch:shardId`, and
the text before the last colon is the stream's id. Parents and children are bare shard ids in the table and keys in memory,
so the decisions about leases are the same for one stream and for several.

Source:
    KCL's `StreamIdentifier` and `MultiStreamLease.getLeaseKey`. No shard id and no stream's name has a colon.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition


def lease_key(stream_id: str, shard_id: str) -> str:
    """Return the key of a shard's lease; the stream id is empty for a table of one stream."""
    return f"{stream_id}:{shard_id}" if stream_id else shard_id


def stream_id_of(key: str) -> str:
    """Return the id of the stream that a key names; empty in a table of one stream."""
    return key.rpartition(":")[0]


def stream_name_of(stream_id: str) -> str:
    """Return the stream's name in its id; empty if the table has one stream."""
    return stream_id.partition(":")[2].rpartition(":")[0]


def shard_id_of(key: str) -> str:
    """Return the shard's id in a key."""
    return key.rpartition(":")[2]


def keyed_shard(stream_id: str, shard: Shard) -> Shard:
    """Return a listed shard whose ids are lease keys."""
    if not stream_id:
        return shard
    parents = tuple(lease_key(stream_id, parent) for parent in shard.parents)
    return replace(shard, shard_id=lease_key(stream_id, shard.shard_id), parents=parents)


def keyed_child(stream_id: str, child: ChildShard) -> ChildShard:
    """Return a child whose ids are lease keys."""
    if not stream_id:
        return child
    parents = tuple(lease_key(stream_id, parent) for parent in child.parents)
    return ChildShard(lease_key(stream_id, child.shard_id), parents, child.hash_range)


def keyed_start(stream_id: str, start: StartingPosition) -> StartingPosition:
    """Return a starting position that names shards by their lease keys."""
    by_key = {lease_key(stream_id, shard_id): position for shard_id, position in start.by_shard.items()}
    return replace(start, by_shard=by_key)
