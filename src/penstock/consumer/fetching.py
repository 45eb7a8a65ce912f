"""The calls that read a shard: by polling, by enhanced fan-out, or by whichever of them its `RetrievalChoice` selects.

The calls and the deaggregation of pages run on the read pool's threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from penstock.consumer.raw_records import deaggregate_page
from penstock.consumer.shard_run import Deaggregate, Fetch, ShardRun
from penstock.core.aggregation import DecodeCounts, MisplacedRule
from penstock.core.reading.reader_steps import SUBSCRIBED, FetchIterator, FetchPage, find_listed_shard
from penstock.core.reading.resume import plan_iterator
from penstock.core.reading.retrieval_choice import (
    AutoRetrieval,
    ChangeReason,
    Retrieval,
    RetrievalChange,
    RetrievalChoice,
)
from penstock.core.safe_text import describe_error
from penstock.errors import ExpiredIterator, PenstockError, Unavailable
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis, RecordPage
from penstock.ports.metrics import Metrics
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.loop import Pool
from penstock.runtime.stream_name_check import StreamNameCheck
from penstock.runtime.subscriptions import Subscriptions
from penstock.runtime.worker_ports import WorkerPorts

log: logging.Logger = logging.getLogger("penstock.consumer")


class ShardFetcher:
    """Does the reading that runs of shards have planned, by polling, and passes the answers to the runs.

    Args:
        stream: Name or ARN.
        drops_unmarked: Whether misplaced aggregates of every producer are dropped, as by the KCL; else only Penstock's own.
        has_room: Whether all shards of the process together may hold more.
        name_check: Checks whether the name still means this stream; None checks nothing.
    """

    def __init__(
        self,
        stream: str,
        kinesis: Kinesis,
        *,
        drops_unmarked: bool,
        has_room: Callable[[], bool],
        clock: Clock,
        metrics: Metrics,
        name_check: StreamNameCheck | None = None,
    ) -> None:
        self._stream = stream
        self._kinesis = kinesis
        self._drops_unmarked = drops_unmarked
        self._has_room = has_room
        self._clock = clock
        self._metrics = metrics
        self._name_check = name_check
        self._hash_ranges = HashRanges(kinesis, stream, clock.monotonic_s)

    def fetch(self, run: ShardRun, fetch: Fetch) -> RecordPage | PenstockError | None:
        """Do one step of reading, and pass the answer to the run. Return a page that was read or the error of a failed step, else None."""
        try:
            return self._do_step(run, fetch)
        except PenstockError as error:
            run.on_fetch_failed(error)
            return error
        except Exception as error:
            log.exception("shard %s: a read failed in an unexpected way", run.key)
            failure = Unavailable(describe_error(error), operation="GetRecords")
            run.on_fetch_failed(failure)
            return failure

    def _do_step(self, run: ShardRun, fetch: Fetch) -> RecordPage | None:
        if isinstance(fetch, FetchIterator):
            if not fetch.position.is_record:
                self._check_stream()  # another stream would refuse a record's position, but not a starting point
            start = plan_iterator(fetch.position)
            run.on_iterator(self._kinesis.fetch_iterator(self._stream, run.shard_id, start))
        elif isinstance(fetch, FetchPage):
            if not self._has_room():  # other runs filled the memory while this step waited
                run.on_fetch_skipped()
                return None
            started_s = self._clock.monotonic_s()
            page = self._kinesis.fetch_records(self._stream, fetch.iterator, fetch.record_count_max)
            self.on_page(run, page, started_s)
            return page
        elif isinstance(fetch, Deaggregate):
            self._deaggregate_records(run)
        else:
            listing = self._kinesis.fetch_shards(self._stream)
            self._check_stream()
            run.on_listing(find_listed_shard(run.shard_id, listing.shards))
        return None

    def _check_stream(self) -> None:
        if self._name_check is not None:
            self._name_check.check()

    def on_page(self, run: ShardRun, page: RecordPage, started_s: float) -> None:
        """Pass a page to a run, and deaggregate records as far as there is room."""
        run.on_page(page, started_s)
        self._deaggregate_records(run)

    def _deaggregate_records(self, run: ShardRun) -> None:
        """Deaggregate records as far as there is room. If no record waits for delivery, at least one is deaggregated."""
        room_bytes, raw_records = run.peek_raw_records(self._has_room())
        counts = DecodeCounts()
        rule = MisplacedRule(self._hash_ranges.of(run.shard_id), self._drops_unmarked, run.hash_range)
        run.on_deaggregated(
            deaggregate_page(raw_records, room_bytes, run.shard_id, counts, rule, stream=self._stream)
        )
        self._report_decoding(run.key, counts)

    def _report_decoding(self, key: str, counts: DecodeCounts) -> None:
        """Count and log records that were not deaggregated or were dropped as misplaced."""
        for reason, number in counts.undecodable.items():
            self._metrics.count("undecodable_aggregates", number, {"reason": reason.name.lower()})
        if counts.misplaced_records:
            self._metrics.count("misplaced_records_dropped", counts.misplaced_records)
            log.info(
                "shard %s: %d records of %d aggregates that a reshard left in the wrong shard were dropped; their "
                "producer sends them again",
                key,
                counts.misplaced_records,
                counts.misplaced_aggregates,
            )


class ReadingParts(Struct, frozen=True):
    """Parts that the readings of all streams share.

    Args:
        call_pool: The threads for calls that are about no single shard.
        has_room: Whether all shards of the process together may hold more.
        on_answered: Called after a run has got an answer for which no `fetch` was waiting.
    """

    ports: WorkerPorts
    call_pool: Pool
    has_room: Callable[[], bool]
    on_answered: Callable[[ShardRun], None]


class PushedFetcher:
    """Passes the planned steps of a run to its subscription, which answers later on a thread of the read pool.

    Args:
        fetcher: Deaggregates pages, and does the steps that need no subscription.
    """

    def __init__(self, fetcher: ShardFetcher, subscriptions: Subscriptions, parts: ReadingParts) -> None:
        self._fetcher = fetcher
        self._subscriptions = subscriptions
        self._parts = parts
        self._ports = parts.ports

    def fetch(self, run: ShardRun, fetch: Fetch) -> None:
        """Begin a step of the run's subscription, or do another step at once. The run gets the failure of a step."""
        if isinstance(fetch, FetchIterator):
            try:
                start = plan_iterator(fetch.position)
            except PenstockError as error:
                run.on_fetch_failed(error)
                return
            self._subscriptions.begin(run, run.shard_id, start, self)
        elif isinstance(fetch, FetchPage):
            if self._parts.has_room():
                self._subscriptions.request_page(run)
            else:  # other runs filled the memory while this step waited
                run.on_fetch_skipped()
        else:
            self._fetcher.fetch(run, fetch)

    def end_subscription(self, run: ShardRun) -> None:
        """End the subscription. Called before the lease is released: while it is open, the service refuses the next owner's."""
        self._subscriptions.close(run)

    def on_page(self, run: ShardRun, page: RecordPage) -> None:
        """Give a run the page that it requested."""
        try:
            self._fetcher.on_page(run, page, self._ports.clock.monotonic_s())
        except Exception as error:
            log.exception("shard %s: an event could not be taken, in an unexpected way", run.key)
            # The subscription has moved past this event: only a restarted reader gets it again.
            run.on_fetch_failed(ExpiredIterator(describe_error(error), operation="SubscribeToShard"))
        self._on_answered(run)

    def on_iterator(self, run: ShardRun) -> None:
        """Report to a run that it is subscribed."""
        run.on_iterator(SUBSCRIBED)
        self._on_answered(run)

    def on_failure(self, run: ShardRun, error: PenstockError) -> None:
        """Report a failed step to its run."""
        run.on_fetch_failed(error)
        self._on_answered(run)

    def _on_answered(self, run: ShardRun) -> None:
        if run.is_lost:  # a step that waited for a thread may have subscribed again after the run left
            self.end_subscription(run)
        self._parts.on_answered(run)


