"""The rows of one task of a query of several streams, in an executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.spark.options.several_streams import SeveralOptions
from penstock.spark.streams.stream_names import naming
from penstock.spark.streams.stream_table import StreamTable
from penstock.spark.tasks.shard_task import ShardTask
from penstock.spark.tasks.task_opening import rows_of
from penstock.wiring import open_lease_table

if TYPE_CHECKING:
    import pyarrow as pa


def rows_of_stream(
    several: SeveralOptions, place: int, tasks: Sequence[ShardTask], query: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of shards of one stream, and claim the end of the batch in each.

    Args:
        place: Index of the stream in `several.streams`.
        tasks: The shards of one Spark task.
        query: Spark's id of the streaming query, or None if it is not known.
    """
    options = several.streams[place]
    table = StreamTable(open_lease_table(options.lease_table, options.connection), tasks[0].stream.stream_id)
    with naming(options.stream):
        yield from rows_of(tasks, options, query, table=table)
