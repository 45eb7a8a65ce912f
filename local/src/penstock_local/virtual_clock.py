"""The server's clock: wall time that a test can speed up, stop and push forwards.

Every rule of the embedded Kinesis that depends on time (arrival, expiry, retention, quotas, states) reads
this clock and no other, so a test moves a whole day in one call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

from penstock_local.errors import OptionError

MOMENT_MAX_MS = 9_999_999_999_999
_SLEEP_MIN_S = 0.001


class VirtualClock:
    """Milliseconds since the epoch, never running backwards.

    Args:
        factor: Virtual seconds per real second, at least 0; 0 stops the clock, so that only `advance` moves it.
        start_ms: First reading in milliseconds; the wall clock when None.
        monotonic: Source of real seconds.
    """

    def __init__(
        self,
        factor: float = 1.0,
        start_ms: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not math.isfinite(factor) or factor < 0:
            raise OptionError(f"time_factor must be a number of at least 0, not {factor!r}")
        self.factor = factor
        self._monotonic = monotonic
        self._base_ms = float(time.time_ns() // 1_000_000 if start_ms is None else start_ms)
        self._origin_s = monotonic()

    def now_ms(self) -> int:
        """Return the virtual time in milliseconds since the epoch."""
        reading_ms = self._base_ms + (self._monotonic() - self._origin_s) * 1000.0 * self.factor
        return int(min(reading_ms, MOMENT_MAX_MS))

    def real_s_until(self, at_ms: int) -> float | None:
        """Return the real seconds until the clock reads `at_ms`, without `advance`; None if it is stopped before that."""
        behind_ms = at_ms - self.now_ms()
        if behind_ms <= 0:
            return 0.0
        return behind_ms / 1000.0 / self.factor if self.factor else None

    async def wait(self, event: asyncio.Event, until_ms: int) -> None:
        """Wait for an event until the clock reads `until_ms`. The caller sets the event when the clock is moved."""
        delay_s = self.real_s_until(until_ms)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if delay_s is None else max(delay_s, _SLEEP_MIN_S)):
                await event.wait()

    def advance(self, seconds: float) -> int:
        """Move the clock forwards.

        Args:
            seconds: Virtual seconds, at least 0.

        Returns:
            The new time in milliseconds.

        Raises:
            OptionError: `seconds` is negative or not finite (records and positions rely on time not going back),
                or leads beyond the year 2286, after which times have more digits than the wire has room for.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise OptionError(
                f"the clock moves forwards only: advance takes at least 0 seconds, not {seconds!r}"
            )
        if self.now_ms() + seconds * 1000.0 > MOMENT_MAX_MS:
            raise OptionError(
                f"the clock ends in the year 2286: it cannot be advanced by {seconds!r} seconds"
            )
        self._base_ms += seconds * 1000.0
        return self.now_ms()

    def catch_up(self, at_ms: int) -> None:
        """Make sure that the clock reads at least `at_ms` (used when older state is loaded)."""
        behind_ms = at_ms - self.now_ms()
        if behind_ms > 0:
            self._base_ms += behind_ms
