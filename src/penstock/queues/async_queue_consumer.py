"""`AsyncQueueConsumer`: a queue's consumer for asyncio. User code runs on the event loop, everything else on threads.

::

    async def handle(record):
        await store(record.data)

    asyncio.run(AsyncQueueConsumer(queue="invoices", handler=handle, concurrency=500).run())
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from penstock.ports.metrics import Metrics
from penstock.ports.queues import FinishedRecords
from penstock.queues.handler_calls import AsyncQueueHandler, EventLoopCalls
from penstock.queues.queue_consumer import QueueConsumer, QueueConsumerPorts
from penstock.queues.queue_health import QueueHealth
from penstock.queues.queue_options import QueueConsumerOptions, QueueCreation
from penstock.runtime.async_pull import AsyncPull
from penstock.runtime.async_run import AsyncioConsumer
from penstock.runtime.user_code import check_are_callable

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from penstock.queues.keywords import QueueConsumerKeywords

log: logging.Logger = logging.getLogger("penstock.queues")


class AsyncQueueConsumer(AsyncioConsumer[QueueConsumer, Any]):
    """One consumer of a queue, whose handler is a coroutine function. It shares the records with every other consumer of the queue.

    Records are received, renewed and acknowledged on threads. A handler that blocks the event loop delays other handlers, but no
    renewal.

    If the task in `run` or in the block of `async with` is cancelled, the consumer stops gracefully, within `shutdown_timeout_s`.
    Handlers that run longer are cancelled, and their records are returned at once.

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
        check_are_callable(1, handler=handler)
        pull: AsyncPull[Any] | None = None
        if handler is None:
            pull = AsyncPull()
            handler = pull.offer
        calls = EventLoopCalls(handler)
        consumer = QueueConsumer(
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
        consumer.use_calls(calls)
        super().__init__(consumer, calls, pull, noun="record", log=log)
        self.queue = queue
        self.options: QueueConsumerOptions = consumer.options

    async def run(self) -> None:
        """Work until the task is cancelled, or until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        In the main thread, signals are handled until the end; a second one is as for `QueueConsumer.run`. As a part of a service, use
        `async with`, which leaves signals alone.

        Raises:
            NotFound, AccessDenied, Rejected: The queue cannot be used, now or any more.
            UsageError: No handler was given, or it is not a coroutine function.
        """
        await super().run()

    async def start(self) -> None:
        """Start to work; return when the queue has been found.

        Raises:
            UsageError: The consumer was started before.
            NotFound, AccessDenied: The queue cannot be used.
        """
        await self._start()

    def health(self) -> QueueHealth:
        """Return the consumer's health, as `QueueConsumer.health` does."""
        return self._consumer.health()
