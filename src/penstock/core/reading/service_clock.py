"""The service's clock, by which records are dated, estimated from its answers.

An answer carries the service's time in whole seconds. This machine's clock is finer, but may be wrong: it is used as long as
the two agree.
"""

from __future__ import annotations

from typing import Final

_CLOCKS_AGREE_MS: Final = 2_000  # the service reports whole seconds, and its answer takes time


def service_now_ms(local_ms: int, server_ms: int | None) -> int:
    """Return the moment by the service's clock.

    Args:
        local_ms: This machine's clock, which has milliseconds and may be wrong. Returned if the two clocks agree.
        server_ms: The service's clock at its last answer, which is right but has whole seconds; None if it is not known.
    """
    if server_ms is None or abs(local_ms - server_ms) <= _CLOCKS_AGREE_MS:
        return local_ms
    return server_ms


def service_bound_ms(local_ms: int, server_ms: int | None) -> int:
    """Return a moment by the service's clock that is now or later: a bound for all records that exist.

    Args:
        local_ms: This machine's clock.
        server_ms: The service's clock at its last answer, in whole seconds; None if it is not known.
    """
    now_ms = service_now_ms(local_ms, server_ms)
    return now_ms if now_ms == local_ms else now_ms + 1_000


class ServiceClock:
    """An estimate of the service's clock, by this machine's clock and their difference at the last answer. Not thread-safe."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def on_answer(self, local_ms: int, server_ms: int | None, call_ms: int = 0) -> int:
        """Handle an answer, and return the moment by the service's clock.

        Args:
            local_ms: This machine's clock at the answer.
            server_ms: The service's, or None if the answer has none: then the earlier estimate stays.
            call_ms: How long the call took. The service may have dated the answer at the call's beginning: a difference of up to
                this time does not show that the clocks differ.
        """
        if server_ms is None:
            return self.now_ms(local_ms)
        moment_ms = service_now_ms(local_ms, server_ms)
        may_agree = 0 <= local_ms - server_ms <= call_ms + _CLOCKS_AGREE_MS
        self._ahead_ms = 0 if may_agree else moment_ms - local_ms
        return moment_ms

    def now_ms(self, local_ms: int) -> int:
        """Return the moment by the service's clock."""
        return local_ms + self._ahead_ms


class SteadyServiceClock:
    """The service's clock by the last answer, carried on by the monotonic clock. Not thread-safe.

    For a moment that must not be too late. An estimate by this machine's time of day is too late if this time was set forwards
    after the last answer. The monotonic clock may stop while the machine sleeps, so this clock is too early rather than late.
    """

    def __init__(self) -> None:
        self._answered: tuple[float, int] | None = None

    @property
    def has_answer(self) -> bool:
        """Whether an answer has shown the time."""
        return self._answered is not None

    def on_answer(self, now_s: float, service_ms: int) -> None:
        """Handle an answer.

        Args:
            service_ms: The service's moment then, as `ServiceClock.on_answer` returns it.
        """
        self._answered = (now_s, service_ms)

    def now_ms(self, now_s: float, before_first_ms: int) -> int:
        """Return the moment by the service's clock.

        Args:
            before_first_ms: Returned until the service has answered once.
        """
        if self._answered is None:
            return before_first_ms
        answered_s, service_ms = self._answered
        return service_ms + int(1000 * (now_s - answered_s))
