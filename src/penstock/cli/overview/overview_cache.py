"""Keeps the newest overview for a view. A thread reads it at most once a minute, since a read costs money."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.ports.clock import Clock
    from penstock.runtime.loop import ThreadPool

READ_EVERY_S: Final = 60.0
_Overview = TypeVar("_Overview")


class OverviewCache(Generic[_Overview]):
    """Keeps the newest overview. Thread-safe.

    Args:
        pool: The threads that read overviews.
        clock: The clock for the pauses.
    """

    def __init__(self, pool: ThreadPool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._condition = threading.Condition()
        self._newest: _Overview | None = None
        self._read_s = 0.0
        self._is_being_read = False

    def take(self, read: Callable[[_Overview | None], _Overview], wait_s: float) -> _Overview | None:
        """Return the newest overview, None if there is none yet. If it is older than a minute, start to read the next.

        Args:
            read: Reads the next overview, given the previous one; must not raise.
            wait_s: Wait at most this long for an overview that is being read. After that, return the previous one.
        """
        with self._condition:
            age_s = self._clock.monotonic_s() - self._read_s
            if not self._is_being_read and (self._newest is None or age_s >= READ_EVERY_S):
                self._is_being_read = True
                self._pool.submit(lambda: self._refresh(read))
            self._condition.wait_for(lambda: not self._is_being_read, wait_s)
            return self._newest

    def _refresh(self, read: Callable[[_Overview | None], _Overview]) -> None:
        found = read(self._newest)
        with self._condition:
            self._newest, self._read_s, self._is_being_read = found, self._clock.monotonic_s(), False
            self._condition.notify_all()
