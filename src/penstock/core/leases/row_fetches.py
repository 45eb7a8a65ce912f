"""Fetches of single rows by key: a worker that watches a part of the table needs rows of other parts."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Final

from penstock.core.leases.coordinator_effects import FetchLease
from penstock.core.leases.turn import Turn

_UNDER_WAY_MAX: Final = 20
_AGAIN_S: Final = 1.0


class RowFetches:
    """The fetches of one worker. Not thread-safe.

    Args:
        turn: Where effects go.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._due: list[tuple[float, str]] = []  # a heap: the first due is in front
        self._waiting: set[str] = set()
        self._under_way: set[str] = set()

    @property
    def next_fetch_s(self) -> float:
        """When the next fetch may begin; infinity while the maximum is in flight."""
        if len(self._under_way) >= _UNDER_WAY_MAX:
            return math.inf
        return self._due[0][0] if self._due else math.inf

    def request(self, key: str, now_s: float) -> None:
        """Request a fetch, unless the key is requested or in flight."""
        if key not in self._under_way and key not in self._waiting:
            self._wait(key, now_s)

    def fetch_due(self, now_s: float) -> None:
        """Begin the fetches that are due."""
        while self.next_fetch_s <= now_s:
            _, key = heappop(self._due)
            self._waiting.discard(key)
            self._under_way.add(key)
            self._turn.emit(FetchLease(key))

    def on_answer(self, key: str) -> bool:
        """Handle that a row was read; True if it was requested here."""
        is_wanted = key in self._under_way
        self._under_way.discard(key)
        return is_wanted

    def on_failed(self, key: str, now_s: float) -> None:
        """Handle that a row could not be read: it is tried again a little later."""
        if key in self._under_way:
            self._under_way.discard(key)
            self._wait(key, now_s + _AGAIN_S * (0.5 + self._turn.draw()))

    def _wait(self, key: str, due_s: float) -> None:
        self._waiting.add(key)
        heappush(self._due, (due_s, key))
