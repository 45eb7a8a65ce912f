"""The reader of one shard, as a machine: it plans the next step and handles its outcome.

Its driver (the consumer's pools, a blocking loop in a Spark task, the simulator in virtual time) calls `plan_step`,
does the call, and answers with `on_iterator`, `on_page`, `on_failure` or `on_listing`. One call is under way at a time. Time
and chance are arguments; the machine never waits, it returns until when there is nothing to do. It never reads the
records: its driver cuts those that are new, in whatever form it wants them.

A place in the shard is kept as the last sequence number that was read, never as an iterator: iterators are disposable, and a
new one always begins AT the last record (not after it), so that the machine sees whether that record is still there. If it is
not, `penstock.core.reading.resume.judge_missing_record` decides whether later records may have been trimmed unread. Then
`on_data_loss` decides whether the reader fails or reports the possible loss and goes on.

An iterator that a page returned skips trimmed records without a report. So a reader that lags so far that unread records may
be leaving the stream requests each page with a new iterator at its last record. If that page has only this record, the next
page is discarded, and accepted when it is read again: the last record was still there in between, so none was skipped.

| fault | answer |
|---|---|
| an iterator expired | another one at the last record, at once; from the second failure in a row on after a pause |
| an iterator is refused | another one after a pause; `refusals_max` in a row end the reading |
| a position is refused | the stream was deleted and created again: `StreamChanged` |
| throttled, unavailable, no answer, an unknown refusal | a pause with full jitter; the same call again, until `deadline_s` |
| the shard is unknown | the listing is asked; gone only when it is unknown and unlisted twice |
| the shard is unknown, and so is the stream | `NotFound` |
| the shard is gone | a loss; if losses are allowed its children follow |
| a last page names no children | it is read again from the last record; the third time in a row the listing decides |
| the shard is listed as open and cannot be read | tried `refusals_max` times, ever more rarely |
| no record at a place that must have one | asked again three times; then the record is missing |
| unread records may have left since the previous page | a new iterator at the last record, which must still be there |
| a record is missing | `judge_missing_record`: harmless, unclear, or a loss |
| access is denied, anything else | tried `refusals_max` times |
"""

from __future__ import annotations

from typing import Final

from penstock.core.position import Position, Sentinel, at_timestamp
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import (
    SUBSCRIBED,
    AnswersInARow,
    Failed,
    FailureMeaning,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    ListedShard,
    ListedState,
    PageOutcome,
    Pause,
    Step,
    Wait,
    judge_failure,
)
from penstock.core.reading.resume import (
    MissingRecord,
    are_unread_records_kept,
    is_record_missing,
    judge_missing_record,
)
from penstock.core.record_page import RecordPage
from penstock.errors import DataLossError, NotFound, PenstockError, StreamChanged, Unavailable

_LATEST_SLACK_MS: Final = 2_000  # clocks differ: a LATEST that is taken again starts earlier, not later
_EMPTY_STARTS_MAX: Final = 3  # empty pages that are not believed if there must be a record
_END_UNCONFIRMED_MAX: Final = 3  # last pages without children before the listing is asked
_UNLISTED_MIN: Final = 2  # listings in a row without the shard after which it is gone
_RECORD_BYTES_ASSUMED: Final = 100_000  # before the first page, so that it is small
_EMPTY_REREADS_MAX: Final = 5  # answers that nothing is left although there must be a record
_SUBSCRIBED_MAX_S: Final = 30.0  # at the trim horizon; a new one shows whether the last record is left


