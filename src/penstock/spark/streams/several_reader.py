"""Spark's streaming reader of several streams: a thin adapter to `several_planner` (driver) and `claimed_read` (tasks)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from penstock.core.batches.several_offsets import INITIAL_SEVERAL, SeveralOffset, parse_several
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.spark_errors import explained_rows
from penstock.spark.stream_reader import PlannedReader, query_id
from penstock.spark.streams.several_rows import rows_of_stream
from penstock.spark.tasks.shard_task import ShardTask
from penstock.spark.worker_memory import freeze_once

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.streams.several_planner import SeveralPlanner


class StreamPartition(InputPartition):
    """One task: one or more shards of one stream in one batch.

    Args:
        place: The stream's place in the options' list.
        tasks: The shards, which are read at the same time.
    """

    def __init__(self, place: int, tasks: Sequence[ShardTask]) -> None:
        super().__init__(f"{place}:{','.join(task.shard_id for task in tasks)}")
        self.place = place
        self.tasks = tuple(tasks)


class SeveralStreamsReader(PlannedReader["SeveralPlanner"]):
    """Several streams as one streaming source.

    Args:
        options: Those of the query, and of each stream.
    """

    _initial = INITIAL_SEVERAL
    _noun = "streams"

    def __init__(self, options: SeveralOptions) -> None:
        super().__init__(options.shared)
        self._options = options

    def _open(self) -> SeveralPlanner:
        from penstock.spark.streams.several_opening import open_several_planner

        return open_several_planner(self._options)

    def _parse(self, document: dict[str, Any]) -> SeveralOffset:
        return parse_several(document)

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        known = parse_several(end)
        return [
            StreamPartition(stream.place, tasks)
            for stream in self._joined(known).tasks(parse_several(start), known)
            for tasks in stream.tasks
        ]

    @explained_rows
    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # Spark passes our own partition
        """Read each shard's part of a batch and claim its end, in an executor."""
        try:
            yield from rows_of_stream(self._options, partition.place, partition.tasks, query_id())
        finally:
            freeze_once()
