"""The polling reader of one shard, as a machine: it is asked for the next step and told what came of it.

The shell (`penstock.consumer.engine`, or a simulator) asks `plan_step`, does the call, and answers with
`on_iterator`, `on_page`, `on_failure` or `on_listing`. One call is under way at a time. Time and chance are
arguments; the machine never waits, it says until when there is nothing to do.

A place in the shard is kept as the last sequence number that was read, never as an iterator: iterators are
disposable, and a new one is always taken AT the last record (not after it), so that the machine sees whether
that record is still there. When it is not, records may have been trimmed behind the reader's back, and the
policy `on_data_loss` decides: never silence. `penstock.core.reading.resume.judge_missing_record` tells a record that
may have taken others with it from one that cannot have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from penstock.core.backoff import Backoff
from penstock.core.limits import (
    GET_RECORDS_COUNT_MAX,
    GET_RECORDS_PER_S_MAX,
    ITERATOR_LIFE_S,
    SHARD_READ_BYTES_PER_S_MAX,
)
from penstock.core.position import Position, Sentinel, at_record, at_timestamp
from penstock.core.reading.resume import MissingRecord, ResumeCheck, check_resume, judge_missing_record
from penstock.core.shard import ChildShard
from penstock.errors import (
    DataLossError,
    ExpiredIterator,
    NotFound,
    OptionError,
    PenstockError,
    Rejected,
    ResourceBusy,
    ServiceError,
    StreamChanged,
    Throttled,
    Unavailable,
    UnknownOutcome,
)

_SPACING_SLACK: Final = 1.05  # calls are timed here and counted there: a little apart keeps five in a second
_LATEST_SLACK_MS: Final = (
    2_000  # clocks differ: a LATEST that is taken again starts a little earlier, not later
)
_DOUBTS_MAX: Final = 3  # empty pages that are not believed where a record must be
_END_UNCONFIRMED_MAX: Final = 3  # last pages without children before the listing is asked
_STUBBORN_FAILURES_MAX: Final = 10  # refusals that waiting seldom cures (policy, wrong request)


class PlacedRecord(Protocol):
    """What the machine needs to know of a user record."""

    @property
    def sequence_number(self) -> str:
        """The service's text."""

    @property
    def sub_sequence_number(self) -> int:
        """Place inside its aggregate."""


R = TypeVar("R", bound=PlacedRecord)


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """How one shard is read.

    Args:
        record_count_max: Records per call, 1 to 10,000.
        reads_per_s_max: Calls per second and shard; the service allows 5 for all consumers together.
        read_bytes_per_s_max: Bytes per second and shard; the service allows 2 MiB.
        idle_time_between_reads_s: Pause after an empty page at the tip, once the shard has been quiet for some
            reads; it is reached by doubling from the smallest spacing.
        backoff_min_s: Upper bound of the first pause after a refusal; it doubles.
        backoff_max_s: Largest upper bound.
        prefetch_bytes_max: No read is planned while this much waits undelivered; one page may exceed it.
        on_data_loss: What happens when records are gone that were not read: `fail` or `warn`.
        retention_s: How long the stream keeps records, or None when unknown. With it a record that left a quiet
            stream is not mistaken for a loss.

    Raises:
        OptionError: A value is out of its range; the message names it.
    """

    record_count_max: int = GET_RECORDS_COUNT_MAX
    reads_per_s_max: float = GET_RECORDS_PER_S_MAX
    read_bytes_per_s_max: int = SHARD_READ_BYTES_PER_S_MAX
    idle_time_between_reads_s: float = 1.0
    backoff_min_s: float = 0.5
    backoff_max_s: float = 20.0
    prefetch_bytes_max: int = 8 * 1024 * 1024
    on_data_loss: Literal["fail", "warn"] = "fail"
    retention_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.record_count_max <= GET_RECORDS_COUNT_MAX:
            raise OptionError(
                f"record_count_max={self.record_count_max}: expected 1 to {GET_RECORDS_COUNT_MAX}"
            )
        if not 0 < self.reads_per_s_max <= GET_RECORDS_PER_S_MAX:
            raise OptionError(
                f"reads_per_s_max={self.reads_per_s_max}: expected more than 0 and at most {GET_RECORDS_PER_S_MAX}, "
                "the service's quota per shard"
            )
        if not 0 < self.read_bytes_per_s_max <= SHARD_READ_BYTES_PER_S_MAX:
            raise OptionError(
                f"read_bytes_per_s_max={self.read_bytes_per_s_max}: expected 1 to {SHARD_READ_BYTES_PER_S_MAX}, "
                "the service's quota per shard"
            )
        if not 0 <= self.idle_time_between_reads_s <= 0.8 * ITERATOR_LIFE_S:
            raise OptionError(
                f"idle_time_between_reads_s={self.idle_time_between_reads_s}: expected 0 to {0.8 * ITERATOR_LIFE_S:g}, "
                f"since an iterator lives for {ITERATOR_LIFE_S:g} s"
            )
        if not 0 < self.backoff_min_s <= self.backoff_max_s:
            raise OptionError(
                f"backoff_min_s={self.backoff_min_s}, backoff_max_s={self.backoff_max_s}: "
                "expected 0 < backoff_min_s <= backoff_max_s"
            )
        if self.prefetch_bytes_max < 1:
            raise OptionError(f"prefetch_bytes_max={self.prefetch_bytes_max}: expected at least 1")
        if self.on_data_loss not in ("fail", "warn"):
            raise OptionError(f"on_data_loss={self.on_data_loss!r}: expected 'fail' or 'warn'")

    @property
    def spacing_s(self) -> float:
        """Smallest time between the starts of two reads."""
        return _SPACING_SLACK / self.reads_per_s_max


