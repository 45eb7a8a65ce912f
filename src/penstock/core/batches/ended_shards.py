"""Shards that a query has read to their end while no child of theirs is in its offset.

If the lease table is lost, the offset must show that such a shard is not read again. As soon as the offset has a child of
the shard, the child shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.position import SHARD_END, Position

ENDED_MAX: Final = 10_000
"""Ended shards that an offset keeps, those with the highest ids: children of older ones are long taken."""


class EndedShards:
    """The ended shards of one query. Not thread-safe."""

    def __init__(self) -> None:
        self._parents: dict[str, frozenset[str]] = {}

    def add(self, key: str, parents: frozenset[str]) -> None:
        """Add a shard that is read to its end."""
        self._parents[key] = parents

    def take_listed(
        self, logged: Mapping[str, Position], held: Mapping[str, frozenset[str]]
    ) -> dict[str, Position]:
        """Return the ended shards that the next offset lists, and forget the others.

        Args:
            logged: Positions in the previous offset.
            held: The unfinished shards in the next offset, with their parents.
        """
        for key, position in logged.items():
            if position.is_shard_end:
                self._parents.setdefault(key, frozenset())
        with_child = _union(held.values()) | _union(self._parents.values())
        for key in (with_child | held.keys()) & self._parents.keys():
            del self._parents[key]
        return dict.fromkeys(sorted(self._parents)[-ENDED_MAX:], SHARD_END)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
