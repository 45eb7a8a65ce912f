"""The steps that read one shard by polling or by enhanced fan-out, as its `RetrievalChoice` decides."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.consumer.fetching import ShardFetcher
from penstock.consumer.pushed_fetching import PushedFetcher
from penstock.consumer.shard_plan import Fetch
from penstock.consumer.shard_run import ShardRun
from penstock.consumer.unread import UnreadPage
from penstock.core.reading.reader_steps import FetchIterator, FetchPage
from penstock.core.reading.retrieval_choice import (
    AutoRetrieval,
    Change,
    ChangeReason,
    Retrieval,
    RetrievalChoice,
)
from penstock.errors import PenstockError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import RecordPage
from penstock.ports.metrics import Metrics
from penstock.runtime.loop import Pool
from penstock.runtime.subscriptions import Subscriptions

log = logging.getLogger("penstock.consumer")


class AutoFetcher(PushedFetcher):
    """Runs the steps of shards' runs by polling or by a subscription; changes between two steps, when no call is under way.

    A shard is polled until the consumer is registered and ACTIVE: that takes seconds, and nothing waits for it.

    Args:
        fetcher: Polls.
        subscriptions: Bring pages by enhanced fan-out.
        has_room: Whether the process as a whole may hold more.
        clock: Time.
        on_answered: Called when a run was brought an answer later than `fetch` returned.
        options: When to change, and how to read then.
        chance: Jitter.
        metrics: Where figures go.
        call_pool: Where the consumer is registered when it is first needed.
    """

    def __init__(
        self,
        fetcher: ShardFetcher,
        subscriptions: Subscriptions,
        *,
        has_room: Callable[[], bool],
        clock: Clock,
        on_answered: Callable[[ShardRun], None],
        options: AutoRetrieval,
        chance: Chance,
        metrics: Metrics,
        call_pool: Pool,
    ) -> None:
        super().__init__(fetcher, subscriptions, has_room=has_room, clock=clock, on_answered=on_answered)
        self._registration = subscriptions.registration
        self._options = options
        self._chance = chance
        self._metrics = metrics
        self._call_pool = call_pool
        self._choices: dict[tuple[str, int], RetrievalChoice] = {}  # of a run; one step of each is under way

    def fetch(self, run: ShardRun, fetch: Fetch) -> None:
        """Do or begin one step of reading, or change between polling and fan-out instead."""
        if self._leave_lost(run):
            return
        if not isinstance(fetch, FetchIterator | FetchPage):
            self._fetcher.fetch(run, fetch)
            return
        choice = self._choice_of(run)
        change = choice.plan_change(self._clock.monotonic_s())
        if change is not None and self._may_make(change):
            self._make(run, choice, change)
        elif choice.retrieval is Retrieval.FAN_OUT:
            super().fetch(run, fetch)
        else:
            self._poll(run, choice, fetch)
        self._leave_lost(run)

    def _leave_lost(self, run: ShardRun) -> bool:
        """Leave a run that was lost while a step of it waited for a thread, or was done; return whether it was."""
        if run.is_lost:
            self.leave(run)
        return run.is_lost

    def leave(self, run: ShardRun) -> None:
        """End the subscription if there is one: before the lease is given away."""
        super().leave(run)
        self._choices.pop((run.key, run.epoch), None)

    def give_page(self, run: ShardRun, page: RecordPage) -> None:
        """Bring a run the page that it asked for."""
        self._choice_of(run).on_event(page.millis_behind_latest, self._clock.monotonic_s())
        super().give_page(run, page)

    def give_failure(self, run: ShardRun, error: PenstockError) -> None:
        """Report a failed step to its run; or change the run to polling if its subscription does not work."""
        choice = self._choice_of(run)
        choice.on_push_failed(error)
        change = choice.plan_change(self._clock.monotonic_s())
        if change is None or change.why is not ChangeReason.PUSH_FAILED:
            super().give_failure(run, error)
            return
        log.warning("shard %s: %s", run.key, error)
        self._make(run, choice, change)
        self._answered(run)

    def _choice_of(self, run: ShardRun) -> RetrievalChoice:
        key = (run.key, run.epoch)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = RetrievalChoice(self._options, self._chance.random())
        return choice

    def _poll(self, run: ShardRun, choice: RetrievalChoice, fetch: FetchIterator | FetchPage) -> None:
        started_s = self._clock.monotonic_s()
        came = self._fetcher.fetch(run, fetch)
        if isinstance(came, UnreadPage):
            choice.on_polled(started_s, came.read_bytes)
        elif came is not None and isinstance(fetch, FetchPage):
            choice.on_poll_failed(came, started_s)

    def _may_make(self, change: Change) -> bool:
        return change.to is Retrieval.POLLING or self._registration.find_ahead(self._call_pool)

    def _make(self, run: ShardRun, choice: RetrievalChoice, change: Change) -> None:
        if change.to is Retrieval.POLLING:
            super().leave(run)
        choice.on_changed(change, self._clock.monotonic_s(), self._chance.random())
        run.on_source_changed(self._options.options_of(change.to))
        self._metrics.count("retrieval_changes", 1, {**run.labels, "to": change.to.value})
        how = "polled" if change.to is Retrieval.POLLING else "read by enhanced fan-out"
        log.info("shard %s is %s from here on: %s", run.key, how, change.why.value)
