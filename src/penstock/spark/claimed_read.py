"""What a task of a streaming batch does: look at the lease, read the shard, claim the end.

The decisions are `penstock.core.claims`; this is the loop around them. Rows are given out while they are read, so
memory stays at one page; the claim comes last, and an execution whose claim does not stand is repeated by Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.claims import (
    ClaimNote,
    ReadFreely,
    ReadNothing,
    ReadTo,
    ReadUnclaimed,
    Settled,
    plan_read,
    settle_claim,
)
from penstock.core.lease import Applied, Claim, Lease
from penstock.core.position import SHARD_END, Position
from penstock.core.shard import ChildShard
from penstock.errors import ClaimConflict, DataLossError, NotFound
from penstock.ports.lease_table import LeaseTable
from penstock.spark.cuts import (
    arrival_ms_of,
    bytes_of,
    count_before_ms,
    count_up_to,
    count_within_bytes,
    is_whole_record,
    position_of,
)
from penstock.spark.shard_range import ShardPage, ShardRange

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("penstock.spark")
_CLAIMS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where one execution of a batch stops in one shard, if no claim says otherwise.

    Args:
        record_count_max: User records, or None.
        bytes_max: Bytes of data; the record that reaches it is the last one. None for no bound.
        until_ms: Records that arrived at or after this moment stay for later. None for no bound.
        planned_ms: When the batch was planned: a record that arrived later ends the batch at its page, so that a
            busy shard does not hold the batch open.
        duration_max_s: Time after which no further page is asked for, or None.
    """

    record_count_max: int | None = None
    bytes_max: int | None = None
    until_ms: int | None = None
    planned_ms: int | None = None
    duration_max_s: float | None = None


@dataclass(slots=True)
class _Progress:
    """What was given out so far."""

    end: Position
    record_count: int = 0
    bytes_count: int = 0
    last_arrival_ms: int | None = None
    whole_record: bool = True
    millis_behind_latest: int = 0
    at_tip: bool = False
    children: tuple[ChildShard, ...] = ()

    def add(self, rows: pa.RecordBatch, *, whole_record: bool) -> None:
        if rows.num_rows == 0:
            return
        self.end = position_of(rows, rows.num_rows - 1)
        self.record_count += rows.num_rows
        self.bytes_count += bytes_of(rows)
        self.last_arrival_ms = arrival_ms_of(rows, rows.num_rows - 1)
        self.whole_record = whole_record


