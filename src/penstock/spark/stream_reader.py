"""Spark's streaming reader: a thin adapter to `planner` (driver) and `claimed_read` (tasks).

Spark makes a reader in a Python process beside the driver and asks it for offsets and partitions. It makes another one,
from the same options, in every executor process that reads a partition. The first holds threads and leases, the second only
options, so both are opened on first use.

Differences between Spark's versions are in `penstock.spark.engine`.

Source:
    PySpark's DataSourceStreamReader (4.0) and SupportsTriggerAvailableNow (4.2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.spark.engine import BatchStarts, SupportsTriggerAvailableNow, is_only_batch, limit_of
from penstock.spark.monitoring.progress import with_report
from penstock.spark.spark_errors import exit_on_termination, rows_with_plain_errors, with_plain_errors
from penstock.spark.tasks.shard_read import BatchPart
from penstock.spark.worker_memory import freeze_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from penstock.spark.batch_planning import BatchSource

_log: Final = logging.getLogger("penstock.spark")


class ShardPartition(InputPartition):
    """One task of a batch: it reads one or more shards of one stream at the same time.

    Args:
        parts: The batch's part in each of these shards.
        place: The stream's place in the options' list.
    """

    def __init__(self, parts: Sequence[BatchPart], place: int = 0) -> None:
        super().__init__(f"{place}:{','.join(part.shard_id for part in parts)}")
        self.parts = tuple(parts)
        self.place = place


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, or several, as a streaming source. `penstock.core.batches.claims` makes replays identical.

    Args:
        source: Its planner, in the process beside the driver, is opened on first use.
    """

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._planner: Any = None
        self._starts = BatchStarts(self.initialOffset())

    def _open_planner(self) -> Any:
        if self._planner is None:
            exit_on_termination()
            self._planner = self._source.open_planner()
        return self._planner

    def _join_planner(self, logged_offset: Any) -> Any:
        """Return the planner, which has joined the application with the last offset that Spark has logged."""
        self._open_planner().join(logged_offset)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """Pickle plain values only: threads and connections stay where they are."""
        return {**self.__dict__, "_planner": None}

    # --- in the process beside the driver -----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch: the same every time."""
        return dict(self._source.initial_offset.to_json())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one batch's limit for Spark. If the options have two, Penstock still keeps both."""
        shared = self._source.shared_options
        return limit_of(shared.record_count_max, shared.bytes_max)

    @with_plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the moment up to which to read."""
        self._open_planner().prepare_available_now()

    @with_plain_errors
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the offset of the next batch, or the one before if there is nothing new.

        Args:
            start: The offset of the batch before, which is done; None if Spark does not pass it (4.0 and 4.1).
            limit: How much Spark wants to read; None as above.
        """
        if start is not None:
            is_only = is_only_batch(limit)
            return self._latest_offset(start, with_limits=not is_only, may_be_only_batch=is_only)
        start = self._starts.next_start
        end = self._latest_offset(start, may_be_only_batch=self._starts.is_first)
        report = self.reportLatestOffset()
        if end is not start and report is not None:
            # Spark 4.0 and 4.1 show the batch's offset instead of the report.
            end = with_report(end, report)
        self._starts.on_plan(end)
        return end

    def _latest_offset(
        self, start: dict[str, Any], *, with_limits: bool = True, may_be_only_batch: bool = False
    ) -> dict[str, Any]:
        offset = self._source.parse_offset(start)
        next_offset = self._join_planner(offset).latest(
            offset, with_limits=with_limits, may_be_only_batch=may_be_only_batch
        )
        return start if next_offset is offset else dict(next_offset.to_json())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the lag of each shard for the query's progress."""
        return None if self._planner is None else self._planner.report()

    @with_plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the batch's tasks."""
        self._starts.on_partitions(start, end)
        if start == end:
            return []
        offset: Any = self._source.parse_offset(end)
        tasks = self._source.tasks(self._join_planner(offset), start, offset)
        return [ShardPartition(parts, place) for place, parts in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the next plan settles the batch, whether Spark calls this or not."""

    def stop(self) -> None:
        """End threads and release idle leases."""
        shared = self._source.shared_options
        # Only Spark 4.0 and 4.1 have batches counted here. They run one batch with availableNow, and do not show which trigger the
        # query has, so a query of another trigger that is stopped after its first batch gets this warning too.
        if self._starts.planned_count == 1 and shared.batch_limits and shared.until_ms is None:
            _log.warning(
                "%s %s: this run ends after one batch, which the query limits by %s. With trigger(availableNow=True) this Spark "
                "runs one batch only: leave the limit out to read everything in it, or start the query again for the rest",
                self._source.noun,
                shared.stream,
                " and ".join(shared.batch_limits),
            )
        if self._planner is not None:
            self._planner.stop()
            self._planner = None

    @rows_with_plain_errors
    def read(self, partition: ShardPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # Spark passes our own partition
        """Read each shard's part of a batch and claim its end, in an executor."""
        try:
            yield from self._source.rows(partition.place, partition.parts, _query_id())
        finally:
            freeze_once()


def _query_id() -> str | None:
    """Return Spark's id of the streaming query that a task belongs to; None outside a task."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("sql.streaming.queryId")
