"""One shard of one batch: what the driver gives out, and how it is read wherever it runs.

Executors read what a query asks for. The driver reads a shard to the end that its batch has where no action of the query
did, and drops the rows.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.core.batches.claims import Execution
from penstock.core.batches.offsets import Share
from penstock.core.stream_identity import StreamIdentity
from penstock.ports.lease_table import LeaseTable
from penstock.spark.arrow_records import delivered
from penstock.spark.claimed_read import Bounds, ClaimedRead, QueryContext
from penstock.spark.concurrent_read import HoldPage
from penstock.spark.iterator_cache import IteratorCache
from penstock.spark.pushed_reading import PushedReading
from penstock.spark.shard_opening import ReadingProcess, open_shard
from penstock.spark.spark_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


class ShardTask(Struct, frozen=True):
    """What one shard of one batch is read by: plain values, sent to an executor.

    Args:
        shard_id: The shard.
        execution: The batch, and where it starts.
        share: The shard's part of the batch's limits.
        until_ms: Records that arrived at or after it stay for later, or None.
        planned_ms: When the batch was planned.
        tip_ms: Moment at which nothing was left behind the start, by the service's clock, or None.
        is_foreign: The start is the checkpoint of a worker that notes no such moments.
        retention_ms: The stream's retention.
        stream: The stream.
        deaggregates: Whether KPL aggregates are taken apart.
        consumer_arn: The registered consumer that may subscribe to the shard, or None.
    """

    shard_id: str
    execution: Execution
    share: Share
    until_ms: int | None
    planned_ms: int
    tip_ms: int | None
    is_foreign: bool
    retention_ms: int
    stream: StreamIdentity
    deaggregates: bool
    consumer_arn: str | None = None


def read_shard(
    task: ShardTask,
    options: SourceOptions,
    process: ReadingProcess,
    *,
    table: LeaseTable,
    iterators: IteratorCache,
    query: str | None = None,
    hold_page: HoldPage = nullcontext,
    pushes: PushedReading | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of one shard of a batch; when this ends without an error, the batch's end there is fixed.

    Args:
        task: The shard and the batch.
        options: The query's options.
        process: Where it is read.
        table: The application's lease table.
        iterators: What the process keeps between batches.
        query: Spark's id of the streaming query, or None where it is not known.
        hold_page: Entered for as long as a page is in memory.
        pushes: What a subscription may bring, or None.

    Raises:
        ClaimConflict, AnotherDriver, DataLossError, ServiceError: As `ClaimedRead.rows` says.
    """
    shard = open_shard(
        options,
        process,
        task.shard_id,
        task.execution.start,
        retention_ms=task.retention_ms,
        deaggregate=task.deaggregates,
        tip_ms=task.tip_ms,
        is_foreign=task.is_foreign,
        iterators=iterators,
        hold_page=hold_page,
        pushes=pushes,
        stream=task.stream,
        planned_ms=task.planned_ms,
    )
    share = task.share
    counts = (share.record_count_max, options.shard_record_count_max)
    claimed = ClaimedRead(
        table,
        shard,
        shard_id=task.shard_id,
        execution=task.execution,
        bounds=Bounds(
            record_count_max=min((count for count in counts if count is not None), default=None),
            bytes_max=share.bytes_max,
            may_exceed=share.may_exceed,
            until_ms=task.until_ms,
            planned_ms=task.planned_ms,
            duration_max_s=options.batch_duration_max_s,
        ),
        context=QueryContext(
            stream=task.stream,
            query=query,
            process=process.name,
            deaggregates=task.deaggregates,
            retention_ms=task.retention_ms,
            tip_ms=task.tip_ms,
            fail_on_data_loss=options.fail_on_data_loss,
        ),
        clock=process.clock,
    )
    with closing(claimed):
        for rows in claimed.rows():
            yield delivered(rows)
        claimed.leave_subscription()
    shard.report_dropped()
