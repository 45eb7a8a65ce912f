"""Opens the two halves of a source on the real service: the planner beside the driver, and a task's rows in an executor."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.concurrent_read import HoldPage, read_concurrently
from penstock.spark.planner import Planner
from penstock.spark.process_resources import open_metrics_for, reading_process, shard_iterators
from penstock.spark.shard_task import ShardTask, read_shard
from penstock.spark.spark_options import SourceOptions
from penstock.wiring import SystemClock, open_kcl3_tables, open_kinesis, open_lease_table

if TYPE_CHECKING:
    import pyarrow as pa


def open_planner(options: SourceOptions) -> Planner:
    """Return the driver's side of a query; nothing is asked yet."""
    return Planner(
        options,
        open_kinesis(options.connection),
        open_lease_table(options.lease_table, options.connection),
        clock=SystemClock(),
        chance=random.SystemRandom(),
        threads=SYSTEM_THREADS,
        open_metrics=open_metrics_for,
        read=lambda task: rows_of((task,), options),
        kcl3=open_kcl3_tables(options.lease_table, options.connection),
    )


def rows_of(
    tasks: Sequence[ShardTask], options: SourceOptions, query: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some shards of a batch, and claim their ends; `query` is Spark's id of the streaming query."""
    table = open_lease_table(options.lease_table, options.connection)
    process, iterators = reading_process(options), shard_iterators()

    def read(task: ShardTask, hold_page: HoldPage) -> Generator[pa.RecordBatch, None, None]:
        return read_shard(
            task, options, process, table=table, iterators=iterators, query=query, hold_page=hold_page
        )

    return read_concurrently(tasks, read, SYSTEM_THREADS)
