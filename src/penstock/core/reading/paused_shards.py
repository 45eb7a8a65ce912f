"""Which shards a worker has paused: all, none, or all but some."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct, field


class PausedShards(Struct):
    """The effect of `pause` and `resume`, also on shards that the worker gets later.

    Args:
        is_paused_by_default: Whether every shard that is not an exception is paused.
        exceptions: Shards for which the opposite holds.
    """

    is_paused_by_default: bool = False
    exceptions: set[str] = field(default_factory=set)

    def __contains__(self, shard_id: str) -> bool:
        return self.is_paused_by_default is not (shard_id in self.exceptions)

    def set_paused(self, shard_ids: Collection[str], *, is_paused: bool) -> None:
        """Pause or resume these shards, or, if none is named, all of them."""
        if not shard_ids:
            self.is_paused_by_default = is_paused
            self.exceptions.clear()
        elif is_paused is self.is_paused_by_default:
            self.exceptions.difference_update(shard_ids)
        else:
            self.exceptions.update(shard_ids)
