"""The interface of a loop over batches to one stream or several: their planner, their offsets, and the reading of a task."""

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


class AnyPlanner(Protocol):
    """The planner of one stream, or of several."""

    def join(self, known: Any) -> None:
        """Join the application; later calls have no effect."""

    def prepare_available_now(self) -> None:
        """Fix the moment up to which the query reads."""

    def latest(self, start: Any, *, with_limits: bool = True, may_be_only: bool = False) -> Any:
        """Return the next batch's offset, or `start` itself."""

    def report(self) -> dict[str, Any] | None:
        """Return the figures for the query's progress."""

    def stop(self) -> None:
        """End threads, and release idle leases."""


class BatchSource(Protocol):
    """One stream, or several, as a loop over batches reads them. The offsets and tasks are those of its planner."""

    initial: Any
    name: str

    def open(self) -> Any:
        """Open the planner."""

    def parse(self, document: Any) -> Any:
        """Return the offset of a document."""

    def tasks(self, planner: Any, start: Any, end: Any) -> Sequence[TaskRows]:
        """Return the tasks of the batch between two offsets."""


class OneStream:
    """One stream."""

    initial = INITIAL_OFFSET

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.name = options.stream

    def open(self) -> Planner:
        """Open the planner."""
        from penstock.spark.driver.planner_opening import open_planner

        return open_planner(self._options)

    def parse(self, document: Any) -> StreamOffset:
        """Return the offset of a document."""
        return parse_offset(document)

    def tasks(self, planner: Planner, start: StreamOffset, end: StreamOffset) -> list[TaskRows]:
        """Return the tasks of a batch; its end has all that they need."""
        del start
        return [partial(rows_of, tasks, self._options) for tasks in planner.tasks(end)]


class SeveralStreams:
    """Several streams."""

    initial = INITIAL_SEVERAL

    def __init__(self, options: SeveralOptions) -> None:
        self._options = options
        self.name = options.shared.stream

    def open(self) -> SeveralPlanner:
        """Open the planner."""
        from penstock.spark.streams.several_opening import open_several_planner

        return open_several_planner(self._options)

    def parse(self, document: Any) -> SeveralOffset:
        """Return the offset of a document."""
        return parse_several(document)

    def tasks(self, planner: SeveralPlanner, start: SeveralOffset, end: SeveralOffset) -> list[TaskRows]:
        """Return the tasks of each stream that the batch reads."""
        return [
            partial(rows_of_stream, self._options, stream.place, tasks)
            for stream in planner.tasks(start, end)
            for tasks in stream.tasks
        ]
