"""The steps that read one shard by enhanced fan-out: its subscription answers the steps that the run plans."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.consumer.fetching import ShardFetcher
from penstock.consumer.shard_plan import Fetch
from penstock.consumer.shard_run import ShardRun
from penstock.core.reading.reader_steps import SUBSCRIBED, FetchIterator, FetchPage
from penstock.core.reading.resume import plan_iterator
from penstock.core.safe_text import describe_error
from penstock.errors import ExpiredIterator, PenstockError
from penstock.ports.clock import Clock
from penstock.ports.kinesis import RecordPage
from penstock.runtime.subscriptions import Subscriptions

log = logging.getLogger("penstock.consumer")


class PushedFetcher:
    """Passes the planned steps of a run to its subscription. It answers later, on the pool; nothing waits here.

    Args:
        fetcher: Takes pages apart, and does the steps that have nothing to do with a subscription.
        subscriptions: Bring the pages.
        has_room: Whether the process as a whole may hold more.
        clock: Time.
        on_answered: Called when a run was brought an answer later than `fetch` returned.
    """

    def __init__(
        self,
        fetcher: ShardFetcher,
        subscriptions: Subscriptions,
        *,
        has_room: Callable[[], bool],
        clock: Clock,
        on_answered: Callable[[ShardRun], None],
    ) -> None:
        self._fetcher = fetcher
        self._subscriptions = subscriptions
        self._has_room = has_room
        self._clock = clock
        self._on_answered = on_answered

    def fetch(self, run: ShardRun, fetch: Fetch) -> None:
        """Begin one step of reading, or do it; a failure is reported to the run."""
        key = (run.key, run.epoch)
        if isinstance(fetch, FetchIterator):
            try:
                start = plan_iterator(fetch.position)
            except PenstockError as error:
                run.on_fetch_failed(error)
                return
            self._subscriptions.begin(key, run.shard_id, start, _Taker(run, self))
        elif isinstance(fetch, FetchPage):
            if self._has_room():
                self._subscriptions.want(key)
            else:  # others have filled it while this waited for a thread
                run.on_fetch_skipped()
        else:
            self._fetcher.fetch(run, fetch)

    def leave(self, run: ShardRun) -> None:
        """End the subscription: before the lease is given away, so that the next owner is not refused for it."""
        self._subscriptions.close((run.key, run.epoch))

    def give_page(self, run: ShardRun, page: RecordPage) -> None:
        """Bring a run the page that it asked for."""
        try:
            self._fetcher.give_page(run, page, self._clock.monotonic_s())
        except Exception as error:
            log.exception("shard %s: an event could not be taken, in an unexpected way", run.key)
            # The subscription has moved past this event: only a restarted reader gets it again.
            run.on_fetch_failed(ExpiredIterator(describe_error(error), operation="SubscribeToShard"))
        self._answered(run)

    def give_iterator(self, run: ShardRun) -> None:
        """Report to a run that it is subscribed."""
        run.on_iterator(SUBSCRIBED)
        self._answered(run)

    def give_failure(self, run: ShardRun, error: PenstockError) -> None:
        """Report a failed step to its run."""
        run.on_fetch_failed(error)
        self._answered(run)

    def _answered(self, run: ShardRun) -> None:
        if run.is_lost:  # a step that waited for a thread may have subscribed again after the run left
            self.leave(run)
        self._on_answered(run)


class _Taker:
    """Implements `penstock.runtime.subscriptions.PageTaker` for a run."""

    def __init__(self, run: ShardRun, fetcher: PushedFetcher) -> None:
        self._run = run
        self._fetcher = fetcher

    def on_iterator(self) -> None:
        """Handle that pages may be asked for."""
        self._fetcher.give_iterator(self._run)

    def on_page(self, page: RecordPage) -> None:
        """Handle a requested page."""
        self._fetcher.give_page(self._run, page)

    def on_failure(self, error: PenstockError) -> None:
        """Handle a failed request."""
        self._fetcher.give_failure(self._run, error)
