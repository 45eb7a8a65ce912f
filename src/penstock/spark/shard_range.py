"""Read one shard from a position, page by page, as Arrow batches: the loop that tasks and batch reads share.

Nothing here decides where a batch ends; the caller gets each page with what the service said about the tip and the
end of the shard, and cuts or stops. Expired iterators are rebuilt from the last record read, throttling waits with
full jitter inside a bound, a null iterator counts as the end only when the service names the children (or lists the
shard as closed).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.aws.arrow import records_to_batch
from penstock.core.aggregation import DecodeCounts, MisplacedRule
from penstock.core.checkpoint import ResumeCheck, check_resume, plan_iterator
from penstock.core.position import Position
from penstock.core.shard import ChildShard
from penstock.errors import DataLossError, ExpiredIterator, Throttled
from penstock.ports.kinesis import IteratorStart, IteratorType, Kinesis, RecordPage
from penstock.spark.iterator_cache import IteratorCache
from penstock.spark.options import Connection

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("penstock.spark")
_REBUILDS_MAX: Final = 5
_NULL_ITERATORS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """How one shard may be asked.

    Args:
        fetch_count_max: Limit of one GetRecords call.
        fetch_interval_s: Between two calls.
        throttle_deadline_s: A shard that stays throttled for longer fails the task.
        retry_base_s: First pause after throttling.
        retry_cap_s: Longest pause.
    """

    fetch_count_max: int = 10_000
    fetch_interval_s: float = 0.2
    throttle_deadline_s: float = 60.0
    retry_base_s: float = 0.1
    retry_cap_s: float = 5.0


def pace_of(fetch_count_max: int, fetch_interval_s: float, connection: Connection) -> Pace:
    """Give the pace that a query's options ask for."""
    return Pace(
        fetch_count_max=fetch_count_max,
        fetch_interval_s=fetch_interval_s,
        throttle_deadline_s=connection.retry_deadline_s,
        retry_base_s=connection.retry_base_s,
        retry_cap_s=connection.retry_cap_s,
    )


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """What to do when the record that a position names is gone.

    Args:
        fail: Raise `DataLossError`; else warn and go on with the oldest record that is left.
        tip_seen_ms: Moment at which nothing was left to read behind the position, if known: as long as the
            retention reaches back to it, a missing record was only trimmed after it was done.
        retention_ms: The stream's retention.
    """

    fail: bool = True
    tip_seen_ms: int | None = None
    retention_ms: int = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class ShardPage:
    """One answer, as rows.

    Args:
        rows: User records after the start, in order; may have no rows. To be cut first, and given out by
            `penstock.aws.arrow.delivered` then.
        millis_behind_latest: 0 when nothing is left to read.
        is_end: The shard is closed and read to its end.
        children: The shards that follow; only with `is_end`.
    """

    rows: pa.RecordBatch
    millis_behind_latest: int
    is_end: bool
    children: tuple[ChildShard, ...]


