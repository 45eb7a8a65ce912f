"""How a worker calls user code: one interface for plain functions and for objects with a lifecycle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from penstock.consumer.records import Batch, ShardCheckpointer
from penstock.core.position import Position

Handler: TypeAlias = Callable[[Batch], object]
"""Receives one shard's records, in order. Its result is ignored; an exception is a failure."""
DeadLetterHandler: TypeAlias = Callable[[Batch, BaseException], object]
"""Receives records that failed for good, and why. When it returns they are done."""


class ShardProcessor(Protocol):
    """User code for one shard, from taking it to leaving it.

    Its methods are never called at the same time, except that with `concurrency` > 1 several batches may be.
    The order is: `on_start`, then batches, then either `on_end`, or (perhaps) `on_stop` and then `on_lost`.
    """

    def on_start(self, shard_id: str, position: Position) -> None:
        """The shard begins after `position`."""

    def on_batch(self, batch: Batch) -> None:
        """Process records, in order."""

    def on_end(self, shard: ShardCheckpointer) -> None:
        """Everything in the shard was delivered, and it is closed. With manual checkpoints: checkpoint it now."""

    def on_stop(self, shard: ShardCheckpointer) -> None:
        """No record follows: the worker stops or hands the shard over. The last chance to checkpoint."""

    def on_lost(self) -> None:
        """The shard is not this worker's any more."""


ProcessorFactory: TypeAlias = Callable[[], ShardProcessor]
StreamProcessorFactory: TypeAlias = Callable[[str], ShardProcessor]
"""Makes the processor of one shard of the stream that it is given: the stream's name or ARN."""


class HandlerProcessor:
    """A plain function as a processor: it is called for records and for nothing else."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def on_start(self, shard_id: str, position: Position) -> None:
        """Do nothing."""

    def on_batch(self, batch: Batch) -> None:
        """Call the function."""
        self._handler(batch)

    def on_end(self, shard: ShardCheckpointer) -> None:
        """Do nothing."""

    def on_stop(self, shard: ShardCheckpointer) -> None:
        """Do nothing."""

    def on_lost(self) -> None:
        """Do nothing."""


Span: TypeAlias = Callable[[str, Batch], AbstractContextManager[None]]
"""Begins the span in which user code is given a batch; the text names what it does with it."""


class TracedProcessor:
    """Another processor, each of whose batches is processed inside a span."""

    def __init__(self, processor: ShardProcessor, span: Span) -> None:
        self._processor = processor
        self._span = span
        self.on_start = processor.on_start
        self.on_end = processor.on_end
        self.on_stop = processor.on_stop
        self.on_lost = processor.on_lost

    def on_batch(self, batch: Batch) -> None:
        """Process records inside a span."""
        with self._span("process", batch):
            self._processor.on_batch(batch)


def traced(
    factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None, span: Span
) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
    """Return the same user code, with a span around each batch that it is given."""

    def make(stream: str) -> TracedProcessor:
        return TracedProcessor(factory(stream), span)

    if dead_letter is None:
        return make, None

    def put_aside(batch: Batch, error: BaseException) -> None:
        with span("dead_letter", batch):
            dead_letter(batch, error)

    return make, put_aside
