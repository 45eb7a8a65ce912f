"""The shards that a query has read to their end and that nothing else in its offset shows as done.

A shard's lease may be lost with its table. Then the offset must tell that the shard is not to be read again. As soon as a child
is in the offset, the child tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.core.position import SHARD_END, Position

ENDED_MAX: Final = 10_000
"""Ended shards that an offset keeps, those with the highest ids: others have taken all of their children."""


class EndedShards:
    """The ended shards of one query. Not thread-safe."""

    def __init__(self) -> None:
        self._parents: dict[str, frozenset[str]] = {}

    def add(self, key: str, parents: frozenset[str]) -> None:
        """Observe that a shard is read to its end."""
        self._parents[key] = parents

    def positions(
        self, logged: Mapping[str, Position], held: Mapping[str, frozenset[str]]
    ) -> dict[str, Position]:
        """Return the ended shards that the next offset names.

        Args:
            logged: What the offset before has.
            held: The shards that the query has now, with their parents; they are read on.
        """
        before = {key for key, position in logged.items() if position.is_shard_end}
        begun = _union(held.values()) | _union(self._parents.values())
        self._parents = {key: self._parents.get(key, frozenset()) for key in before | self._parents.keys()}
        for key in (begun | held.keys()) & self._parents.keys():
            del self._parents[key]
        return dict.fromkeys(sorted(self._parents)[-ENDED_MAX:], SHARD_END)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