# --- the steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchIterator:
    """Take an iterator at a position: a record is included, AT_TIMESTAMP and a pinned LATEST carry a moment."""

    position: Position


@dataclass(frozen=True, slots=True)
class FetchPage:
    """Read one page."""

    iterator: str
    record_count_max: int


@dataclass(frozen=True, slots=True)
class FetchListing:
    """Ask ListShards about this shard: the reads do not say clearly whether and how it ended."""

    reason: str


class Pause(Enum):
    """Why there is nothing to do."""

    SPACING = "reads of a shard are kept apart"
    BYTES = "the shard's bytes per second are used up"
    IDLE = "the shard is quiet"
    FULL = "enough is fetched and waits for delivery"
    BACKOFF = "the service refused or failed"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until a moment, or (None) until something is delivered."""

    until_s: float | None
    reason: Pause


@dataclass(frozen=True, slots=True)
class Finished:
    """The shard is closed and read to its end; `children` continue it (empty when the stream knows none)."""

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The shard cannot be read further; the error says why and what to do."""

    error: PenstockError


Step: TypeAlias = FetchIterator | FetchPage | FetchListing | Wait | Finished | Failed


# --- the answers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """One answer of GetRecords, taken apart.

    Args:
        records: User records in order; several of one aggregate share a sequence number.
        first_sequence_number: Of the first Kinesis record, or None when the page is empty.
        last_sequence_number: Of the last one.
        read_bytes: What the service counts against the quota: data and partition keys.
        next_iterator: None on the last page of a closed shard.
        millis_behind_latest: 0 at the tip.
        children: Given with the last page.
        service_ms: The moment by the service's clock, or None when unknown.
    """

    records: Sequence[R]
    first_sequence_number: str | None
    last_sequence_number: str | None
    read_bytes: int
    next_iterator: str | None
    millis_behind_latest: int
    children: tuple[ChildShard, ...] = ()
    service_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ListedShard:
    """What a listing says of a shard: whether it is open, and the shards that name it as a parent."""

    is_open: bool
    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class PossibleLoss:
    """Records may be gone between what was read and what stands in the stream; counted and reported."""

    error: DataLossError


@dataclass(frozen=True, slots=True)
class Kept(Generic[R]):
    """What a page means: the records that are new, and whether a loss must be reported, or a doubt."""

    records: Sequence[R]
    loss: PossibleLoss | None = None
    doubt: str | None = None


class ShardReader(Generic[R]):
    """The machine. Not thread-safe: one caller at a time.

    Args:
        stream: For messages.
        shard_id: For messages.
        start: The checkpoint: everything up to and including it is done.
        options: How to read.
        tip_ms: Moment by the service's clock at which nothing was left to read behind the start, or None.
        is_foreign: Whether the start was written by a worker that does not note such moments (Java KCL).
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
    ) -> None:
        if start.is_shard_end:
            raise ValueError(f"shard {shard_id} is at its end: there is nothing to read")
        self.stream = stream
        self.shard_id = shard_id
        self.options = options
        self.position = start  # the last record read, or the starting sentinel
        self.millis_behind_latest: int | None = None
        self._iterator: str | None = None
        # Records at or before it are done. Set whenever an iterator is taken at a record.
        self._skip_through: Position | None = None
        self._not_before_s = float("-inf")
        self._pause = Pause.SPACING
        self._read_s: float | None = None
        self.tip_ms = tip_ms
        """Moment by the service's clock at which nothing was left to read behind `position`, or None."""
        self._is_foreign = is_foreign
        self._doubts = 0
        self._quiet_reads = 0
        self._failures = 0
        self._stubborn_failures = 0
        self._ends_unconfirmed = 0
        self._listing_reason: str | None = None
        self._final: Finished | Failed | None = None

    # --- asking ---

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to read, for good."""
        return self._final is not None

    @property
    def failure_count(self) -> int:
        """Refusals and failures in a row."""
        return self._failures

    def plan_step(self, now_s: float, waiting_bytes: int = 0, has_room: bool = True) -> Step:
        """Say what to do now. Asking changes nothing.

        Args:
            now_s: Monotonic seconds.
            waiting_bytes: What was fetched from this shard and is not done yet.
            has_room: False while the process as a whole holds enough fetched bytes.
        """
        if self._final is not None:
            return self._final
        if now_s < self._not_before_s:
            return Wait(self._not_before_s, self._pause)
        if self._listing_reason is not None:
            return FetchListing(self._listing_reason)
        if not has_room or waiting_bytes >= self.options.prefetch_bytes_max:
            return Wait(None, Pause.FULL)
        if self._iterator is None:
            return FetchIterator(self._iterator_position())
        return FetchPage(self._iterator, self.options.record_count_max)

    def lag_ms(self, now_s: float) -> int | None:
        """Say how far behind the tip the reading is, at most; None before the first answer.

        While reads are held up, the time since the last answer is added: nobody knows what came since.
        """
        if self.millis_behind_latest is None or self._read_s is None:
            return None
        since_s = now_s - self._read_s - max(self.options.idle_time_between_reads_s, 1.0)
        return self.millis_behind_latest + max(0, int(since_s * 1000))

    # --- answers ---

    def on_iterator(self, iterator: str, now_s: float, wall_ms: int) -> None:
        """Take in an iterator.

        Args:
            iterator: The service's text.
            now_s: Monotonic seconds.
            wall_ms: Milliseconds since the epoch: a plain LATEST means this moment from now on.
        """
        self._iterator = iterator
        self._skip_through = self.position if self.position.is_record else None
        if self.position.sentinel is Sentinel.LATEST and self.position.timestamp_ms is None:
            # Taken again after an expiry, LATEST would be a later moment, and the records between be lost.
            self.position = Position(sentinel=Sentinel.LATEST, timestamp_ms=wall_ms - _LATEST_SLACK_MS)
        self._not_before_s = max(self._not_before_s, now_s)

    def on_page(self, page: Page[R], started_s: float, now_s: float, chance: float = 0.5) -> Kept[R]:
        """Take in a page.

        Args:
            page: The answer.
            started_s: When the call began: calls are kept apart from start to start.
            now_s: Monotonic seconds.
            chance: In [0, 1), for the pause before a doubtful end is read again.

        Returns:
            The records that were not read before, and a possible loss. With `on_data_loss="fail"` a loss gives
            no records, and the next step is `Failed`.
        """
        self._failures = 0
        self.millis_behind_latest = page.millis_behind_latest
        self._read_s = now_s
        loss = doubt = None
        meaning = self._judge_resume(page)
        if meaning not in (None, MissingRecord.HARMLESS):
            if self._is_doubtful(page):
                self._doubts += 1
                self._iterator = None
                self._back_off(now_s, chance, self._doubts)
                return Kept(())
            if meaning is MissingRecord.UNSURE:
                doubt = f"{self._missing(page)}. It goes on, since {MissingRecord.UNSURE.value}"
            else:
                loss = self._loss(page)
                if self.options.on_data_loss == "fail":
                    self._final = Failed(loss.error)
                    return Kept((), loss)
        records = self._drop_done(page.records)
        if meaning is not None:
            self._skip_through = None
        if page.last_sequence_number is not None:
            self.position = at_record(page.last_sequence_number, _last_sub(page))
            self._is_foreign = False
        if page.millis_behind_latest == 0 and page.service_ms is not None:
            self.tip_ms = page.service_ms
        self._iterator = page.next_iterator
        if records or page.next_iterator is not None:  # a doubtful end that gives nothing is no progress
            self._stubborn_failures = 0
        if page.next_iterator is None:
            self._on_last_page(page, bool(records), now_s, chance)
        else:
            self._ends_unconfirmed = 0
            self._pace(page, started_s)
        return Kept(records, loss, doubt)

    def on_failure(self, error: PenstockError, now_s: float, chance: float) -> None:
        """Take in that a call failed.

        Args:
            error: As the port raised it.
            now_s: Monotonic seconds.
            chance: In [0, 1), for full jitter.
        """
        self._failures += 1
        if isinstance(error, ExpiredIterator):
            self._iterator = None
            if self._failures > 1:  # the first time at once; an iterator that is born expired must not spin
                self._back_off(now_s, chance)
            return
        if isinstance(error, NotFound):
            # The shard may have passed its retention, or the stream is gone: the listing tells them apart.
            if self._listing_reason is not None:
                self._final = Failed(error)
                return
            self._listing_reason = f"the service does not know the shard ({error})"
            self._back_off(now_s, chance)
            return
        if isinstance(error, Throttled | Unavailable | UnknownOutcome | ResourceBusy):
            self._back_off(now_s, chance)
            return
        if isinstance(error, Rejected) and self._iterator is None and self.position.is_record:
            self._final = Failed(
                StreamChanged(
                    f"stream {self.stream}, shard {self.shard_id}: the service refuses position {self.position} "
                    f"({error}). Was the stream deleted and created again? Then reset the application's "
                    "checkpoints: penstock leases APPLICATION --reset-to TRIM_HORIZON"
                )
            )
            return
        self._stubborn_failures += 1
        if self._stubborn_failures >= _STUBBORN_FAILURES_MAX or not isinstance(error, ServiceError):
            self._final = Failed(error)
            return
        if isinstance(error, Rejected):
            self._iterator = None  # an iterator that is refused as such is replaced like an expired one
        self._back_off(now_s, chance)

    def on_listing(self, listed: ListedShard | None, now_s: float, chance: float) -> PossibleLoss | None:
        """Take in what the listing says of the shard; None means that it is not listed.

        Returns:
            A possible loss: the shard is gone and was not read to its end.
        """
        self._listing_reason = None
        if listed is not None:
            if not listed.is_open and self._ends_unconfirmed:
                self._final = Finished(listed.children)
                return None
            # It is there, open or unread: the answers before were the service's mistake. Go on, gently.
            self._ends_unconfirmed = 0
            self._iterator = None
            self._stubborn_failures += 1
            if self._stubborn_failures >= _STUBBORN_FAILURES_MAX:
                self._final = Failed(
                    ServiceError(
                        f"stream {self.stream}, shard {self.shard_id}: listed, yet the service keeps saying that "
                        "it does not exist or has ended",
                        operation="GetRecords",
                        resource=self.shard_id,
                    )
                )
                return None
            self._back_off(now_s, chance, max(self._failures, self._stubborn_failures))
            return None
        if self._ends_unconfirmed:  # read to its end, and trimmed since
            self._final = Finished(())
            return None
        loss = PossibleLoss(
            DataLossError(
                f"stream {self.stream}, shard {self.shard_id}: the shard is gone from the stream and was read only "
                f"to {self.position}; what came after is lost if there was anything. Set on_data_loss='warn' to go "
                "on with its children"
            )
        )
        self._final = Failed(loss.error) if self.options.on_data_loss == "fail" else Finished(())
        return loss

    # --- inside ---

    def _iterator_position(self) -> Position:
        position = self.position
        if position.sentinel is Sentinel.LATEST and position.timestamp_ms is not None:
            return at_timestamp(position.timestamp_ms)
        return replace(position, sub_sequence_number=0) if position.is_record else position

    def _drop_done(self, records: Sequence[R]) -> Sequence[R]:
        skip = self._skip_through
        if skip is None or not records or skip.sequence_number is None:
            return records
        done = (int(skip.sequence_number), skip.sub_sequence_number)
        self._skip_through = None  # sequence numbers rise: one page that has records settles it
        for index, record in enumerate(records):
            if (int(record.sequence_number), record.sub_sequence_number) > done:
                return records[index:] if index else records
        return ()

    def _judge_resume(self, page: Page[R]) -> MissingRecord | None:
        """Judge the page behind a new iterator; None where the record is there, or the page does not tell."""
        skip = self._skip_through
        if skip is None:
            return None
        is_last = page.next_iterator is None
        check = check_resume(
            skip, page.first_sequence_number, at_end=page.millis_behind_latest == 0 or is_last
        )
        if check is not ResumeCheck.TRIMMED:
            return None
        retention_s = self.options.retention_s
        return judge_missing_record(
            skip,
            tip_ms=None if page.service_ms is None or retention_s is None else self.tip_ms,
            is_foreign=self._is_foreign,
            now_ms=page.service_ms or 0,
            retention_ms=int((retention_s or 0) * 1000),
            is_open_and_empty=page.first_sequence_number is None and not is_last,
        )

    def _is_doubtful(self, page: Page[R]) -> bool:
        # A record that reading is to go on at is seldom missing: an empty answer is asked for again before it counts.
        is_empty = page.first_sequence_number is None and page.next_iterator is not None
        return is_empty and self._doubts < _DOUBTS_MAX

    def _missing(self, page: Page[R]) -> str:
        found = page.first_sequence_number or "nothing"
        return (
            f"stream {self.stream}, shard {self.shard_id}: the record at {self._skip_through}, up to which everything is "
            f"done, is no longer in the stream (the first one found: {found})"
        )

    def _loss(self, page: Page[R]) -> PossibleLoss:
        return PossibleLoss(
            DataLossError(
                f"{self._missing(page)}. Records after it may have passed the retention unread: nobody was at the shard's "
                "tip since. Set on_data_loss='warn' to go on from there; raise the stream's retention to have more time"
            )
        )

    def _on_last_page(self, page: Page[R], is_progress: bool, now_s: float, chance: float) -> None:
        if page.children:
            self._final = Finished(page.children)
            return
        # No iterator and no children: perhaps a faulty answer. It is read again from the last record.
        self._ends_unconfirmed = 1 if is_progress else self._ends_unconfirmed + 1
        if self._ends_unconfirmed >= _END_UNCONFIRMED_MAX:
            self._listing_reason = "the last page names no children"
        self._back_off(now_s, chance, self._ends_unconfirmed)

    def _pace(self, page: Page[R], started_s: float) -> None:
        spacing_s = self.options.spacing_s
        bytes_s = page.read_bytes / self.options.read_bytes_per_s_max
        if page.last_sequence_number is not None or page.millis_behind_latest > 0:
            self._quiet_reads = 0
            pause_s = spacing_s
            self._pause = Pause.SPACING
        else:
            self._quiet_reads += 1
            doubled_s = spacing_s * 2 ** min(self._quiet_reads, 16)
            pause_s = max(spacing_s, min(doubled_s, self.options.idle_time_between_reads_s))
            self._pause = Pause.IDLE
        if bytes_s > pause_s:
            self._pause = Pause.BYTES
        self._not_before_s = started_s + max(pause_s, bytes_s)

    def _back_off(self, now_s: float, chance: float, failures: int | None = None) -> None:
        count = max(1, self._failures if failures is None else failures)
        delay_s = Backoff(self.options.backoff_min_s, self.options.backoff_max_s).delay_s(count, chance)
        # Full jitter, but never sooner than calls may follow each other anyway.
        self._not_before_s = now_s + max(self.options.spacing_s, delay_s)
        self._pause = Pause.BACKOFF


def _last_sub(page: Page[R]) -> int:
    if not page.records or page.records[-1].sequence_number != page.last_sequence_number:
        return 0  # an aggregate without a single user record
    return page.records[-1].sub_sequence_number
