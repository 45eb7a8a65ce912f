"""Children of ended shards whose claims do not name them, from a listing."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.shard import ChildShard, Shard
from penstock.core.shard_graph import covers


def find_children(childless: Iterable[str], listing: Iterable[Shard]) -> dict[str, tuple[ChildShard, ...]]:
    """Return the children of the shards for which the listing is complete.

    A listing may lag. It counts if the children cover their parent, or if the parent has left the stream.

    Args:
        childless: Ids of the ended shards.
        listing: The stream's shards.
    """
    listed = {shard.shard_id: shard for shard in listing}
    found = {}
    for key in childless:
        children = [shard for shard in listed.values() if key in shard.parents]
        if key not in listed or covers((child.hash_range for child in children), listed[key].hash_range):
            found[key] = tuple(
                ChildShard(child.shard_id, child.parents, child.hash_range) for child in children
            )
    return found
