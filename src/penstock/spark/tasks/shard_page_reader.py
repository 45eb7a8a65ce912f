"""Reads one shard from a position, page by page, as Arrow batches, with blocking calls: for tasks and batch reads.

`penstock.core.reading.shard_reader` plans the steps and judges answers and failures; this module makes the calls and waits.
The caller decides where a batch ends: it gets each page with the service's lag and the end of the shard, and cuts or stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.aggregation import DecodeCounts, MisplacedRule
from penstock.core.hash_key import HashRange
from penstock.core.position import Position
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import (
    SUBSCRIBED,
    Failed,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    Wait,
    find_listed_shard,
)
from penstock.core.reading.resume import plan_iterator
from penstock.core.reading.service_clock import ServiceClock
from penstock.core.reading.shard_reader import ShardReader
from penstock.core.shard import ChildShard
from penstock.errors import DataLossError, ExpiredIterator, PenstockError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis, RawRecord, RecordPage
from penstock.spark.tasks.arrow_records import records_to_slices
from penstock.spark.tasks.concurrent_read import HoldPage
from penstock.spark.tasks.iterator_cache import IteratorCache, KeptIterator
from penstock.spark.tasks.pushed_reading import PushedReading

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("penstock.spark")

Slices: TypeAlias = "Iterator[tuple[pa.RecordBatch, int]]"
"""The rows of a page in parts. With each part comes the number of the page's Kinesis records that end with this part."""


class ShardPage(Struct, frozen=True):
    """One answer, or a part of a large one, as rows.

    Args:
        rows: User records after the start, in order; may have no rows. The caller cuts them first and then emits them
            through `penstock.spark.tasks.arrow_records.without_misplaced`.
        millis_behind_latest: 0 if nothing is left to read; None if this page does not show it.
        is_end: The shard is closed and read to its end.
        children: The child shards; only with `is_end`.
        service_ms: The moment of the answer by the service's clock.
        is_pushed: A subscription delivered it.
    """

    rows: pa.RecordBatch
    millis_behind_latest: int | None
    is_end: bool
    children: tuple[ChildShard, ...]
    service_ms: int
    is_pushed: bool = False

    def tail(self, count: int) -> ShardPage:
        """Return the page without its first `count` rows and without its lag, which the service counts from the page's end."""
        return replace(self, rows=self.rows.slice(count), millis_behind_latest=None)


