"""The planner behind `micro_batches`: that of one stream, or that of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.batches.offsets import INITIAL_OFFSET, StreamOffset, parse_offset
from penstock.core.batches.several_offsets import INITIAL_SEVERAL, SeveralOffset, parse_several
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.streams.several_rows import rows_of_stream
from penstock.spark.tasks.task_opening import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.driver.planner import Planner
    from penstock.spark.streams.several_planner import SeveralPlanner

TaskRows = Callable[[], "Iterator[pa.RecordBatch]"]
"""Reads the shards of one task, in an executor; holds plain values only."""


class BatchPlanning(Protocol):
    """Plans batches; opened for each run. The offsets are those of its planner."""

    initial: Any
    name: str

    def open(self) -> None:
        """Open the planner."""

    def parse(self, document: Any) -> Any:
        """Return the offset of a document."""

    def join(self, known: Any) -> None:
        """Join the application, before the first batch."""

    def prepare_available_now(self) -> None:
        """Fix the moment up to which to read."""

    def latest(self, start: Any) -> Any:
        """Return the next batch's offset, or `start` itself."""

    def tasks(self, start: Any, end: Any) -> Sequence[TaskRows]:
        """Return the tasks of the batch between two offsets."""

    def report(self) -> dict[str, Any] | None:
        """Return the figures of the progress."""

    def stop(self) -> None:
        """Stop the planner."""


class OneStream:
    """Batches of one stream.

    Args:
        options: The source's.
    """

    initial = INITIAL_OFFSET
    _planner: Planner

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.name = options.stream

    def open(self) -> None:
        """Open the planner."""
        from penstock.spark.driver.planner_opening import open_planner

        self._planner = open_planner(self._options)

    def parse(self, document: Any) -> StreamOffset:
        """Return the offset of a document."""
        return parse_offset(document)

    def join(self, known: StreamOffset) -> None:
        """Join the application."""
        self._planner.join(known)

    def prepare_available_now(self) -> None:
        """Fix the moment up to which to read."""
        self._planner.prepare_available_now()

    def latest(self, start: StreamOffset) -> StreamOffset:
        """Return the next batch's offset, or `start` itself."""
        return self._planner.latest(start)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[TaskRows]:
        """Return the tasks of a batch; its end has all that they need."""
        del start
        return [partial(rows_of, tasks, self._options) for tasks in self._planner.tasks(end)]

    def report(self) -> dict[str, Any] | None:
        """Return the figures of the progress."""
        return self._planner.report()

    def stop(self) -> None:
        """Stop the planner."""
        self._planner.stop()


class SeveralStreams:
    """Batches of several streams.

    Args:
        options: The source's.
    """

    initial = INITIAL_SEVERAL
    _planner: SeveralPlanner

    def __init__(self, options: SeveralOptions) -> None:
        self._options = options
        self.name = options.shared.stream

    def open(self) -> None:
        """Open the planner."""
        from penstock.spark.streams.several_opening import open_several_planner

        self._planner = open_several_planner(self._options)

    def parse(self, document: Any) -> SeveralOffset:
        """Return the offset of a document."""
        return parse_several(document)

    def join(self, known: SeveralOffset) -> None:
        """Join the application."""
        self._planner.join(known)

    def prepare_available_now(self) -> None:
        """Fix the moment up to which to read."""
        self._planner.prepare_available_now()

    def latest(self, start: SeveralOffset) -> SeveralOffset:
        """Return the next batch's offset, or `start` itself."""
        return self._planner.latest(start)

    def tasks(self, start: SeveralOffset, end: SeveralOffset) -> list[TaskRows]:
        """Return the tasks of each stream that the batch reads."""
        return [
            partial(rows_of_stream, self._options, stream.place, tasks)
            for stream in self._planner.tasks(start, end)
            for tasks in stream.tasks
        ]

    def report(self) -> dict[str, Any] | None:
        """Return the figures of the progress."""
        return self._planner.report()

    def stop(self) -> None:
        """Stop the planner."""
        self._planner.stop()
