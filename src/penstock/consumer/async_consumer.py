"""`AsyncConsumer`: the consumer for asyncio. User code runs on the event loop, everything else on the threads of `Consumer`.

::

    async def handle(batch):
        for record in batch:
            await store(record.data)

    asyncio.run(AsyncConsumer(stream="orders", application="billing", handler=handle).run())
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from penstock.consumer.async_batch import AsyncBatch
from penstock.consumer.async_calls import (
    AsyncDeadLetterHandler,
    AsyncHandler,
    AsyncProcessorFactory,
    AsyncShardProcessor,
    AsyncStreamProcessorFactory,
    EventLoopCalls,
    EventLoopProcessor,
)
from penstock.consumer.consumer import Consumer
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.consumer_ports import ConsumerPorts
from penstock.consumer.health import Health
from penstock.consumer.stream_argument import StreamArgument
from penstock.errors import OptionError, PenstockError
from penstock.ports.metrics import Metrics
from penstock.runtime.async_pull import AsyncPull
from penstock.runtime.async_run import AsyncioConsumer
from penstock.runtime.user_code import check_are_callable, check_is_factory

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from penstock.consumer.keywords import AsyncConsumerKeywords, ConsumerKeywords

log: logging.Logger = logging.getLogger("penstock.consumer")

_HANDLER_THREADS: Final = ConsumerOptions().handler_threads


class AsyncConsumer(AsyncioConsumer[Consumer, AsyncBatch]):
    """One worker, whose handler is a coroutine function. It shares its application's shards as every `Consumer` does.

    Leases are renewed and shards are read on threads, so a handler that blocks the event loop delays other handlers and no
    renewal. Any number of shards may wait in their handlers at the same time; each of them holds up its own shard only.

    Cancelling the task that awaits it (in `run`, or in the block of `async with`) stops it gracefully: handlers under way are
    finished, checkpoints are stored and the leases are released, within `shutdown_timeout_s`; handlers that run longer are
    cancelled, and their records are delivered again. A second cancellation ends the wait.

    Args:
        stream: Name or ARN; or several of them, as for `Consumer`.
        application: Names the lease table; all workers of the application give the same.
        handler: A coroutine function, called with an `AsyncBatch` of one shard's records. Not with `processor_factory`, and
            not when the consumer is iterated.
        processor_factory: Makes one `AsyncShardProcessor` per shard, which is also called at the shard's start and end. The factory is
            called on the event loop, without arguments; with several streams, with the name or ARN of the shard's stream.
        dead_letter: A coroutine function, called with records that failed for good and the last error; with
            `on_failure="dead_letter"`.
        options: How to work; `handler_threads` has no effect. Single options may also be given by name:
            `AsyncConsumer(..., concurrency=100)`.
        metrics: Where metrics go; as for `Consumer`.
        tracer_provider: OpenTelemetry's; each call of the handler becomes a span. None makes no spans and loads nothing.
        region: AWS region; None: that of an ARN, or as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md), and `lease_table_name`.
        ports: The service, the lease table and the clock; None opens the service. Excludes region, endpoint_url and connection.

    Raises:
        OptionError: An option is unknown or out of its range.
        UsageError: The arguments do not fit together.
    """

    _calls: EventLoopCalls

    def __init__(
        self,
        stream: StreamArgument,
        application: str,
        handler: AsyncHandler | None = None,
        *,
        processor_factory: AsyncProcessorFactory | AsyncStreamProcessorFactory | None = None,
        dead_letter: AsyncDeadLetterHandler | None = None,
        options: ConsumerOptions | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: dict[str, Any] | None = None,
        metrics: Metrics | None = None,
        tracer_provider: TracerProvider | None = None,
        ports: ConsumerPorts | None = None,
        **single_options: Unpack[AsyncConsumerKeywords],
    ) -> None:
        check_are_callable(1, handler=handler)
        check_are_callable(2, dead_letter=dead_letter)
        calls = EventLoopCalls()
        pull: AsyncPull[AsyncBatch] | None = None
        if handler is None and processor_factory is None:
            pull = AsyncPull(attrgetter("is_owned"))
            handler = pull.offer
        consumer = Consumer(
            stream,
            application,
            None if handler is None else partial(calls.begin_batch, handler),
            processor_factory=None
            if processor_factory is None
            else partial(_make_processor, processor_factory, calls),
            dead_letter=None if dead_letter is None else partial(calls.begin_dead_letter, dead_letter),
            options=options,
            region=region,
            endpoint_url=endpoint_url,
            connection=connection,
            metrics=metrics,
            ports=ports,
            **_without_threads(single_options),
        )
        # The factory is checked here, because the wrapped consumer gets another function as its factory.
        check_is_factory(processor_factory, int(consumer._streams.are_several))  # noqa: SLF001
        super().__init__(consumer, calls, pull, noun="batch", log=log)
        self.stream: str = consumer.stream
        self.streams: tuple[str, ...] = consumer.streams
        self.application = application
        self.options: ConsumerOptions = consumer.options
        self._tracer_provider = tracer_provider

    # --- starting and stopping ------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until it is cancelled, or until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        This is for a program that has nothing else to do: in the main thread, signals are handled until the
        end; a second one is as for `Consumer.run`. As a part of a service, use `async with`, which leaves signals alone.

        Raises:
            HandlerFailed: User code failed for good and `on_failure="stop_worker"`.
            ShardsStopped: Every shard that the worker held has stopped for a failure; not with `on_all_stopped="stay"`.
            UsageError: The handler is not a coroutine function, or as for `start`.
            OptionError: The application's lease table belongs to another stream, or its location cannot hold leases.
            NotFound, AccessDenied, Rejected: The stream or the lease table cannot be used.
        """
        await super().run()

    async def _start(self) -> None:
        if self._tracer_provider is not None:
            from penstock.runtime.open_telemetry import BatchTraces

            traces = BatchTraces(self._tracer_provider, self.application, self.worker_id)
            self._calls.span = traces.span
        await super()._start()

    # --- as `Consumer` --------------------------------------------------------------------------------

    def pause(self, *shard_ids: str) -> None:
        """Pause these shards, or all if none is named; as `Consumer.pause`."""
        self._consumer.pause(*shard_ids)

    def resume(self, *shard_ids: str) -> None:
        """Go on with these shards, or with all if none is named; as `Consumer.resume`."""
        self._consumer.resume(*shard_ids)

    @property
    def failures(self) -> dict[str, PenstockError]:
        """Shards that this worker holds and stopped delivering, and why."""
        return self._consumer.failures

    def health(self) -> Health:
        """Return the consumer's health; as `Consumer.health`."""
        return self._consumer.health()


def _make_processor(
    factory: Callable[..., AsyncShardProcessor], calls: EventLoopCalls, *stream: str
) -> EventLoopProcessor:
    """Return the processor of a shard; with several streams the factory gets the name of the shard's stream."""
    return EventLoopProcessor(partial(factory, *stream), calls)


def _without_threads(single_options: AsyncConsumerKeywords) -> ConsumerKeywords:
    """Return the options of the inner `Consumer`; refuse `handler_threads`, which has no effect here.

    `ConsumerOptions` demands at least as many handler threads as `concurrency`, so their number is raised with it.
    """
    if "handler_threads" in single_options:
        raise OptionError(
            "handler_threads has no effect: handlers run on the event loop, as many at once as there are shards (times "
            "concurrency); leave it out"
        )
    concurrency = single_options.get("concurrency")
    if not isinstance(concurrency, int) or concurrency <= _HANDLER_THREADS:
        return cast("ConsumerKeywords", single_options)
    return {**single_options, "handler_threads": concurrency}
