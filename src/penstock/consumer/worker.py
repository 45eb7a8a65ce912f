"""A worker: the lease loop, the delivery loop and their pools.

It is separate from `Consumer`, so that tests can drive its parts by hand, with inline pools and a virtual clock.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.delivery_loop import DeliveryLoop
from penstock.consumer.health import Health, ShardHealth, judge_health
from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.processor import DeadLetterHandler, StreamProcessorFactory
from penstock.consumer.shard_run import ShardRun
from penstock.consumer.stream_argument import ConsumedStream
from penstock.consumer.stream_reading import name_check_of
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_events import StopRequested
from penstock.core.leases.coordinator_options import CoordinatorOptions, SharedStream, cold_start_jitter_s
from penstock.core.leases.held_lease_phases import LeasePhase
from penstock.core.leases.lease import lease_key, name_run, shard_id_of, stream_id_of
from penstock.errors import PenstockError, UsageError
from penstock.runtime.home_process import HomeProcess
from penstock.runtime.lease_loop import LeaseLoop
from penstock.runtime.loop import LoopThread, ThreadPool
from penstock.runtime.subscriptions import Subscriptions
from penstock.runtime.worker_ports import Pools, WorkerPorts

log: logging.Logger = logging.getLogger("penstock.consumer")

RENEWAL_THREADS: Final = 16
"""Renewals in flight at once. A thousand leases are renewed 370 times a second: with calls of 40 ms that is 15 of them. Threads
start when they are needed, so a consumer of few shards has few."""
_CALL_THREADS: Final = 6
_JOIN_S: Final = 5.0
_SHARD_ID: Final = re.compile(r"shardId-[0-9]{12}")


class WorkerDriver(Protocol):
    """Runs a worker's loops and the work that they give to pools: threads in production, virtual time in `penstock.testing`."""

    @property
    def pools(self) -> Pools:
        """Where work is done."""

    def wrap_user_code(
        self, factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None
    ) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
        """Return the user code as the worker shall call it: unchanged, or wrapped in code of the driver."""

    def start(self, worker: Worker) -> None:
        """Begin to drive a worker, and return."""

    def on_checkpoint_begun(self, pending: PendingCheckpoint) -> None:
        """Handle a checkpoint that was requested: user code is about to wait for it."""


class ThreadDriver:
    """Drives a worker by threads.

    Args:
        options: Has the numbers of threads.
    """

    def __init__(self, options: ConsumerOptions) -> None:
        self.pools: Pools = Pools(
            renewal=ThreadPool("penstock-renew", RENEWAL_THREADS),
            call=ThreadPool("penstock-call", _CALL_THREADS),
            read=ThreadPool("penstock-read", options.read_threads),
            handler=ThreadPool("penstock-handle", options.handler_threads),
        )

    def wrap_user_code(
        self, factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None
    ) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
        """Return the user code unchanged."""
        return factory, dead_letter

    def start(self, worker: Worker) -> None:
        """Start the worker's threads."""
        worker.start_threads()

    def on_checkpoint_begun(self, pending: PendingCheckpoint) -> None:
        """Do nothing: the caller's thread or coroutine waits."""


def _ignore(_: PendingCheckpoint) -> None:
    """Do nothing: the default of `on_checkpoint_begun`."""


