"""Spark's streaming reader: a thin face on `planner` (driver) and `claimed_read` (tasks).

Spark makes a reader in a Python process beside the driver and asks it for offsets and partitions; it makes another
one, from the same options, in every executor process that reads a partition. The first holds threads and leases, the
second only options, so both are opened on first use.

Source:
    PySpark's DataSourceStreamReader and SupportsTriggerAvailableNow (4.2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.aws.arrow import delivered
from penstock.core.offsets import INITIAL_OFFSET, parse_offset
from penstock.spark.border import exit_on_termination, explained, explained_rows
from penstock.spark.claimed_read import Bounds, ClaimedRead
from penstock.spark.options import SourceOptions
from penstock.spark.planner import Planner, ShardTask
from penstock.spark.process import (
    misplaced_rule,
    open_kinesis_for,
    open_metrics_for,
    open_table_for,
    shard_iterators,
)
from penstock.spark.shard_range import LossPolicy, ShardRange, pace_of
from penstock.wiring import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("penstock.spark")


class ShardPartition(InputPartition):
    """One task: one or more shards of one batch, one after the other."""

    def __init__(self, tasks: Sequence[ShardTask]) -> None:
        super().__init__(",".join(task.shard_id for task in tasks))
        self.tasks = tuple(tasks)


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream as a streaming source; see `penstock.core.claims` for how replays come out identical."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: Planner | None = None

    def _opened(self) -> Planner:
        if self._planner is None:
            exit_on_termination()
            kinesis = open_kinesis_for(self._options.connection)
            table = open_table_for(self._options.lease_table, self._options.connection)
            self._planner = Planner(self._options, kinesis, table, SystemClock(), open_metrics_for)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        """Travel as options only: threads and connections stay where they are."""
        return {"_options": self._options, "_planner": None}

    # --- in the process beside the driver -----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Give the offset before the first batch: the same every time it is asked."""
        return INITIAL_OFFSET.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Tell Spark the limit of one batch; where there are two, both are kept all the same."""
        if self._options.record_count_max is not None:
            return ReadMaxRows(self._options.record_count_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @explained
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the moment up to which to read."""
        self._opened().prepare_available_now()

    @explained
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Give the offset of the next batch, or `start` when there is nothing new."""
        begin = parse_offset(start)
        following = self._opened().latest(begin, with_limits=not isinstance(limit, ReadAllAvailable))
        return start if following is begin else following.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Give the lag per shard for the query's progress."""
        return None if self._planner is None else self._planner.report()

    @explained
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ShardPartition]:
        """Give the batch's tasks."""
        if start == end:
            return []
        return [ShardPartition(tasks) for tasks in self._opened().tasks(parse_offset(end))]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the next plan settles the batch, whether Spark gets to say this or not."""

    def stop(self) -> None:
        """End threads and give idle leases back."""
        if self._planner is not None:
            self._planner.stop()
            self._planner = None

    # --- in an executor -----------------------------------------------------------------------------------

    @explained_rows
    def read(self, partition: ShardPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # our own partition comes back
        """Read each shard's part of a batch and claim its end."""
        for task in partition.tasks:
            yield from self._read_shard(task)

    def _read_shard(self, task: ShardTask) -> Iterator[pa.RecordBatch]:
        options = self._options
        shard = ShardRange(
            open_kinesis_for(options.connection),
            options.stream,
            options.stream.rpartition("/")[2],
            task.shard_id,
            task.start,
            pace=pace_of(options.fetch_count_max, options.fetch_interval_s, options.connection),
            loss=LossPolicy(options.fail_on_data_loss, task.tip_seen_ms, task.retention_ms),
            deaggregate=options.deaggregate,
            rule=misplaced_rule(
                options.connection,
                options.stream,
                task.shard_id,
                drops_unmarked=options.drops_misplaced_aggregates,
            ),
            iterators=shard_iterators(),
        )
        claimed = ClaimedRead(
            open_table_for(options.lease_table, options.connection),
            shard,
            shard_id=task.shard_id,
            worker=task.worker,
            batch=task.batch,
            start=task.start,
            bounds=Bounds(
                record_count_max=task.record_count_max,
                bytes_max=task.bytes_max,
                until_ms=task.until_ms,
                planned_ms=task.planned_ms,
                duration_max_s=options.batch_duration_max_s,
            ),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for rows in claimed.rows():
            yield delivered(rows)
        shard.report_dropped()
