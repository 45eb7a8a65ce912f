"""One worker at work: both loops and their pools, joined.

Apart from `Consumer` so that tests can drive the same parts by hand, with inline pools and a virtual clock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from penstock.consumer.delivery_loop import DeliveryLoop, Waiter, wait_on_condition
from penstock.consumer.lease_loop import LeaseLoop
from penstock.consumer.loop import LoopThread, Pool, ThreadPool
from penstock.consumer.options import ConsumerOptions
from penstock.consumer.process import HomeProcess
from penstock.consumer.processor import DeadLetterHandler, ProcessorFactory
from penstock.core import coordination as c
from penstock.core.coordinator import Coordinator
from penstock.errors import PenstockError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import Metrics

_HEARTBEAT_THREADS: Final = 4
_CALL_THREADS: Final = 6
_JOIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Outside:
    """What a worker needs from outside."""

    kinesis: Kinesis
    table: LeaseTable
    clock: Clock
    chance: Chance
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Pools:
    """Where work that waits is done."""

    heartbeat: Pool
    call: Pool
    read: Pool
    handler: Pool

    def close(self) -> None:
        """Take nothing new."""
        for pool in (self.heartbeat, self.call, self.read, self.handler):
            pool.close()


def thread_pools(options: ConsumerOptions) -> Pools:
    """Give the pools of production."""
    return Pools(
        heartbeat=ThreadPool("penstock-renew", _HEARTBEAT_THREADS),
        call=ThreadPool("penstock-call", _CALL_THREADS),
        read=ThreadPool("penstock-read", options.read_threads),
        handler=ThreadPool("penstock-handle", options.handler_threads),
    )


class Runtime:
    """Both loops of one worker.

    Args:
        stream: Name or ARN.
        worker_id: In the lease table.
        options: How to work.
        outside: Ports.
        pools: Where work is done.
        processor_factory: User code.
        dead_letter: For records that failed for good.
        is_lifecycle_called: Whether user code is told of more than records.
        retention_s: Of the stream, or None when unknown.
        waiter: How `batch.checkpoint` waits.
        home: The process whose threads these are; None: this one.
    """

    def __init__(
        self,
        *,
        stream: str,
        worker_id: str,
        options: ConsumerOptions,
        outside: Outside,
        pools: Pools,
        processor_factory: ProcessorFactory,
        dead_letter: DeadLetterHandler | None = None,
        is_lifecycle_called: bool = False,
        retention_s: float | None = None,
        waiter: Waiter = wait_on_condition,
        home: HomeProcess | None = None,
    ) -> None:
        self._clock = outside.clock
        self._pools = pools
        self._has_ended = threading.Event()
        self._is_stopping = False
        self.failure: BaseException | None = None
        coordinator_options = options.coordinator_options()
        self.leases = LeaseLoop(
            Coordinator(worker_id, coordinator_options),
            stream=stream,
            table=outside.table,
            kinesis=outside.kinesis,
            clock=outside.clock,
            chance=outside.chance,
            metrics=outside.metrics,
            heartbeat_pool=pools.heartbeat,
            call_pool=pools.call,
        )
        self.delivery = DeliveryLoop(
            stream=stream,
            kinesis=outside.kinesis,
            leases=self.leases,
            reader_options=options.reader_options(retention_s),
            delivery_options=options.delivery_options(is_lifecycle_called),
            processor_factory=processor_factory,
            dead_letter=dead_letter,
            start=options.start,
            buffer_bytes_max=options.buffer_bytes_max,
            drops_unmarked=options.drop_misplaced_aggregates,
            beat_interval_s=coordinator_options.renew_interval_s,
            checkpoint_timeout_s=options.lease_duration_s,
            clock=outside.clock,
            chance=outside.chance,
            metrics=outside.metrics,
            read_pool=pools.read,
            handler_pool=pools.handler,
            on_worker_failure=self.fail,
            waiter=waiter,
            home=home or HomeProcess(),
        )
        self.leases.readers = self.delivery

    def start_threads(self) -> None:
        """Drive both loops on threads of their own."""
        leases = LoopThread("penstock-leases", self.leases, self._clock, self._crash)
        delivery = LoopThread("penstock-delivery", self.delivery, self._clock, self._crash)
        delivery.start()
        leases.start()
        threading.Thread(
            target=self._watch, args=(leases, delivery), name="penstock-watch", daemon=True
        ).start()

    @property
    def has_ended(self) -> threading.Event:
        """Set when everything has stopped."""
        return self._has_ended

    def request_stop(self) -> None:
        """Finish what is in hand, checkpoint, release; returns at once."""
        if not self._is_stopping:
            self._is_stopping = True
            self.leases.post(c.StopRequested())

    def fail(self, failure: PenstockError) -> None:
        """Stop the worker for a failure of user code."""
        if self.failure is None:
            self.failure = failure
        self.request_stop()

    def finish(self) -> None:
        """Let everything go: the coordinator has stopped."""
        self.delivery.finish()
        self._pools.close()
        self._has_ended.set()

    def _watch(self, leases: LoopThread, delivery: LoopThread) -> None:
        leases.join()
        self.delivery.finish()
        delivery.join(_JOIN_S)  # a defect there is still to be noted before the end is told
        self.finish()

    def _crash(self, error: BaseException) -> None:
        # One loop without the other is a worker that holds leases and reads nothing, or reads without leases.
        if self.failure is None:
            self.failure = error
        self.delivery.abandon()
        self.leases.finish()
        self.delivery.finish()
