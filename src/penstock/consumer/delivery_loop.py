"""The loop that reads shards and delivers their records: one thread for hundreds of shards, with two small pools.

It owns a run (`penstock.consumer.shard_run`) for each shard that this worker reads. It advances a run after an event or when
the run is due, and gives the planned steps to the pools. A `MemoryBudget` bounds the bytes that all runs hold together.

The deadline of a lease is checked three times: when a call is planned, when a thread begins it, and when user code
asks `batch.is_owned`. So a process that was suspended delivers nothing if it has lost its leases meanwhile.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from typing import Final, TypeAlias

from penstock.consumer.budget import MemoryBudget
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.fetching import ReadingParts
from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.processor import DeadLetterHandler, StreamProcessorFactory, failure_of
from penstock.consumer.records import Batch
from penstock.consumer.shard_run import Fetch, ShardRun
from penstock.consumer.stopped import StoppedShards
from penstock.consumer.stream_argument import ConsumedStream
from penstock.consumer.stream_reading import StreamReading
from penstock.core.leases.coordinator_effects import ExtendDelivery, StartReader, StopReader, StopWhy
from penstock.core.leases.coordinator_events import CheckpointRequested, Event, ReaderFailed, ReaderStopped
from penstock.core.leases.held_lease_phases import HeldLeaseStatus, is_standstill, stop_reason
from penstock.core.leases.lease import stream_id_of
from penstock.core.position import Position
from penstock.core.reading.delivery_calls import Call, CallKind
from penstock.core.reading.paused_shards import PausedShards
from penstock.core.reading.record import Record
from penstock.errors import HandlerFailed, PenstockError
from penstock.ports.metrics import ForgettingMetrics
from penstock.runtime.home_process import HomeProcess
from penstock.runtime.lease_loop import LeaseLoop
from penstock.runtime.loop import Loop
from penstock.runtime.subscriptions import Subscriptions
from penstock.runtime.user_code import UnusableHandlerError, examinable_error, unrun_code_error
from penstock.runtime.worker_ports import Pools, WorkerPorts

log: logging.Logger = logging.getLogger("penstock.consumer")

STOPPED_REPORT_S: Final = 60.0
"""Time between two log lines about a shard that stopped for a failure, while this worker holds its lease."""


STANDSTILL_ROUNDS: Final = 1.5
_FIRST_CHECK_S: Final = 1.0  # after a shard stopped, so that the coordinator has handled it

_CALLS_HELD_BY_PAUSE: Final = (CallKind.START, CallKind.BATCH, CallKind.DEAD_LETTER, CallKind.END)

MEASURE_INTERVAL_S: Final = 300.0
"""Time between two requests for the number of a stream's open shards, which only a metric needs."""


_Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]  # a gauge's name and labels


