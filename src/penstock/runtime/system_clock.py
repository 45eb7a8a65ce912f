"""The machine's clock for a worker: seconds that also count while the machine sleeps."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `penstock.ports.clock.Clock`.

    Linux's monotonic clock stands still while a machine is suspended, and a worker that slept through its lease
    would believe that it still holds it. The boot-time clock goes on; where there is none, the monotonic one serves.
    """

    def __init__(self) -> None:
        self._boot_clock = getattr(time, "CLOCK_BOOTTIME", None)

    def monotonic_s(self) -> float:
        """Seconds that only go forward, suspended or not."""
        return time.monotonic() if self._boot_clock is None else time.clock_gettime(self._boot_clock)

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def sleep(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)
