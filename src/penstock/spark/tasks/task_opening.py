"""Opens a task's shards on the real service, in an executor."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.tasks.concurrent_read import HoldPage, read_concurrently
from penstock.spark.tasks.process_resources import kept_subscriptions, reading_process, shard_iterators
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.shard_opening import ReadingProcess, read_shard
from penstock.spark.tasks.shard_read import BatchPart
from penstock.spark.worker_memory import bound_allocator_once
from penstock.wiring import open_fan_out, open_lease_table

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.ports.fan_out import FanOut
    from penstock.ports.lease_table import LeaseTable


def _pushed_reading(
    part: BatchPart, options: SourceOptions, process: ReadingProcess, fan_out: FanOut | None
) -> PushedReading | None:
    if part.consumer_arn is None or fan_out is None:
        return None
    return PushedReading(
        kept_subscriptions(),
        fan_out,
        (process.kinesis, part.consumer_arn, part.shard_id),
        subscribes_always=options.consumer_type == "fan-out",
        after_s=part.subscribe_after_s,
        clock=process.clock,
        chance=process.chance,
        threads=SYSTEM_THREADS,
    )


def read_parts(
    parts: Sequence[BatchPart],
    options: SourceOptions,
    query: str | None = None,
    *,
    table: LeaseTable | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's shards, and claim the batch's end in each shard after its last row.

    Args:
        parts: The parts that the task reads, at the same time.
        query: Spark's id of the streaming query, or None if it is not known.
        table: The leases of the stream; None: the table of the options.
    """
    bound_allocator_once()
    leases = table or open_lease_table(options.lease_table, options.connection)
    process = reading_process(options, shard_iterators())
    is_pushed = any(part.consumer_arn is not None for part in parts)
    fan_out = open_fan_out(options.connection) if is_pushed else None

    def read(part: BatchPart, hold_page: HoldPage) -> Generator[pa.RecordBatch, None, None]:
        return read_shard(
            part,
            options,
            process,
            table=leases,
            query=query,
            hold_page=hold_page,
            pushed_reading=_pushed_reading(part, options, process, fan_out),
        )

    return read_concurrently(parts, read, SYSTEM_THREADS, is_behind=lambda part: part.tip_ms is None)
