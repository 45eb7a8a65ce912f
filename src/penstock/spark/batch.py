"""`spark.read.format("kinesis")`: a bounded read, one task per shard, no leases and no state.

Filters do not narrow the read, although Spark can push them down to a source in Python: Spark 4.3 keeps the plan of a frame's
first action for all later ones, and an action without the filter would lack rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.position import LATEST, Position
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.starting import check_not_in_future
from penstock.spark.driver.startup_checks import refuse_unknown_shards
from penstock.spark.options.spark_options import BatchOptions
from penstock.spark.spark_errors import rows_with_plain_errors, with_plain_errors
from penstock.spark.stream_names import naming_stream
from penstock.spark.tasks.arrow_records import without_misplaced
from penstock.spark.tasks.page_limits import count_before_ms, count_up_to, position_of
from penstock.spark.tasks.process_resources import reading_process
from penstock.spark.tasks.shard_opening import open_shard
from penstock.spark.tasks.shard_read import ShardRead
from penstock.spark.worker_memory import bound_allocator_once
from penstock.wiring import SystemClock, open_kinesis

if TYPE_CHECKING:
    import pyarrow as pa


class BoundedRead(ShardRead, frozen=True, kw_only=True):
    """The read of one shard by one task of a batch read.

    Args:
        start: Everything up to and including it is left out.
        end: The last record that is read, or None.
        until_ms: Records that arrived at or after it are left out.
    """

    start: Position
    end: Position | None
    until_ms: int


class BoundedPartition(InputPartition):
    """One shard of a batch read.

    Args:
        place: The stream's place in the options' list.
        bounded: None if there is nothing at all to read.
    """

    def __init__(self, place: int, bounded: BoundedRead | None) -> None:
        super().__init__((place, None if bounded is None else bounded.shard_id))
        self.place = place
        self.bounded = bounded


class KinesisBatchReader(DataSourceReader):
    """A stream, or several, between two positions as a batch source."""

    def __init__(self, *streams: BatchOptions) -> None:
        self._streams = streams

    @with_plain_errors
    def partitions(self) -> list[BoundedPartition]:
        """Return one task for each shard that may hold records in the range."""
        found = []
        for place, options in enumerate(self._streams):
            with self._naming_stream(options):
                found += [BoundedPartition(place, each) for each in _plan_reads(options)]
        return found or [BoundedPartition(0, None)]

    @rows_with_plain_errors
    def read(self, partition: BoundedPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # Spark passes our own partition
        """Read one shard's range."""
        options = self._streams[partition.place]
        if partition.bounded is not None:
            with self._naming_stream(options):
                yield from _rows_of_shard(partition.bounded, options)

    def _naming_stream(self, options: BatchOptions) -> AbstractContextManager[None]:
        return naming_stream(options.stream) if len(self._streams) > 1 else nullcontext()


def _plan_reads(options: BatchOptions) -> Iterator[BoundedRead]:
    """Yield the read of each shard of a stream that may hold records in the range."""
    kinesis = open_kinesis(options.connection)
    summary = kinesis.fetch_summary(options.stream)
    listing = kinesis.fetch_shards(options.stream)
    for option, named in (("startingPosition", options.starting), ("endingPosition", options.ending)):
        refuse_unknown_shards(
            options.stream, listing.shards, named, fails=options.fail_on_data_loss, option=option
        )
    now_ms = service_bound_ms(SystemClock().wall_ms(), listing.server_ms)
    check_not_in_future(options.starting, now_ms, "option startingPosition (startingTimestamp)")
    for shard in sorted(listing.shards, key=lambda each: each.shard_id):
        start = options.starting.position_of(shard.shard_id)
        end = options.ending.position_of(shard.shard_id)
        until_ms = now_ms if end.timestamp_ms is None else min(now_ms, end.timestamp_ms)
        is_late = start.timestamp_ms is not None and start.timestamp_ms >= until_ms
        if start.is_shard_end or start == LATEST or is_late:
            continue
        yield BoundedRead(
            shard_id=shard.shard_id,
            stream=summary.identity,
            planned_ms=now_ms,
            retention_ms=summary.retention_ms,
            deaggregates=options.deaggregate,
            hash_range=shard.hash_range,
            start=start,
            end=end if end.is_record else None,
            until_ms=until_ms,
        )


def _rows_of_shard(bounded: BoundedRead, options: BatchOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one shard, up to the first of: the moment, the last record, the shard's end, the tip."""
    bound_allocator_once()
    shard = open_shard(bounded, bounded.start, options, reading_process(options))
    read_to = bounded.start
    for page in shard.pages():
        count = count_before_ms(page.rows, bounded.until_ms)
        if bounded.end is not None:
            count = min(count, count_up_to(page.rows, bounded.end))
        if count:
            yield without_misplaced(page.rows.slice(0, count))
            read_to = position_of(page.rows, count - 1)
        if count < page.rows.num_rows or page.is_end:
            break
        if page.millis_behind_latest == 0:
            must_follow = bounded.end is not None and read_to < bounded.end
            if not must_follow or not shard.read_again():
                break
        del page  # or it would be in memory beside the next one
    shard.log_dropped_records()