class ShardReader:
    """The machine that reads one shard. Not thread-safe: one caller at a time.

    Args:
        stream: For messages.
        shard_id: For messages.
        start: The checkpoint: everything up to and including it is done.
        tip_ms: Moment by the service's clock at which nothing was left to read after the start, or None.
        is_foreign: Whether the start was written by a worker that does not record such moments (Java KCL).
        iterator: One that was kept from an earlier reading and begins right after the start, or None.
        unread_since_ms: Moment by the service's clock, when the iterator was kept; records after it arrived then or later.
    """

    def __init__(
        self,
        stream: str,
        shard_id: str,
        start: Position,
        options: ReaderOptions,
        *,
        tip_ms: int | None = None,
        is_foreign: bool = False,
        iterator: str | None = None,
        unread_since_ms: int | None = None,
    ) -> None:
        if start.is_shard_end:
            raise ValueError(f"shard {shard_id} is at its end: there is nothing to read")
        self.stream = stream
        self.shard_id = shard_id
        self.options = options
        self.position = start  # the last record read, or the starting sentinel
        self.millis_behind_latest: int | None = None
        self._iterator = iterator
        # Records at or before it are done. Set whenever an iterator is taken at a record.
        self._skip_through: Position | None = None
        self.paused_until_s: float = float("-inf")
        """The end of the current pause: no call is made before. It is kept when the reading has ended."""
        self._pause = Pause.SPACING  # why it pauses
        self._record_bytes = _RECORD_BYTES_ASSUMED  # mean size in the last page that had records
        self._read_s: float | None = None  # when the last page arrived
        self.tip_ms = tip_ms
        """Moment by the service's clock at which no record was after `position`, or None."""
        self.unread_since_ms = unread_since_ms
        """Moment by the service's clock: records after `position` arrived then or later. None if it is not known."""
        # Whether reading began at a position that is not a record, and unread records have been about to leave the stream ever since.
        self._is_at_horizon = not start.is_record and options.retention_s is not None
        self._is_foreign = is_foreign
        self._iterator_s = float("-inf")  # when the last iterator arrived, or the last subscription began
        self._follower: str | None = None  # the first record of the page that was discarded last
        self._in_a_row = AnswersInARow()
        self._unknown_shard: NotFound | None = None  # the answer that makes the listing necessary
        self._listing_reason: str | None = None  # why the next step is a listing, or None
        self.outcome: Finished | Failed | None = None
        """How the reading ended; None while there is more to do."""

    # --- asking ---

    @property
    def has_ended(self) -> bool:
        """Whether the reading has ended: `outcome` is set."""
        return self.outcome is not None

    @property
    def failure_count(self) -> int:
        """Refusals and failures in a row."""
        return self._in_a_row.failures

    @property
    def iterator(self) -> str | None:
        """The service's iterator right after `position`; None if there is none, or if it begins at the record itself."""
        return self._iterator if self._skip_through is None else None

    def plan_step(self, now_s: float, waiting_bytes: int = 0, has_room: bool = True) -> Step:
        """Return the next step. The call changes nothing.

        Args:
            waiting_bytes: Bytes that were fetched from this shard and are not done.
            has_room: False while all shards of the process together hold the most bytes that they may.
        """
        if self.outcome is not None:
            return self.outcome
        if now_s < self.paused_until_s:
            return Wait(self.paused_until_s, self._pause)
        if self._listing_reason is not None:
            return FetchListing(self._listing_reason)
        if not has_room or waiting_bytes >= self.options.prefetch_bytes_max:
            return Wait(None, Pause.FULL)
        if self._iterator is None:
            return FetchIterator(self._iterator_position())
        return FetchPage(self._iterator, self._page_count())

    def lag_ms(self, now_s: float) -> int | None:
        """Return how far behind the tip the reading is, at most; None before the first answer.

        While reads are held up, the time since the last answer is added: records may have arrived since.
        """
        if self.millis_behind_latest is None or self._read_s is None:
            return None
        since_s = now_s - self._read_s - max(self.options.idle_time_between_reads_s, 1.0)
        return self.millis_behind_latest + max(0, int(since_s * 1000))

    # --- answers ---

    def on_iterator(self, iterator: str, now_s: float, wall_ms: int) -> None:
        """Handle the requested iterator.

        Args:
            wall_ms: Milliseconds since the epoch. If the position is LATEST without a moment, it is fixed to this moment,
                less a few seconds.
        """
        self._iterator, self._iterator_s = iterator, now_s
        self._skip_through = self.position if self.position.is_record else None
        if self.position.sentinel is Sentinel.LATEST and self.position.timestamp_ms is None:
            # If this iterator expires, another one at LATEST would begin later, and skip the records in between.
            self.position = Position(sentinel=Sentinel.LATEST, timestamp_ms=wall_ms - _LATEST_SLACK_MS)
        self.paused_until_s = max(self.paused_until_s, now_s)

    def on_page(self, page: RecordPage, started_s: float, now_s: float, chance: float = 0.5) -> PageOutcome:
        """Handle a page.

        Args:
            page: Its `server_ms` is the moment by the service's clock, as well as the caller knows it. It is an event if the iterator
                is `SUBSCRIBED`.
            started_s: When the call began: the pause before the next call counts from then.
            chance: In [0, 1), for the pause before an empty start is read again.

        Returns:
            Which records were not read before, and a possible loss. With `on_data_loss="fail"` a loss gives no records, and
            the next step is `Failed`.
        """
        assert self.outcome is None, "a page arrived after the end"
        self._in_a_row.on_page()
        is_event = self._iterator == SUBSCRIBED
        self.millis_behind_latest = page.millis_behind_latest
        self._read_s = now_s
        if self.options.page_bytes_aim is not None and page.records:
            self._record_bytes = page.read_bytes // len(page.records) + 1
        if self._may_have_skipped_trimmed(page, now_s):
            self._discard(page)
            self._pace(page, started_s, is_event=is_event)
            return PageOutcome(False)
        loss = warning = None
        meaning = self._judge_resume(page)
        if meaning not in (None, MissingRecord.HARMLESS) and self._must_repeat_empty_start(page):
            self._in_a_row.empty_starts += 1
            self._iterator = None
            self._back_off(now_s, chance, self._in_a_row.empty_starts)
            return PageOutcome(False)
        if meaning is MissingRecord.LOSS:
            loss = self._loss_error(page)
            if self.options.on_data_loss == "fail":
                self.outcome = Failed(loss)
                return PageOutcome(False, loss=loss)
        elif meaning not in (None, MissingRecord.HARMLESS):
            warning = f"{self._describe_missing(page)}. It goes on, since {meaning.value}"
        read_through = self._read_through(page)
        is_progress = self._advance(page, read_through)
        if meaning is not None:
            self._skip_through = None
        # Only once the record at which the iterator begins is found or judged: before, unread records before this page may be gone.
        if self._skip_through is None:
            self._check_unread_age(page, is_progress)
        if page.next_iterator is None:
            self._on_last_page(page, is_progress, now_s, chance)
        else:
            self._in_a_row.unconfirmed_ends = 0
            self._pace(page, started_s, is_event=is_event)
        return PageOutcome(True, read_through, loss, warning)

    def on_failure(
        self, error: PenstockError, now_s: float, chance: float, started_s: float | None = None
    ) -> None:
        """Handle a failed call.

        Args:
            started_s: When the call began, if it took time; the deadline counts from the first call that failed.
        """
        failing_since_s = self._in_a_row.on_failure(now_s if started_s is None else started_s)
        deadline_s = self.options.deadline_s
        if deadline_s is not None and now_s - failing_since_s >= deadline_s:
            self.outcome = Failed(error)
            return
        requested_iterator = self._iterator is None and self._listing_reason is None
        meaning = judge_failure(error, requested_iterator=requested_iterator)
        if meaning in (FailureMeaning.ITERATOR_EXPIRED, FailureMeaning.ITERATOR_REFUSED):
            self._iterator = None
        if meaning is FailureMeaning.ITERATOR_EXPIRED and self._in_a_row.failures == 1:
            return  # request another one at once; if that one is expired too, pause
        self._end_if_final(error, meaning)
        self._back_off(now_s, chance)

    def _end_if_final(self, error: PenstockError, meaning: FailureMeaning) -> None:
        """End the reading after a failure that waiting does not cure, or count a refusal, or plan a listing."""
        if isinstance(error, NotFound):
            self._on_unknown(error)
        elif meaning is FailureMeaning.POSITION_REFUSED and self.position.is_record:
            self.outcome = Failed(self._stream_changed(error))
        elif meaning is FailureMeaning.FINAL:
            self.outcome = Failed(error)
        elif meaning not in (FailureMeaning.TRANSIENT, FailureMeaning.ITERATOR_EXPIRED):
            self._in_a_row.refusals += 1
            if self._in_a_row.refusals >= self.options.refusals_max:
                self.outcome = Failed(error)

    def on_listing(self, listed_shard: ListedShard, now_s: float, chance: float) -> DataLossError | None:
        """Handle the listing; return a possible loss if the shard is gone and was not read to its end."""
        self._listing_reason = None
        if (
            listed_shard.state is ListedState.CLOSED
            and self._in_a_row.unconfirmed_ends >= _END_UNCONFIRMED_MAX
        ):
            self.outcome = Finished(listed_shard.children)
            return None
        self._iterator = None
        if listed_shard.state is ListedState.MISSING:
            self._in_a_row.missing_listings += 1
            if self._in_a_row.missing_listings >= _UNLISTED_MIN:
                return self._on_gone(listed_shard)
        else:
            # The shard is listed, and it is open or not read to its end: the earlier answers were wrong. Try again after a pause.
            self._in_a_row.on_listed()
            if self._in_a_row.refusals >= self.options.refusals_max:
                self.outcome = Failed(self._unreadable_shard())
        self._back_off(now_s, chance, max(self._in_a_row.failures, self._in_a_row.refusals))
        return None

    def read_again(self, now_s: float) -> bool:
        """Schedule another read from the last record, a little later: records must follow, and an answer had none.

        One such answer does not prove that they are gone.

        Returns:
            Whether to go on: False after enough reads without a record.
        """
        self._in_a_row.empty_rereads += 1
        self._iterator = None
        self.paused_until_s = now_s + min(1.0, 0.05 * 2**self._in_a_row.empty_rereads)
        self._pause = Pause.BACKOFF
        return self._in_a_row.empty_rereads <= _EMPTY_REREADS_MAX

    def change_source(self, options: ReaderOptions, now_s: float) -> None:
        """Go on from another source of pages, at the last record that was read.

        Args:
            now_s: A pause for the earlier source ends now.
        """
        self.options = options
        self._iterator = None
        self._in_a_row.on_other_source()
        self.paused_until_s = now_s

    # --- inside: places ---

    def _iterator_position(self) -> Position:
        position = self.position
        if position.sentinel is Sentinel.LATEST and position.timestamp_ms is not None:
            return at_timestamp(position.timestamp_ms)
        return position.whole_record

    def _read_through(self, page: RecordPage) -> Position | None:
        """Return the position up to which a page was read before; None if all of it is new. A subscription may repeat events."""
        if self._skip_through is not None or page.first_sequence_number is None:
            return self._skip_through
        number = self.position.sequence_number
        is_repeated = number is not None and int(page.first_sequence_number) <= int(number)
        return self.position if is_repeated else None

    def _iterator_after(self, page: RecordPage) -> str | None:
        """Return the iterator of the next page. The continuation that an event names is the subscription's own."""
        is_event = self._iterator == SUBSCRIBED
        return SUBSCRIBED if is_event and page.next_iterator is not None else page.next_iterator

    def _advance(self, page: RecordPage, read_through: Position | None) -> bool:
        """Move past a page; return whether it has new records. Those up to `read_through` were read before (None: none was)."""
        self._iterator = self._iterator_after(page)
        end = page.end
        is_progress = end is not None and (read_through is None or end > read_through)
        if end is not None:
            # Sequence numbers rise: once a page has had records, no later page has records at or before `_skip_through`.
            self._skip_through = None
            self._is_foreign = False
            # `empty_starts` counts empty pages while the reader looks for the record at which it resumes. This page decides
            # whether that record is there, so the count is reset.
            self._in_a_row.empty_starts = 0
            self.position = end if read_through is None else max(read_through, end)
        is_believed = page.next_iterator is not None or bool(page.child_shards)
        if page.millis_behind_latest == 0 and page.server_ms is not None and is_believed:
            self.tip_ms = page.server_ms
        if is_progress or page.next_iterator is not None:  # a last page without new records is no progress
            self._in_a_row.on_progress()
        return is_progress

    # --- inside: loss ---

    def _judge_resume(self, page: RecordPage) -> MissingRecord | None:
        """Return the meaning if the record at which a new iterator begins is missing in the iterator's first page; else None."""
        skip = self._skip_through
        if skip is None:
            return None
        is_last = page.next_iterator is None
        at_end = page.millis_behind_latest == 0 or is_last
        if not is_record_missing(skip, page.first_sequence_number, at_end=at_end):
            return None
        retention_s = self.options.retention_s
        known_ms = max((ms for ms in (self.tip_ms, self.unread_since_ms) if ms is not None), default=None)
        return judge_missing_record(
            skip,
            unread_since_ms=None if page.server_ms is None or retention_s is None else known_ms,
            is_foreign=self._is_foreign,
            now_ms=page.server_ms or 0,
            retention_ms=int((retention_s or 0) * 1000),
            is_open_and_empty=page.first_sequence_number is None and not is_last,
            is_at_horizon=self._is_at_horizon,
        )

    def _may_have_skipped_trimmed(self, page: RecordPage, now_s: float) -> bool:
        """Return whether the page's iterator may have skipped unread records that were trimmed since the previous page.

        False before the first record, and for a new iterator's first page: there `_judge_resume` looks for the last record.
        False for a page that begins like the one discarded last: the last record was still there in between.
        """
        if self._skip_through is not None or not self.position.is_record:
            return False
        if (
            self._iterator == SUBSCRIBED
            and self._is_at_horizon
            and now_s < self._iterator_s + _SUBSCRIBED_MAX_S
        ):
            return False  # a subscription for each event would never get away, and only a warning is at stake
        if page.first_sequence_number is not None and page.first_sequence_number == self._follower:
            return False
        return not self._are_unread_records_kept(page)

    def _discard(self, page: RecordPage) -> None:
        """Discard a page and begin again at the last record, unless the page is empty and on the way to the next one."""
        if not page.records and page.millis_behind_latest > 0:
            self._iterator = self._iterator_after(page)
        else:
            self._iterator, self._follower = None, page.first_sequence_number

    def _check_unread_age(self, page: RecordPage, is_progress: bool) -> None:
        """Check the age of the records after a page: if they may be trimmed soon, the next page gets a new iterator.

        Not after a page without new records: another one at the same record may be no longer, if the records are large.
        """
        self.unread_since_ms = None if page.server_ms is None else page.server_ms - page.millis_behind_latest
        is_kept = self._are_unread_records_kept(page)
        self._is_at_horizon = self._is_at_horizon and not is_kept
        is_pushed = self._iterator == SUBSCRIBED
        if is_progress and not is_kept and not is_pushed and self.position.is_record:
            self._iterator = None  # its page would be discarded: see `_may_have_skipped_trimmed`

    def _are_unread_records_kept(self, page: RecordPage) -> bool:
        """Return whether the stream still had all unread records when it returned a page; True if this is not known."""
        retention_s = self.options.retention_s
        if self.unread_since_ms is None or page.server_ms is None or retention_s is None:
            return True
        return are_unread_records_kept(
            self.unread_since_ms, now_ms=page.server_ms, retention_ms=int(retention_s * 1000)
        )

    def _must_repeat_empty_start(self, page: RecordPage) -> bool:
        """Return whether to read an empty page again before the record at which reading resumes counts as missing."""
        is_end = page.next_iterator is None and bool(page.child_shards)
        return (
            page.first_sequence_number is None
            and not is_end
            and self._in_a_row.empty_starts < _EMPTY_STARTS_MAX
        )

    def _describe_missing(self, page: RecordPage) -> str:
        found = page.first_sequence_number or "nothing"
        return (
            f"stream {self.stream}, shard {self.shard_id}: the record at {self._skip_through}, up to which everything is "
            f"done, has left the stream (retention; the first one found: {found})"
        )

    def _loss_error(self, page: RecordPage) -> DataLossError:
        return DataLossError(
            f"{self._describe_missing(page)}. Records after it may have gone with it unread: no reader was at the shard's tip "
            f"since. {self.options.error_advice.of_loss} with the oldest record that is left; raise the stream's retention to "
            "have more time"
        )

    def _on_gone(self, listed_shard: ListedShard) -> DataLossError | None:
        """Handle a shard that has left the stream: a possible loss, unless it was read to its end."""
        if self._in_a_row.unconfirmed_ends:  # read to its end, and trimmed since
            self.outcome = Finished(listed_shard.children)
            return None
        loss = DataLossError(
            f"stream {self.stream}, shard {self.shard_id}: the shard has left the stream (retention) and was read only to "
            f"{self.position}; records after that, if there were any, are lost. {self.options.error_advice.of_loss} with "
            "its children"
        )
        is_fatal = self.options.on_data_loss == "fail"
        self.outcome = Failed(loss) if is_fatal else Finished(listed_shard.children)
        return loss

    # --- inside: ends and mistakes ---

    def _on_last_page(self, page: RecordPage, is_progress: bool, now_s: float, chance: float) -> None:
        if page.child_shards:
            self.outcome = Finished(page.child_shards)
            return
        # No iterator and no children: perhaps a faulty answer. It is read again from the last record.
        self._in_a_row.on_last_page(is_progress=is_progress)
        if self._in_a_row.unconfirmed_ends >= _END_UNCONFIRMED_MAX:
            self._unknown_shard, self._listing_reason = None, "the last page names no children"
        self._back_off(now_s, chance, self._in_a_row.unconfirmed_ends)

    def _on_unknown(self, error: NotFound) -> None:
        if self._listing_reason is None:
            # The shard may have passed its retention, or the stream is gone: the listing distinguishes them.
            self._unknown_shard, self._listing_reason = (
                error,
                f"the service does not know the shard ({error})",
            )
            return
        # The listing itself was refused: the stream is gone.
        self.outcome = Failed(
            NotFound(
                f"stream {self.stream} does not exist any more ({error}). If it was created again under its name: "
                f"{self.options.error_advice.of_new_stream}",
                operation=error.operation,
                code=error.code,
                resource=self.stream,
            )
        )

    def _stream_changed(self, error: PenstockError) -> StreamChanged:
        return StreamChanged(
            f"stream {self.stream}, shard {self.shard_id}: the service refuses position {self.position} ({error}): it is of "
            "another shard or stream. Correct it where it comes from the starting position. If the stream was deleted and "
            f"created again: {self.options.error_advice.of_new_stream}"
        )

    def _unreadable_shard(self) -> PenstockError:
        text = (
            f"stream {self.stream}, shard {self.shard_id}: listed, yet the service keeps saying that it does not exist or has "
            "ended"
        )
        unknown = self._unknown_shard
        if unknown is None:
            return Unavailable(text, operation="GetRecords", resource=self.shard_id)
        return NotFound(
            f"{text} ({unknown})", operation=unknown.operation, code=unknown.code, resource=self.shard_id
        )

    # --- inside: pace ---

    def _page_count(self) -> int:
        count, aim = self.options.record_count_max, self.options.page_bytes_aim
        if aim is not None:
            count = max(1, min(count, aim // self._record_bytes))
        # The page of a new iterator begins with the last record: it has room for another one.
        return count if self._skip_through is None else max(2, count)

    def _pace(self, page: RecordPage, started_s: float, *, is_event: bool) -> None:
        """Set the pause before the next call: the spacing, longer at a quiet tip or after many bytes."""
        if is_event:
            return  # the page was no call, so it does not delay the next one
        spacing_s = self.options.spacing_s
        bytes_per_s_max = self.options.read_bytes_per_s_max
        bytes_s = 0.0 if bytes_per_s_max is None else page.read_bytes / bytes_per_s_max
        if page.records or page.millis_behind_latest > 0:
            self._in_a_row.quiet_pages = 0
            pause_s = spacing_s
            self._pause = Pause.SPACING
        else:
            self._in_a_row.quiet_pages += 1
            doubled_s = spacing_s * 2 ** min(self._in_a_row.quiet_pages, 16)
            pause_s = max(spacing_s, min(doubled_s, self.options.idle_time_between_reads_s))
            self._pause = Pause.IDLE
        if bytes_s > pause_s:
            self._pause = Pause.BYTES
        self.paused_until_s = started_s + max(pause_s, bytes_s)

    def _back_off(self, now_s: float, chance: float, failures: int | None = None) -> None:
        count = max(1, self._in_a_row.failures if failures is None else failures)
        delay_s = self.options.backoff.delay_s(count, chance)
        # Full jitter, but at least the regular spacing of calls.
        not_before_s = now_s + max(self.options.spacing_s, delay_s)
        if self.options.deadline_s is not None and self._in_a_row.failing_since_s is not None:
            # The last attempt begins at the deadline at the latest.
            not_before_s = min(
                not_before_s, max(now_s, self._in_a_row.failing_since_s + self.options.deadline_s)
            )
        self.paused_until_s = not_before_s
        self._pause = Pause.BACKOFF
