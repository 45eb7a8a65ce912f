"""The place of each shard in the drawing of a stream: hash keys downwards, splits and merges in order to the right. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.hash_key import HASH_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.shard import Shard


@dataclass(frozen=True, slots=True)
class Box:
    """The place of one shard.

    Args:
        first_column: 0 without parents, otherwise one more than the largest first column of its parents.
        end_column: The column after its last one: the smallest first column of its children, or the end of the drawing.
        top: Where its hash range begins, 0 to 1.
    """

    shard: Shard
    first_column: int
    end_column: int
    top: float
    bottom: float


def place_shards(lineage: Sequence[Shard]) -> tuple[Box, ...]:
    """Return a place for every shard: no two overlap, and each touches its parents.

    Args:
        lineage: Parents before children, as a `ShardGraph` gives them.
    """
    first: dict[str, int] = {}
    end: dict[str, int] = {}
    for shard in lineage:
        known = [parent for parent in shard.parents if parent in first]
        first[shard.shard_id] = 1 + max((first[parent] for parent in known), default=-1)
    for shard in lineage:
        for parent in shard.parents:
            # Of two children, the merged one may begin later: the parent ends where the first of them begins.
            if parent in first:
                end[parent] = min(end.get(parent, first[shard.shard_id]), first[shard.shard_id])
    width = 1 + max(first.values(), default=-1)
    return tuple(
        Box(
            shard,
            first[shard.shard_id],
            end.get(shard.shard_id, width),
            shard.hash_range.start / HASH_KEYS,
            (shard.hash_range.end + 1) / HASH_KEYS,
        )
        for shard in lineage
    )
