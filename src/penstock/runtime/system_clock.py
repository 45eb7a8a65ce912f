"""The machine's clock for a worker, which also counts while the machine is suspended."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `penstock.ports.clock.Clock`.

    Linux's monotonic clock stops while a machine is suspended: a worker that was suspended for longer than its lease would
    still count it as held. The boot-time clock does not stop; without one, the monotonic clock is used.
    """

    def __init__(self) -> None:
        self._boot_clock = getattr(time, "CLOCK_BOOTTIME", None)

    def monotonic_s(self) -> float:
        """Seconds that only go forward, suspended or not."""
        return time.monotonic() if self._boot_clock is None else time.clock_gettime(self._boot_clock)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)
