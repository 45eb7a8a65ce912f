"""`spark.read.format("kinesis")`: a bounded read, one task per shard, no leases and no state.

Filters on `approximateArrivalTimestamp` and `shardId` narrow the read itself when Spark pushes filters down
(`spark.sql.python.filterPushdown.enabled`); Spark applies them again, so the result is the same without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.core.position import LATEST, Position, Sentinel, at_timestamp
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.starting import check_has_come
from penstock.core.stream_identity import StreamIdentity
from penstock.spark.driver.startup_checks import refuse_unknown_shards
from penstock.spark.engine import PUSHES_FILTERS
from penstock.spark.options.spark_options import BatchOptions
from penstock.spark.spark_errors import explained, explained_rows
from penstock.spark.stream_names import naming
from penstock.spark.tasks.arrow_records import delivered
from penstock.spark.tasks.page_limits import count_before_ms, count_up_to, position_of
from penstock.spark.tasks.process_resources import reading_process
from penstock.spark.tasks.shard_opening import open_shard
from penstock.spark.tasks.shard_task import ShardRead
from penstock.spark.worker_memory import bound_allocator_once
from penstock.wiring import SystemClock, open_kinesis

if TYPE_CHECKING:
    import pyarrow as pa

_ARRIVAL: Final = ("approximateArrivalTimestamp",)
_SHARD: Final = ("shardId",)


class Narrowing(Struct, frozen=True):
    """Parts of the stream that pushed filters leave out.

    Args:
        from_ms: Only records that arrived at or after it are needed, or None.
        until_ms: Only records that arrived before it are needed, or None.
        shards: Only these shards, or None for all.
    """

    from_ms: int | None = None
    until_ms: int | None = None
    shards: frozenset[str] | None = None


def narrow(filters: Iterable[datasource.Filter]) -> Narrowing:
    """Extract the useful parts of filters; Spark applies the rest."""
    narrowed = Narrowing()
    for each in filters:
        narrowed = _narrow_by(narrowed, each)
    return narrowed


def _narrow_by(so_far: Narrowing, condition: datasource.Filter) -> Narrowing:
    attribute = getattr(condition, "attribute", None)
    value: Any = getattr(condition, "value", None)
    if attribute == _SHARD and isinstance(condition, datasource.EqualTo | datasource.In):
        # `value` is one text in an EqualTo, and a tuple of texts in an In.
        wanted = frozenset([value] if isinstance(condition, datasource.EqualTo) else value)
        return replace(so_far, shards=wanted if so_far.shards is None else so_far.shards & wanted)
    if attribute != _ARRIVAL or not isinstance(value, datetime) or value.tzinfo is None:
        return so_far  # also if the time has no zone and so names no moment: Spark applies the filter
    micros = round(value.timestamp() * 1_000_000)
    low_ms, high_ms = micros // 1000, -(-micros // 1000) + 1
    if isinstance(condition, datasource.EqualTo | datasource.GreaterThan | datasource.GreaterThanOrEqual):
        so_far = replace(so_far, from_ms=low_ms if so_far.from_ms is None else max(so_far.from_ms, low_ms))
    if isinstance(condition, datasource.EqualTo | datasource.LessThan | datasource.LessThanOrEqual):
        so_far = replace(
            so_far, until_ms=high_ms if so_far.until_ms is None else min(so_far.until_ms, high_ms)
        )
    return so_far


class BoundedRead(ShardRead, frozen=True, kw_only=True):
    """One task of a batch read: one shard up to a moment.

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