class ClaimedRead:
    """One execution of one batch in one shard.

    Args:
        table: The lease table.
        shard: The shard, opened at the batch's start.
        shard_id: Its id, the lease's key.
        worker: The query's worker id.
        batch: Number of the batch.
        start: Where the batch starts.
        bounds: Where to stop.
        fail_on_data_loss: Whether an end that is gone from the stream is an error.
    """

    def __init__(
        self,
        table: LeaseTable,
        shard: ShardRange,
        *,
        shard_id: str,
        worker: str,
        batch: int,
        start: Position,
        bounds: Bounds,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._table = table
        self._shard = shard
        self._shard_id = shard_id
        self._worker = worker
        self._batch = batch
        self._start = start
        self._bounds = bounds
        self._fail_on_data_loss = fail_on_data_loss
        self._progress = _Progress(end=start)
        self._pages: Iterator[ShardPage] | None = None
        self._left: pa.RecordBatch | None = None
        self._left_is_end = False
        self._left_children: tuple[ChildShard, ...] = ()

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Give the rows of the batch; when this ends without an error, the end is fixed.

        Raises:
            ClaimConflict: Another execution fixed an end before what was given out here; Spark repeats the task.
            DataLossError: The start or a fixed end is gone from the stream, and the policy is to fail.
        """
        lease = self._fetch_lease()
        plan = plan_read(lease, self._worker, self._batch, self._start)
        match plan:
            case ReadTo(end):
                yield from self._read_to(end)
            case ReadNothing(reason):
                _log.warning(
                    "shard %s, batch %d: nothing is read, %s", self._shard_id, self._batch, reason.value
                )
            case ReadFreely():
                yield from self._read_freely()
                yield from self._claim(lease)
            case ReadUnclaimed():
                self._warn_unclaimed()
                yield from self._read_freely()

    def _fetch_lease(self) -> Lease | None:
        try:
            return self._table.fetch(self._shard_id)
        except NotFound:  # the whole table is gone; the driver makes it again
            return None

    def _warn_unclaimed(self) -> None:
        _log.warning(
            "lease table %s has no lease for shard %s any more: batch %d reads it from the offset's start without "
            "a claim, and its records will be given out once more (at-least-once for this batch)",
            self._table.name,
            self._shard_id,
            self._batch,
        )

    # --- reading ------------------------------------------------------------------------------------------

    def _next_page(self) -> ShardPage | None:
        if self._pages is None:
            self._pages = self._shard.pages()
        return next(self._pages, None)

    def _read_freely(self) -> Iterator[pa.RecordBatch]:
        if self._bounds.record_count_max == 0 or self._start.is_shard_end:
            return
        began_s = time.monotonic()
        while True:
            page = self._next_page()
            if page is None:
                return
            self._progress.millis_behind_latest = page.millis_behind_latest
            count = self._cut(page.rows)
            taken = page.rows.slice(0, count)
            self._progress.add(taken, whole_record=is_whole_record(page.rows, count))
            if taken.num_rows:
                yield taken
            if count < page.rows.num_rows:
                self._keep_rest(page, count)
                return
            if page.is_end:
                self._progress.end = SHARD_END
                self._progress.children = page.children
                self._progress.at_tip = True
                return
            if self._is_enough(page, began_s):
                self._shard.keep_iterator(self._progress.end)
                return

    def _keep_rest(self, page: ShardPage, count: int) -> None:
        self._left = page.rows.slice(count)
        self._left_is_end = page.is_end
        self._left_children = page.children
        until_ms = self._bounds.until_ms
        self._progress.at_tip = until_ms is not None and arrival_ms_of(self._left, 0) >= until_ms

    def _cut(self, rows: pa.RecordBatch) -> int:
        bounds, so_far = self._bounds, self._progress
        count: int = rows.num_rows
        if bounds.until_ms is not None:
            count = min(count, count_before_ms(rows, bounds.until_ms))
        if bounds.record_count_max is not None:
            count = min(count, bounds.record_count_max - so_far.record_count)
        if bounds.bytes_max is not None:
            count = min(count, count_within_bytes(rows, bounds.bytes_max - so_far.bytes_count))
        return count

    def _is_enough(self, page: ShardPage, began_s: float) -> bool:
        bounds, so_far = self._bounds, self._progress
        if page.millis_behind_latest == 0:
            so_far.at_tip = True
            return True
        if bounds.record_count_max is not None and so_far.record_count >= bounds.record_count_max:
            return True
        if bounds.bytes_max is not None and so_far.bytes_count >= bounds.bytes_max:
            return True
        late = bounds.planned_ms is not None and (so_far.last_arrival_ms or 0) > bounds.planned_ms
        return late or (
            bounds.duration_max_s is not None and time.monotonic() - began_s > bounds.duration_max_s
        )

    def _read_to(self, end: Position) -> Iterator[pa.RecordBatch]:
        """Give what lies between what was given out and a fixed end."""
        if end <= self._progress.end:
            return
        while True:
            page = self._take_left() or self._next_page()
            if page is None:
                return
            count = page.rows.num_rows if end.is_shard_end else count_up_to(page.rows, end)
            taken = page.rows.slice(0, count)
            self._progress.add(taken, whole_record=is_whole_record(page.rows, count))
            if taken.num_rows:
                yield taken
            if self._progress.end == end:
                if count == page.rows.num_rows and not page.is_end:
                    self._shard.keep_iterator(end)
                return
            if page.is_end and end.is_shard_end:
                return
            if count < page.rows.num_rows or page.is_end or page.millis_behind_latest == 0:
                self._end_is_gone(end)
                return

    def _take_left(self) -> ShardPage | None:
        left, self._left = self._left, None
        if left is None:
            return None
        # The service's word on the tip belongs to the rows behind it; 1 says that it is not known any more.
        return ShardPage(left, 1, self._left_is_end, self._left_children)

    def _end_is_gone(self, end: Position) -> None:
        text = (
            f"shard {self._shard_id}: batch {self._batch} was fixed to end at {end}, and that record has left the "
            f"stream (retention): the batch cannot be repeated in full, its records from {self._start} on are lost "
            "as far as they were not processed"
        )
        if self._fail_on_data_loss:
            raise DataLossError(f"{text}. To go on without them set option failOnDataLoss=false")
        _log.warning("%s; going on (failOnDataLoss=false)", text)

    # --- claiming -----------------------------------------------------------------------------------------

    def _note(self) -> ClaimNote:
        so_far = self._progress
        return ClaimNote(
            start=self._start,
            at_tip=so_far.at_tip,
            whole_record=so_far.whole_record,
            record_count=so_far.record_count,
            bytes_count=so_far.bytes_count,
            millis_behind_latest=so_far.millis_behind_latest,
            last_arrival_ms=so_far.last_arrival_ms,
            children=so_far.children,
            kept_iterator=self._shard.began_with_kept_iterator,
        )

    def _claim(self, lease: Lease | None) -> Iterator[pa.RecordBatch]:
        """Fix the end; gives further rows when another execution has fixed one further on."""
        for _ in range(_CLAIMS_MAX):
            if lease is None:
                self._warn_unclaimed()
                return
            outcome = self._table.write(
                Claim(
                    key=self._shard_id,
                    worker=self._worker,
                    batch=self._batch,
                    end=self._progress.end,
                    state=self._note().to_bytes(),
                    checkpoint_seen=lease.checkpoint,
                    start=self._start,
                )
            )
            if isinstance(outcome, Applied):
                return
            lease = self._fetch_lease()
            meaning, end = settle_claim(lease, self._worker, self._batch, self._start, self._progress.end)
            match meaning:
                case Settled.AGREES:
                    return
                case Settled.READ_ON:
                    yield from self._read_to(end)
                    return
                case Settled.REPEAT:
                    raise ClaimConflict(
                        f"shard {self._shard_id}, batch {self._batch}: another execution of the batch fixed its end at "
                        f"{end}, before {self._progress.end} that was read here; the task is repeated and reads up to "
                        "there"
                    )
                case Settled.LOST:
                    _log.warning(
                        "shard %s, batch %d: the lease is another worker's now; its records are given out there again",
                        self._shard_id,
                        self._batch,
                    )
                    return
                case Settled.GONE | Settled.CLAIM_AGAIN:
                    continue
        raise ClaimConflict(
            f"shard {self._shard_id}, batch {self._batch}: the lease changed {_CLAIMS_MAX} times while its end was being "
            "claimed; the task is repeated"
        )