class DeliveryLoop(Loop[ShardRun]):
    """Advances the runs of the shards that this worker reads, and has the pools do the steps that they plan.

    Args:
        streams: The streams whose shards are read.
        subscriptions: The subscriptions of each stream that may be read by enhanced fan-out, by stream id.
        leases: The loop that owns the coordinator; it gets the runs' events.
        processor_factory: Makes the user code of one shard.
        dead_letter: Called with records that failed for good, if that is the policy.
        is_lifecycle_called: Whether user code is also called when a shard starts, ends, stops or is lost.
        on_worker_failure: Called when a failure must stop the whole worker.
        on_standstill: Called when no held lease can progress in two checks in a row; None: never called. Between the checks
            the worker has time to acquire other leases.
        home: The process in which these threads run.
        on_checkpoint_begun: Called when user code is about to wait for a checkpoint.
    """

    def __init__(
        self,
        *,
        streams: Sequence[ConsumedStream],
        subscriptions: Mapping[str, Subscriptions],
        leases: LeaseLoop,
        options: ConsumerOptions,
        ports: WorkerPorts,
        pools: Pools,
        processor_factory: StreamProcessorFactory,
        dead_letter: DeadLetterHandler | None,
        is_lifecycle_called: bool,
        on_worker_failure: Callable[[PenstockError], None],
        on_standstill: Callable[[], None] | None,
        home: HomeProcess,
        on_checkpoint_begun: Callable[[PendingCheckpoint], None],
    ) -> None:
        super().__init__()
        self._leases = leases
        self._delivery_options = options.delivery_options(is_lifecycle_called)
        self._processor_factory = processor_factory
        self._dead_letter = dead_letter
        timing = options.coordinator_options()
        self._progress_interval_s = timing.renew_interval_s  # a checkpoint waits no longer for a renewal
        self._standstill_after_s = STANDSTILL_ROUNDS * timing.interval_s
        self._checkpoint_timeout_s = options.lease_duration_s
        clock = self._clock = ports.clock
        self._chance = ports.chance
        self._metrics = ports.metrics
        self._pools = pools
        self._on_worker_failure = on_worker_failure
        self._on_standstill = on_standstill
        self._home = home
        self._on_checkpoint_begun = on_checkpoint_begun
        self._budget = MemoryBudget(options.buffer_bytes_max)
        parts = ReadingParts(ports, pools.call, lambda: self._budget.has_room, self._on_run_answered)
        self._streams = {
            stream.stream_id: StreamReading(stream, parts, options, subscriptions.get(stream.stream_id))
            for stream in streams
        }
        self._runs: dict[tuple[str, int], ShardRun] = {}  # by key and epoch
        self._runs_lock = threading.Lock()
        self._calling = threading.local()  # `is_inside` on a thread that runs user code
        self._current_runs: dict[str, ShardRun] = {}  # the run that is advanced, by shard
        self._waiting_runs: dict[str, list[ShardRun]] = {}  # they wait for the current one's end, by shard
        self._scheduled: dict[ShardRun, float] = {}  # when a run is advanced if no event arrives before
        self._timers: list[tuple[float, int, ShardRun]] = []  # a heap of these moments, earlier ones too
        self._timer_ids = count()  # decides between runs that are due at one moment: they cannot be compared
        self._starved_runs: set[ShardRun] = set()  # reading waits for memory
        self._progress_due_s = clock.monotonic_s() + self._progress_interval_s
        self._unread_report_due_s = clock.monotonic_s() + STOPPED_REPORT_S
        self._measure_due_s = clock.monotonic_s()  # of the streams' open shards
        self._standstill_check_due_s = math.inf  # while no shard has stopped
        # The held leases at the last check, if none could progress.
        self._stuck_leases: frozenset[tuple[str, int]] | None = None
        self._gauges_set: set[_Series] = set()  # by the last report
        self._paused = PausedShards()
        self.stopped: StoppedShards = StoppedShards()

    # --- effects of the coordinator; called from the lease loop's thread ---

    def start_reader(self, effect: StartReader) -> None:
        options, reading = self._delivery_options, self._reading_of(effect.key)
        run = ShardRun(
            reading.stream.name,
            reading.with_moment(effect),
            reader_options=reading.reader_options,
            delivery_options=options,
            is_checkpoint_urgent=options.checkpoint_interval_s < self._progress_interval_s,
            clock=self._clock,
            chance=self._chance,
            metrics=self._metrics,
            processor=self._processor_factory(reading.stream.name),
        )
        self._budget.add(run)
        with self._runs_lock:
            run.is_paused = effect.key in self._paused
            self._runs[(effect.key, effect.epoch)] = run
        self.stopped.drop(effect.key)
        self.post(run)

    def _reading_of(self, key: str) -> StreamReading:
        return self._streams[stream_id_of(key)]

    def extend_delivery(self, effect: ExtendDelivery) -> None:
        run = self._find_run(effect.key, effect.epoch)
        if run is not None:
            is_woken = not run.may_deliver
            run.extend(effect.deliver_until_s)
            if is_woken:
                self.post(run)

    def stop_reader(self, effect: StopReader) -> None:
        """Begin to stop reading a shard. The coordinator gets an event when that is done."""
        run = self._find_run(effect.key, effect.epoch)
        if run is None:
            # Stopped before its start was handled: the coordinator still needs the answer.
            self._leases.post(ReaderStopped(effect.key, effect.epoch, None))
            return
        run.stop(effect.why)
        self.post(run)

    def on_checkpoint_written(self, key: str, epoch: int, position: Position) -> None:
        run = self._find_run(key, epoch)
        if run is not None:
            run.on_durable(position)

    def live_readers(self) -> frozenset[tuple[str, int]]:
        with self._runs_lock:
            return frozenset(place for place, run in self._runs.items() if not run.is_reported)

    def abandon(self) -> None:
        """End all delivery at once, because the worker has lost control of its leases."""
        with self._runs_lock:
            runs = list(self._runs.values())
        for run in runs:
            run.stop(StopWhy.LOST)

    def set_paused(self, shard_ids: Collection[str], *, is_paused: bool) -> None:
        """Pause or resume these shards, or all if none is named. Leases are kept, and calls under way are finished."""
        with self._runs_lock:
            self._paused.set_paused(shard_ids, is_paused=is_paused)
            runs = list(self._runs.values())
            for run in runs:
                run.is_paused = run.key in self._paused
        for run in runs:
            self.post(run)

    def _find_run(self, key: str, epoch: int) -> ShardRun | None:
        with self._runs_lock:
            return self._runs.get((key, epoch))

    # --- the loop ---

    def handle_events(self, events: list[ShardRun], now_s: float) -> None:
        """Advance every run that has an event or is due."""
        touched = dict.fromkeys(events)
        while self._timers and self._timers[0][0] <= now_s:
            due_s, _, run = heapq.heappop(self._timers)
            if self._scheduled.get(run) == due_s:  # else it was rescheduled since
                del self._scheduled[run]
                touched[run] = None
        for run in touched:
            self._advance(run, now_s)
        if self._starved_runs and self._budget.has_room:
            starved, self._starved_runs = self._starved_runs, set()
            for run in starved:
                self._advance(run, now_s)
        if now_s >= self._standstill_check_due_s:
            self._check_standstill(now_s)
        if now_s >= self._progress_due_s:
            self._report_progress(now_s)

    def next_wake_s(self) -> float | None:
        due_s = min(self._progress_due_s, self._standstill_check_due_s)
        return min(self._timers[0][0], due_s) if self._timers else due_s

    def _advance(self, run: ShardRun, now_s: float) -> None:
        if not self._make_current(run):
            return
        plan = run.advance(now_s, self._budget.has_room)
        self._budget.update(run)
        if plan.fetch is not None:
            self._pools.read.submit(partial(self._fetch, run, plan.fetch))
        for call in plan.calls:
            self._pools.handler.submit(partial(self._run_call, run, call))
        if plan.is_starved:
            self._starved_runs.add(run)
        for event in plan.events:
            self._report(run, event)
        if plan.is_over:
            self._end_run(run)
        elif plan.events:
            self.post(run)  # after an answer a last call of user code may be due
        self._schedule(run)

    def _schedule(self, run: ShardRun) -> None:
        if run.wake_s is None:
            self._scheduled.pop(run, None)
        elif self._scheduled.get(run) != run.wake_s:
            self._scheduled[run] = run.wake_s
            heapq.heappush(self._timers, (run.wake_s, next(self._timer_ids), run))

    def _make_current(self, run: ShardRun) -> bool:
        """Make a run its shard's current one; return False if an earlier run of the shard has not ended.

        A worker may lose a lease and get it back at once, and calls of user code for one shard must not overlap. So this run is
        queued, or ended if it is to stop.
        """
        if self._find_run(run.key, run.epoch) is not run:
            return False  # it has ended; a late answer posted it again
        current = self._current_runs.setdefault(run.key, run)
        if current is run:
            return True
        queue = self._waiting_runs.setdefault(run.key, [])
        if run.is_stopping:  # stopped before its first step: no call is under way
            self._report(run, ReaderStopped(run.key, run.epoch, None))
            self._drop_run(run)
            if run in queue:
                queue.remove(run)
        elif run not in queue:
            queue.append(run)
        return False

    def _report(self, run: ShardRun, event: Event) -> None:
        """Post an event of a run to the coordinator. Every event except a requested checkpoint is the run's last: end its subscription first."""
        if not isinstance(event, CheckpointRequested):
            self._reading_of(run.key).end_subscription(run)
        self._leases.post(event)
        if isinstance(event, CheckpointRequested):
            return
        run.is_reported = True
        if isinstance(event, ReaderFailed) and run.failure is not None:
            self._metrics.count("shard_stops", 1, run.labels)
            self.stopped.add(run)
            now_s = self._clock.monotonic_s()
            self._standstill_check_due_s = now_s + min(_FIRST_CHECK_S, self._standstill_after_s)
            self._progress_due_s = now_s  # the gauges show it at once
            where = "" if event.position is None else f" at {event.position}"
            log.error("stream %s, shard %s stops%s: %s", run.stream, run.key, where, run.failure)
            if run.worker_failure is not None:
                self._on_worker_failure(run.worker_failure)

    def _drop_run(self, run: ShardRun) -> None:
        with self._runs_lock:
            self._runs.pop((run.key, run.epoch), None)
        self._budget.remove(run)

    def _end_run(self, run: ShardRun) -> None:
        self._drop_run(run)
        self._starved_runs.discard(run)
        run.wake_s = None
        self._current_runs.pop(run.key, None)
        queue = self._waiting_runs.pop(run.key, [])
        for follower in queue:
            self.post(follower)

    def _report_progress(self, now_s: float) -> None:
        self._progress_due_s = now_s + self._progress_interval_s
        with self._runs_lock:
            runs = list(self._runs.values())
        for run in runs:
            news = run.take_progress(now_s)
            if news is not None:
                self._leases.post(news)
        self._set_shard_gauges(runs, self._leases.snapshot().held_leases, now_s)
        if now_s >= self._measure_due_s:
            self._measure_due_s = now_s + MEASURE_INTERVAL_S * (0.5 + self._chance.random())
            for reading in self._streams.values():
                self._pools.read.submit(reading.measure_open_shards)
        if now_s >= self._unread_report_due_s:
            self._unread_report_due_s = now_s + STOPPED_REPORT_S
            self._report_unread_shards(runs)

    def _report_unread_shards(self, runs: Sequence[ShardRun]) -> None:
        for key, queue in self._waiting_runs.items():
            if queue:
                log.error(
                    "shard %s is held and not read: an earlier call of the handler for it does not return",
                    key,
                )
        for run in runs:
            read_failure = run.read_failure
            if read_failure is not None:
                log.error("shard %s cannot be read: %s", run.key, read_failure)
        for key, failure in self.stopped.failures.items():
            log.error("shard %s is still stopped; restart once it can go on: %s", key, failure)

    def _set_shard_gauges(
        self, runs: Sequence[ShardRun], held_leases: Sequence[HeldLeaseStatus], now_s: float
    ) -> None:
        """Set the gauges of the shards that this worker holds, and remove those of other shards."""
        self.stopped.forget_released(held_leases)
        stopped = self.stopped.runs()
        self._metrics.gauge("stopped_shards", len(stopped))
        self._metrics.gauge("paused_shards", sum(run.is_paused and not run.is_reported for run in runs))
        self._metrics.gauge("worker_leases", len(held_leases))  # known also while the table cannot be read
        shown: set[_Series] = set()
        for run in [*runs, *stopped]:
            lag_ms = run.lag_ms(now_s)
            if lag_ms is not None and (run.failure is not None or not run.is_lost):
                self._metrics.gauge("millis_behind_latest", lag_ms, run.labels)
                shown.add(("millis_behind_latest", tuple(run.labels.items())))
        for run in stopped:
            reason = "" if run.failure is None else stop_reason(run.failure)
            labels = {**run.labels, "reason": reason}
            self._metrics.gauge("shard_stopped", 1, labels)
            shown.add(("shard_stopped", tuple(labels.items())))
        if isinstance(self._metrics, ForgettingMetrics):
            for name, gone in self._gauges_set - shown:
                self._metrics.forget_gauge(name, dict(gone))
        self._gauges_set = shown

    def _check_standstill(self, now_s: float) -> None:
        """Report a standstill: in two checks in a row the worker holds the same leases, and none of them can progress.

        A standstill needs a stopped shard, so the next check is planned only while there is one.
        """
        held = self._leases.snapshot().held_leases
        stuck = frozenset((lease.key, lease.epoch) for lease in held) if is_standstill(held) else None
        if stuck is not None and stuck == self._stuck_leases and self._on_standstill is not None:
            self._on_standstill()
        self._stuck_leases = stuck
        self._standstill_check_due_s = now_s + self._standstill_after_s if self.stopped else math.inf

    @property
    def has_only_stopped(self) -> bool:
        """Whether shards have stopped and none is read. Takes no lock, since a signal handler calls it."""
        return bool(self.stopped) and all(run.is_reported for run in list(self._runs.values()))

    def runs(self) -> list[ShardRun]:
        """Return the run of every shard that is read or has stopped."""
        with self._runs_lock:
            return [*self._runs.values(), *self.stopped.runs()]

    # --- reading ---

    def _fetch(self, run: ShardRun, fetch: Fetch) -> None:
        self._reading_of(run.key).fetch(run, fetch)
        self._on_run_answered(run)

    def _on_run_answered(self, run: ShardRun) -> None:
        self._budget.update(run)
        self.post(run)

    # --- user code ---

    def _run_call(self, run: ShardRun, call: Call) -> None:
        is_paused = run.is_paused and call.kind in _CALLS_HELD_BY_PAUSE
        if call.kind is not CallKind.LOST and (is_paused or not run.may_deliver):
            run.on_not_begun(call)
            self._on_run_answered(run)
            return
        self._calling.is_inside = True
        try:
            with self._home:
                result = self._call_user(run, call)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is its failure, also SystemExit
            self._on_call_ended(run, call, error)
            return
        finally:
            self._calling.is_inside = False
        # `isinstance` alone may read the attribute `__class__` of the result, which is user code and may raise.
        if issubclass(type(result), Future) and isinstance(result, Future):
            result.add_done_callback(lambda ended: self._on_call_ended(run, call, failure_of(ended)))
        else:
            self._on_call_ended(run, call, unrun_code_error(result))

    def _on_call_ended(self, run: ShardRun, call: Call, error: BaseException | None) -> None:
        if error is None:
            run.on_returned(call)
        else:
            error = examinable_error(error)
            run.on_raised(call, error)
        if isinstance(error, UnusableHandlerError):
            self._on_worker_failure(error)
        self._on_run_answered(run)

    @property
    def is_in_user_code(self) -> bool:
        return getattr(self._calling, "is_inside", False)

    def _call_user(self, run: ShardRun, call: Call) -> object:
        handle = RunHandle(run, self, self._home)
        match call.kind:
            case CallKind.BATCH:
                return run.processor.on_batch(self.make_batch(run, call, handle))
            case CallKind.DEAD_LETTER:
                if self._dead_letter is None:
                    raise HandlerFailed("on_failure='dead_letter' without a dead-letter handler")
                error = call.error or HandlerFailed("the handler failed")
                return self._dead_letter(self.make_batch(run, call, handle), error)
            case CallKind.START:
                return run.processor.on_start(run.shard_id, call.position)
            case CallKind.END:
                return run.processor.on_end(handle)
            case CallKind.STOP:
                return run.processor.on_stop(handle)
            case CallKind.LOST:
                return run.processor.on_lost()

    def make_batch(self, run: ShardRun, call: Call, handle: RunHandle) -> Batch:
        """Return the batch that passes a call's records to user code."""
        return Batch(
            run.shard_id,
            call.records,
            stream=run.stream,
            millis_behind_latest=call.millis_behind_latest,
            attempt=call.attempt,
            ordinals=call.ordinals,
            shard=handle,
            is_keyed=self._delivery_options.concurrency > 1,
        )

    def begin_checkpoint(self, run: ShardRun) -> PendingCheckpoint:
        """Request a checkpoint of the acknowledged records, and return it for waiting.

        Raises:
            LeaseLost: The shard is another worker's now.
        """
        pending, request = run.request_checkpoint(self._checkpoint_timeout_s)
        if request is not None:
            began_s = self._clock.monotonic_s()
            pending.outcome.add_done_callback(
                lambda _: self._metrics.observe("checkpoint_wait_s", self._clock.monotonic_s() - began_s)
            )
            self._leases.post(request)
            self._on_checkpoint_begun(pending)
        return pending


class RunHandle:
    """A run as user code sees it. Implements `penstock.consumer.records.ShardCheckpointer`."""

    def __init__(self, run: ShardRun, loop: DeliveryLoop, home: HomeProcess) -> None:
        self._run = run
        self._loop = loop
        self._home = home

    @property
    def may_deliver(self) -> bool:
        return self._run.may_deliver and self._home.is_here

    @property
    def last_delivered(self) -> Position:
        return self._run.last_delivered

    def acknowledge(self, records: Sequence[Record], ordinals: Sequence[int]) -> None:
        self._home.refuse_fork()
        self._run.acknowledge(records, ordinals)
        self._loop.post(self._run)

    def acknowledge_through(self, position: Position, ordinal: int | None = None) -> None:
        self._home.refuse_fork()
        self._run.acknowledge_through(position, ordinal)
        self._loop.post(self._run)

    def begin_checkpoint(self) -> PendingCheckpoint:
        self._home.refuse_fork()
        return self._loop.begin_checkpoint(self._run)

    def store_checkpoint(self) -> None:
        pending = self.begin_checkpoint()
        if wait([pending.outcome], pending.timeout_s).not_done:
            raise pending.timeout_error()
        pending.outcome.result()
