"""How fast to write into one shard: without a limit until the service refuses, then half as fast, and slowly faster.

A shard accepts 1,000 records and 1 MiB per second from all writers together, and a writer cannot see how many others there
are. So each finds its rate by trying, as TCP does. The cost of a record is one number: how many seconds of the shard's
whole capacity it uses, by bytes or by records, whichever is more. A rate is then a share of the shard: 1.0 is all of
it. After a refusal the rate falls by a fixed factor and recovers along a cubic curve. The curve is flat around the rate
that was refused, so many writers stay there with few refusals. Beyond it the curve is steep, so a writer that is alone
again soon has no limit. Pure: time and chance are arguments.

Source:
    RFC 9438, CUBIC: the curve, and the room made for newcomers (section 4.7). "Exponential Backoff And Jitter" (AWS
    Architecture Blog): the pauses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.core.backoff import Backoff
from penstock.core.limits import SHARD_WRITE_BYTES_PER_S_MAX, SHARD_WRITE_RECORDS_PER_S_MAX

DECREASE: Final = 0.5
"""The rate falls to this part of itself after a refusal."""

CURVE: Final = 3e-5
"""How steep the curve is: shares of a shard per second cubed. Eight writers that want three times what a shard accepts
use all of it, with one request in twenty refused; a writer that is alone again has no limit after 50 seconds. Steeper
means more refusals, flatter a slower recovery."""

BRIEF_DECREASE: Final = 0.75
BRIEF_GROWTH_PER_S: Final = 2.0
BRIEF_RATE_MIN: Final = 0.1
"""A brief writer, such as a Spark task of some seconds, has no time for the curve. After a refusal it goes on with `BRIEF_DECREASE`
of the rate at which its records were accepted lately, but at least with `BRIEF_RATE_MIN`. From there its rate trebles within a second. Three to twelve such writers use their shards wholly, with up to a third of the records refused at first.
If more writers share a shard than that floor allows for, the growing pauses slow them down."""

RATE_MIN: Final = 0.01
"""A writer's rate never falls below this share, ten records per second, so refusals that have nothing to do with its own
rate cannot stop it. If more than a hundred writers share one shard, the growing pauses slow them down further."""

RECORD_WAIT_MAX_S: Final = 5.0
"""A record after a large one waits at most this long for the capacity that the large one uses: at `RATE_MIN` 1 MiB would keep
a shard quiet for 100 seconds. The capacity of the shard, or the rate that was set in advance, is not exceeded."""

FREE_RATE: Final = 1.5
"""A rate above this share is no limit any more, since the shard itself accepts less."""

DECREASE_AGAIN_S: Final = 0.3
"""Refusals this soon after a decrease have the same cause: they only pause."""

REQUEST_SHARE_S: Final = 0.5
"""A request holds at most the records that the rate allows in this time (or one): batches shrink with the rate."""

_WINDOW_S: Final = 1.0
_BURST_S: Final = 1.0
"""A shard that was quiet accepts this much of its capacity at once, and its capacity per second from then on."""

_PAUSES: Final = Backoff(base_s=0.1, cap_s=5.0)


def cost_s(record_bytes: int) -> float:
    """Return how many seconds of a shard's whole capacity one record uses.

    Args:
        record_bytes: Data and partition key.
    """
    return max(record_bytes / SHARD_WRITE_BYTES_PER_S_MAX, 1 / SHARD_WRITE_RECORDS_PER_S_MAX)


@dataclass(slots=True)
class ShardFlow:
    """One writer's rate into one shard.

    Args:
        rate_max: Share of the shard that this writer may use; None for no limit before the service refuses.
        shard_count: The number of shards that share this rate: 1, or all of a stream if shards cannot be predicted.
        is_brief: The writer has a bounded number of records.
        rate: The present share of the shard that may be used; None for no limit.
        ready_s: Nothing may be sent before this moment.
        failure_streak: Refused and failed requests since records were accepted.
    """

    rate_max: float | None = None
    shard_count: float = 1.0
    is_brief: bool = False
    rate: float | None = field(default=None, init=False)
    ready_s: float = float("-inf")
    failure_streak: int = 0
    _plateau_rate: float = 0.0  # around it the curve is flat
    _decreased_s: float = float("-inf")
    _grown_s: float = float("-inf")  # when a brief writer's rate grew last
    _window_began_s: float = float("-inf")
    _window_cost_s: float = 0.0
    _accepted_rate: float = 0.0
    _began_s: float = float("inf")
    _total_cost_s: float = 0.0

    def __post_init__(self) -> None:
        if self.rate_max is not None:
            self.rate_max *= self.shard_count
        self.rate = self.rate_max

    @property
    def request_cost_max_s(self) -> float:
        """The cost of the records that one request may hold for this shard; the first record always fits."""
        return float("inf") if self.rate is None else self.rate * REQUEST_SHARE_S

    def on_sent(self, cost_s: float, now_s: float) -> None:
        """Reserve the time that a request uses at the present rate; `cost_s` is the sum of its records' costs."""
        if self.rate is not None:
            slowest = min(cost_s / RECORD_WAIT_MAX_S, self.rate_max or self.shard_count)
            self.ready_s = max(self.ready_s, now_s) + cost_s / max(self.rate, slowest)

    def on_accepted(self, cost_s: float, now_s: float) -> None:
        """Count accepted records, and raise the rate: of a brief writer exponentially, else along a cubic curve."""
        self.failure_streak = 0
        self._count_accepted(cost_s, now_s)
        if self.rate is None or self._decreased_s == float("-inf"):
            return
        rate = max(
            self.rate,
            self._brief_rate(now_s) if self.is_brief else self._cubic_rate(now_s - self._decreased_s),
        )
        if self.rate_max is not None:
            self.rate = min(rate, self.rate_max)
        else:
            self.rate = None if rate >= FREE_RATE * self.shard_count else rate

    def on_refused(self, now_s: float, chance: float) -> float:
        """Handle records that were refused for the rate; return the pause in seconds."""
        if now_s - self._decreased_s >= DECREASE_AGAIN_S:
            self._decrease(now_s)
        return self._pause(now_s, chance)

    def on_failed(self, now_s: float, chance: float) -> float:
        """Handle a request that failed for another reason than the rate; return the pause in seconds."""
        return self._pause(now_s, chance)

    def _decrease(self, now_s: float) -> None:
        present = self.rate
        if present is None:
            # Without a limit there is no rate yet: the estimate is the recently accepted rate, at most the shards' capacity.
            present = min(self.shard_count, max(self._recent_rate(now_s), RATE_MIN))
        if self.is_brief:
            self._decrease_briefly(present, now_s)
            return
        # If records are refused below the former rate, there are new writers: this one leaves a part of its share to them.
        self._plateau_rate = present * (1 + DECREASE) / 2 if present < self._plateau_rate else present
        self.rate = max(RATE_MIN, present * DECREASE)
        self._decreased_s = now_s

    def _decrease_briefly(self, present: float, now_s: float) -> None:
        accepted = max(self._recent_rate(now_s), present * DECREASE)
        self.rate = max(BRIEF_RATE_MIN, BRIEF_DECREASE * min(present, accepted))
        self._decreased_s = self._grown_s = now_s

    def _brief_rate(self, now_s: float) -> float:
        assert self.rate is not None
        rate = self.rate * (1 + BRIEF_GROWTH_PER_S * min(1.0, now_s - self._grown_s))
        self._grown_s = now_s
        return rate

    def _pause(self, now_s: float, chance: float) -> float:
        self.failure_streak += 1
        pause_s = _PAUSES.delay_s(self.failure_streak, chance)
        self.ready_s = max(self.ready_s, now_s + pause_s)
        return pause_s

    def _cubic_rate(self, elapsed_s: float) -> float:
        back_s = (self._plateau_rate * (1 - DECREASE) / CURVE) ** (1 / 3)
        return float(self._plateau_rate + CURVE * (elapsed_s - back_s) ** 3)

    def _count_accepted(self, cost_s: float, now_s: float) -> None:
        if self._began_s == float("inf"):
            self._began_s = now_s
        self._total_cost_s += cost_s
        elapsed_s = now_s - self._window_began_s
        if elapsed_s >= _WINDOW_S:
            self._accepted_rate = self._window_cost_s / elapsed_s
            self._window_began_s = now_s
            self._window_cost_s = 0.0
        self._window_cost_s += cost_s

    def _recent_rate(self, now_s: float) -> float:
        """Return the share of the shard at which records were accepted lately; 0 if none were."""
        if self.is_brief and self._decreased_s == float("-inf"):
            # The shards have also accepted what they had saved up in a quiet second.
            return self._total_cost_s / (_BURST_S + max(0.0, now_s - self._began_s))
        return max(self._accepted_rate, self._window_cost_s / max(_WINDOW_S, now_s - self._window_began_s))
