"""`QueueConsumer`: one consumer of a queue, from start to graceful stop.

::

    def handle(record):
        ...

    QueueConsumer(queue="invoices", handler=handle, concurrency=50).run()
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack

from msgspec import Struct

from penstock.core.keyword_options import merge_connection, merge_options
from penstock.core.stream_identity import with_region_of_arns
from penstock.errors import UsageError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.metrics import Metrics, MetricsOfConsumers, NoMetrics, check_metrics
from penstock.ports.queues import FinishedRecords, QueueDescription, Queues
from penstock.queues.handler_calls import HandlerCalls, QueueHandler, ThreadCalls
from penstock.queues.queue_health import QueueHealth
from penstock.queues.queue_loop import QueueLoop, QueuePools
from penstock.queues.queue_opening import open_queue
from penstock.queues.queue_options import QueueConsumerOptions, QueueCreation
from penstock.runtime.consumer_run import ThreadedConsumer
from penstock.runtime.guarded_metrics import guard_metrics
from penstock.runtime.home_process import random_worker_id
from penstock.runtime.loop import LoopThread, ThreadPool
from penstock.runtime.own_loggers import warn_if_disabled
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.thread_pull import ThreadPull
from penstock.runtime.user_code import check_are_callable, check_is_plain

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from penstock.queues.keywords import QueueConsumerKeywords

log: logging.Logger = logging.getLogger("penstock.queues")

_CALL_THREADS: Final = 32
"""A thousand records are acknowledged in a hundred calls. If each is answered after five seconds, the last one ends within a visibility
timeout of 30 s. Threads are started when calls wait: usually there are two or three."""


class QueueConsumerPorts(Struct, frozen=True):
    """The ports through which a queue's consumer makes its calls.

    Args:
        queues: The service.
        kinesis: Finds the ARN of the stream that `create` names. Not needed if `create` has an ARN.
        clock: The clock; None for the machine's.
        chance: The source of jitter; None for the machine's.
    """

    queues: Queues
    kinesis: Kinesis | None = None
    clock: Clock | None = None
    chance: Chance | None = None


class QueueConsumer(ThreadedConsumer[QueueLoop, Any]):
    """One consumer of a queue. Any number of them, in any processes, share its records.

    Every record is delivered at least once, in no order. When the handler returns, the record is acknowledged. When it raises, the
    record is returned, and delivered again after a back-off; `Reject` makes it a dead letter. If a consumer dies, its records are
    delivered again when their visibility timeouts end.

    Create it in the process that runs it: in a forked child its methods raise an error.

    Args:
        queue: Name or ARN. A name is looked up in the account and region.
        handler: Called on a thread with a `QueueRecord`; with `batch_records_max`, with a `QueueBatch`. None: the consumer is iterated.
        create: The queue to create if none has the name: a `QueueCreation`, or a mapping of its fields. An existing queue is used as
            it is.
        finished: A durable memory of records that are done, which prevents second calls: a `FinishedRecordsTable`, or your own.
        options: How to work. Single options may also be given by name: `QueueConsumer(..., concurrency=50)`.
        metrics: Where metrics go. `penstock.metrics.PrometheusMetrics` serves `/health` and `/ready` too.
        tracer_provider: OpenTelemetry's; each call of the handler becomes a span. None makes no spans and loads nothing.
        region: AWS region; None: that of an ARN, or as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md), for instance `{"profile": "test"}`.
        ports: The service and the clock; None opens the service. Excludes region, endpoint_url and connection.

    Raises:
        OptionError: An option is unknown or out of its range.
        UsageError: The arguments do not fit together. The methods raise it in a forked child of the process that made the
            consumer.
    """

    def __init__(
        self,
        queue: str,
        handler: QueueHandler | None = None,
        *,
        create: QueueCreation | Mapping[str, Any] | None = None,
        finished: FinishedRecords | None = None,
        options: QueueConsumerOptions | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: dict[str, Any] | None = None,
        metrics: Metrics | None = None,
        tracer_provider: TracerProvider | None = None,
        ports: QueueConsumerPorts | None = None,
        **single_options: Unpack[QueueConsumerKeywords],
    ) -> None:
        if not isinstance(queue, str) or not queue:
            raise UsageError(f"queue={queue!r}: expected its name or its ARN")
        check_are_callable(1, handler=handler)
        check_are_callable(
            **{
                f"finished.{name}": getattr(finished, name, finished)
                for name in ("fetch_finished", "put_finished")
            }
        )
        check_is_plain(handler, "handler", "QueueConsumer")
        check_metrics(metrics)
        self.queue = queue
        self.options: QueueConsumerOptions = merge_options(options or QueueConsumerOptions(), single_options)
        self._creation = (
            create if create is None or isinstance(create, QueueCreation) else _creation_of(create)
        )
        worker_id = self.options.worker_id or random_worker_id()
        super().__init__(
            worker_id,
            self.options.shutdown_timeout_s,
            ThreadPull() if handler is None else None,
            name=f"worker {worker_id} of queue {queue}",
            leftover="its records are delivered again when their visibility ends",
            log=log,
        )
        self._handler = handler
        self._calls: HandlerCalls | None = None
        self._finished = finished
        self._metrics: Metrics = NoMetrics() if metrics is None else metrics
        self._tracer_provider = tracer_provider
        self._ports = ports
        self._connection = merge_connection(connection, region=region, endpoint_url=endpoint_url)
        if ports is not None and self._connection:
            raise UsageError(
                f"ports are given, so {', '.join(sorted(self._connection))} would have no effect"
            )
        warn_if_disabled(log, "which records fail, and why", stacklevel=3)

    def __repr__(self) -> str:
        return (
            f"QueueConsumer(queue={self.queue!r}, worker_id={self.worker_id!r}, is_running={self.is_running})"
        )

    # --- starting and stopping ------------------------------------------------------------------------

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        A graceful stop takes at most `shutdown_timeout_s`. Calls under way are finished and acknowledged. Other records in hand are
        returned once the open receives are answered. A second signal raises KeyboardInterrupt, unless it is the same one within half a
        second. Only `run` in the main thread handles signals.

        Raises:
            NotFound, AccessDenied, Rejected: The queue cannot be used, now or any more.
            UsageError: No handler was given, or the installed botocore does not know queues.
        """
        super().run()

    def _start(self) -> None:
        self._begin()
        log.info("worker %s consumes queue %s", self.worker_id, self.queue)

    def _prepare(self) -> tuple[QueueLoop, Callable[[], None]]:
        stream = None if self._creation is None else self._creation.stream
        ports = self._ports
        if ports is None:
            from penstock import wiring  # here, so that the SDK is loaded only if it is used

            fields = with_region_of_arns(self._connection, self.queue, stream)
            options = wiring.with_environment(wiring.parse_connection(fields))
            ports = QueueConsumerPorts(wiring.open_queues(options), wiring.open_kinesis(options))
        clock = ports.clock or SystemClock()
        queue = open_queue(ports.queues, self.queue, self._creation, ports.kinesis, clock)
        pools = QueuePools(
            receive=ThreadPool("penstock-queue-receive", self.options.receives_max),
            call=ThreadPool("penstock-queue-call", _CALL_THREADS),
            handler=ThreadPool("penstock-queue-handle", self.options.concurrency),
        )
        loop = QueueLoop(
            queue=queue,
            queues=ports.queues,
            options=self.options,
            worker_id=self.worker_id,
            calls=self._make_calls(pools, queue),
            pools=pools,
            clock=clock,
            chance=ports.chance or random.SystemRandom(),
            metrics=guard_metrics(self._metrics_of(queue)),
            finished=self._finished,
        )
        return loop, LoopThread("penstock-queue", loop, clock, loop.crash).start

    def _make_calls(self, pools: QueuePools, queue: QueueDescription) -> HandlerCalls:
        calls = self._calls
        if calls is None:
            handler = self._handler if self._pull is None else self._pull.offer
            assert handler is not None
            self._calls = calls = ThreadCalls(handler, pools.handler)
        if self._tracer_provider is not None:
            from penstock.runtime.open_telemetry import QueueTraces

            calls.span = QueueTraces(self._tracer_provider, queue.name, self.worker_id).span
        return calls

    def use_calls(self, calls: HandlerCalls) -> None:
        """Call user code through `calls` instead of on threads. `AsyncQueueConsumer` uses this method before the start."""
        self._calls, self._pull = calls, None

    def _metrics_of(self, queue: QueueDescription) -> Metrics:
        if isinstance(self._metrics, MetricsOfConsumers):
            stream = queue.stream_arn.rpartition("/")[2]
            return self._metrics.of_consumer(stream, queue.name, self.worker_id, self.health)
        return self._metrics

    def health(self) -> QueueHealth:
        """Return whether the consumer is healthy, and its counts of records. Makes no call to the service."""
        self._home.refuse_fork()
        if self._running is None:
            return QueueHealth(
                is_healthy=False,
                is_ready=False,
                problems=("the consumer was not started",),
                queue=self.queue,
                queue_arn="",
                worker_id=self.worker_id,
            )
        return self._running.health()


def _creation_of(fields: Mapping[str, Any]) -> QueueCreation:
    from penstock.core.keyword_options import check_names, field_names

    if not isinstance(fields, Mapping):
        raise UsageError(
            f"create={fields!r}: expected a QueueCreation or its fields, for instance create={{'stream': 'orders'}}"
        )
    check_names(fields, field_names(QueueCreation), "field of create")
    if "stream" not in fields:
        raise UsageError("create needs the stream of the queue: create={'stream': 'orders'}")
    return QueueCreation(**fields)
