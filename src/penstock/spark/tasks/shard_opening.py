"""Opens a shard with a query's options, and reads its part of a batch, in any process that reads it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from penstock.core.aggregation import MisplacedRule
from penstock.core.limits import SHARD_READ_BYTES_PER_S_MAX
from penstock.core.position import Position
from penstock.core.reading.reader_options import ErrorAdvice, ReaderOptions
from penstock.core.shard import StreamSummary
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.runtime.hash_ranges import HashRanges
from penstock.spark.options.spark_options import BatchOptions, SourceOptions
from penstock.spark.tasks.arrow_records import without_misplaced
from penstock.spark.tasks.claimed_read import ClaimedRead
from penstock.spark.tasks.concurrent_read import HoldPage
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.query_stream import name_check_of_plan
from penstock.spark.tasks.shard_page_reader import ShardPageReader
from penstock.spark.tasks.shard_read import BatchPart, ShardRead

if TYPE_CHECKING:
    import pyarrow as pa

_REFUSALS_MAX: Final = 5  # Spark repeats the task
ERROR_ADVICE: Final = ErrorAdvice(
    of_loss="Set option failOnDataLoss=false to go on",
    of_new_stream="start with a new checkpoint location and a new applicationName",
)
"""Advice in the errors of a query's reads."""


class ReadingProcess(Struct, frozen=True):
    """A process's clients for reading a stream.

    Args:
        ranges: The hash ranges of the stream's shards.
        name: Identifies the process.
        fetch_summary: Describes the stream of a name; None: nothing checks that this is still the planned stream.
        iterators: Kept between batches.
    """

    kinesis: Kinesis
    ranges: HashRanges
    clock: Clock
    chance: Chance
    name: str
    fetch_summary: Callable[[str], StreamSummary] | None = None
    iterators: IteratorCache = field(default_factory=IteratorCache)


def open_shard(
    read: ShardRead,
    start: Position,
    options: SourceOptions | BatchOptions,
    process: ReadingProcess,
    *,
    hold_page: HoldPage = nullcontext,
    pushed_reading: PushedReading | None = None,
) -> ShardPageReader:
    """Open a shard at a position, to be read with a query's options. Makes no call.

    Args:
        start: Records up to and including this position are left out.
        hold_page: Entered for as long as a page is in memory.
        pushed_reading: Subscription for reads without a claimed end, or None.
    """
    connection = options.connection
    check_stream = None
    if process.fetch_summary is not None:
        application = options.application if isinstance(options, SourceOptions) else None
        check_stream = name_check_of_plan(
            options.stream, application, read.stream, read.planned_ms, process.fetch_summary
        )
    return ShardPageReader(
        process.kinesis,
        options.stream,
        read.shard_id,
        start,
        options=ReaderOptions(
            record_count_max=options.fetch_count_max,
            spacing_s=options.fetch_interval_s,
            # Interval 0 means a server that does not limit bytes.
            read_bytes_per_s_max=SHARD_READ_BYTES_PER_S_MAX if options.fetch_interval_s > 0 else None,
            backoff_min_s=connection.backoff.base_s,
            backoff_max_s=connection.backoff.cap_s,
            deadline_s=connection.deadline_s,
            refusals_max=_REFUSALS_MAX,
            on_data_loss="fail" if options.fail_on_data_loss else "warn",
            retention_s=read.retention_ms / 1000,
            error_advice=ERROR_ADVICE,
        ),
        clock=process.clock,
        chance=process.chance,
        tip_ms=read.tip_ms,
        is_foreign=read.is_foreign,
        deaggregate=read.deaggregates,
        rule=MisplacedRule(
            process.ranges.of(read.shard_id), options.drops_misplaced_aggregates, read.hash_range
        ),
        iterators=process.iterators,
        hold_page=hold_page,
        pushed_reading=pushed_reading,
        check_stream=check_stream,
    )


def read_shard(
    part: BatchPart,
    options: SourceOptions,
    process: ReadingProcess,
    *,
    table: LeaseTable,
    query: str | None = None,
    hold_page: HoldPage = nullcontext,
    pushed_reading: PushedReading | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a batch in one shard, then claim the batch's end there if no execution has claimed one.

    Executors call this for the shards of a query. If no action of the query has read a shard, the driver calls it and drops the
    rows.

    Args:
        part: The shard's part of the batch.
        query: Spark's id of the streaming query, or None if it is not known.
        hold_page: Entered for as long as a page is in memory.
        pushed_reading: Subscription, or None.

    Raises:
        ClaimConflict, AnotherDriver, DataLossError, ServiceError: As in `ClaimedRead.rows`.
    """
    shard = open_shard(
        part, part.execution.start, options, process, hold_page=hold_page, pushed_reading=pushed_reading
    )
    claimed = ClaimedRead(table, shard, part, options, process=process.name, query=query, clock=process.clock)
    with closing(claimed):
        # Not a loop: the loop variable would keep a page's rows until the next page.
        yield from map(without_misplaced, claimed.rows())
        claimed.keep_subscription()
    shard.log_dropped_records()
