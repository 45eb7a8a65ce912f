"""One shard of one batch: the values that the driver sends to an executor, and the read itself.

Executors read the shards of a query. The driver reads a shard to the batch's end if no action of the query did, and drops
the rows.
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
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.arrow_records import delivered
from penstock.spark.tasks.claimed_read import Bounds, ClaimedRead, QueryContext
from penstock.spark.tasks.concurrent_read import HoldPage
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.shard_opening import ReadingProcess, open_shard

if TYPE_CHECKING:
    import pyarrow as pa


class ShardTask(Struct, frozen=True):
    """Values for reading one shard of one batch, sent to an executor.

    Args:
        shard_id: The shard.
        execution: The batch, and its start.
        share: The shard's part of the batch's limits.
        until_ms: Records that arrived at or after it stay for later, or None.
        planned_ms: Moment of the plan.
        tip_ms: Moment at which nothing was left behind the start, by the service's clock, or None.
        is_foreign: The start is the checkpoint of a worker that does not record tip marks.
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
    """Yield the rows of one shard of a batch. When this ends without an error, the batch's end there is claimed.

    Args:
        task: The shard and the batch.
        options: The query's options.
        process: The reading process's clients and clock.
        table: The application's lease table.
        iterators: Kept between batches by the process.
        query: Spark's id of the streaming query, or None if it is not known.
        hold_page: Entered for as long as a page is in memory.
        pushes: Subscription, or None.

    Raises:
        ClaimConflict, AnotherDriver, DataLossError, ServiceError: As in `ClaimedRead.rows`.
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
        claimed.keep_subscription()
    shard.report_dropped()
