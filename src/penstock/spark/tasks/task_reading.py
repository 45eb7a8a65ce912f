"""Reads one shard of one batch, in an executor or beside the driver.

Executors read the shards of a query. The driver reads a shard to the batch's end if no action of the query did, and drops
the rows.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

from penstock.ports.lease_table import LeaseTable
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.arrow_records import delivered
from penstock.spark.tasks.claimed_read import ClaimedRead
from penstock.spark.tasks.concurrent_read import HoldPage
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.shard_opening import ReadingProcess, open_shard
from penstock.spark.tasks.shard_task import ShardTask

if TYPE_CHECKING:
    import pyarrow as pa


def read_shard(
    task: ShardTask,
    options: SourceOptions,
    process: ReadingProcess,
    *,
    table: LeaseTable,
    query: str | None = None,
    hold_page: HoldPage = nullcontext,
    pushes: PushedReading | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a batch in one shard, then claim the batch's end there if no execution has.

    Args:
        task: The shard and the batch.
        query: Spark's id of the streaming query, or None if it is not known.
        hold_page: Entered for as long as a page is in memory.
        pushes: Subscription, or None.

    Raises:
        ClaimConflict, AnotherDriver, DataLossError, ServiceError: As in `ClaimedRead.rows`.
    """
    shard = open_shard(task, task.execution.start, options, process, hold_page=hold_page, pushes=pushes)
    claimed = ClaimedRead(table, shard, task, options, process=process.name, query=query, clock=process.clock)
    with closing(claimed):
        yield from map(delivered, claimed.rows())  # no variable keeps a page's rows until the next page
        claimed.keep_subscription()
    shard.report_dropped()
