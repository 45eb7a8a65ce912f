"""Opens a shard with a query's options, in any process that reads it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

from msgspec import Struct

from penstock.core.aggregation import MisplacedRule
from penstock.core.hash_key import HashRange
from penstock.core.limits import SHARD_READ_BYTES_PER_S_MAX
from penstock.core.position import Position
from penstock.core.reading.reader_options import ReaderOptions, WayOut
from penstock.core.shard import StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.runtime.hash_ranges import HashRanges
from penstock.spark.options.spark_options import BatchOptions, SourceOptions
from penstock.spark.tasks.concurrent_read import HoldPage
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.query_stream import check_of_plan
from penstock.spark.tasks.shard_range import ShardRange

_STUBBORN_FAILURES_MAX: Final = 5  # Spark repeats the task
WAY_OUT: Final = WayOut(
    of_loss="Set option failOnDataLoss=false to go on",
    of_new_stream="start with a new checkpoint location and a new applicationName",
)
"""Advice in the errors of a query's reads."""


class ReadingProcess(Struct, frozen=True):
    """A process's clients for reading a stream.

    Args:
        kinesis: The service.
        ranges: The hash ranges of the stream's shards.
        clock: Time.
        chance: Jitter.
        name: Identifies the process.
        fetch_summary: Describes the stream of a name; None does not check whether it is still the planned one.
    """

    kinesis: Kinesis
    ranges: HashRanges
    clock: Clock
    chance: Chance
    name: str
    fetch_summary: Callable[[str], StreamSummary] | None = None


def open_shard(
    options: SourceOptions | BatchOptions,
    process: ReadingProcess,
    shard_id: str,
    start: Position,
    *,
    retention_ms: int,
    deaggregate: bool,
    tip_ms: int | None = None,
    is_foreign: bool = False,
    hash_range: HashRange | None = None,
    iterators: IteratorCache | None = None,
    hold_page: HoldPage = nullcontext,
    pushes: PushedReading | None = None,
    stream: StreamIdentity | None = None,
    planned_ms: int = 0,
) -> ShardRange:
    """Open a shard at a position, to be read with a query's options. Makes no call.

    Args:
        options: The query's.
        process: The reading process's clients and clock.
        shard_id: The shard.
        start: Everything up to and including it is left out.
        retention_ms: The stream's retention.
        deaggregate: Whether KPL aggregates are taken apart.
        tip_ms: Moment at which nothing was left to read behind the start, by the service's clock, if known.
        is_foreign: The start is the checkpoint of a worker that does not record tip marks.
        hash_range: The shard's hash range, if known.
        iterators: Kept between batches.
        hold_page: Entered for as long as a page is in memory.
        pushes: Subscription for reads without a claimed end, or None.
        stream: The stream of the plan; None checks nothing.
        planned_ms: Moment of the plan, by the service's clock.
    """
    connection = options.connection
    check_stream = None
    if stream is not None and process.fetch_summary is not None:
        application = options.application if isinstance(options, SourceOptions) else None
        check_stream = check_of_plan(options.stream, application, stream, planned_ms, process.fetch_summary)
    return ShardRange(
        process.kinesis,
        options.stream,
        shard_id,
        start,
        options=ReaderOptions(
            record_count_max=options.fetch_count_max,
            spacing_s=options.fetch_interval_s,
            # A query with interval 0 reads a server that does not limit bytes.
            read_bytes_per_s_max=SHARD_READ_BYTES_PER_S_MAX if options.fetch_interval_s > 0 else None,
            backoff_min_s=connection.backoff.base_s,
            backoff_max_s=connection.backoff.cap_s,
            deadline_s=connection.deadline_s,
            stubborn_failures_max=_STUBBORN_FAILURES_MAX,
            on_data_loss="fail" if options.fail_on_data_loss else "warn",
            retention_s=retention_ms / 1000,
            way_out=WAY_OUT,
        ),
        clock=process.clock,
        chance=process.chance,
        tip_ms=tip_ms,
        is_foreign=is_foreign,
        deaggregate=deaggregate,
        rule=MisplacedRule(process.ranges.of(shard_id), options.drops_misplaced_aggregates, hash_range),
        iterators=iterators,
        hold_page=hold_page,
        pushes=pushes,
        check_stream=check_stream,
    )
