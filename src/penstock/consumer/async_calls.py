"""Runs user code on an event loop for the consumer's threads: each call is a task, and ends with a future."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

from penstock.consumer.async_batch import AsyncBatch, AsyncShardCheckpointer
from penstock.consumer.records import Batch, ShardCheckpointer
from penstock.core.position import Position
from penstock.runtime.loop_tasks import EventLoopTasks
from penstock.runtime.user_code import UnusableHandlerError

AsyncHandler: TypeAlias = Callable[[AsyncBatch], Awaitable[object]]
"""Receives one shard's records, in order. Its result is ignored; an exception is a failure."""
AsyncDeadLetterHandler: TypeAlias = Callable[[AsyncBatch, BaseException], Awaitable[object]]
"""Receives records that failed for good, and the error. The records are done when it returns."""


class AsyncShardProcessor(Protocol):
    """User code for one shard, from taking it to leaving it; every method is a coroutine function.

    The methods never run at the same time, except `on_batch` with `concurrency` > 1. The order is:
    `on_start`, then batches, then either `on_end`, or (perhaps) `on_stop` and then `on_lost`.
    """

    async def on_start(self, shard_id: str, position: Position) -> None:
        """The shard begins after `position`."""

    async def on_batch(self, batch: AsyncBatch) -> None:
        """Process records, in order."""

    async def on_end(self, shard: AsyncShardCheckpointer) -> None:
        """Everything in the shard was delivered, and it is closed. With manual checkpoints: checkpoint it now."""

    async def on_stop(self, shard: AsyncShardCheckpointer) -> None:
        """No record follows: the worker stops or hands the shard over. The last chance to checkpoint."""

    async def on_lost(self) -> None:
        """The shard is not this worker's any more."""


AsyncProcessorFactory: TypeAlias = Callable[[], AsyncShardProcessor]
AsyncStreamProcessorFactory: TypeAlias = Callable[[str], AsyncShardProcessor]
"""The factory for several streams: called with the name or ARN of the shard's stream."""
AsyncSpan: TypeAlias = Callable[[str, AsyncBatch], AbstractContextManager[None]]
"""Begins the span in which user code handles a batch; the text names its operation."""


class EventLoopCalls(EventLoopTasks):
    """Runs calls of user code as tasks of one event loop. Each call has a future, which is done when the task ends."""

    def __init__(self) -> None:
        super().__init__("AsyncConsumer")
        self.span: AsyncSpan = lambda _operation, _batch: nullcontext()

    def begin_batch(self, handler: AsyncHandler, batch: Batch) -> Future[None]:
        """Begin to process records, inside a span."""
        return self.begin_call(lambda: self._in_span("process", AsyncBatch.of(batch), handler))

    def begin_dead_letter(
        self, handler: AsyncDeadLetterHandler, batch: Batch, error: BaseException
    ) -> Future[None]:
        """Begin to put records aside, inside a span."""
        return self.begin_call(
            lambda: self._in_span("dead_letter", AsyncBatch.of(batch), lambda given: handler(given, error))
        )

    async def _in_span(self, operation: str, batch: AsyncBatch, handler: AsyncHandler) -> None:
        with self.span(operation, batch):
            await checked_awaitable(handler(batch), handler)


class EventLoopProcessor:
    """Calls a processor of coroutines for the consumer's threads. The processor is created on the loop, at the first call.

    Args:
        factory: Makes the user code of one shard.
    """

    def __init__(self, factory: AsyncProcessorFactory, calls: EventLoopCalls) -> None:
        self._factory = factory
        self._calls = calls
        self._user_processor: AsyncShardProcessor | None = None

    def _processor(self) -> AsyncShardProcessor:
        if self._user_processor is None:
            self._user_processor = self._factory()
        return self._user_processor

    def on_start(self, shard_id: str, position: Position) -> Future[None]:
        return self._begin("on_start", shard_id, position)

    def on_batch(self, batch: Batch) -> Future[None]:
        return self._calls.begin_batch(lambda given: self._processor().on_batch(given), batch)

    def on_end(self, shard: ShardCheckpointer) -> Future[None]:
        return self._begin("on_end", AsyncShardCheckpointer(shard))

    def on_stop(self, shard: ShardCheckpointer) -> Future[None]:
        return self._begin("on_stop", AsyncShardCheckpointer(shard))

    def on_lost(self) -> Future[None]:
        return self._begin("on_lost")

    def _begin(self, name: str, *arguments: object) -> Future[None]:
        def call() -> Awaitable[object]:
            method = getattr(self._processor(), name)
            return checked_awaitable(method(*arguments), method)

        return self._calls.begin_call(call)


def checked_awaitable(result: object, user_code: object) -> Awaitable[object]:
    """Return the result of a call of user code, which must be awaitable.

    Raises:
        UnusableHandlerError: The call returned something else.
    """
    if inspect.isawaitable(result):
        return result
    if inspect.isasyncgen(result) or inspect.isgenerator(result):
        raise UnusableHandlerError(
            "user code returned a generator: it has a yield, so a call of it runs nothing"
        )
    name = getattr(user_code, "__qualname__", type(user_code).__name__)
    raise UnusableHandlerError(
        f"{name} returned {type(result).__name__}, which cannot be awaited: write it with `async def`, or use "
        "penstock.Consumer, which calls plain functions on threads"
    )
