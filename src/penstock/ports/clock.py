"""The protocols of time and jitter, which are passed in so that a simulator can replace them."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A clock, of the system or virtual. Implemented by `penstock.wiring.SystemClock` and by the simulator."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back; for ages and deadlines."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch, UTC; for display and for AT_TIMESTAMP, never for ages."""

    def sleep(self, duration_s: float) -> None:
        """Wait for this long. A virtual clock moves forward instead."""


class Chance(Protocol):
    """A source of random numbers, for jitter."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
