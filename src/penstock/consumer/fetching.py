"""The calls that read one shard, and the taking apart of their pages. Runs on the read pool's threads."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.consumer.shard_plan import Deaggregate, Fetch
from penstock.consumer.shard_run import ShardRun
from penstock.consumer.unread import UnreadPage, deaggregate_page, unread_page
from penstock.core.aggregation import DecodeCounts, MisplacedRule
from penstock.core.reading.reader_steps import FetchIterator, FetchPage, find_listed
from penstock.core.reading.resume import plan_iterator
from penstock.core.safe_text import describe_error
from penstock.errors import PenstockError, Unavailable
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis, RecordPage
from penstock.ports.metrics import Metrics
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.known_stream import KnownStream

log = logging.getLogger("penstock.consumer")


class ShardFetcher:
    """Runs the planned steps of a shard's run, and hands it the answers.

    Args:
        stream: Name or ARN.
        kinesis: Where to read.
        drops_unmarked: Drop misplaced aggregates of every producer, as the KCL does.
        has_room: Whether the process as a whole may hold more.
        clock: Time.
        metrics: Where figures go.
        known: Whether the name still means this stream; None: that is not asked.
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
        known: KnownStream | None = None,
    ) -> None:
        self._stream = stream
        self._kinesis = kinesis
        self._drops_unmarked = drops_unmarked
        self._has_room = has_room
        self._clock = clock
        self._metrics = metrics
        self._known = known
        self._hash_ranges = HashRanges(kinesis, stream, clock.monotonic_s)

    def fetch(self, run: ShardRun, fetch: Fetch) -> UnreadPage | PenstockError | None:
        """Do one step of reading and hand the run the answer; return the page or the error."""
        try:
            return self._do(run, fetch)
        except PenstockError as error:
            run.on_fetch_failed(error)
            return error
        except Exception as error:
            log.exception("shard %s: a read failed in an unexpected way", run.key)
            failure = Unavailable(describe_error(error), operation="GetRecords")
            run.on_fetch_failed(failure)
            return failure

    def _do(self, run: ShardRun, fetch: Fetch) -> UnreadPage | None:
        if isinstance(fetch, FetchIterator):
            if not fetch.position.is_record:
                self._check_stream()  # another stream refuses the place of a record, and has a beginning, too
            start = plan_iterator(fetch.position)
            run.on_iterator(self._kinesis.fetch_iterator(self._stream, run.shard_id, start))
        elif isinstance(fetch, FetchPage):
            if not self._has_room():  # others have filled it while this waited for a thread
                run.on_fetch_skipped()
                return None
            started_s = self._clock.monotonic_s()
            page = self._kinesis.fetch_records(self._stream, fetch.iterator, fetch.record_count_max)
            return self.give_page(run, page, started_s)
        elif isinstance(fetch, Deaggregate):
            self._deaggregate_unread(run)
        else:
            listing = self._kinesis.fetch_shards(self._stream)
            self._check_stream()
            run.on_listing(find_listed(run.shard_id, listing.shards))
        return None

    def _check_stream(self) -> None:
        if self._known is not None:
            self._known.check()

    def give_page(self, run: ShardRun, page: RecordPage, started_s: float) -> UnreadPage:
        """Pass a page to a run, and deaggregate records as far as there is room; return the page as the run got it."""
        unread = unread_page(page)
        run.on_page(unread, started_s, page.server_ms)
        self._deaggregate_unread(run)
        return unread

    def _deaggregate_unread(self, run: ShardRun) -> None:
        """Deaggregate records as far as there is room, and at least one if nothing else waits for delivery."""
        room_bytes, unread = run.peek_unread(self._has_room())
        counts = DecodeCounts()
        rule = MisplacedRule(self._hash_ranges.of(run.shard_id), self._drops_unmarked, run.hash_range)
        run.on_deaggregated(
            deaggregate_page(unread, room_bytes, run.shard_id, counts, rule, stream=self._stream)
        )
        self._report(run.key, counts)

    def _report(self, key: str, counts: DecodeCounts) -> None:
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
