"""Read one shard from a position, page by page, as Arrow batches: the loop that tasks and batch reads share.

Nothing here decides where a batch ends; the caller gets each page with what the service said about the tip and the
end of the shard, and cuts or stops. What the service refuses is tried again with full jitter until a deadline. An
expired iterator is replaced by one behind the last record read. A null iterator counts as the end only when the service
names the children (or lists the shard as closed), and a shard counts as gone only when it is unknown and unlisted twice.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.aws.aws_options import AwsOptions
from penstock.core.aggregation import DecodeCounts, MisplacedRule
from penstock.core.backoff import Backoff, GiveUp, RetryPlan
from penstock.core.hash_key import HashRange
from penstock.core.position import Position, at_record
from penstock.core.reading.resume import (
    MissingRecord,
    ResumeCheck,
    check_resume,
    judge_missing_record,
    plan_iterator,
)
from penstock.core.shard import ChildShard, Shard
from penstock.errors import (
    DataLossError,
    ExpiredIterator,
    NotFound,
    Rejected,
    ServiceError,
    StreamChanged,
    Throttled,
)
from penstock.ports.kinesis import IteratorStart, IteratorType, Kinesis, RecordPage
from penstock.spark.arrow_records import records_to_slices
from penstock.spark.iterator_cache import IteratorCache

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("penstock.spark")
_REBUILDS_MAX: Final = 5  # iterators in a row that the service gave and then refused
_NULL_ITERATORS_MAX: Final = 3
_DOUBTS_MAX: Final = 3  # empty pages that are not believed
_LOOKS_MAX: Final = 5  # answers that nothing is left where something must be
_UNLISTED_MIN: Final = 2  # listings without the shard after which it is gone
_BACKOFF: Final = Backoff(0.1, 5.0)
_ATTEMPTS_MAX: Final = 10_000  # the deadline is the bound; this one is for pauses of nearly no time


@dataclass(frozen=True, slots=True)
class Pace:
    """How one shard may be asked.

    Args:
        fetch_count_max: Limit of one GetRecords call.
        fetch_interval_s: Between two calls.
        throttle_deadline_s: A shard that stays refused for longer fails the task.
        backoff: The pauses after refusals.
    """

    fetch_count_max: int = 10_000
    fetch_interval_s: float = 0.2
    throttle_deadline_s: float = 60.0
    backoff: Backoff = _BACKOFF

    @property
    def retry_plan(self) -> RetryPlan:
        """When a refused call is tried again."""
        return RetryPlan(self.backoff, _ATTEMPTS_MAX, self.throttle_deadline_s)


def pace_of(fetch_count_max: int, fetch_interval_s: float, connection: AwsOptions) -> Pace:
    """Give the pace that a query's options ask for."""
    return Pace(
        fetch_count_max=fetch_count_max,
        fetch_interval_s=fetch_interval_s,
        throttle_deadline_s=connection.deadline_s,
        backoff=connection.backoff,
    )


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """What to do when the record that a position names is gone, or the shard itself.

    Args:
        fail: Raise `DataLossError`; else warn and go on with the oldest record that is left, or with the children.
        tip_seen_ms: Moment, by the service's clock, at which nothing was left to read behind the position, if known.
        retention_ms: The stream's retention.
        is_foreign: The position is the checkpoint of a worker that does not note when it was at the tip.
    """

    fail: bool = True
    tip_seen_ms: int | None = None
    retention_ms: int = 24 * 3_600_000
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class ShardPage:
    """One answer, or a part of a large one, as rows.

    Args:
        rows: User records after the start, in order; may have no rows. To be cut first, and given out by
            `penstock.spark.arrow_records.delivered` then.
        millis_behind_latest: 0 when nothing is left to read.
        is_end: The shard is closed and read to its end.
        children: The shards that follow; only with `is_end`.
        server_ms: The moment of the answer by the service's clock, if it told.
    """

    rows: pa.RecordBatch
    millis_behind_latest: int
    is_end: bool
    children: tuple[ChildShard, ...]
    server_ms: int | None = None


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
        self.decode_counts = DecodeCounts()
        self._last_raw: str | None = None
        self._iterator: str | None = None
        self._not_before_s = float("-inf")
        self._check_resume = False
        self._doubts = 0
        self._unlisted = 0
        self._looks = 0

    def pages(self) -> Iterator[ShardPage]:
        """Yield pages until the shard's end; the caller stops earlier by no longer asking.

        Raises:
            DataLossError: The start or the shard is gone, and the policy is to fail.
            StreamChanged: The position is not one of this stream.
            NotFound: The stream is gone.
            Throttled: The shard was refused for longer than the deadline.
            ServiceError: As the port says.
        """
        null_count = 0
        self._open()
        while True:
            page = self._fetch()
            if page is None:
                yield self._vanished()
                return
            if self._is_doubtful(page):
                continue
            children: tuple[ChildShard, ...] | None = page.child_shards
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
            is_end = page.next_iterator is None and children is not None
            yield from self._slices(page, is_end=is_end, children=(children or ()) if is_end else ())
            if is_end:
                return

    def keep_iterator(self, position: Position) -> None:
        """Remember the iterator behind the last page for a next read that starts at `position`.

        Only right when `position` is the last user record of the last page, or the start when nothing was read.
        """
        if self._iterator is not None:
            self._iterators.put(
                self._kinesis, self._stream, self._shard_id, position, self._iterator, time.monotonic()
            )

    def look_again(self) -> bool:
        """Ask again from behind the last record read, a little later, where the service says that nothing is left.

        For a caller that knows that something must follow: one such answer is not enough then.

        Returns:
            False when it was asked often enough, and nothing came.
        """
        self._looks += 1
        self._iterator = None
        self._not_before_s = time.monotonic() + min(1.0, 0.05 * 2**self._looks)
        return self._looks <= _LOOKS_MAX

    def learn_hash_range(self, hash_range: HashRange | None) -> None:
        """Learn which hash keys the shard owns, from its lease: misplaced aggregates are told by it."""
        if self._rule is not None and hash_range is not None:
            self._rule = replace(self._rule, told=hash_range)

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

    # --- asking -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._iterator = self._iterators.take(
            self._kinesis, self._stream, self._shard_id, self._start, time.monotonic()
        )
        self.began_with_kept_iterator = self._iterator is not None

    def _take_iterator(self) -> str:
        if self._last_raw is not None:
            start = IteratorStart(IteratorType.AFTER_SEQUENCE_NUMBER, sequence_number=self._last_raw)
        else:
            start = plan_iterator(self._start)
            self._check_resume = self._start.is_record
        try:
            return self._kinesis.fetch_iterator(self._stream, self._shard_id, start)
        except Rejected as error:
            if start.sequence_number is None:
                raise
            raise StreamChanged(
                f"stream {self._stream}, shard {self._shard_id}: the service refuses position {self._start} ({error}): it "
                "is of another shard or stream. If the stream was deleted and created again under its name, start with a "
                "new checkpoint location and a new applicationName"
            ) from error

    def _fetch(self) -> RecordPage | None:
        """Fetch the next page; None when the shard has left the stream."""
        plan, began_s, rebuilds = self._pace.retry_plan, time.monotonic(), 0
        for attempt in itertools.count(1):
            try:
                if self._iterator is None:
                    self._iterator = self._take_iterator()
                self._wait_for_turn()
                return self._kinesis.fetch_records(self._stream, self._iterator, self._pace.fetch_count_max)
            except (ExpiredIterator, Rejected) as error:
                # A refused iterator is replaced like an expired one; the first time at once.
                if self._iterator is None or rebuilds >= _REBUILDS_MAX:
                    raise
                self._iterator = None
                rebuilds += 1
                self._pause(plan, attempt, began_s, error, at_once=rebuilds == 1)
            except NotFound as error:
                if self._is_gone(error):
                    return None
                self._iterator = None
                self._pause(plan, attempt, began_s, error)
            except Throttled as error:
                self._pause(plan, attempt, began_s, error)
        raise AssertionError("counting has no end")

    def _wait_for_turn(self) -> None:
        pause_s = self._not_before_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        self._not_before_s = time.monotonic() + self._pace.fetch_interval_s

    @staticmethod
    def _pause(
        plan: RetryPlan, attempt: int, began_s: float, error: ServiceError, *, at_once: bool = False
    ) -> None:
        decision = plan.decide(attempt, time.monotonic() - began_s, random.random())
        if isinstance(decision, GiveUp):
            raise error
        if not at_once:
            time.sleep(decision.delay_s)

    # --- what a page means --------------------------------------------------------------------------------

    def _slices(
        self, page: RecordPage, *, is_end: bool, children: tuple[ChildShard, ...]
    ) -> Iterator[ShardPage]:
        after = self._start if self._is_resumed(page) else None
        slices = records_to_slices(
            self._stream_name,
            self._shard_id,
            page.records,
            after=after,
            deaggregate=self._deaggregate,
            counts=self.decode_counts,
            rule=self._rule,
        )
        for rows, count in slices:
            if count:
                self._last_raw = page.records[count - 1].sequence_number
            if count == len(page.records):
                self._iterator = page.next_iterator
                yield ShardPage(rows, page.millis_behind_latest, is_end, children, page.server_ms)
                return
            # The page's iterator is behind all of it: while rows are left, there is none to go on with or to keep.
            self._iterator = None
            yield ShardPage(rows, max(1, page.millis_behind_latest), False, (), page.server_ms)

    def _is_doubtful(self, page: RecordPage) -> bool:
        """Whether a page shows nothing where a record must be, so that it is better asked for again.

        A record that reading is to go on at is seldom missing. Before an empty answer is taken for a loss, it is read again
        a few times.
        """
        if (
            not self._check_resume
            or page.records
            or page.next_iterator is None
            or page.millis_behind_latest > 0
            or self._doubts >= _DOUBTS_MAX
            or self._judge(page) is MissingRecord.HARMLESS
        ):
            return False
        self._doubts += 1
        self._iterator = None
        self._not_before_s = time.monotonic() + min(1.0, 0.1 * 2**self._doubts)
        return True

    def _is_resumed(self, page: RecordPage) -> bool:
        """Whether this page is the one behind the start, so that the rows up to the start are left out."""
        if not self._check_resume:
            return False
        first = page.records[0].sequence_number if page.records else None
        at_end = page.next_iterator is None or page.millis_behind_latest == 0
        found = check_resume(self._start, first, at_end=at_end)
        if found is ResumeCheck.UNDECIDED:
            return False
        if found is ResumeCheck.TRIMMED:
            self._on_trimmed(self._judge(page))
        self._check_resume = False
        return True

    def _judge(self, page: RecordPage) -> MissingRecord:
        return judge_missing_record(
            self._start,
            tip_ms=self._loss.tip_seen_ms,
            is_foreign=self._loss.is_foreign,
            now_ms=time.time_ns() // 1_000_000 if page.server_ms is None else page.server_ms,
            retention_ms=self._loss.retention_ms,
            is_open_and_empty=not page.records
            and page.next_iterator is not None
            and page.millis_behind_latest == 0,
        )

    def _on_trimmed(self, meaning: MissingRecord) -> None:
        if meaning is MissingRecord.HARMLESS:
            return
        text = (
            f"stream {self._stream}, shard {self._shard_id}: the record at {self._start} has left the stream "
            "(retention), so records after it may have been lost before they were read"
        )
        if meaning is MissingRecord.UNSURE:
            _log.warning("%s; going on, since the shard is empty and %s", text, meaning.value)
            return
        self._lose(
            text,
            "To go on with the oldest record that is left set option failOnDataLoss=false; to keep more, raise the "
            "stream's retention",
            "going on with the oldest record that is left",
        )

    def _lose(self, text: str, way_out: str, goes_on: str) -> None:
        if self._loss.fail:
            raise DataLossError(f"{text}. {way_out}")
        _log.warning("%s; %s (failOnDataLoss=false)", text, goes_on)

    # --- the listing --------------------------------------------------------------------------------------

    def _is_gone(self, error: NotFound) -> bool:
        """Whether a shard that the service does not know has left the stream; a wrong answer is asked for again."""
        if any(shard.shard_id == self._shard_id for shard in self._list()):
            self._unlisted = 0
            _log.warning(
                "stream %s lists shard %s and does not know it: %s", self._stream, self._shard_id, error
            )
            return False
        self._unlisted += 1
        return self._unlisted >= _UNLISTED_MIN

    def _vanished(self) -> ShardPage:
        """Return the end of a shard that is gone; its children go on."""
        read_to = self._start if self._last_raw is None else at_record(self._last_raw)
        self._lose(
            f"stream {self._stream}, shard {self._shard_id}: the shard has left the stream (retention) and was read only "
            f"to {read_to}; what came after that is lost if there was anything",
            "To go on with its children set option failOnDataLoss=false",
            "going on with its children",
        )
        rows, _ = next(records_to_slices(self._stream_name, self._shard_id, ()))
        return ShardPage(rows, 0, True, self._children_in(self._list()))

    def _confirm_end(self) -> tuple[ChildShard, ...] | None:
        """Ask the listing whether a shard without next iterator is closed; None when it is open."""
        shards = self._list()
        mine = next((shard for shard in shards if shard.shard_id == self._shard_id), None)
        return None if mine is not None and mine.is_open else self._children_in(shards)

    def _list(self) -> tuple[Shard, ...]:
        try:
            return self._kinesis.fetch_shards(self._stream).shards
        except NotFound as error:
            raise NotFound(
                f"stream {self._stream} does not exist any more ({error}). If it was created again under its name, start "
                "with a new checkpoint location and a new applicationName",
                operation=error.operation,
                code=error.code,
                resource=self._stream,
            ) from error

    def _children_in(self, shards: tuple[Shard, ...]) -> tuple[ChildShard, ...]:
        return tuple(
            ChildShard(shard.shard_id, shard.parents, shard.hash_range)
            for shard in shards
            if self._shard_id in shard.parents
        )
