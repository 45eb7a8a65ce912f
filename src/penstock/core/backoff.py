"""How long to wait before the next attempt, and when to stop: full jitter inside bounds. Pure.

Source:
    "Exponential Backoff And Jitter" (AWS Architecture Blog): delays drawn evenly from 0 to a bound that doubles spread
    out the retries of clients that failed together.
"""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import OptionError


class Backoff(Struct, frozen=True):
    """Delays with full jitter, whose upper bound doubles from one attempt to the next.

    Args:
        base_s: Upper bound of the first delay, seconds; more than 0.
        cap_s: Largest upper bound, seconds; at least `base_s`.

    Raises:
        OptionError: A value is out of its range.
    """

    base_s: float
    cap_s: float

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s < float("inf"):
            raise OptionError(
                f"back-off: base_s={self.base_s}, cap_s={self.cap_s}: expected 0 < base_s <= cap_s, both finite"
            )

    def bound_s(self, attempt: int) -> float:
        """Return the upper bound of the delay after an attempt, in seconds.

        Args:
            attempt: How many attempts have failed, from 1.

        Raises:
            ValueError: `attempt` is less than 1.
        """
        if attempt < 1:
            raise ValueError(f"attempt {attempt}: attempts are counted from 1")
        try:
            return min(self.cap_s, self.base_s * 2.0 ** (attempt - 1))
        except OverflowError:
            return self.cap_s

    def delay_s(self, attempt: int, chance: float) -> float:
        """Return the delay after an attempt, in seconds.

        Args:
            attempt: How many attempts have failed, from 1.
            chance: Drawn evenly from [0, 1).
        """
        return chance * self.bound_s(attempt)


class RetryPlan(Struct, frozen=True):
    """When to try again and when to stop; always bounded.

    Args:
        attempts_max: Attempts in all, the first one included; at least 1.
        deadline_s: The last attempt begins at most this many seconds after the first one; more than 0.

    Raises:
        OptionError: A value is out of its range.
    """

    backoff: Backoff
    attempts_max: int
    deadline_s: float

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise OptionError(f"attempts_max={self.attempts_max}: expected at least 1")
        if not 0 < self.deadline_s < float("inf"):
            raise OptionError(f"deadline_s={self.deadline_s}: expected more than 0, and finite")

    def delay_s(self, attempt: int, elapsed_s: float, chance: float) -> float | None:
        """Return the seconds to wait before the next attempt; None if a bound is reached, so that there is no next one.

        Args:
            attempt: How many attempts have failed, from 1.
            elapsed_s: Seconds since the first attempt began. The delay ends at the deadline at the latest.
            chance: Drawn evenly from [0, 1).
        """
        if elapsed_s >= self.deadline_s or attempt >= self.attempts_max:
            return None
        return min(self.backoff.delay_s(attempt, chance), self.deadline_s - elapsed_s)
