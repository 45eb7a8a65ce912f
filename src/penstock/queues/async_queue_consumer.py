"""`AsyncQueueConsumer`: a queue's consumer for asyncio. User code runs on the event loop, everything else on threads.

::

    async def handle(record):
        await store(record.data)

    asyncio.run(AsyncQueueConsumer(queue="invoices", handler=handle, concurrency=500).run())
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from penstock.ports.metrics import Metrics
from penstock.ports.queues import FinishedRecords
from penstock.queues.handler_calls import AsyncQueueHandler, EventLoopCalls
from penstock.queues.queue_consumer import QueueConsumer, not_done
from penstock.queues.queue_health import QueueHealth
from penstock.queues.queue_options import QueueConsumerOptions, QueueCreation
from penstock.queues.queue_ports import QueueConsumerPorts
from penstock.runtime.async_pull import AsyncPull
from penstock.runtime.async_run import AsyncRun
from penstock.runtime.home_process import InOneProcess
from penstock.runtime.user_code import check_are_callable

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from penstock.queues.keywords import QueueConsumerKeywords

log: logging.Logger = logging.getLogger("penstock.queues")


class AsyncQueueConsumer(InOneProcess):
    """One consumer of a queue, whose handler is a coroutine function. It shares the records with every other consumer of the queue.

    Records are received, renewed and acknowledged on threads. A handler that blocks the event loop delays other handlers, but no
    renewal.

    Cancelling the task that awaits it (in `run`, or in the block of `async with`) stops it gracefully, within `shutdown_timeout_s`;
    handlers that run longer are cancelled, and their records are returned at once.

    Args:
        queue: Name or ARN.
        handler: A coroutine function, called with a `QueueRecord`; with `batch_records_max`, with a `QueueBatch`. None: the consumer is
            iterated.
        create: As for `QueueConsumer`.
        finished: As for `QueueConsumer`.
        options: How to work. Single options may also be given by name: `AsyncQueueConsumer(..., concurrency=500)`.
        metrics: Where metrics go.
        tracer_provider: OpenTelemetry's; each call of the handler becomes a span.
        region: AWS region; None: that of an ARN, or as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md).
        ports: The service and the clock; None opens the service.

    Raises:
        OptionError: An option is unknown or out of its range.
        UsageError: The arguments do not fit together.
    """

    def __init__(
        self,
        queue: str,
        handler: AsyncQueueHandler | None = None,
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
        check_are_callable(handler=handler)
        pull: AsyncPull[Any] | None = None
        if handler is None:
            pull = AsyncPull(not_done)
            handler = pull.offer
        calls = EventLoopCalls(handler)
        self._consumer = QueueConsumer(
            queue,
            create=create,
            finished=finished,
            options=options,
            region=region,
            endpoint_url=endpoint_url,
            connection=connection,
            metrics=metrics,
            tracer_provider=tracer_provider,
            ports=ports,
            **single_options,
        )
        self._consumer.use_calls(calls)
        self.queue = queue
        self.options: QueueConsumerOptions = self._consumer.options
        self.worker_id: str = self._consumer.worker_id
        self._run = AsyncRun(
            consumer=self._consumer,
            calls=calls,
            pull=pull,
            shutdown_timeout_s=self.options.shutdown_timeout_s,
            not_stopped=self._consumer.not_stopped,
            name="AsyncQueueConsumer",
            noun="record",
            log=log,
        )

    def __repr__(self) -> str:
        return f"Async{self._consumer!r}"

    async def run(self) -> None:
        """Work until it is cancelled, or until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        In the main thread, signals are handled until the end; a second one raises KeyboardInterrupt. As a part of a service, use
        `async with`, which leaves signals alone.

        Raises:
            NotFound, AccessDenied, Rejected: The queue cannot be used, or not any more.
            UsageError: No handler was given, or it is no coroutine function.
        """
        self._run.check_is_not_pulled()
        await self._run.run()

    async def start(self) -> None:
        """Start to work; return when the queue has been found.

        Raises:
            UsageError: The consumer was started before.
            NotFound, AccessDenied: The queue cannot be used.
        """
        await self._run.start()

    def request_stop(self) -> None:
        """Begin a graceful stop and return at once. Safe in a signal handler, from every thread and from user code."""
        self._consumer.request_stop()

    async def stop(self) -> None:
        """Stop gracefully and wait for it, at most `shutdown_timeout_s` and some seconds.

        Raises:
            PenstockError: The consumer failed before; or it did not stop in time.
            UsageError: A handler calls it and would wait for itself, or it is called on another event loop than the consumer's.
        """
        await self._run.stop()

    async def __aenter__(self) -> Self:
        await self._run.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._run.leave(error)

    def __aiter__(self) -> AsyncIterator[Any]:
        """Yield records, or batches with `batch_records_max`; inside `async with`. Requesting the next one acknowledges the one before.

        If the loop's body ends the loop, the current record is returned at once. Several tasks may iterate at the same time.
        """
        return self._run.items()

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started and has not ended."""
        return self._consumer.is_running

    def health(self) -> QueueHealth:
        """Return the consumer's health, as `QueueConsumer.health` does."""
        return self._consumer.health()