class ShardRange:
    """One shard, from one position on. Not thread-safe; used by one task at a time.

    Args:
        kinesis: The service.
        stream: Name or ARN.
        stream_name: For the `streamName` column.
        shard_id: The shard.
        start: Everything up to and including it is left out.
        pace: How to ask.
        loss: What to do when the start is gone.
        deaggregate: Whether KPL aggregates are taken apart.
        rule: Which misplaced aggregates are not delivered.
        iterators: Kept between batches by the worker process.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        stream_name: str,
        shard_id: str,
        start: Position,
        *,
        pace: Pace,
        loss: LossPolicy,
        deaggregate: bool = True,
        rule: MisplacedRule | None = None,
        iterators: IteratorCache | None = None,
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._stream_name = stream_name
        self._shard_id = shard_id
        self._start = start
        self._pace = pace
        self._loss = loss
        self._deaggregate = deaggregate
        self._rule = rule
        self._iterators = IteratorCache() if iterators is None else iterators
        self.began_with_kept_iterator = False
        self._last_raw: str | None = None
        self._iterator: str | None = None
        self._last_call_s = float("-inf")
        self._check_resume = False
        self.decode_counts = DecodeCounts()

    def pages(self) -> Iterator[ShardPage]:
        """Give pages until the shard's end; the caller stops earlier by no longer asking.

        Raises:
            DataLossError: The start is gone, and the policy is to fail.
            Throttled: The shard was refused for longer than the deadline.
            ServiceError: As the port says.
        """
        self._open()
        null_count = 0
        while True:
            page = self._fetch()
            if page.next_iterator is None and not page.child_shards:
                children = self._confirm_end()
                if children is None:
                    null_count += 1
                    if null_count > _NULL_ITERATORS_MAX:
                        raise Throttled(
                            f"shard {self._shard_id} of stream {self._stream}: the service gave no next iterator {null_count} "
                            "times although the shard is open; run the query again",
                            operation="GetRecords",
                            resource=self._shard_id,
                        )
                    yield self._rows(page, is_end=False, children=())
                    self._rebuild()
                    continue
                yield self._rows(page, is_end=True, children=children)
                return
            if page.next_iterator is None:
                yield self._rows(page, is_end=True, children=page.child_shards)
                return
            rows = self._rows(page, is_end=False, children=())
            self._iterator = page.next_iterator
            yield rows

    def keep_iterator(self, position: Position) -> None:
        """Remember the iterator behind the last page for a next read that starts at `position`.

        Only right when `position` is the last user record of the last page, or the start when nothing was read.
        """
        if self._iterator is not None:
            self._iterators.put(self._stream, self._shard_id, position, self._iterator, time.monotonic())

    def report_dropped(self) -> None:
        """Say in the log how many misplaced records were read and not delivered, if there were any."""
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

    def _open(self) -> None:
        kept = self._iterators.take(self._stream, self._shard_id, self._start, time.monotonic())
        self.began_with_kept_iterator = kept is not None
        if kept is not None:
            self._iterator = kept
            return
        self._check_resume = self._start.is_record
        self._iterator = self._kinesis.fetch_iterator(
            self._stream, self._shard_id, plan_iterator(self._start)
        )

    def _rebuild(self) -> None:
        if self._last_raw is None:
            self._open()
            return
        start = IteratorStart(IteratorType.AFTER_SEQUENCE_NUMBER, sequence_number=self._last_raw)
        self._iterator = self._kinesis.fetch_iterator(self._stream, self._shard_id, start)

    def _fetch(self) -> RecordPage:
        began_s = time.monotonic()
        rebuilds = attempt = 0
        while True:
            if self._iterator is None:
                self._rebuild()
                continue
            pause_s = self._last_call_s + self._pace.fetch_interval_s - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
            self._last_call_s = time.monotonic()
            try:
                return self._kinesis.fetch_records(self._stream, self._iterator, self._pace.fetch_count_max)
            except ExpiredIterator:
                rebuilds += 1
                if rebuilds > _REBUILDS_MAX:
                    raise
                self._iterator = None
            except Throttled:
                if time.monotonic() - began_s > self._pace.throttle_deadline_s:
                    raise
                ceiling_s = min(self._pace.retry_cap_s, self._pace.retry_base_s * 2 ** min(attempt, 20))
                attempt += 1
                time.sleep(random.uniform(0, ceiling_s))

    def _rows(self, page: RecordPage, *, is_end: bool, children: tuple[ChildShard, ...]) -> ShardPage:
        records = page.records
        after = None
        if self._check_resume:
            first = records[0].sequence_number if records else None
            found = check_resume(self._start, first, at_end=is_end or page.millis_behind_latest == 0)
            if found is ResumeCheck.TRIMMED:
                self._on_trimmed()
            if found is not ResumeCheck.UNDECIDED:
                self._check_resume = False
                after = self._start
        if records:
            self._last_raw = records[-1].sequence_number
        rows = records_to_batch(
            self._stream_name,
            self._shard_id,
            records,
            after=after,
            deaggregate=self._deaggregate,
            counts=self.decode_counts,
            rule=self._rule,
        )
        return ShardPage(rows, page.millis_behind_latest, is_end, children)

    def _on_trimmed(self) -> None:
        seen_ms = self._loss.tip_seen_ms
        if seen_ms is not None and seen_ms > time.time() * 1000 - self._loss.retention_ms:
            return
        text = (
            f"stream {self._stream}, shard {self._shard_id}: the record at {self._start} has left the stream "
            "(retention), so records after it may have been lost before they were read"
        )
        if self._loss.fail:
            raise DataLossError(
                f"{text}. To go on with the oldest record that is left set option failOnDataLoss=false; "
                "to keep more, raise the stream's retention"
            )
        _log.warning("%s; going on with the oldest record that is left (failOnDataLoss=false)", text)

    def _confirm_end(self) -> tuple[ChildShard, ...] | None:
        """Ask the listing whether a shard without next iterator is closed; None when it is open."""
        shards = self._kinesis.fetch_shards(self._stream).shards
        mine = next((shard for shard in shards if shard.shard_id == self._shard_id), None)
        if mine is not None and mine.is_open:
            return None
        return tuple(
            ChildShard(shard.shard_id, shard.parents, shard.hash_range)
            for shard in shards
            if self._shard_id in shard.parents
        )
