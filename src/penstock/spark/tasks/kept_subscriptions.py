"""Subscriptions that a Python worker process keeps open between batches.

A task keeps its subscription here with the position at which its batch ends in the shard. The next task of the same process
that begins at exactly that position uses it. Until then nothing is read from it: the service may send one window (512 KiB)
and no more. At another position it is useless and is closed. So is a subscription that was not used for a minute, and the
least recently used one if there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.backoff import Backoff
from penstock.core.limits import SUBSCRIBE_AGAIN_S
from penstock.core.position import Position
from penstock.core.reading.retrieval_choice import OwnReads
from penstock.runtime.threads import Threads
from penstock.spark.tasks.task_subscription import TaskSubscription

KEPT_MAX: Final = 64
UNUSED_S: Final = 60.0
_SHARDS_MAX: Final = 10_000
_REFUSAL_BACKOFF: Final = Backoff(2.0, 60.0)
_REFUSAL_PAUSE_S_MIN: Final = 1.0

SubscriptionKey: TypeAlias = tuple[object, str, str]
"""Service, ARN of the registered consumer, shard."""


class _KeptSubscription(Struct, frozen=True):
    subscription: TaskSubscription
    position: Position
    kept_s: float


class _Pause(Struct):
    """The pause of a shard before its next subscription. Failures in a row make it longer."""

    until_s: float
    failure_count: int = 0


class KeptSubscriptions:
    """Keeps subscriptions between batches, and each shard's pause before its next subscription. Thread-safe, bounded.

    Args:
        call_later: Calls a function after a delay in seconds, on any thread.
    """

    def __init__(self, threads: Threads, call_later: Callable[[float, Callable[[], None]], None]) -> None:
        self._lock = threads.condition()
        self._call_later = call_later
        self._kept: OrderedDict[SubscriptionKey, _KeptSubscription] = OrderedDict()
        self._pauses: OrderedDict[SubscriptionKey, _Pause] = OrderedDict()
        self._own_reads: OrderedDict[SubscriptionKey, OwnReads] = OrderedDict()
        self._is_closing_scheduled = False

    def __len__(self) -> int:
        """Number of open subscriptions."""
        return len(self._kept)

    def take(self, key: SubscriptionKey, position: Position) -> TaskSubscription | None:
        """Remove the subscription of a shard. Return it if it was kept at this position; if not, close it and return None."""
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None:
            return None
        if kept.position == position:
            return kept.subscription
        kept.subscription.close()
        return None

    def keep(
        self, key: SubscriptionKey, position: Position, subscription: TaskSubscription, now_s: float
    ) -> None:
        """Keep a subscription for the next read from a position."""
        with self._lock:
            unused = [self._kept.pop(key, None)]
            self._kept[key] = _KeptSubscription(subscription, position, now_s)
            while len(self._kept) > KEPT_MAX:
                unused.append(self._kept.popitem(last=False)[1])
            was_scheduled, self._is_closing_scheduled = self._is_closing_scheduled, True
        for each in unused:
            if each is not None:
                each.subscription.close()
        if not was_scheduled:
            self._call_later(UNUSED_S, lambda: self._close_unused(now_s + UNUSED_S))

    def _close_unused(self, now_s: float) -> None:
        """Close the subscriptions that were not used for a minute, and schedule the next call if any are left."""
        with self._lock:
            # The same sum as for `due_s` below. With another rounding, the call at `due_s` could come too early for its entry.
            unused = [(key, kept) for key, kept in self._kept.items() if kept.kept_s + UNUSED_S <= now_s]
            for key, _ in unused:
                del self._kept[key]
            next_s = min((kept.kept_s for kept in self._kept.values()), default=None)
            self._is_closing_scheduled = next_s is not None
        for _, kept in unused:
            kept.subscription.close()
        if next_s is not None:
            due_s = next_s + UNUSED_S
            self._call_later(due_s - now_s, lambda: self._close_unused(due_s))

    # --- pauses between subscriptions ---

    def own_reads(self, key: SubscriptionKey) -> OwnReads:
        """Return this process's use of a shard's read quota, over all batches. At most one task uses it at a time."""
        with self._lock:
            own = self._own_reads.setdefault(key, OwnReads())
            self._own_reads.move_to_end(key)
            while len(self._own_reads) > _SHARDS_MAX:
                self._own_reads.popitem(last=False)
            return own

    def try_begin(self, key: SubscriptionKey, now_s: float) -> bool:
        """Return whether a subscription may start now, as far as this process knows; if so, count it as started."""
        with self._lock:
            pause = self._pauses.setdefault(key, _Pause(now_s))
            if now_s < pause.until_s:
                return False
            pause.until_s = now_s + SUBSCRIBE_AGAIN_S
            self._pauses.move_to_end(key)
            while len(self._pauses) > _SHARDS_MAX:
                self._pauses.popitem(last=False)
            return True

    def on_failure(self, key: SubscriptionKey, now_s: float, chance: float) -> bool:
        """Handle a refused, taken-over or lost subscription: lengthen the pause. Return whether it is the first failure in a row."""
        with self._lock:
            pause = self._pauses.setdefault(key, _Pause(now_s))
            pause.failure_count += 1
            pause.until_s = (
                now_s + _REFUSAL_PAUSE_S_MIN + _REFUSAL_BACKOFF.delay_s(pause.failure_count, chance)
            )
            return pause.failure_count == 1

    def on_event(self, key: SubscriptionKey) -> None:
        """Handle an event of a subscription: reset its shard's count of failures in a row."""
        with self._lock:
            pause = self._pauses.get(key)
            if pause is not None:
                pause.failure_count = 0
