"""Which shards a worker has paused: all, none, or all but some."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field


class PausedShards(Struct):
    """The effect of `pause` and `resume`, also on shards that the worker gets later.

    Args:
        is_default: Whether a shard that no call has named is paused.
        others: Shards for which the opposite holds.
    """

    is_default: bool = False
    others: set[str] = field(default_factory=set)

    def __contains__(self, shard_id: str) -> bool:
        return self.is_default is not (shard_id in self.others)

    def set(self, shard_ids: Collection[str], *, is_paused: bool) -> None:
        """Pause or resume these shards, or, if none is named, all of them."""
        if not shard_ids:
            self.is_default = is_paused
            self.others.clear()
        elif is_paused is self.is_default:
            self.others.difference_update(shard_ids)
        else:
            self.others.update(shard_ids)
