"""Time and jitter: passed in, so that a simulator can own both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Implemented by `penstock.wiring.SystemClock` and by the simulator's virtual clock."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back; for ages and deadlines."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, UTC; for display and for AT_TIMESTAMP, never for ages."""

    def sleep(self, duration_s: float) -> None:
        """Wait; a virtual clock moves forward instead."""


class Chance(Protocol):
    """A source of random numbers, for jitter."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