class _Pushdown:
    """`pushFilters` in a form that Spark accepts with and without filter pushdown.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, and
    recognises an override by the function behind the bound method. This object does the work when called and shows Spark
    the inherited function, so the same reader serves both settings.
    """

    def __init__(self, keep: Callable[[Narrowing], None]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._keep = keep

    def __call__(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Keep the filters and return all of them: Spark applies them as well."""
        self._keep(narrow(filters))
        return filters


class KinesisBatchReader(DataSourceReader):
    """A stream, or several, between two positions as a batch source."""

    def __init__(self, *streams: BatchOptions) -> None:
        self._streams = streams
        self._narrowing = Narrowing()
        if PUSHES_FILTERS:
            # The instance's attribute hides the inherited method on purpose; see _Pushdown.
            self.pushFilters = _Pushdown(self._keep_narrowing)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the pushdown object, whose work is done."""
        return {"_streams": self._streams, "_narrowing": self._narrowing}

    def _keep_narrowing(self, narrowing: Narrowing) -> None:
        self._narrowing = narrowing

    @explained
    def partitions(self) -> list[BoundedPartition]:
        """Return one task for each shard that may hold records in the range."""
        found = []
        for place, options in enumerate(self._streams):
            with self._naming(options):
                found += [BoundedPartition(place, each) for each in _plan(options, self._narrowing)]
        return found or [BoundedPartition(0, None)]

    @explained_rows
    def read(self, partition: BoundedPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # Spark passes our own partition
        """Read one shard's range."""
        options = self._streams[partition.place]
        if partition.bounded is not None:
            with self._naming(options):
                yield from _rows(partition.bounded, options)

    def _naming(self, options: BatchOptions) -> AbstractContextManager[None]:
        return naming(options.stream) if len(self._streams) > 1 else nullcontext()


def _plan(options: BatchOptions, narrowing: Narrowing) -> Iterator[BoundedRead]:
    """Yield the read of each shard of a stream that may hold records in the range."""
    kinesis = open_kinesis(options.connection)
    summary = kinesis.fetch_summary(options.stream)
    listing = kinesis.fetch_shards(options.stream)
    for option, named in (("startingPosition", options.starting), ("endingPosition", options.ending)):
        refuse_unknown_shards(
            options.stream, listing.shards, named, fails=options.fail_on_data_loss, option=option
        )
    now_ms = service_bound_ms(SystemClock().wall_ms(), listing.server_ms)
    check_has_come(options.starting, now_ms, "option startingPosition (startingTimestamp)")
    for shard in sorted(listing.shards, key=lambda each: each.shard_id):
        if narrowing.shards is not None and shard.shard_id not in narrowing.shards:
            continue
        start = _later_start(options.starting.of(shard.shard_id), narrowing.from_ms)
        end = options.ending.of(shard.shard_id)
        until_ms = min(m for m in (now_ms, end.timestamp_ms, narrowing.until_ms) if m is not None)
        is_late = start.timestamp_ms is not None and start.timestamp_ms >= until_ms
        if start.is_shard_end or start == LATEST or is_late:
            continue
        yield BoundedRead(
            shard_id=shard.shard_id,
            stream=StreamIdentity(summary.arn, summary.created_ms),
            planned_ms=now_ms,
            retention_ms=summary.retention_ms,
            deaggregates=options.deaggregate,
            hash_range=shard.hash_range,
            start=start,
            end=end if end.is_record else None,
            until_ms=until_ms,
        )


def _rows(bounded: BoundedRead, options: BatchOptions) -> Iterator[pa.RecordBatch]:
    bound_allocator_once()
    shard = open_shard(bounded, bounded.start, options, reading_process(options))
    read_to = bounded.start
    for page in shard.pages():
        count = count_before_ms(page.rows, bounded.until_ms)
        if bounded.end is not None:
            count = min(count, count_up_to(page.rows, bounded.end))
        if count:
            yield delivered(page.rows.slice(0, count))
            read_to = position_of(page.rows, count - 1)
        if count < page.rows.num_rows or page.is_end:
            break
        must_follow = bounded.end is not None and read_to < bounded.end
        if page.millis_behind_latest == 0 and not (must_follow and shard.read_again()):
            break
        del page  # or it would be in memory beside the next one
    shard.report_dropped()


def _later_start(start: Position, from_ms: int | None) -> Position:
    if from_ms is None or start.is_record:
        # The user starts at a named record; Spark's own filter does the rest.
        return start
    if start.sentinel is Sentinel.SHARD_END or start == LATEST:
        return start
    return at_timestamp(max(from_ms, start.timestamp_ms or 0))
