"""One stream, or several, as Spark's reader and the micro batches see them: planner, offsets, tasks and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.batches.offsets import INITIAL_OFFSET, StreamOffset, parse_offset
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.shard_task import ShardTask
from penstock.spark.tasks.task_opening import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.driver.planner import Planner


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
    """One stream, or several. The offsets are those of its planner. Holds plain values only: it travels to executors."""

    noun: str
    initial: Any

    @property
    def shared(self) -> SourceOptions:
        """The options that count for the whole query."""

    def open(self) -> Any:
        """Open the planner."""

    def parse(self, document: Any) -> Any:
        """Return the offset of a document."""

    def tasks(
        self, planner: Any, start: Mapping[str, Any], end: Any
    ) -> Iterable[tuple[int, Sequence[ShardTask]]]:
        """Return the tasks of a batch: each the place of its stream, and shards of it.

        Args:
            start: The document of the offset before the batch.
            end: The batch's offset.
        """

    def rows(
        self, place: int, tasks: Sequence[ShardTask], query: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, and claim the end of the batch in each shard; in an executor.

        Args:
            place: The stream's place in the options' list.
            tasks: Its shards, which are read at the same time.
            query: Spark's id of the streaming query, or None if it is not known.
        """


class OneStream:
    """Implements `BatchSource` for one stream."""

    noun = "stream"
    initial = INITIAL_OFFSET

    def __init__(self, options: SourceOptions) -> None:
        self.shared: SourceOptions = options

    def open(self) -> Planner:
        """Open the planner."""
        from penstock.spark.driver.planner_opening import open_planner

        return open_planner(self.shared)

    def parse(self, document: Any) -> StreamOffset:
        """Return the offset of a document."""
        return parse_offset(document)

    def tasks(
        self, planner: Planner, start: Mapping[str, Any], end: StreamOffset
    ) -> list[tuple[int, Sequence[ShardTask]]]:
        """Return the tasks of a batch; its end has all that they need."""
        del start
        return [(0, tasks) for tasks in planner.tasks(end)]

    def rows(
        self, place: int, tasks: Sequence[ShardTask], query: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        del place
        return rows_of(tasks, self.shared, query)