class ShardPageReader:
    """Reads one shard from one position on. Not thread-safe; used by one task at a time.

    Args:
        stream: Name or ARN.
        start: Records up to and including this position are left out.
        tip_ms: Moment, by the service's clock, at which nothing was left to read after the start; None if not known.
        is_foreign: Whether the start is the checkpoint of a worker that does not record tip marks.
        rule: Which misplaced aggregates are not delivered.
        iterators: Kept between batches by the worker process.
        hold_page: Entered for as long as a page, or the rows of an event, are in memory.
        pushed_reading: Subscription for reads without a claimed end, or None.
        check_stream: Called with the moment of an answer that another stream of this name could also have given. Raises an
            error if the name refers to another stream now. None: nothing is checked.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        shard_id: str,
        start: Position,
        *,
        options: ReaderOptions,
        clock: Clock,
        chance: Chance,
        tip_ms: int | None = None,
        is_foreign: bool = False,
        deaggregate: bool = True,
        rule: MisplacedRule | None = None,
        iterators: IteratorCache | None = None,
        hold_page: HoldPage = nullcontext,
        pushed_reading: PushedReading | None = None,
        check_stream: Callable[[int], None] | None = None,
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._shard_id = shard_id
        self._start = start
        self._options = options
        self._clock = clock
        self._chance = chance
        self._tip_ms = tip_ms
        self._is_foreign = is_foreign
        self._deaggregate = deaggregate
        self._rule = rule
        self._iterators = IteratorCache() if iterators is None else iterators
        self._hold_page = hold_page
        self._pushed_reading = pushed_reading
        self._check_stream = check_stream or _accept_stream
        # The iterator starts at no record. A newer stream of this name accepts such a start, too.
        self._begins_without_record = False
        self._is_pushed = False  # the subscription delivers the pages now
        # Whether rows arrived or the service was polled. Before that, an empty event does not show the tip: it may have been
        # sent before the arrival of the records for which this task was planned.
        self._may_show_tip = False
        self._pause_ms: int | None = None  # from the start's tip mark to the first answer
        self._service_clock = ServiceClock()
        self._reader: ShardReader | None = None
        self._is_inside_page = False  # the iterator is after rows that were not emitted yet
        self.began_with_kept_iterator = False
        self.decode_counts = DecodeCounts()

    def pages(self, *, may_push: bool = False) -> Generator[ShardPage, None, None]:
        """Yield pages until the shard's end; the caller stops earlier by requesting no further page.

        Args:
            may_push: No end is claimed, so a subscription may deliver pages.

        Raises:
            DataLossError: The start or the shard is gone, and the policy is to fail.
            StreamChanged: The position is not one of this stream.
            NotFound: The stream is gone.
            Throttled: The shard was refused for longer than the deadline.
            ServiceError: As in the port's documentation.
        """
        if not may_push:
            self._pushed_reading = None
        reader = self._reader = self._open_reader()
        while True:
            now_s = self._clock.monotonic_s()
            match reader.plan_step(now_s):
                case Failed(error):
                    raise error
                case Finished(children):
                    rows, _ = next(self._decode((), None))
                    yield ShardPage(
                        rows, 0, True, children, self._service_clock.now_ms(self._clock.wall_ms())
                    )
                    return
                case FetchListing() as step:
                    self._fetch_iterator_or_listing(reader, step)
                case step:
                    if self._pushed_reading is not None and self._try_subscription(
                        reader, self._pushed_reading
                    ):
                        yield from self._fetch_event(reader, self._pushed_reading)
                    elif isinstance(step, Wait):
                        self._wait(step, now_s)
                    elif isinstance(step, FetchIterator):
                        self._fetch_iterator_or_listing(reader, step)
                    else:
                        yield from self._fetch_page(reader, step)
                    if isinstance(reader.outcome, Finished):
                        return  # its last page had the end

    def keep_iterator(self, position: Position) -> None:
        """Keep the iterator after the last page, for a next read that starts at a position.

        Args:
            position: Position of the last user record of the last page; the start if nothing was read.
        """
        if self._is_pushed or self._is_inside_page:
            return
        reader = self._reader
        if reader is not None and reader.iterator is not None:
            kept = KeptIterator(reader.iterator, reader.unread_since_ms, self._clock.monotonic_s())
            self._iterators.put(self._kinesis, self._stream, self._shard_id, position, kept)

    def keep_subscription(self, end: Position, *, is_cut: bool) -> None:
        """Keep the subscription, if there is one, for a next read without a claimed end that starts at `end`.

        Args:
            is_cut: Whether rows of the last page were left for later.
        """
        if self._pushed_reading is not None:
            unread_since_ms = None if self._reader is None else self._reader.unread_since_ms
            self._pushed_reading.keep(end, unread_since_ms, is_cut=is_cut or self._is_inside_page)

    def poll_only(self) -> None:
        """End the subscription and read on by GetRecords, because an end is claimed now."""
        if self._pushed_reading is None:
            return
        self._pushed_reading.close()
        self._pushed_reading = None
        if self._is_pushed and self._reader is not None:
            self._return_to_polling(self._reader)

    def close(self) -> None:
        """End the subscription, unless it is kept for a next read."""
        if self._pushed_reading is not None:
            self._pushed_reading.close()

    @property
    def subscription_ends(self) -> Mapping[str, int]:
        """Number of subscriptions that ended during the read, by reason."""
        return {} if self._pushed_reading is None else self._pushed_reading.subscription_ends

    def read_again(self) -> bool:
        """Plan one more read from the last record, after an answer without the records that must follow.

        One such answer does not prove that these records are gone.

        Returns:
            False after enough such reads.
        """
        return self._reader is not None and self._reader.read_again(self._clock.monotonic_s())

    def on_hash_range(self, hash_range: HashRange | None) -> None:
        """Handle the shard's hash range from its lease: the rule of misplaced aggregates needs it."""
        if self._rule is not None and hash_range is not None:
            self._rule = replace(self._rule, known_range=hash_range)

    def log_dropped_records(self) -> None:
        """Log how many misplaced records were read and not delivered, if there were any."""
        counts = self.decode_counts
        if counts.misplaced_records:
            _log.warning(
                "stream %s, shard %s: %d records of %d aggregates that a reshard left in the wrong shard were dropped; "
                "their producer sends them again",
                self._stream,
                self._shard_id,
                counts.misplaced_records,
                counts.misplaced_aggregates,
            )

    # --- the machine's steps ------------------------------------------------------------------------------

    def _open_reader(self) -> ShardReader:
        """Return the reader of the shard; it begins with the subscription or the iterator that was kept at the start, if any."""
        if self._pushed_reading is not None and self._pushed_reading.resume(self._start):
            self._is_pushed = True
            return self._reader_at(SUBSCRIBED, self._pushed_reading.unread_since_ms)
        kept = self._iterators.take(
            self._kinesis, self._stream, self._shard_id, self._start, self._clock.monotonic_s()
        )
        self.began_with_kept_iterator = kept is not None
        return self._reader_at(None) if kept is None else self._reader_at(kept.iterator, kept.unread_since_ms)

    def _reader_at(self, iterator: str | None, unread_since_ms: int | None = None) -> ShardReader:
        """Return the reader of the shard from the start on.

        Args:
            iterator: The iterator that was kept at the start, `SUBSCRIBED` for a kept subscription, or None.
            unread_since_ms: Moment by the service's clock: the records after the start arrived then or later.
        """
        return ShardReader(
            self._stream,
            self._shard_id,
            self._start,
            self._options,
            tip_ms=self._tip_ms,
            is_foreign=self._is_foreign,
            iterator=iterator,
            unread_since_ms=unread_since_ms,
        )

    def _wait(self, step: Wait, now_s: float) -> None:
        assert step.until_s is not None, "nothing that was read waits for delivery here"
        if self._pushed_reading is None:
            self._clock.sleep(step.until_s - now_s)
        else:
            self._pushed_reading.wait(step.until_s - now_s)

    def _fetch_iterator_or_listing(self, reader: ShardReader, step: FetchIterator | FetchListing) -> None:
        """Make the call of a step, and pass its answer or failure to the reader."""
        started_s = self._clock.monotonic_s()
        try:
            if isinstance(step, FetchIterator):
                start = plan_iterator(step.position)
                self._begins_without_record = not step.position.is_record
                iterator = self._kinesis.fetch_iterator(self._stream, self._shard_id, start)
                reader.on_iterator(iterator, self._clock.monotonic_s(), self._clock.wall_ms())
                return
            listing = self._kinesis.fetch_shards(self._stream)
        except PenstockError as error:
            self._on_failure(reader, error, started_s)
            return
        here_ms = self._service_clock.now_ms(self._clock.wall_ms())
        self._check_stream(here_ms if listing.server_ms is None else listing.server_ms)
        listed = find_listed_shard(self._shard_id, listing.shards)
        _log.info(
            "stream %s, shard %s: %s; %s", self._stream, self._shard_id, step.reason, listed.state.value
        )
        self._report_loss(reader, reader.on_listing(listed, self._clock.monotonic_s(), self._chance.random()))

    def _fetch_page(self, reader: ShardReader, step: FetchPage) -> Iterator[ShardPage]:
        """Call GetRecords and yield the new rows. After a failure there are no rows, and the reader plans the next step."""
        with self._hold_page():
            started_s = self._clock.monotonic_s()
            try:
                answer = self._kinesis.fetch_records(self._stream, step.iterator, step.record_count_max)
            except PenstockError as error:
                self._on_failure(reader, error, started_s)
                if self._pushed_reading is not None:
                    self._pushed_reading.on_poll_failure(error, started_s)
                return
            service_ms = self._service_clock.on_answer(self._clock.wall_ms(), answer.server_ms)
            if self._begins_without_record:
                self._check_stream(service_ms)
                self._begins_without_record = False
            self._may_show_tip = True  # unlike an event, the answer is newer than the plan
            parts = self._yield_pages(reader, answer, started_s, service_ms)
            del answer  # so that only `parts` has the raw records, which it drops once they are rows
            yield from parts

    def _adapt_subscription(
        self, pushed_reading: PushedReading, lag_ms: int, service_ms: int, *, is_unclear: bool
    ) -> None:
        """Pass the lag to `pushed_reading`, which subscribes if the lag is long; return to polling after an unclear event.

        Args:
            is_unclear: Whether only GetRecords shows if records are gone, or if the shard has ended.
        """
        if self._pause_ms is None:
            self._pause_ms = 0 if self._tip_ms is None else max(0, service_ms - self._tip_ms)
        # The lag from a pause between batches (a trigger every half minute) does not count: a shard is polled twice as fast
        # as it accepts records, so polling soon makes up for the pause.
        pushed_reading.on_lag(lag_ms - self._pause_ms)
        if self._is_pushed and is_unclear:
            pushed_reading.close()
            self._is_pushed = False

    def _yield_pages(
        self, reader: ShardReader, answer: RecordPage, started_s: float, service_ms: int
    ) -> Iterator[ShardPage]:
        """Pass an answer to the reader, and yield the answer's new rows in parts."""
        records, is_pushed = answer.records, self._is_pushed
        record_count, lag_ms = len(records), answer.millis_behind_latest
        has_next = answer.next_iterator is not None
        page = replace(answer, server_ms=service_ms)
        judged = reader.on_page(page, started_s, self._clock.monotonic_s(), self._chance.random())
        if judged.warning is not None:
            _log.warning(judged.warning)
        self._report_loss(reader, judged.loss)
        if self._pushed_reading is not None:
            if not is_pushed:
                self._pushed_reading.on_poll(started_s, answer.read_bytes)
            is_unconfirmed_end = not has_next and not reader.has_ended
            is_unclear = not judged.is_accepted or is_unconfirmed_end
            self._adapt_subscription(self._pushed_reading, lag_ms, service_ms, is_unclear=is_unclear)
        end = reader.outcome
        slices = self._decode(records, judged.read_through) if judged.is_accepted else iter(())
        # From here on only the decoder has the raw records, which it drops once they are rows.
        del answer, records, page, judged
        for rows, count in slices:
            self._may_show_tip |= rows.num_rows > 0
            self._is_inside_page = count < record_count
            if self._is_inside_page:
                yield ShardPage(rows, None, False, (), service_ms, is_pushed)
            elif isinstance(end, Finished):
                yield ShardPage(rows, lag_ms, True, end.children, service_ms, is_pushed)
            else:
                # A last page that does not name the children may not be the end, so its lag does not count.
                behind_ms = lag_ms if has_next and self._may_show_tip else None
                yield ShardPage(rows, behind_ms, False, (), service_ms, is_pushed)

    # --- the subscription ---------------------------------------------------------------------------------

    def _try_subscription(self, reader: ShardReader, pushed_reading: PushedReading) -> bool:
        """Subscribe, if that is needed and allowed; return whether a subscription delivers the next page."""
        if self._is_pushed:
            return True
        pushed_reading.subscribe_if_needed(reader.position)
        if pushed_reading.is_open:
            # The subscription starts at a record that was read: its first event shows whether that record is still there.
            reader.on_iterator(SUBSCRIBED, self._clock.monotonic_s(), self._clock.wall_ms())
            self._is_pushed = True
        return self._is_pushed

    def _fetch_event(self, reader: ShardReader, pushed_reading: PushedReading) -> Iterator[ShardPage]:
        """Yield the rows of the subscription's next event; none if it has ended, so that the shard is polled."""
        event = pushed_reading.fetch()
        if event is None:
            self._return_to_polling(reader)
            return
        # The event's moment is taken before `hold_page`, which may wait long while other shards hold all pages.
        received_s = self._clock.monotonic_s()
        service_ms = self._service_clock.on_answer(self._clock.wall_ms(), event.server_ms)
        with self._hold_page():
            parts = self._yield_pages(reader, event, received_s, service_ms)
            del event
            yield from parts

    def _return_to_polling(self, reader: ShardReader) -> None:
        """Go on by GetRecords. The reader handles an ended subscription like an expired iterator."""
        self._is_pushed = False
        ended = ExpiredIterator(f"shard {self._shard_id}: the subscription has ended")
        reader.on_failure(ended, self._clock.monotonic_s(), self._chance.random())

    def _decode(self, records: Sequence[RawRecord], after: Position | None) -> Slices:
        return records_to_slices(
            self._stream.rpartition("/")[2],
            self._shard_id,
            records,
            after=after,
            deaggregate=self._deaggregate,
            counts=self.decode_counts,
            rule=self._rule,
        )

    def _on_failure(self, reader: ShardReader, error: PenstockError, started_s: float) -> None:
        reader.on_failure(error, self._clock.monotonic_s(), self._chance.random(), started_s)
        _log.debug(
            "stream %s, shard %s: reading failed %d times in a row: %s",
            self._stream,
            self._shard_id,
            reader.failure_count,
            error,
        )

    def _report_loss(self, reader: ShardReader, loss: DataLossError | None) -> None:
        if loss is not None and not isinstance(reader.outcome, Failed):
            _log.warning("%s. It goes on (failOnDataLoss=false)", loss)


def _accept_stream(service_ms: int) -> None:
    """Do nothing."""
