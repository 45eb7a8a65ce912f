"""A task's execution of a batch in one shard: fetch the lease, read the shard, claim the end.

`penstock.core.batches.claims` decides; this is the loop around it. Rows are emitted while they are read, so memory is
bounded by one page. The claim is written last. If another execution's claim disagrees with the rows emitted here, this
execution fails and Spark repeats the task.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.core.aggregation import deaggregate
from penstock.core.batches.claims import (
    PAST_CLAIMS_MAX,
    ClaimedElsewhere,
    ClaimNote,
    ClaimRefusal,
    ReadFreely,
    ReadNothing,
    ReadTo,
    ReadUnclaimed,
    judge_refused_claim,
    plan_dropped_claims,
    plan_read,
)
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Applied, Claim, Refusal
from penstock.core.position import SHARD_END, Position, at_record
from penstock.core.shard import ChildShard
from penstock.errors import AnotherDriver, ClaimConflict, DataLossError, NotFound, StreamChanged
from penstock.ports.clock import Clock
from penstock.ports.lease_table import LeaseTable
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.page_limits import (
    arrival_ms_of,
    bytes_of,
    count_before_ms,
    count_up_to,
    count_within_bytes,
    data_of,
    is_whole_record,
    position_of,
)
from penstock.spark.tasks.shard_page_reader import ShardPage, ShardPageReader
from penstock.spark.tasks.shard_read import BatchPart

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("penstock.spark")
_CLAIMS_MAX: Final = 8


class _Progress(Struct):
    """The records emitted so far, and the facts about the shard that the claim's note reports.

    Args:
        end: The position of the last emitted row.
        is_whole_record: Whether the end is between two Kinesis records, and not inside an aggregate.
        has_more: Whether records that the next batch can read may follow the end.
        tip_ms: Moment at which nothing followed the end, by the service's clock.
        children: The child shards, if the shard was read to its end.
    """

    end: Position
    record_count: int = 0
    bytes_count: int = 0
    last_arrival_ms: int | None = None
    is_whole_record: bool = True
    millis_behind_latest: int | None = 0
    has_more: bool = True
    tip_ms: int | None = None
    children: tuple[ChildShard, ...] = ()
    pushed_count: int = 0

    def add(self, rows: pa.RecordBatch, end: Position, *, is_whole_record: bool, is_pushed: bool) -> None:
        if rows.num_rows == 0:
            return
        self.end = end
        self.record_count += rows.num_rows
        self.pushed_count += rows.num_rows if is_pushed else 0
        self.bytes_count += bytes_of(rows)
        self.last_arrival_ms = arrival_ms_of(rows, rows.num_rows - 1)
        self.is_whole_record = is_whole_record


class ClaimedRead:
    """Reads one shard's part of a batch, once, and claims its end.

    Args:
        shard: The shard, opened at the batch's start.
        part: The shard's part of the batch.
        process: Identifies this process among those that read the batch.
        query: Spark's id of the streaming query, or None if Spark does not pass it to tasks.
    """

    def __init__(
        self,
        table: LeaseTable,
        shard: ShardPageReader,
        part: BatchPart,
        options: SourceOptions,
        *,
        process: str | None,
        query: str | None,
        clock: Clock,
    ) -> None:
        self._table = table
        self._shard = shard
        self._part = part
        self._shard_id = part.shard_id
        self._execution = part.execution
        self._batch = part.execution.batch
        self._start = part.execution.start
        self._options = options
        counts = (part.share.record_count_max, options.shard_record_count_max)
        self._record_count_max = min((count for count in counts if count is not None), default=None)
        self._process = process
        self._query = query
        self._clock = clock
        self._progress = _Progress(end=part.execution.start)
        self._pages: Generator[ShardPage, None, None] | None = None
        self._rest: ShardPage | None = None  # the part of the last page after the batch's end

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the batch in this shard, then claim the batch's end here if no execution has claimed one.

        Raises:
            ClaimConflict: Another execution claimed an end before the last row that was emitted here, or the lease was lost
                before an end was claimed; Spark repeats the task.
            AnotherDriver: Another query works from the same checkpoint location.
            DataLossError: The start or a claimed end has left the stream, and the policy is to fail.
        """
        for _ in range(_CLAIMS_MAX):
            lease = self._fetch_lease()
            self._shard.on_hash_range(None if lease is None else lease.hash_range)
            plan = plan_read(lease, self._execution)
            match plan:
                case ReadTo(end):
                    yield from self._read_to(end)
                    return
                case ReadNothing(reason):
                    if lease is not None and self._claim_nothing(lease, reason.value):
                        return
                case ClaimedElsewhere(claim):
                    raise self._another_driver_error(claim)
                case ReadFreely():
                    # The claim is written last. An attempt that claimed first and failed midway would have fixed an end
                    # whose rows Spark never got; one that reads and fails leaves the batch open for the next attempt.
                    yield from self._read_freely()
                    yield from self._claim_end(lease)
                    return
                case ReadUnclaimed():
                    self._warn_unclaimed()
                    yield from self._read_freely()
                    return
        raise self._lease_changes_error()

    def keep_subscription(self) -> None:
        """Keep the shard's subscription for the next batch; only after the end of this one is claimed."""
        if not self._progress.end.is_shard_end:
            self._shard.keep_subscription(self._progress.end, is_cut=self._rest is not None)

    def close(self) -> None:
        """Drop the last page, and end the subscription unless `keep_subscription` was called."""
        self._rest = None
        if self._pages is not None:
            self._pages.close()
        self._shard.close()

    def _fetch_lease(self) -> Lease | None:
        try:
            return self._table.fetch(self._shard_id)
        except NotFound:  # the whole table was deleted; the driver creates it again
            return None

    def _warn_unclaimed(self) -> None:
        _log.warning(
            "lease table %s has no lease for shard %s any more: batch %d reads it from the offset's start without "
            "a claim, and its records will be read again (at-least-once for this batch)",
            self._table.name,
            self._shard_id,
            self._batch,
        )

    def _another_driver_error(self, claim: BatchClaim) -> AnotherDriver:
        if claim.run == self._execution.run and claim.batch < self._batch:
            return AnotherDriver(
                f"shard {self._shard_id}, batch {self._batch} of {self._execution.worker}: its lease in table {self._table.name} was "
                f"reset to batch {claim.batch} of this very run: the table was restored from a backup. This "
                "execution stops before any sink sees it. Start the query again: it goes on from its checkpoint location, and "
                "nothing is lost"
            )
        return AnotherDriver(
            f"shard {self._shard_id}, batch {self._batch} of {self._execution.worker}: another query works from the same "
            f"checkpoint location (batch {claim.batch} was claimed from elsewhere), or this one was paused while its successor "
            "went on. This execution stops before any sink sees it; make sure that one query at a time uses a checkpoint "
            "location, and give a second one a location of its own"
        )

    def _lease_changes_error(self) -> ClaimConflict:
        return ClaimConflict(
            f"shard {self._shard_id}, batch {self._batch}: the lease changed {_CLAIMS_MAX} times while its end was being "
            "claimed; the task is repeated"
        )

    # --- reading ------------------------------------------------------------------------------------------

    def _next_page(self, *, may_push: bool = False) -> ShardPage | None:
        if self._pages is None:
            self._pages = self._shard.pages(may_push=may_push)
        return next(self._pages, None)

    def _read_freely(self) -> Iterator[pa.RecordBatch]:
        """Yield rows up to the batch's limits, the tip, or the shard's end. Called if no end is claimed yet."""
        if self._record_count_max == 0 or self._start.is_shard_end:
            return
        began_s = self._clock.monotonic_s()
        while True:
            page = self._next_page(may_push=True)
            if page is None:
                return
            self._progress.millis_behind_latest = page.millis_behind_latest
            count = self._count_in_batch(page.rows)
            taken = self._emit(page, count)
            if taken.num_rows:
                yield taken
            if count < page.rows.num_rows:
                self._keep_rest(page, count)
                return
            if page.is_end:
                self._progress.end = SHARD_END
                self._progress.children = page.children
                self._on_tip(page)
                return
            is_at_tip = page.millis_behind_latest == 0
            if is_at_tip:
                self._on_tip(page)
            if is_at_tip or self._is_enough(began_s):
                self._shard.keep_iterator(self._progress.end)
                return
            del page, taken  # else they would be in memory beside the next page

    def _emit(self, page: ShardPage, count: int) -> pa.RecordBatch:
        """Count the first rows of a page as emitted, and return them."""
        taken = page.rows.slice(0, count)
        self._progress.add(
            taken,
            self._position_after(taken),
            is_whole_record=is_whole_record(page.rows, count),
            is_pushed=page.is_pushed,
        )
        return taken

    def _keep_rest(self, page: ShardPage, count: int) -> None:
        """Keep the rows after the batch's end: they are emitted if another execution has claimed a later end."""
        self._rest = page.tail(count)
        # The service counts the lag from the page's end. The oldest unread record is in the page, so its age counts.
        arrival_ms = arrival_ms_of(self._rest.rows, 0)
        self._progress.millis_behind_latest = max(1, page.service_ms - arrival_ms)
        until_ms = self._part.until_ms
        if until_ms is not None and arrival_ms >= until_ms:
            self._progress.has_more = False

    def _on_tip(self, page: ShardPage) -> None:
        self._progress.has_more = False
        self._progress.tip_ms = page.service_ms

    def _position_after(self, rows: pa.RecordBatch) -> Position:
        """Return the position of the last row; of its last user record if the row is a whole aggregate."""
        if rows.num_rows == 0:
            return self._progress.end
        last = position_of(rows, rows.num_rows - 1)
        if self._part.deaggregates or last.sequence_number is None:
            return last
        user_records = deaggregate(data_of(rows, rows.num_rows - 1))
        if user_records is None:
            return last
        return at_record(last.sequence_number, max(0, len(user_records) - 1))

    def _count_in_batch(self, rows: pa.RecordBatch) -> int:
        """Return how many of these rows, from the first on, belong to the batch by its limits."""
        part, so_far = self._part, self._progress
        count: int = rows.num_rows
        if part.until_ms is not None:
            count = min(count, count_before_ms(rows, part.until_ms))
        if self._record_count_max is not None:
            count = min(count, self._record_count_max - so_far.record_count)
        if part.share.bytes_max is not None:
            fitting = count_within_bytes(rows, part.share.bytes_max - so_far.bytes_count)
            if fitting == 0 and so_far.record_count == 0 and part.share.may_exceed:
                fitting = 1  # a record that is larger than the share would wait for ever
            count = min(count, fitting)
        return count

    def _is_enough(self, began_s: float) -> bool:
        """Return whether the batch ends here: at a limit, after its longest duration, or after a record newer than its plan.

        A busy shard must not keep the batch open, so it ends with the page that has a record from after the plan.
        """
        part, so_far = self._part, self._progress
        if self._record_count_max is not None and so_far.record_count >= self._record_count_max:
            return True
        if part.share.bytes_max is not None and so_far.bytes_count >= part.share.bytes_max:
            return True
        if (so_far.last_arrival_ms or 0) > part.planned_ms:
            return True
        duration_max_s = self._options.batch_duration_max_s
        return duration_max_s is not None and self._clock.monotonic_s() - began_s > duration_max_s

    def _read_to(self, end: Position) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were not emitted yet, up to a claimed end. Rows that `_keep_rest` has kept come first."""
        self._shard.poll_only()
        if end <= self._progress.end:
            return
        while True:
            page, self._rest = self._rest or self._next_page(), None
            if page is None:
                return
            count = page.rows.num_rows if end.is_shard_end else count_up_to(page.rows, end)
            taken = self._emit(page, count)
            if taken.num_rows:
                yield taken
            if self._progress.end == end:
                if count == page.rows.num_rows and not page.is_end:
                    self._shard.keep_iterator(end)
                return
            if page.is_end and end.is_shard_end:
                return
            is_at_tip = page.millis_behind_latest == 0
            if count < page.rows.num_rows or page.is_end or (is_at_tip and not self._shard.read_again()):
                self._on_lost_end(end)
                return
            del page, taken

    def _on_lost_end(self, end: Position) -> None:
        text = (
            f"shard {self._shard_id}: batch {self._batch} was claimed to end at {end}, and that record has left the "
            f"stream (retention): the batch cannot be repeated in full, its records from {self._start} on are lost "
            "as far as they were not processed"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. To go on without them set option failOnDataLoss=false")
        _log.warning("%s; going on (failOnDataLoss=false)", text)

    # --- claiming -----------------------------------------------------------------------------------------

    def _claim_note(self) -> ClaimNote:
        so_far = self._progress
        return ClaimNote(
            has_more=so_far.has_more,
            tip_ms=so_far.tip_ms,
            is_whole_record=so_far.is_whole_record,
            record_count=so_far.record_count,
            bytes_count=so_far.bytes_count,
            millis_behind_latest=so_far.millis_behind_latest,
            last_arrival_ms=so_far.last_arrival_ms,
            children=so_far.children,
            began_with_kept_iterator=self._shard.began_with_kept_iterator,
            query=self._query,
            process=self._process,
            pushed_count=so_far.pushed_count,
            subscription_ends=self._shard.subscription_ends,
        )

    def _claim_of(self, lease: Lease, end: Position, note: ClaimNote | None) -> Claim:
        """Return the write of a claim. It succeeds only if the lease's checkpoint and the query's earlier claim are as read.

        Args:
            end: The end of the batch in this shard.
            note: The figures of the read, for the driver; None if the batch holds nothing of the shard.
        """
        part, execution, now_ms = self._part, self._execution, self._clock.wall_ms()
        own = lease.claim_of(execution.worker)
        dropped: tuple[tuple[str, int], ...] = ()
        # Without a note this worker may not have the lease, and the workers of other claims may still read the shard.
        if note is not None:
            dropped = plan_dropped_claims(lease, execution.worker, now_ms - part.retention_ms)
        claim = BatchClaim(
            worker=execution.worker,
            batch=execution.batch,
            run=execution.run,
            start=execution.start,
            end=end,
            note=b"" if note is None else note.to_bytes(),
            made_ms=now_ms,
            earlier=() if own is None else own.past_claims(PAST_CLAIMS_MAX),
            planned_by=execution.planned_by,
        )
        return Claim(
            key=self._shard_id,
            claim=claim,
            checkpoint_seen=lease.checkpoint,
            claim_seen=None if own is None else own.identity,
            tip_ms=part.tip_ms,
            dropped_claims=dropped,
            stream=part.stream,
        )

    def _claim_nothing(self, lease: Lease, why: str) -> bool:
        """Claim that the batch holds nothing of the shard; return False if the lease has changed and must be read again."""
        outcome = self._table.write(self._claim_of(lease, self._start, None))
        if isinstance(outcome, Applied):
            _log.warning("shard %s, batch %d: nothing is read, %s", self._shard_id, self._batch, why)
            return True
        self._refuse_other_stream(outcome.reason, lease)
        return False

    def _refuse_other_stream(self, reason: Refusal, lease: Lease) -> None:
        if reason is Refusal.STREAM:
            raise StreamChanged(
                f"shard {self._shard_id}: lease table {self._table.name} belongs to the stream {lease.stream}, and this query "
                f"reads {self._part.stream}: choose another applicationName"
            )

    def _claim_end(self, lease: Lease | None) -> Iterator[pa.RecordBatch]:
        """Claim the end. If another execution has claimed a later end, yield the rows up to that end."""
        for _ in range(_CLAIMS_MAX):
            if lease is None:
                self._warn_unclaimed()
                return
            claim = self._claim_of(lease, self._progress.end, self._claim_note())
            outcome = self._table.write(claim)
            if isinstance(outcome, Applied):
                return
            self._refuse_other_stream(outcome.reason, lease)
            # Another attempt claimed between this one's read of the lease and its write. The first claim is final.
            lease = self._fetch_lease()
            meaning, end = judge_refused_claim(lease, self._execution, self._progress.end)
            if meaning is ClaimRefusal.READ_ON:
                yield from self._read_to(end)
                return
            if meaning is ClaimRefusal.AGREES or (
                meaning is ClaimRefusal.LOST and self._claim_lost_shard(lease)
            ):
                return
            self._raise_unless_claiming_again(meaning, lease, end)
        raise self._lease_changes_error()

    def _claim_lost_shard(self, lease: Lease | None) -> bool:
        """Claim that the batch holds nothing of the shard; return False if rows were emitted, or the claim was refused."""
        if lease is None or self._progress.record_count > 0:
            return False
        return self._claim_nothing(lease, "the lease was lost meanwhile")

    def _raise_unless_claiming_again(self, meaning: ClaimRefusal, lease: Lease | None, end: Position) -> None:
        """Raise the error of a refused claim; none if the claim is to be written again."""
        if meaning is ClaimRefusal.ANOTHER_DRIVER:
            claim = None if lease is None else lease.claim_of(self._execution.worker)
            assert claim is not None, (
                f"shard {self._shard_id}: another driver's claim was seen and is not there"
            )
            raise self._another_driver_error(claim)
        if meaning is ClaimRefusal.REPEAT:
            raise ClaimConflict(
                f"shard {self._shard_id}, batch {self._batch}: another execution of the batch claimed its end at {end}, before "
                f"{self._progress.end}, the end of this read; the task is repeated and reads up to there"
            )
        if meaning is ClaimRefusal.LOST and self._progress.record_count > 0:
            raise ClaimConflict(
                f"shard {self._shard_id}, batch {self._batch}: the lease was lost or created again before the batch's end could be "
                "claimed; the task is repeated without the shard, and the lease's next reader reads the records"
            )
