"""The machine's clock for a producer."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `penstock.ports.clock.Clock`."""

    def monotonic_s(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def sleep(self, duration_s: float) -> None:
        """WaitUntil."""
        time.sleep(duration_s)
