"""Plans the receives of a queue's consumer: their number, and the start of the next. Pure."""

from __future__ import annotations

from typing import Final

from penstock.core.backoff import Backoff
from penstock.core.queueing.queue_limits import RECORDS_PER_CALL_MAX

_EMPTY_APART_S: Final = 0.5
"""Pause after an empty answer that arrived faster than this: the service did not wait for records."""


class ReceivePace:
    """Opens more receives while answers are full, and fewer while they are empty. On an idle queue one stays open.

    Args:
        open_max: The most receives under way at once.
        backoff: Pauses after receives that failed.
    """

    def __init__(self, open_max: int, backoff: Backoff) -> None:
        self._open_max = open_max
        self._backoff = backoff
        self.open_target: int = 1
        """Number of receives that may be under way at once."""
        self._open_limits: dict[int, int] = {}  # records of each receive under way, by its number
        self._next_number = 0
        self.failure_count: int = 0
        """Number of receives in a row that failed."""
        self.resumes_s: float = float("-inf")
        """When the next receive may begin."""

    @property
    def open_count(self) -> int:
        """Number of receives under way."""
        return len(self._open_limits)

    def plan(self, room: int, *, is_starving: bool, target_count: int, now_s: float) -> list[tuple[int, int]]:
        """Return the receives to begin now, each as its number and its maximum of records.

        Args:
            room: Number of records that may be fetched. The limits of open receives are not subtracted.
            is_starving: Whether a handler is free and no record waits for it: then a receive of fewer than ten records may begin.
            target_count: Number of user records to have in hand.
        """
        begun: list[tuple[int, int]] = []
        if now_s < self.resumes_s:
            return begun
        free = room - sum(self._open_limits.values())
        least = 1 if is_starving else min(RECORDS_PER_CALL_MAX, target_count)
        while self.open_count < self.open_target and free >= max(least, 1):
            limit = min(RECORDS_PER_CALL_MAX, free)
            number = self._next_number
            self._next_number += 1
            self._open_limits[number] = limit
            free -= limit
            least = min(RECORDS_PER_CALL_MAX, target_count)  # one small receive is enough
            begun.append((number, limit))
        return begun

    def on_not_begun(self, number: int) -> None:
        """Handle a planned receive that was not sent."""
        del self._open_limits[number]

    def on_answered(self, number: int, count: int, took_s: float, now_s: float) -> None:
        """Handle the answer to a receive.

        Args:
            took_s: Seconds from the request to the answer.
        """
        limit = self._open_limits.pop(number)
        self.failure_count = 0
        if count >= limit:
            self.open_target = min(self._open_max, self.open_target * 2)
        elif count == 0:
            self.open_target = max(1, self.open_target // 2)
            if took_s < _EMPTY_APART_S:
                self.resumes_s = now_s + _EMPTY_APART_S

    def on_failed(self, number: int, now_s: float, chance: float) -> None:
        """Handle a receive that was refused or not answered."""
        del self._open_limits[number]
        self.failure_count += 1
        self.open_target = max(1, self.open_target // 2)
        self.resumes_s = max(self.resumes_s, now_s + self._backoff.delay_s(self.failure_count, chance))