class AutoFetcher(PushedFetcher):
    """Reads each shard by polling or by a subscription, and changes between them when no step is under way.

    A shard is polled until the registered consumer is ACTIVE, which takes seconds.

    Args:
        options: When a shard changes, and how it is read by either way.
    """

    def __init__(
        self,
        fetcher: ShardFetcher,
        subscriptions: Subscriptions,
        parts: ReadingParts,
        options: AutoRetrieval,
    ) -> None:
        super().__init__(fetcher, subscriptions, parts)
        self._options = options
        # Needs no lock, since a run has only one step under way at a time.
        self._choices: dict[ShardRun, RetrievalChoice] = {}

    def fetch(self, run: ShardRun, fetch: Fetch) -> None:
        """Do or begin one step of reading. If a change between polling and fan-out is due, make the change instead."""
        if self._end_if_lost(run):
            return
        if not isinstance(fetch, FetchIterator | FetchPage):
            self._fetcher.fetch(run, fetch)
            return
        choice = self._choice_of(run)
        change = choice.plan_change(self._ports.clock.monotonic_s())
        if change is not None and self._is_source_ready(change):
            self._change_source(run, choice, change)
        elif choice.retrieval is Retrieval.FAN_OUT:
            super().fetch(run, fetch)
        else:
            self._poll(run, choice, fetch)
        self._end_if_lost(run)

    def _end_if_lost(self, run: ShardRun) -> bool:
        """End the run's subscription if its lease was lost, perhaps during a step; return whether the lease was lost."""
        if run.is_lost:
            self.end_subscription(run)
        return run.is_lost

    def end_subscription(self, run: ShardRun) -> None:
        """End the subscription if there is one. Called before the lease is released."""
        super().end_subscription(run)
        self._choices.pop(run, None)

    def on_page(self, run: ShardRun, page: RecordPage) -> None:
        """Give a run the page that it requested."""
        self._choice_of(run).on_event(page.millis_behind_latest, self._ports.clock.monotonic_s())
        super().on_page(run, page)

    def on_failure(self, run: ShardRun, error: PenstockError) -> None:
        """Report a failed step to its run. If its subscription does not work, change the run to polling instead."""
        choice = self._choice_of(run)
        choice.on_push_failed(error)
        change = choice.plan_change(self._ports.clock.monotonic_s())
        if change is None or change.why is not ChangeReason.PUSH_FAILED:
            super().on_failure(run, error)
            return
        log.warning("shard %s: %s", run.key, error)
        self._change_source(run, choice, change)
        self._on_answered(run)

    def _choice_of(self, run: ShardRun) -> RetrievalChoice:
        choice = self._choices.get(run)
        if choice is None:
            choice = self._choices[run] = RetrievalChoice(self._options, self._ports.chance.random())
        return choice

    def _poll(self, run: ShardRun, choice: RetrievalChoice, fetch: FetchIterator | FetchPage) -> None:
        started_s = self._ports.clock.monotonic_s()
        result = self._fetcher.fetch(run, fetch)
        if isinstance(result, RecordPage):
            choice.on_polled(started_s, result.read_bytes)
        elif result is not None and isinstance(fetch, FetchPage):
            choice.on_poll_failed(result, started_s)

    def _is_source_ready(self, change: RetrievalChange) -> bool:
        """Return whether the new source can be used. If that is fan-out without a registered consumer, begin to register one."""
        registration = self._subscriptions.registration
        return change.to is Retrieval.POLLING or registration.find_in_background(self._parts.call_pool)

    def _change_source(self, run: ShardRun, choice: RetrievalChoice, change: RetrievalChange) -> None:
        """Change a run between polling and fan-out. The run's next step uses the new source."""
        if change.to is Retrieval.POLLING:
            super().end_subscription(run)
        choice.on_changed(change, self._ports.clock.monotonic_s(), self._ports.chance.random())
        run.on_source_changed(self._options.options_of(change.to))
        self._ports.metrics.count("retrieval_changes", 1, {**run.labels, "to": change.to.value})
        how = "polled" if change.to is Retrieval.POLLING else "read by enhanced fan-out"
        log.info("shard %s is %s from here on: %s", run.key, how, change.why.value)