class Worker:
    """One worker: the loop that keeps its leases, and the loop that reads and delivers.

    Args:
        streams: The streams to read: one, or several that share the lease table.
        pools: The threads that do the work of the loops.
        dead_letter: Called with records that failed for good.
        is_lifecycle_called: Whether user code is also called when a shard starts, ends, stops or is lost.
        home: The process in which the worker's threads run; None: this process.
        on_checkpoint_begun: Called when user code is about to wait for a checkpoint.
    """

    def __init__(
        self,
        *,
        streams: Sequence[ConsumedStream],
        worker_id: str,
        options: ConsumerOptions,
        ports: WorkerPorts,
        pools: Pools,
        processor_factory: StreamProcessorFactory,
        dead_letter: DeadLetterHandler | None = None,
        is_lifecycle_called: bool = False,
        home: HomeProcess | None = None,
        on_checkpoint_begun: Callable[[PendingCheckpoint], None] = _ignore,
    ) -> None:
        self._stream = ", ".join(stream.name for stream in streams)
        self._streams = streams
        self._worker_id = worker_id
        self._options = options
        self._clock = ports.clock
        self._started_s = ports.clock.monotonic_s()
        self._pools = pools
        self.consumer: object = None  # set by the consumer: the threads keep it alive
        self.has_ended: threading.Event = threading.Event()
        self._is_stopping = False
        self.failure: BaseException | None = None
        common_options = replace(
            options.coordinator_options(),
            kcl3=ports.kcl3 is not None,
            # A scan of a bucket or folder reads object by object.
            scans_for_free_leases="://" not in ports.table.name,
        )
        drawn = int(ports.chance.random() * 2**32)
        self.leases: LeaseLoop = LeaseLoop(
            Coordinator(
                worker_id, options_for_streams(common_options, streams), name_run(worker_id, f"{drawn:08x}")
            ),
            {stream.stream_id: stream.name for stream in streams},
            ports,
            renewal_pool=pools.renewal,
            call_pool=pools.call,
            name_checks={
                stream.stream_id: name_check
                for stream in streams
                if (name_check := name_check_of(stream, ports.kinesis, ports.clock)) is not None
            },
        )
        self.subscriptions: dict[str, Subscriptions] = self._open_subscriptions(ports)
        self.delivery: DeliveryLoop = DeliveryLoop(
            streams=streams,
            subscriptions=self.subscriptions,
            leases=self.leases,
            options=options,
            ports=ports,
            pools=pools,
            processor_factory=processor_factory,
            dead_letter=dead_letter,
            is_lifecycle_called=is_lifecycle_called,
            on_worker_failure=self.fail,
            on_standstill=self._on_standstill if options.on_all_stopped == "stop_worker" else None,
            home=home or HomeProcess(),
            on_checkpoint_begun=on_checkpoint_begun,
        )
        self.leases.readers = self.delivery
        self.leases.on_unusable_table = self.fail

    def _open_subscriptions(self, ports: WorkerPorts) -> dict[str, Subscriptions]:
        return {
            stream.stream_id: Subscriptions(
                stream.registration,
                takeover_pause_s=self._options.takeover_pause_s,
                chance=ports.chance,
                metrics=ports.metrics,
                pool=self._pools.read,
                labels=stream.labels,
            )
            for stream in self._streams
            if stream.registration is not None
        }

    def start_threads(self) -> None:
        """Drive each loop on its own thread."""
        leases = LoopThread("penstock-leases", self.leases, self._clock, self._on_crash)
        delivery = LoopThread("penstock-delivery", self.delivery, self._clock, self._on_crash)
        watch = threading.Thread(
            target=self._watch, args=(leases, delivery), name="penstock-watch", daemon=True
        )
        pushed = [
            LoopThread("penstock-subscriptions", each, self._clock, self._on_crash)
            for each in self.subscriptions.values()
        ]
        try:
            for thread in (*pushed, delivery, leases, watch):
                thread.start()
        except BaseException as error:
            # The system has no more threads: those that were started must not take leases.
            self._on_crash(error)
            self.finish()
            raise

    @property
    def is_in_user_code(self) -> bool:
        """Whether the current thread runs a call of user code."""
        return self.delivery.is_in_user_code

    def request_stop(self) -> None:
        """Begin a graceful stop: finish calls under way, checkpoint, release; return at once."""
        if not self._is_stopping:
            self._is_stopping = True
            self.delivery.stopped.freeze()  # the shards that have stopped by now, for the report at the end
            if self.delivery.has_only_stopped:
                self._fail_at_standstill()
            self.leases.post(StopRequested())

    def _on_standstill(self) -> None:
        """Stop the worker, because it holds only stopped shards, and shards that wait for stopped parents."""
        self._fail_at_standstill()
        if self.failure is not None:
            log.critical(str(self.failure))
            self.request_stop()

    def _fail_at_standstill(self) -> None:
        if self.failure is None and self._options.on_all_stopped == "stop_worker":
            self.failure = self.delivery.stopped.make_error(self._stream, self._worker_id)

    def fail(self, failure: PenstockError) -> None:
        """Stop the worker for a failure of user code or of the lease table."""
        if self.failure is None:
            self.failure = failure
        self.request_stop()

    def set_paused(self, keys: Collection[str], *, is_paused: bool) -> None:
        """Pause or resume the shards of these leases; without keys, all shards.

        Raises:
            UsageError: A key cannot be that of a shard of these streams.
        """
        stream_ids = [stream.stream_id for stream in self._streams]
        for key in keys:
            if stream_id_of(key) not in stream_ids or not _SHARD_ID.fullmatch(shard_id_of(key)):
                forms = " or ".join(lease_key(stream_id, "shardId-<12 digits>") for stream_id in stream_ids)
                raise UsageError(
                    f"{key!r} names no shard of stream {self._stream}: expected {forms}, as health() shows it"
                )
        self.delivery.set_paused(keys, is_paused=is_paused)

    # --- health ---

    def health(self, application: str) -> Health:
        """Return the worker's health; safe from any thread."""
        now_s = self._clock.monotonic_s()
        leases = self.leases.snapshot()
        has_ended = self.has_ended.is_set()
        runs = {(run.key, run.epoch): run for run in self.delivery.runs()}
        held = [(lease.key, lease.epoch, lease.phase) for lease in leases.held_leases]
        left = [(key, epoch, LeasePhase.PARKED) for key, epoch in runs.keys() - {place[:2] for place in held}]
        shards = [self._shard_health(key, phase, runs.get((key, epoch)), now_s) for key, epoch, phase in held]
        # While the worker ends, it releases the leases of stopped shards. These shards are still reported.
        shards += [
            shard
            for key, epoch, phase in left
            if (shard := self._shard_health(key, phase, runs[(key, epoch)], now_s)).state == "stopped"
        ]
        return judge_health(
            stream=self._stream,
            application=application,
            worker_id=self._worker_id,
            failure=self.failure,
            has_ended=has_ended,
            is_stopping=self._is_stopping,
            shards=sorted(shards, key=lambda shard: shard.shard_id),
            leases=leases,
            started_s=self._started_s,
            now_s=now_s,
            lease_duration_s=self._options.lease_duration_s,
        )

    def _shard_health(self, key: str, phase: LeasePhase, run: ShardRun | None, now_s: float) -> ShardHealth:
        if phase is LeasePhase.WAITING or run is None:
            return ShardHealth(key, "waiting" if phase is LeasePhase.WAITING else "leaving")
        lag_ms = run.lag_ms(now_s)
        if run.is_reported and run.failure is not None:
            return ShardHealth(key, "stopped", lag_ms, str(run.failure))
        if phase is not LeasePhase.READING:
            return ShardHealth(key, "leaving", lag_ms)
        if run.is_paused:
            return ShardHealth(key, "paused", lag_ms)
        is_stalled = run.without_progress_s(now_s) >= self._options.stall_after_s
        failure = run.last_read_failure if is_stalled else run.read_failure
        why = None if failure is None else str(failure)
        return ShardHealth(key, "stalled" if is_stalled else "reading", lag_ms, read_failure=why)

    # --- ending ---

    def finish(self) -> None:
        """End the delivery and the pools. Called when the coordinator has stopped."""
        self.delivery.finish()
        self._end_subscriptions()
        self._pools.close()
        stopped = self.delivery.stopped.failures
        if stopped and self.failure is None:
            log.error("worker %s ends; stopped before: %s", self._worker_id, ", ".join(sorted(stopped)))
        self.has_ended.set()

    def _watch(self, leases: LoopThread, delivery: LoopThread) -> None:
        leases.join()
        self.delivery.finish()
        delivery.join(_JOIN_S)  # its internal error must be noted before the worker reports its end
        self.finish()

    def _on_crash(self, error: BaseException) -> None:
        # With only one of the loops, the worker would hold leases and read nothing, or read without leases.
        if self.failure is None:
            self.failure = error
        self.delivery.abandon()
        self.leases.finish()
        self.delivery.finish()
        self._end_subscriptions()

    def _end_subscriptions(self) -> None:
        for subscriptions in self.subscriptions.values():
            subscriptions.finish()


def options_for_streams(options: CoordinatorOptions, streams: Sequence[ConsumedStream]) -> CoordinatorOptions:
    """Return the coordinator options of a worker that reads these streams.

    Args:
        options: The options that do not depend on the streams.
        streams: At least one.
    """
    shard_counts = [stream.open_shard_count for stream in streams if stream.open_shard_count is not None]
    if len(shard_counts) == len(streams):
        jitter_s = cold_start_jitter_s(options.cold_start_jitter_s, sum(shard_counts))
        options = replace(options, cold_start_jitter_s=jitter_s)
    first = streams[0]
    if not first.stream_id:
        return replace(options, stream=first.identity, start=first.start)
    shared = {}
    for stream in streams:
        assert stream.identity is not None, (
            f"stream {stream.name} shares a table and its identity is not known"
        )
        shared[stream.stream_id] = SharedStream(stream.identity, stream.start)
    return replace(options, streams=shared)
