"""The rows of one stream in a table that several streams share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView


class StreamRows:
    """One stream's rows in a view of several streams. Not thread-safe.

    Args:
        view: The view of the whole table.
        stream_id: The prefix of the stream's keys.
    """

    def __init__(self, view: LeaseView, stream_id: str) -> None:
        self._view = view
        self._prefix = f"{stream_id}:"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._is_mine(key) and key in self._view

    def __iter__(self) -> Iterator[Lease]:
        return (lease for lease in self._view if self._is_mine(lease.key))

    def _is_mine(self, key: str) -> bool:
        return key.startswith(self._prefix)

    def rows(self) -> Mapping[str, Lease]:
        """Return every last known row by key."""
        return {lease.key: lease for lease in self}

    @property
    def damaged(self) -> Mapping[str, str]:
        """Existing rows that cannot be read as leases, each with the reason."""
        return {key: why for key, why in self._view.damaged.items() if self._is_mine(key)}

    def missing_parents(self) -> set[str]:
        """Return the parents without a row that keep leases from being read."""
        return {parent for parent in self._view.missing_parents() if self._is_mine(parent)}

    def on_shards_vanished(self, shard_ids: AbstractSet[str]) -> None:
        """Handle that the stream does not list shards any more: no lease waits for them from now on."""
        self._view.on_shards_vanished(shard_ids)

    def unchanged_s(self, key: str, now_s: float) -> float:
        """Return the seconds since a row was last seen to change.

        Raises:
            KeyError: No such row is known.
        """
        return self._view.unchanged_s(key, now_s)

    def forget(self, key: str) -> None:
        """Handle that a row does not exist."""
        self._view.forget(key)


Rows: TypeAlias = LeaseView | StreamRows
"""The rows of one stream; the whole view if the table has only one."""
