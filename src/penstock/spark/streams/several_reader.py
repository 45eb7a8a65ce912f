"""Spark's streaming reader of several streams: a thin adapter to `several_planner` (driver) and `claimed_read` (tasks)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.core.batches.several_offsets import INITIAL_SEVERAL, parse_several
from penstock.spark.engine import BatchStarts, SupportsTriggerAvailableNow, is_only_batch, limit_of
from penstock.spark.monitoring.progress import with_report
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.spark_errors import exit_on_termination, explained, explained_rows
from penstock.spark.stream_reader import query_id
from penstock.spark.streams.stream_names import naming
from penstock.spark.streams.stream_table import StreamTable
from penstock.spark.tasks.shard_task import ShardTask
from penstock.spark.tasks.task_opening import rows_of
from penstock.spark.worker_memory import freeze_once
from penstock.wiring import open_lease_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from penstock.spark.streams.several_planner import SeveralPlanner

_log: Final = logging.getLogger("penstock.spark")


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


class SeveralStreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Several streams as one streaming source."""

    def __init__(self, options: SeveralOptions) -> None:
        self._options = options
        self._planner: SeveralPlanner | None = None
        self._starts = BatchStarts(INITIAL_SEVERAL.to_json())

    def _opened(self) -> SeveralPlanner:
        if self._planner is None:
            from penstock.spark.streams.several_opening import open_several_planner

            exit_on_termination()
            self._planner = open_several_planner(self._options)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """Pickle plain values only: threads and connections stay where they are."""
        return {**self.__dict__, "_planner": None}

    # --- in the process beside the driver -----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch: the same every time."""
        return INITIAL_SEVERAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one batch's limit for Spark, over all streams."""
        shared = self._options.shared
        return limit_of(shared.record_count_max, shared.bytes_max)

    @explained
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the moment up to which to read."""
        self._opened().prepare_available_now()

    @explained
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the offset of the next batch, or the one before if there is nothing new; as `KinesisStreamReader`."""
        if start is not None:
            is_only = is_only_batch(limit)
            return self._latest(start, with_limits=not is_only, may_be_only=is_only)
        start = self._starts.following
        end = self._latest(start, may_be_only=self._starts.is_first)
        report = self.reportLatestOffset()
        if end is not start and report is not None:
            # Spark 4.0 and 4.1 show the batch's offset instead of the report.
            end = with_report(end, report)
        self._starts.plan(end)
        return end

    def _latest(
        self, start: dict[str, Any], *, with_limits: bool = True, may_be_only: bool = False
    ) -> dict[str, Any]:
        begin = parse_several(start)
        following = self._opened().latest(begin, with_limits=with_limits, may_be_only=may_be_only)
        return start if following is begin else following.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the lag of each stream's shards for the query's progress."""
        return None if self._planner is None else self._planner.report()

    @explained
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPartition]:
        """Return the batch's tasks, stream by stream."""
        self._starts.on_partitions(start, end)
        if start == end:
            return []
        return [
            StreamPartition(stream.place, tasks)
            for stream in self._opened().tasks(parse_several(start), parse_several(end))
            for tasks in stream.tasks
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next plan settles the batch, whether Spark calls this or not."""

    def stop(self) -> None:
        """End threads and release idle leases, of every stream."""
        shared = self._options.shared
        if self._starts.planned_count == 1 and not shared.is_unlimited:
            _log.warning(
                "streams %s: this run ends after one batch, of at most maxRecordsPerTrigger or maxBytesPerTrigger. With "
                "trigger(availableNow=True) this Spark runs one batch only: leave the limits out to read everything in it, or "
                "start the query again for the rest",
                shared.stream,
            )
        if self._planner is not None:
            self._planner.stop()
            self._planner = None

    # --- in an executor -----------------------------------------------------------------------------------

    @explained_rows
    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # Spark passes our own partition
        """Read each shard's part of a batch and claim its end."""
        options = self._options.streams[partition.place]
        stream_id = partition.tasks[0].stream.stream_id
        table = StreamTable(open_lease_table(options.lease_table, options.connection), stream_id)
        try:
            with naming(options.stream):
                yield from rows_of(partition.tasks, options, query_id(), table=table)
        finally:
            freeze_once()
