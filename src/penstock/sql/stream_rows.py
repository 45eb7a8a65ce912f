"""Reads a time range of a stream as Arrow batches: every shard at its read quota. Nothing is written, not even leases."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from msgspec import Struct

from penstock.core.aggregation import MisplacedRule
from penstock.core.position import TRIM_HORIZON, Position, at_timestamp
from penstock.core.reading.reader_options import PAGE_BYTES, ErrorAdvice, ReaderOptions
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.shard import Shard, StreamSummary
from penstock.ports.kinesis import Kinesis
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.tasks.arrow_records import without_misplaced
from penstock.spark.tasks.concurrent_read import HoldPage, read_concurrently
from penstock.spark.tasks.page_limits import bytes_of
from penstock.spark.tasks.query_stream import name_check_of_plan
from penstock.spark.tasks.shard_page_reader import ShardPageReader
from penstock.sql.columns import ARRIVAL
from penstock.sql.query_plan import RowBounds

if TYPE_CHECKING:
    import pyarrow as pa

ARRIVALS_APART_MS: Final = 2_000
"""Arrival times are approximate: in a shard, a record may be dated a little before its predecessor."""
ERROR_ADVICE: Final = ErrorAdvice(of_loss="Start the query again", of_new_stream="start the query again")


class StreamRange(Struct, frozen=True):
    """The part of a stream that is read.

    Args:
        from_ms: Records that arrived before it may be left out; None: from the oldest record on.
        until_ms: Records that arrived at or after it are left out.
    """

    from_ms: int | None
    until_ms: int
    shards: tuple[Shard, ...]


class StreamRows:
    """The rows of a stream as a table. Records that arrive after `open_stream_rows` are left out.

    Args:
        stream: Name or ARN.
        now_ms: When the stream was opened, by the service's clock.
        clock_ahead_s: How far this machine's clock is ahead of the service's.

    Attributes:
        record_count: User records read so far.
        data_bytes: The size of their rows.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        summary: StreamSummary,
        shards: tuple[Shard, ...],
        *,
        now_ms: int,
        clock_ahead_s: float,
    ) -> None:
        self.clock_ahead_s = clock_ahead_s
        self.kinesis = kinesis
        self.stream = stream
        self._shards = shards
        self.summary = summary
        self.now_ms = now_ms
        self.record_count = 0
        self.data_bytes = 0

    def plan(self, bounds: RowBounds) -> StreamRange:
        """Return the range of the stream that has the rows within these bounds."""
        from_ms = bounds.from_ms
        if from_ms is not None and from_ms <= self.now_ms - self.summary.retention_ms:
            from_ms = None
        until_ms = self.now_ms if bounds.until_ms is None else min(self.now_ms, bounds.until_ms)
        is_empty = from_ms is not None and from_ms >= until_ms
        shards = () if is_empty else self._shards
        if bounds.shard_id is not None:
            shards = tuple(shard for shard in shards if shard.shard_id == bounds.shard_id)
        return StreamRange(from_ms, until_ms, tuple(sorted(shards, key=lambda shard: shard.shard_id)))

    @staticmethod
    def start_of(stream_range: StreamRange) -> Position:
        """Return the position from which the shards of a range are read."""
        if stream_range.from_ms is None:
            return TRIM_HORIZON
        return at_timestamp(stream_range.from_ms - ARRIVALS_APART_MS)

    def read(self, bounds: RowBounds) -> Iterator[pa.RecordBatch]:
        """Yield the rows within these bounds; those of a shard in order.

        Raises:
            DataLossError: Records left the stream during the read.
            StreamChanged: The stream was deleted and created again.
            ServiceError: No page of a shard could be read for longer than the deadline.
        """
        stream_range = self.plan(bounds)
        if not stream_range.shards:
            return
        ranges = HashRanges(self.kinesis, self.stream)
        clock, chance = SystemClock(), random.SystemRandom()
        identity = self.summary.identity
        start = self.start_of(stream_range)

        def read_shard(shard: Shard, hold_page: HoldPage) -> Generator[pa.RecordBatch, None, None]:
            pages = ShardPageReader(
                self.kinesis,
                self.stream,
                shard.shard_id,
                start,
                options=ReaderOptions(
                    page_bytes_aim=PAGE_BYTES,
                    deadline_s=60.0,
                    retention_s=self.summary.retention_ms / 1000,
                    error_advice=ERROR_ADVICE,
                ),
                clock=clock,
                chance=chance,
                rule=MisplacedRule(ranges.of(shard.shard_id), known_range=shard.hash_range),
                hold_page=hold_page,
                check_stream=name_check_of_plan(
                    self.stream, None, identity, self.now_ms, self.kinesis.fetch_summary
                ),
            )
            for page in pages.pages():
                latest_ms = _latest_ms(page.rows)
                rows = without_misplaced(page.rows)
                if latest_ms >= stream_range.until_ms:
                    arrivals_us = pc.cast(rows.column(ARRIVAL), "int64")
                    rows = rows.filter(pc.less(arrivals_us, stream_range.until_ms * 1000))
                if rows.num_rows:
                    yield rows
                is_past = latest_ms >= stream_range.until_ms + ARRIVALS_APART_MS
                if is_past or page.is_end or page.millis_behind_latest == 0:
                    break
            pages.log_dropped_records()

        for rows in read_concurrently(stream_range.shards, read_shard, SYSTEM_THREADS):
            self.record_count += rows.num_rows
            self.data_bytes += bytes_of(rows)
            yield rows


def _latest_ms(rows: pa.RecordBatch) -> int:
    """Return the latest arrival in milliseconds since the epoch; 0 without rows."""
    latest_us = pc.max(pc.cast(rows.column(ARRIVAL), "int64")).as_py()
    return 0 if latest_us is None else int(latest_us) // 1000


def open_stream_rows(kinesis: Kinesis, stream: str) -> StreamRows:
    """Describe a stream and list its shards.

    Raises:
        NotFound: The stream does not exist.
    """
    summary = kinesis.fetch_summary(stream)
    # The moment is taken before the listing: a shard that is missing there has only later records.
    own_ms = SystemClock().wall_ms()
    listing = kinesis.fetch_shards(stream)
    return StreamRows(
        kinesis,
        stream,
        summary,
        listing.shards,
        now_ms=service_bound_ms(own_ms, listing.server_ms) + 1,
        clock_ahead_s=0.0 if listing.server_ms is None else (own_ms - listing.server_ms) / 1000,
    )
