"""One stream as Spark's reader and the micro batches see it: planner, offsets, tasks and their rows. `SeveralStreams` is its twin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.batches.offsets import INITIAL_OFFSET, StreamOffset, parse_offset
from penstock.spark.options.spark_options import SourceOptions, parse_source
from penstock.spark.tasks.shard_read import BatchPart
from penstock.spark.tasks.task_opening import read_parts

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.driver.planner import Planner
    from penstock.spark.streams.several_source import SeveralStreams

    BatchSource: TypeAlias = "OneStream | SeveralStreams"
    """Holds plain values only: it travels to executors. Its offsets are those of its planner."""


class OneStream:
    """A query's source: one stream."""

    noun = "stream"
    initial_offset = INITIAL_OFFSET

    def __init__(self, options: SourceOptions) -> None:
        self.shared_options: SourceOptions = options

    def open_planner(self) -> Planner:
        """Open the planner."""
        from penstock.spark.driver.planner_opening import open_planner

        return open_planner(self.shared_options)

    def parse_offset(self, document: Any) -> StreamOffset:
        """Parse an offset as Spark or the batch log has it: JSON values."""
        return parse_offset(document)

    def tasks(
        self, planner: Planner, start: Mapping[str, Any], end: StreamOffset
    ) -> list[tuple[int, Sequence[BatchPart]]]:
        """Return the tasks of a batch, each with the place of its stream in the options' list and the parts that it reads.

        Args:
            start: The document of the offset before the batch.
            end: The batch's offset.
        """
        del start  # the end has all that the tasks of one stream need
        return [(0, parts) for parts in planner.tasks(end)]

    def rows(
        self, place: int, parts: Sequence[BatchPart], query: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, and claim the end of the batch in each shard; in an executor.

        Args:
            place: The stream's place in the options' list.
            parts: The parts that it reads, at the same time.
            query: Spark's id of the streaming query, or None if it is not known.
        """
        del place
        return read_parts(parts, self.shared_options, query)


def batch_source_of(
    given: Mapping[str, str], session_zone: str | None = None
) -> tuple[BatchSource, tuple[str, ...]]:
    """Return the source of a streaming query's options, and a sentence for each option without effect.

    Args:
        session_zone: The session's time zone, if the caller has the session.

    Raises:
        OptionError: Anything unknown, missing or out of range.
    """
    # Here, since tasks load this module and need neither.
    from penstock.spark.options.several_streams import names_several, parse_several_source
    from penstock.spark.streams.several_source import SeveralStreams

    if names_several(given):
        several, notes = parse_several_source(given, session_zone)
        return SeveralStreams(several), notes
    options, notes = parse_source(given, session_zone)
    return OneStream(options), notes
