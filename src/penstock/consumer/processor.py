"""How a worker calls user code: one interface for plain functions and for objects with a lifecycle."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from penstock.consumer.records import Batch, ShardCheckpointer
from penstock.core.position import Position

Handler: TypeAlias = Callable[[Batch], object]
"""Receives one shard's records, in order. An exception is a failure. The result is ignored, unless it is a
`concurrent.futures.Future`: then the call lasts until the future is done, and fails if the future fails."""
DeadLetterHandler: TypeAlias = Callable[[Batch, BaseException], object]
"""Receives records that failed for good, and the error. They are done when the call, or the future that it returns, is done."""


class ShardProcessor(Protocol):
    """User code for one shard, from taking it to leaving it.

    Its methods are never called at the same time, except `on_batch` with `concurrency` > 1. A call that returns a
    `concurrent.futures.Future` lasts until the future is done; any other result is ignored.
    The order is: `on_start`, then batches, then either `on_end`, or (perhaps) `on_stop` and then `on_lost`.
    """

    def on_start(self, shard_id: str, position: Position) -> object:
        """The shard begins after `position`."""

    def on_batch(self, batch: Batch) -> object:
        """Process records, in order."""

    def on_end(self, shard: ShardCheckpointer) -> object:
        """Everything in the shard was delivered, and it is closed. With manual checkpoints: checkpoint it now."""

    def on_stop(self, shard: ShardCheckpointer) -> object:
        """No record follows: the worker stops or hands the shard over. The last chance to checkpoint."""

    def on_lost(self) -> object:
        """The shard is not this worker's any more."""


ProcessorFactory: TypeAlias = Callable[[], ShardProcessor]
StreamProcessorFactory: TypeAlias = Callable[[str], ShardProcessor]
"""Makes the processor of one shard. Called with the name or ARN of the shard's stream."""


def failure_of(future: Future[object]) -> BaseException | None:
    """Return the error of a call whose future is done; None if it has not failed."""
    if future.cancelled():
        return CancelledError("the future of the call was cancelled")
    return future.exception()


class HandlerProcessor:
    """A processor that calls a plain function for each batch and does nothing else."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def on_start(self, shard_id: str, position: Position) -> None:
        """Do nothing."""

    def on_batch(self, batch: Batch) -> object:
        """Call the function."""
        return self._handler(batch)

    def on_end(self, shard: ShardCheckpointer) -> None:
        """Do nothing."""

    def on_stop(self, shard: ShardCheckpointer) -> None:
        """Do nothing."""

    def on_lost(self) -> None:
        """Do nothing."""


Span: TypeAlias = Callable[[str, Batch], AbstractContextManager[None]]
"""Begins the span in which user code handles a batch; the text names its operation."""


class TracedProcessor:
    """A processor that processes each batch of another one inside a span."""

    def __init__(self, processor: ShardProcessor, span: Span) -> None:
        self._processor = processor
        self._span = span
        self.on_start = processor.on_start
        self.on_end = processor.on_end
        self.on_stop = processor.on_stop
        self.on_lost = processor.on_lost

    def on_batch(self, batch: Batch) -> object:
        """Process records inside a span."""
        with self._span("process", batch):
            return self._processor.on_batch(batch)


def with_spans(
    factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None, span: Span
) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
    """Return the user code with a span around each batch that it processes."""

    def make(stream: str) -> TracedProcessor:
        return TracedProcessor(factory(stream), span)

    if dead_letter is None:
        return make, None

    def put_aside(batch: Batch, error: BaseException) -> object:
        with span("dead_letter", batch):
            return dead_letter(batch, error)

    return make, put_aside
