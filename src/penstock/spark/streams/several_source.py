"""Several streams as one source of batches: their planner, their offsets, and the rows of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.batches.several_offsets import (
    INITIAL_MULTI_STREAM_OFFSET,
    MultiStreamOffset,
    parse_multi_stream_offset,
)
from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.stream_names import naming_stream
from penstock.spark.tasks.shard_read import BatchPart
from penstock.spark.tasks.stream_table import StreamTable
from penstock.spark.tasks.task_opening import read_parts
from penstock.wiring import open_lease_table

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.streams.several_planner import SeveralPlanner


class SeveralStreams:
    """A query's source: several streams. The methods are those of `penstock.spark.batch_planning.OneStream`."""

    noun = "streams"
    initial_offset = INITIAL_MULTI_STREAM_OFFSET

    def __init__(self, options: SeveralOptions) -> None:
        self._options = options

    @property
    def shared_options(self) -> SourceOptions:
        return self._options.shared

    def open_planner(self) -> SeveralPlanner:
        from penstock.spark.streams.several_planner import SeveralPlanner

        return SeveralPlanner(self._options)

    def parse_offset(self, document: Any) -> MultiStreamOffset:
        return parse_multi_stream_offset(document)

    def tasks(
        self, planner: SeveralPlanner, start: Mapping[str, Any], end: MultiStreamOffset
    ) -> list[tuple[int, Sequence[BatchPart]]]:
        return planner.tasks(parse_multi_stream_offset(start), end)

    def rows(
        self, place: int, parts: Sequence[BatchPart], query: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        options = self._options.streams[place]
        stream_id = parts[0].stream.stream_id
        table = StreamTable(open_lease_table(options.lease_table, options.connection), stream_id)
        with naming_stream(options.stream):
            yield from read_parts(parts, options, query, table=table)
