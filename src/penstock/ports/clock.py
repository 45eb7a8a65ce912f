"""Time and chance, as Penstock needs them: injected, so that a simulator can own both."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Implemented by `penstock.wiring.SystemClock` and by the simulator's virtual clock."""

    def monotonic_s(self) -> float:
        """Seconds that only go forward; for ages and deadlines."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC; for showing and for AT_TIMESTAMP, never for ages."""

    def sleep(self, duration_s: float) -> None:
        """Wait; a virtual clock moves instead."""


class Chance(Protocol):
    """Where jitter comes from."""

    def random(self) -> float:
        """A number in [0, 1)."""
