"""One shard while this worker reads it: its reader machine and its delivery machine under one lock.

Nothing here waits or calls a service. `advance` returns the steps to begin. The thread that has done a step passes the
result to an `on_*` method. User code reaches the machines through `acknowledge` and `acknowledge_through`.

A run ends in one of four ways, and reports its end exactly once: the shard is drained, the run has failed, it was
stopped gracefully on request, or the lease is gone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.processor import ShardProcessor
from penstock.consumer.raw_records import DeaggregatedPage, raw_bytes, records_after
from penstock.core.hash_key import HashRange
from penstock.core.leases.coordinator_effects import StartReader, StopWhy
from penstock.core.leases.coordinator_events import (
    CheckpointRequested,
    Event,
    ReaderFailed,
    ReaderProgress,
    ReaderStopped,
    ShardDrained,
)
from penstock.core.leases.held_lease_phases import describe_stop
from penstock.core.leases.lease import TipMark, keyed_shard, shard_id_of, stream_id_of
from penstock.core.position import Position, at_record
from penstock.core.reading.delivery import ShardDelivery
from penstock.core.reading.delivery_calls import (
    Call,
    CallKind,
    DeliveryOptions,
    Halve,
    Phase,
    Repeat,
    SendToDeadLetter,
    StopDelivery,
    Verdict,
)
from penstock.core.reading.lag import ArrivalMarks, age_ms
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import (
    Failed,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    ListedShard,
    Wait,
)
from penstock.core.reading.record import Record, record_bytes_of
from penstock.core.reading.service_clock import ServiceClock
from penstock.core.reading.shard_reader import ShardReader
from penstock.core.sparse_reports import is_reported
from penstock.errors import DataLossError, LeaseLost, PenstockError, Throttled
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import RawRecord, RecordPage
from penstock.ports.metrics import Metrics
from penstock.runtime.thread_pull import IterationEnded
from penstock.runtime.user_code import UnusableHandlerError

log: logging.Logger = logging.getLogger("penstock.consumer")

READ_FAILURES_REPORTED: Final = 5
"""Number of failed reads in a row after which a warning is logged."""
LOST_GRACE_S: Final = 2.0
"""Time after the loss of the lease in which calls under way may still acknowledge. Then the run reports its end."""


class Deaggregate(Struct, frozen=True):
    """A step: deaggregate fetched records as far as there is room."""


Fetch: TypeAlias = FetchIterator | FetchPage | FetchListing | Deaggregate


class Plan(Struct, frozen=True):
    """The steps that a run plans now.

    Args:
        fetch: A call to the service, or None.
        calls: Calls of user code to begin.
        events: Events for the coordinator.
        is_starved: Whether the run would read if all shards of the process together held fewer bytes.
        is_over: Whether the run has ended and can be dropped.
    """

    fetch: Fetch | None = None
    calls: Sequence[Call] = ()
    events: Sequence[Event] = ()
    is_starved: bool = False
    is_over: bool = False


class _FetchPlan(NamedTuple):
    """The next step of reading. If `fetch` is None: when to plan again, and whether reading waits for memory."""

    fetch: Fetch | None = None
    wake_s: float | None = None
    is_starved: bool = False


class ShardRun:
    """Reads one shard and delivers its records to user code. Every public method takes the lock.

    Args:
        stream: Name or ARN, for messages and records.
        start: The coordinator's command: shard, epoch, position, deadline.
        is_checkpoint_urgent: Whether automatic checkpoints are written at once; else with the next renewal.
        processor: The user code of the shard.
    """

    def __init__(
        self,
        stream: str,
        start: StartReader,
        *,
        reader_options: ReaderOptions,
        delivery_options: DeliveryOptions,
        is_checkpoint_urgent: bool,
        clock: Clock,
        chance: Chance,
        metrics: Metrics,
        processor: ShardProcessor,
    ) -> None:
        self.key: str = start.key
        self.epoch: int = start.epoch
        self.stream = stream
        self.shard_id: str = shard_id_of(start.key)
        self.hash_range: HashRange | None = start.lease.hash_range
        self.processor = processor
        self._stream_id = stream_id_of(start.key)
        stream_label = {"stream": stream} if self._stream_id else {}
        self.labels: dict[str, str] = {"shard": self.shard_id, **stream_label}
        self.lock: threading.RLock = threading.RLock()
        self._clock, self._chance, self._metrics = clock, chance, metrics
        # Set by the loop.
        self.is_paused = False  # nothing is read, and no call of user code begins
        self.is_reported = False  # the coordinator has the run's last event
        self.wake_s: float | None = None
        # Reading: the reader's Kinesis records wait until there is room for delivery, and are deaggregated then.
        self._reader = ShardReader(
            stream,
            self.shard_id,
            start.position,
            reader_options,
            tip_ms=start.lease.tip_ms_at(start.position),
            is_foreign=start.lease.has_foreign_checkpoint and start.position == start.lease.checkpoint,
        )
        self._is_fetching = False  # a planned read, or a deaggregation, is under way
        self._read_error: PenstockError | None = None  # of the last failed read
        self._raw_records: deque[RawRecord] = deque()
        self._raw_bytes = 0
        self._has_dropped = False  # Kinesis records were dropped, so the reader stays ahead of delivery
        self._has_deaggregation_failed = False
        # Delivery.
        self._start = start.position
        self._taken_through = start.position  # the last record that was passed to delivery
        self._delivery = ShardDelivery(
            f"{start.key} of stream {self.stream}", start.position, delivery_options
        )
        self._deliver_until_s = start.deliver_until_s
        # Checkpoints.
        self._is_checkpoint_urgent = is_checkpoint_urgent
        self._durable_through = start.position  # the last checkpoint that is written
        self._awaited_checkpoints: list[PendingCheckpoint] = []  # checkpoints for which callers wait
        # The end of the run.
        self._stop_why: StopWhy | None = None
        self._grace_until_s: float | None = None  # after a loss: until then calls may acknowledge
        self._has_reported_end = False  # the last event is planned
        self.failure: PenstockError | None = None  # of the shard
        self.worker_failure: PenstockError | None = None  # of a call, which stops the whole worker
        # Lag and progress.
        self._arrivals = ArrivalMarks()
        self._lost_arrival_s: float | None = None  # arrival of the first record after a loss
        self._service_clock = ServiceClock()
        self._done_bytes = 0  # since the last `take_progress`, which was at `_done_since_s`
        self._done_since_s = self._progress_s = clock.monotonic_s()
        self._progress_text = ""  # the positions read and done at the last progress

    # --- state ---

    @property
    def may_deliver(self) -> bool:
        """Whether the lease is certainly this worker's now. Takes no lock: a paused thread must see it at once."""
        return self._grace_until_s is None and self._clock.monotonic_s() < self._deliver_until_s

    @property
    def is_stopping(self) -> bool:
        """Whether the coordinator asked the run to stop."""
        return self._stop_why is not None

    @property
    def waiting_bytes(self) -> int:
        """Memory for fetched records that are not done."""
        return self._delivery.waiting_bytes + self._raw_bytes

    @property
    def is_at_rest(self) -> bool:
        """Whether no call of user code is under way or due for records that were read."""
        with self.lock:
            return self._delivery.is_at_rest and not self._raw_records

    @property
    def is_acknowledged(self) -> bool:
        """Whether everything that was read is acknowledged."""
        with self.lock:
            return self._delivery.is_acknowledged

    @property
    def last_delivered(self) -> Position:
        """The newest record that user code was given."""
        return self._delivery.last_delivered

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone or the run has reported its end: no later checkpoint is sure to be stored."""
        return self._grace_until_s is not None or self._has_reported_end

    @property
    def _is_leaving(self) -> bool:
        # From now on nothing is read, and the answer of a read under way is dropped.
        return self._delivery.phase is not Phase.RUNNING or self._has_reported_end

    # --- planning ---

    def advance(self, now_s: float, has_room: bool) -> Plan:
        """Return the steps to do now, and set `wake_s`. From now on the steps count as under way."""
        with self.lock:
            reading = self._plan_fetch(now_s, has_room)
            calls = self._plan_calls(now_s)
            events = self._plan_checkpoint(now_s)
            events += self._plan_last_event(now_s)
            times = [
                reading.wake_s,
                self._delivery.next_wake_s(may_call=not self.is_paused),
                self._grace_until_s if not self._has_reported_end else None,
            ]
            self.wake_s = min((time_s for time_s in times if time_s is not None), default=None)
            is_over = self._has_reported_end and self._delivery.is_stopped and not calls
            return Plan(reading.fetch, calls, events, reading.is_starved, is_over)

    def _plan_fetch(self, now_s: float, has_room: bool) -> _FetchPlan:
        if self._is_leaving:
            self._drop_raw_records()
        if self._is_leaving or self._is_fetching or self.is_paused:
            return _FetchPlan()
        step = self._reader.plan_step(now_s, self.waiting_bytes, has_room)
        if self._raw_records and not (self._has_deaggregation_failed and isinstance(step, Failed)):
            return self._plan_deaggregation(now_s, has_room)
        match step:
            case Wait(until_s):
                return _FetchPlan(wake_s=until_s, is_starved=not has_room)
            case Finished(children):
                if self._delivery.children is None:
                    self._delivery.on_shard_end(children)
                return _FetchPlan()
            case Failed(error):
                self._drop_raw_records()
                self.failure = error
                return _FetchPlan()
            case _:
                self._is_fetching = True
                return _FetchPlan(step)

    def _plan_deaggregation(self, now_s: float, has_room: bool) -> _FetchPlan:
        # The pause after a failure is not always in the reader's next step: after the last page that step is `Finished`.
        if self._has_deaggregation_failed and now_s < self._reader.paused_until_s:
            return _FetchPlan(wake_s=self._reader.paused_until_s)
        if self._deaggregation_room_bytes(has_room) <= 0:
            return _FetchPlan(is_starved=not has_room)
        self._is_fetching = True
        return _FetchPlan(Deaggregate())

    def _deaggregation_room_bytes(self, has_room: bool) -> int:
        """Return how many bytes of records may be deaggregated. This is above 0 if no record waits for delivery."""
        waiting_bytes = self._delivery.waiting_bytes
        room_bytes = self._reader.options.prefetch_bytes_max - waiting_bytes if has_room else 0
        return max(room_bytes, 0 if waiting_bytes else 1)

    def _drop_raw_records(self) -> None:
        self._has_dropped = self._has_dropped or bool(self._raw_records)
        self._raw_records.clear()
        self._raw_bytes = 0

    def _plan_calls(self, now_s: float) -> list[Call]:
        calls: list[Call] = []
        if self.is_paused and self._delivery.phase is Phase.RUNNING:
            return calls
        # Only the LOST call is made without the lease.
        while self._delivery.phase is Phase.LOST or now_s < self._deliver_until_s:
            call = self._delivery.take_call(now_s)
            if call is None:
                break
            calls.append(call)
        return calls

    def _plan_checkpoint(self, now_s: float) -> list[Event]:
        position = self._delivery.plan_checkpoint(now_s)
        if position is None:
            return []
        self._delivery.on_checkpoint_sent(position, now_s)
        return [CheckpointRequested(self.key, self.epoch, position, self._is_checkpoint_urgent)]

    def _plan_last_event(self, now_s: float) -> list[Event]:
        """Return the event that reports the end of the run: once, when it has ended; else no event."""
        if self._has_reported_end:
            return []
        delivery = self._delivery
        low_watermark = delivery.low_watermark if delivery.low_watermark.is_record else None
        if delivery.is_finished and delivery.children is not None:
            children = tuple(keyed_shard(self._stream_id, child) for child in delivery.children)
            return self._report_end(ShardDrained(self.key, self.epoch, children, low_watermark))
        if self._stop_why is not None:
            is_done = delivery.is_stopped
            if self._grace_until_s is not None:
                is_done = delivery.call_count == 0 or now_s >= self._grace_until_s
            stopped = ReaderStopped(self.key, self.epoch, low_watermark, self._tip())
            return self._report_end(stopped) if is_done else []
        if delivery.phase is Phase.FAILED and delivery.is_stopped:
            self.failure = delivery.failure
        elif not delivery.is_idle:
            return []  # records that were fetched before a read failed are delivered first
        if self.failure is None:
            return []
        # The lease is kept, since the next owner would fail in the same way; it is released when the worker stops.
        short = describe_stop(self.failure)
        return self._report_end(
            ReaderFailed(self.key, self.epoch, low_watermark, str(self.failure), short_reason=short)
        )

    def _report_end(self, event: Event) -> list[Event]:
        self._has_reported_end = True
        self._delivery.on_lease_lost()
        self._settle_checkpoints()
        return [event]

    # --- commands of the coordinator ---

    def extend(self, deliver_until_s: float) -> None:
        """Move the moment at which delivery must end."""
        with self.lock:
            self._deliver_until_s = max(self._deliver_until_s, deliver_until_s)

    def stop(self, why: StopWhy) -> None:
        """Begin to stop the run. When it has stopped, `advance` returns an event for the coordinator."""
        with self.lock:
            self._stop_why = why
            if why in (StopWhy.LOST, StopWhy.EXPIRED):
                self._grace_until_s = self._clock.monotonic_s() + LOST_GRACE_S
                self._delivery.on_lease_lost()
                self._settle_checkpoints()
            else:
                self._delivery.stop()

    def on_durable(self, position: Position) -> None:
        """Handle a durable checkpoint."""
        with self.lock:
            self._durable_through = max(self._durable_through, position)
            self._settle_checkpoints()

    def _settle_checkpoints(self) -> None:
        awaited, self._awaited_checkpoints = self._awaited_checkpoints, []
        for pending in awaited:
            if self._durable_through >= pending.position:
                pending.on_durable()
            elif self.is_lost:
                pending.on_lost()
            else:
                self._awaited_checkpoints.append(pending)

    # --- answers to reads ---

    def on_iterator(self, iterator: str) -> None:
        """Handle a fetched iterator."""
        with self.lock:
            self._is_fetching = False
            self._reader.on_iterator(iterator, self._clock.monotonic_s(), self._clock.wall_ms())

    def on_page(self, page: RecordPage, started_s: float) -> None:
        """Add a page of records that are not deaggregated yet; `on_deaggregated` completes the step.

        Args:
            page: The answer of the service, or an event of a subscription.
            started_s: When the call began.
        """
        with self.lock:
            now_s = self._clock.monotonic_s()
            call_ms = round((now_s - started_s) * 1000)
            service_ms = self._service_clock.on_answer(self._clock.wall_ms(), page.server_ms, call_ms)
            page = replace(page, server_ms=service_ms)
            kept = self._reader.on_page(page, started_s, now_s, self._chance.random())
            new = records_after(page.records, kept.read_through) if kept.is_accepted else ()
            if kept.warning is not None:
                log.warning(kept.warning)
            if kept.loss is not None:
                self._report_loss(kept.loss)
                if page.records and not new:
                    self._lost_arrival_s = page.records[0].arrival_s
            self._raw_records.extend(new)
            self._raw_bytes += raw_bytes(new)
            if self._is_leaving:  # the run may not be advanced again
                self._drop_raw_records()
            self._delivery.millis_behind_latest = page.millis_behind_latest

    def peek_raw_records(self, has_room: bool) -> tuple[int, Sequence[RawRecord]]:
        """Return how many bytes may be deaggregated now, and the Kinesis records that wait for it; none if there is no room."""
        with self.lock:
            room_bytes = self._deaggregation_room_bytes(has_room)
            return room_bytes, tuple(self._raw_records) if room_bytes > 0 else ()

    def on_deaggregated(self, page: DeaggregatedPage) -> None:
        """Replace the first Kinesis records by their user records."""
        with self.lock:
            self._is_fetching = False
            self._has_deaggregation_failed = page.failure is not None
            if page.failure is not None:
                self._on_read_failed(page.failure)
            if self._is_leaving:
                return
            raw_records = [self._raw_records.popleft() for _ in page.counts]
            self._raw_bytes -= raw_bytes(raw_records)
            done_count = self._done_count(page.records)
            new = page.records[done_count:] if done_count else page.records
            self._arrivals.add_all(page.counts, [raw.arrival_s for raw in raw_records], done_count)
            if new:
                self._taken_through = at_record(new[-1].sequence_number, new[-1].sub_sequence_number)
            self._delivery.add(new, self._delivery.millis_behind_latest)
            if page.skipped_through is not None:
                self._delivery.skip(page.skipped_through, self._clock.monotonic_s())

    def _done_count(self, records: Sequence[Record]) -> int:
        """Return how many of these records were done before this run, which may begin inside an aggregate.

        Only the records of that aggregate can have been done before.
        """
        start = self._start
        if start.sequence_number is None or self._taken_through != start:
            return 0
        done = (int(start.sequence_number), start.sub_sequence_number)
        return next(
            (
                place
                for place, record in enumerate(records)
                if (int(record.sequence_number), record.sub_sequence_number) > done
            ),
            len(records),
        )

    def on_listing(self, listed_shard: ListedShard) -> None:
        """Handle the result of a listing."""
        with self.lock:
            self._is_fetching = False
            loss = self._reader.on_listing(listed_shard, self._clock.monotonic_s(), self._chance.random())
            if loss is not None:
                self._report_loss(loss)

    def on_fetch_failed(self, error: PenstockError) -> None:
        """Handle a failed call to the service, or an unexpected failure of deaggregation."""
        with self.lock:
            self._is_fetching = False
            # While there are raw records, deaggregation is the only step: so it has failed.
            self._has_deaggregation_failed = bool(self._raw_records)
            self._on_read_failed(error)

    def _on_read_failed(self, error: PenstockError) -> None:
        self._reader.on_failure(error, self._clock.monotonic_s(), self._chance.random())
        failures = self._reader.failure_count
        self._read_error = error
        self._metrics.count("read_failures", 1, {"error": type(error).__name__})
        level = logging.WARNING if is_reported(failures, READ_FAILURES_REPORTED) else logging.DEBUG
        log.log(level, "shard %s: reading failed %d times in a row: %s", self.key, failures, error)

    def on_fetch_skipped(self) -> None:
        """Handle a planned call that was not made, because all shards together have reached the memory limit."""
        with self.lock:
            self._is_fetching = False

    def on_source_changed(self, options: ReaderOptions) -> None:
        """Change the source, polling or subscription, instead of making the planned call."""
        with self.lock:
            self._is_fetching = False
            self._reader.change_source(options, self._clock.monotonic_s())

    def _report_loss(self, loss: DataLossError) -> None:
        self._metrics.count("possible_data_loss", 1, self.labels)
        if self._reader.has_ended:
            log.debug(str(loss))  # the shard stops, and reports the reason
        else:
            log.error(str(loss))

    # --- results of calls of user code ---

    def on_not_begun(self, call: Call) -> None:
        """Handle a call that was not begun, because the time to deliver had run out."""
        with self.lock:
            self._delivery.on_not_begun(call.id)

    def on_returned(self, call: Call) -> None:
        """Handle a call of user code that returned."""
        size_bytes = 0
        if call.kind is CallKind.BATCH:
            size_bytes = record_bytes_of(call.records)
            self._metrics.count("records", len(call.records), self.labels)
            self._metrics.count("bytes", size_bytes, self.labels)
        elif call.kind is CallKind.DEAD_LETTER:
            self._metrics.count("dead_letters", len(call.records), self.labels)
        with self.lock:
            self._done_bytes += size_bytes
            self._on_verdict(call, self._delivery.on_returned(call.id, self._clock.monotonic_s()), None)

    def on_raised(self, call: Call, error: BaseException) -> None:
        """Handle a call of user code that raised."""
        self._metrics.count("handler_failures", 1, self.labels)
        with self.lock:
            verdict = self._delivery.on_raised(
                call.id, error, self._clock.monotonic_s(), self._chance.random()
            )
            self._on_verdict(call, verdict, error)

    def _on_verdict(self, call: Call, verdict: Verdict | None, error: BaseException | None) -> None:
        if isinstance(error, IterationEnded | UnusableHandlerError):
            log.debug("shard %s: %s; it is delivered again", self.key, error)
            return
        where = (
            f"stream {self.stream}, shard {self.shard_id}, {call.kind.name} of {len(call.records)} records"
        )
        match verdict:
            case Repeat(at_s, attempt):
                wait_s = at_s - self._clock.monotonic_s()
                log.warning("%s failed; attempt %d follows in %.1f s", where, attempt, wait_s, exc_info=error)
            case Halve():
                log.warning("%s failed for good; looking for the record that fails", where)
            case SendToDeadLetter():
                log.error("%s failed for good and goes to the dead letters", where, exc_info=error)
            case StopDelivery(scope, failure):
                log.error("%s; the %s stops", failure, scope, exc_info=error)
                if scope == "worker":
                    self.worker_failure = failure
            case None if error is not None:
                log.warning(
                    "%s failed while the shard was leaving; it is delivered again elsewhere",
                    where,
                    exc_info=error,
                )

    # --- acknowledgements and checkpoints of user code ---

    def acknowledge(self, records: Sequence[Record], ordinals: Sequence[int]) -> None:
        """Mark records as done."""
        with self.lock:
            self._delivery.acknowledge(records, ordinals, self._clock.monotonic_s())

    def acknowledge_through(self, position: Position, ordinal: int | None = None) -> None:
        """Mark everything up to and including a position as done."""
        with self.lock:
            self._delivery.acknowledge_through(position, self._clock.monotonic_s(), ordinal)

    def request_checkpoint(self, timeout_s: float) -> tuple[PendingCheckpoint, Event | None]:
        """Return a checkpoint to wait for, and the event that requests it; no event if the checkpoint is durable already.

        Args:
            timeout_s: How long the caller may wait.

        Raises:
            LeaseLost: The shard is another worker's now.
        """
        with self.lock:
            now_s = self._clock.monotonic_s()
            position = self._delivery.low_watermark
            pending = PendingCheckpoint(self.stream, self.shard_id, position, timeout_s)
            if self._durable_through >= position:
                pending.on_durable()
                return pending, None
            if self.is_lost:
                raise LeaseLost(
                    f"stream {self.stream}, shard {self.shard_id}: the lease is not this worker's any more; "
                    f"{position} was not checkpointed and is delivered again by the shard's next reader"
                )
            self._awaited_checkpoints.append(pending)
            self._delivery.on_checkpoint_sent(position, now_s)
            return pending, CheckpointRequested(self.key, self.epoch, position, urgent=True)

    # --- figures ---

    @property
    def read_failure(self) -> PenstockError | None:
        """The error of reads that keep failing; None if reads succeed or are only throttled."""
        with self.lock:
            many = self._reader.failure_count >= READ_FAILURES_REPORTED
            return self._read_error if many and not isinstance(self._read_error, Throttled) else None

    @property
    def last_read_failure(self) -> PenstockError | None:
        """The error of the last read; None if it succeeded."""
        with self.lock:
            return self._read_error if self._reader.failure_count else None

    def without_progress_s(self, now_s: float) -> float:
        """Return for how long the shard has been behind without progress, as of the last `take_progress`."""
        with self.lock:
            return now_s - self._progress_s

    def lag_ms(self, now_s: float) -> int | None:
        """Return the age of the oldest record that is not done, as far as known; None before the first answer.

        If every record read so far is done, return the lag of reading. The lag of a stopped shard goes on growing.
        """
        with self.lock:
            arrival_s = self._arrivals.oldest_arrival_s(self._delivery.done_count)
            if arrival_s is None and self._raw_records:
                arrival_s = self._raw_records[0].arrival_s
            if arrival_s is None:
                arrival_s = self._lost_arrival_s
            if arrival_s is None:
                return self._reader.lag_ms(now_s)
            return age_ms(arrival_s, self._service_clock.now_ms(self._clock.wall_ms()))

    def take_progress(self, now_s: float) -> ReaderProgress | None:
        """Return the progress since the last call, for the coordinator; None once the run has reported its end."""
        with self.lock:
            if self._has_reported_end:
                return None
            lag_ms = self.lag_ms(now_s)
            passed_s = max(now_s - self._done_since_s, 1e-3)
            throughput_kbps = self._done_bytes / 1024 / passed_s
            self._done_bytes, self._done_since_s = 0, now_s
            progress_text = self._describe_progress()
            if self.is_paused:
                progress_text += f" paused {now_s}"  # a paused shard does not count as stuck
            if progress_text != self._progress_text or lag_ms == 0:
                self._progress_text, self._progress_s = progress_text, now_s
            tip = self._tip()
        return ReaderProgress(self.key, self.epoch, progress_text, lag_ms, throughput_kbps, tip)

    def _describe_progress(self) -> str:
        delivery = self._delivery
        # Reading goes on for a while behind a call of user code that does not return, and is no progress then.
        if delivery.is_idle:
            place = str(self._reader.position)
        else:
            place = str(delivery.last_delivered) if delivery.options.checkpointing == "manual" else ""
        return f"{place} {delivery.low_watermark}"

    def _tip(self) -> TipMark | None:
        """Return the last done position and a moment at which no record followed it; None if fetched records are not done."""
        done, tip_ms = self._delivery.low_watermark, self._reader.tip_ms
        is_all_done = done.is_record and done >= self._taken_through and not self._raw_records
        return TipMark(done, tip_ms) if is_all_done and not self._has_dropped and tip_ms is not None else None
