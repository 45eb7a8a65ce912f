"""The subscription of one shard's read in one batch: when to subscribe, and when to end or keep the subscription.

A read polls by GetRecords and never waits for a subscription. A subscription starts at a record that was read, and takes
over once the service has accepted it; repeated records are left out by their position. When it ends for any reason, the
read goes on by GetRecords at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.reading.lag import NEAR_TIP_MS_MAX
from penstock.core.reading.resume import plan_iterator
from penstock.core.reading.retrieval_choice import is_quota_refusal
from penstock.errors import AccessDenied, NotFound, PenstockError
from penstock.ports.clock import Chance, Clock
from penstock.ports.fan_out import FanOut
from penstock.ports.kinesis import RecordPage
from penstock.runtime.threads import Threads
from penstock.spark.tasks.kept_subscriptions import KeptSubscriptions, SubscriptionKey
from penstock.spark.tasks.task_subscription import SubscriptionEnd, TaskSubscription

_log: Final = logging.getLogger("penstock.spark")

PATIENCE_S: Final = 1.0
"""Longest wait for an event before the shard is polled."""
UNANSWERED_S: Final = 10.0
"""Longest time in which a subscription may stay unanswered, over several batches."""
NEEDED_FOR_S: Final = 60.0
"""How long `auto` keeps a subscription after the read was last behind or throttled."""


class PushedReading:
    """The subscription of one shard in one batch. Not thread-safe; used by one task.

    Args:
        kept: Subscriptions that the process keeps between batches.
        key: Service, consumer and shard of the subscription.
        subscribes_always: Whether to subscribe in any case. If False, the read subscribes only if it is behind or other readers
            use up the shard's quota.
        after_s: Seconds from the start of the read in which no subscription begins.
    """

    def __init__(
        self,
        kept: KeptSubscriptions,
        fan_out: FanOut,
        key: SubscriptionKey,
        *,
        subscribes_always: bool,
        after_s: float = 0.0,
        clock: Clock,
        chance: Chance,
        threads: Threads,
    ) -> None:
        self._kept = kept
        self._fan_out = fan_out
        self._key = key
        self._subscribes_always = subscribes_always
        self._clock = clock
        self._not_before_s = clock.monotonic_s() + after_s
        self._chance = chance
        self._threads = threads
        self._subscription: TaskSubscription | None = None
        self._own_reads = kept.own_reads(key)
        self._is_needed = False  # polling alone is too slow, or other readers use up the shard's quota
        self._ends: Counter[str] = Counter()

    @property
    def subscription_ends(self) -> Mapping[str, int]:
        """Number of subscriptions that ended during the read, by reason."""
        return self._ends

    @property
    def is_open(self) -> bool:
        """Whether the service has accepted a subscription, and events may be fetched."""
        return self._subscription is not None and self._subscription.is_open

    def resume(self, start: Position) -> bool:
        """Take the subscription that was kept at exactly this position; return whether its next event surely follows the position.

        If the subscription has delivered no event yet, this is not sure: the first event must show that nothing was lost.
        """
        self._subscription = self._kept.take(self._key, start)
        self._drop_if_ended()
        return self.is_open and self._subscription is not None and self._subscription.has_delivered

    def subscribe_if_needed(self, position: Position) -> None:
        """Subscribe at the position that was read to, if a subscription is needed and allowed now. Does not wait."""
        self._drop_if_ended()
        now_s = self._clock.monotonic_s()
        is_wanted = self._subscription is None and (self._subscribes_always or self._is_needed)
        if not is_wanted or now_s < self._not_before_s:
            return
        if not _is_fixed_start(position) or not self._kept.try_begin(self._key, now_s):
            return
        start = plan_iterator(position.whole_record)
        self._subscription = TaskSubscription(self._threads.condition(), start, now_s)
        self._subscription.subscribe(self._fan_out, self._key[1], self._key[2])

    def on_lag(self, behind_ms: int) -> None:
        """Handle the lag of the read, which the caller has reduced by the time between the last tip and this batch."""
        self._is_needed |= behind_ms > NEAR_TIP_MS_MAX

    def on_poll(self, started_s: float, read_bytes: int) -> None:
        """Handle a page from GetRecords."""
        self._own_reads.on_call(started_s)
        self._own_reads.on_bytes(started_s, read_bytes)

    def on_poll_failure(self, error: PenstockError, started_s: float) -> None:
        """Handle a failed GetRecords. A refusal that this process's reads explain is no sign of other readers."""
        self._own_reads.on_call(started_s)
        self._is_needed |= is_quota_refusal(error) and not self._own_reads.explains_refusal(started_s)

    def wait(self, duration_s: float) -> None:
        """Wait for the duration, or until a subscription is accepted or refused."""
        if self._subscription is None or self._subscription.end is not None or self.is_open:
            self._clock.sleep(duration_s)
        else:
            self._subscription.wait(duration_s)

    def fetch(self) -> RecordPage | None:
        """Return the next event; None if the subscription has ended, so that the read goes on by GetRecords."""
        assert self._subscription is not None, "fetch without a subscription"
        page = self._subscription.fetch(PATIENCE_S)
        if page is None:
            self._drop_if_ended()
            return None
        self._kept.on_event(self._key)
        return page

    @property
    def unread_since_ms(self) -> int | None:
        """Moment by the service's clock when the subscription was kept; its next records arrived then or later."""
        return None if self._subscription is None else self._subscription.unread_since_ms

    def keep(self, position: Position, unread_since_ms: int | None, *, is_cut: bool) -> None:
        """Keep the subscription for the next batch, which begins at a position.

        Args:
            unread_since_ms: Moment by the service's clock: the records after the position arrived then or later.
            is_cut: Whether the read ended inside the last event.
        """
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        now_s = self._clock.monotonic_s()
        if self._subscribes_always or self._is_needed:
            subscription.needed_s = now_s
        is_needed = now_s - subscription.needed_s < NEEDED_FOR_S
        is_usable = is_needed and subscription.continue_from(position.sequence_number, is_cut=is_cut)
        # A subscription that has just ended is kept too, so that the next batch counts its end: the counts of this batch are
        # already written, in the note of its claim.
        if _is_fixed_start(position) and (is_usable or subscription.end is not None):
            subscription.unread_since_ms = unread_since_ms
            self._kept.keep(self._key, position, subscription, now_s)
        else:
            subscription.close()

    def close(self) -> None:
        """End the subscription, unless it is kept for the next batch."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    def _drop_if_ended(self) -> None:
        """Close the subscription and count the reason, if it has ended or was not answered in time."""
        subscription = self._subscription
        if subscription is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s - subscription.begun_s >= UNANSWERED_S:
            subscription.end_unanswered()
        why = subscription.end
        if why is None:
            return
        self._ends[why.value] += 1
        is_first_failure = why is not SubscriptionEnd.OVER and self._kept.on_failure(
            self._key, now_s, self._chance.random()
        )
        # Only the user can mend these two.
        is_for_the_user = is_first_failure and isinstance(subscription.error, AccessDenied | NotFound)
        _log.log(
            logging.WARNING if is_for_the_user else logging.DEBUG,
            "shard %s: the subscription of consumer %s is %s, reading goes on by GetRecords: %s",
            self._key[2],
            self._key[1],
            why.value,
            subscription.error,
        )
        self.close()


def _is_fixed_start(position: Position) -> bool:
    """Return whether a later read from the position begins at the same record. From LATEST it does not."""
    return position.is_record or position == TRIM_HORIZON
