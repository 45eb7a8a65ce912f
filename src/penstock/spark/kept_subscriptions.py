"""Subscriptions that a Python worker process keeps open between batches.

A task leaves its subscription here with the position at which its batch ends in the shard. The next task of the same process
that begins at exactly that position goes on with it. Until then nothing of it is read: the service may send a window's
worth (512 KiB) and no more. At another position it is of no use and is closed. So is one that nobody has used for a minute, and
the one that was used longest ago when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.backoff import Backoff
from penstock.core.limits import SUBSCRIBE_AGAIN_S
from penstock.core.position import Position
from penstock.core.reading.own_reads import OwnReads
from penstock.runtime.threads import Threads
from penstock.spark.task_subscription import TaskSubscription

KEPT_MAX: Final = 64
UNUSED_S: Final = 60.0
_SHARDS_MAX: Final = 10_000
_REFUSED: Final = Backoff(2.0, 60.0)
_REFUSED_S_MIN: Final = 1.0

Key: TypeAlias = tuple[object, str, str]
"""Service, ARN of the registered consumer, shard."""


class _Kept(Struct, frozen=True):
    subscription: TaskSubscription
    position: Position
    since_s: float


class _Pause(Struct):
    """When a shard may be subscribed to again."""

    until_s: float
    refusals: int = 0


class KeptSubscriptions:
    """Thread-safe, bounded; each is handed out once.

    Args:
        threads: Where its lock comes from.
        call_later: Calls a function after so many seconds, on any thread.
    """

    def __init__(self, threads: Threads, call_later: Callable[[float, Callable[[], None]], None]) -> None:
        self._lock = threads.condition()
        self._call_later = call_later
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._pauses: OrderedDict[Key, _Pause] = OrderedDict()
        self._own_reads: OrderedDict[Key, OwnReads] = OrderedDict()
        self._is_closing_due = False

    def __len__(self) -> int:
        """How many are open."""
        return len(self._kept)

    def take(self, key: Key, position: Position) -> TaskSubscription | None:
        """Return the subscription that goes on behind a position, and forget it; one at another position is closed."""
        with self._lock:
            kept = self._kept.pop(key, None)
        if kept is None:
            return None
        if kept.position == position:
            return kept.subscription
        kept.subscription.close()
        return None

    def keep(self, key: Key, position: Position, subscription: TaskSubscription, now_s: float) -> None:
        """Keep a subscription for who reads on behind a position."""
        with self._lock:
            unused = [self._kept.pop(key, None)]
            self._kept[key] = _Kept(subscription, position, now_s)
            while len(self._kept) > KEPT_MAX:
                unused.append(self._kept.popitem(last=False)[1])
            is_due, self._is_closing_due = self._is_closing_due, True
        for each in unused:
            if each is not None:
                each.subscription.close()
        if not is_due:
            self._call_later(UNUSED_S, lambda: self._close_unused(now_s + UNUSED_S))

    def _close_unused(self, now_s: float) -> None:
        with self._lock:
            # As it was computed when this was scheduled: rounded otherwise, it could be due for ever.
            unused = [(key, kept) for key, kept in self._kept.items() if kept.since_s + UNUSED_S <= now_s]
            for key, _ in unused:
                del self._kept[key]
            next_s = min((kept.since_s for kept in self._kept.values()), default=None)
            self._is_closing_due = next_s is not None
        for _, kept in unused:
            kept.subscription.close()
        if next_s is not None:
            due_s = next_s + UNUSED_S
            self._call_later(due_s - now_s, lambda: self._close_unused(due_s))

    # --- whether to subscribe, and when again ---

    def own_reads(self, key: Key) -> OwnReads:
        """Return what this process takes of a shard's quota, over all batches; for one task at a time."""
        with self._lock:
            own = self._own_reads.setdefault(key, OwnReads())
            self._own_reads.move_to_end(key)
            while len(self._own_reads) > _SHARDS_MAX:
                self._own_reads.popitem(last=False)
            return own

    def may_subscribe(self, key: Key, now_s: float) -> bool:
        """Whether the service would not refuse a subscription, as far as this process knows; then it is taken for begun."""
        with self._lock:
            pause = self._pauses.setdefault(key, _Pause(now_s))
            if now_s < pause.until_s:
                return False
            pause.until_s = now_s + SUBSCRIBE_AGAIN_S
            self._pauses.move_to_end(key)
            while len(self._pauses) > _SHARDS_MAX:
                self._pauses.popitem(last=False)
            return True

    def note_failed(self, key: Key, now_s: float, chance: float) -> bool:
        """Note that a subscription was refused, taken over or lost: the more in a row, the later the next one.

        Returns:
            Whether it is the first one in a row.
        """
        with self._lock:
            pause = self._pauses.setdefault(key, _Pause(now_s))
            pause.refusals += 1
            pause.until_s = now_s + _REFUSED_S_MIN + _REFUSED.delay_s(pause.refusals, chance)
            return pause.refusals == 1

    def note_used(self, key: Key) -> None:
        """Note that a subscription brought something."""
        with self._lock:
            pause = self._pauses.get(key)
            if pause is not None:
                pause.refusals = 0
