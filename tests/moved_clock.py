"""A clock for tests: it stands still until somebody sleeps, or the test moves it."""

from __future__ import annotations

from collections.abc import Callable


class MovedClock:
    """Implements `penstock.ports.clock.Clock`.

    Args:
        now_s: What it shows at first.
        on_sleep: Called after each sleep with what it shows then: what others do meanwhile.
    """

    def __init__(self, now_s: float = 0.0, on_sleep: Callable[[float], object] = lambda _: None) -> None:
        self.now_s = now_s
        self._on_sleep = on_sleep

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self._on_sleep(self.now_s)
