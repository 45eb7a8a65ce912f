"""`spark.read.format("kinesis")` of several streams: the tasks of a bounded read of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from penstock.spark.batch import BoundedPartition, KinesisBatchReader
from penstock.spark.options.spark_options import BatchOptions
from penstock.spark.spark_errors import explained, explained_rows
from penstock.spark.streams.stream_names import naming

if TYPE_CHECKING:
    import pyarrow as pa


class SeveralPartition(InputPartition):
    """One task of a bounded read of several streams.

    Args:
        place: The stream's place in the options' list.
        bounded: The task of the read of that stream.
    """

    def __init__(self, place: int, bounded: BoundedPartition) -> None:
        super().__init__((place, bounded.value))
        self.place = place
        self.bounded = bounded


class SeveralBatchReader(KinesisBatchReader):
    """Several streams between two positions as a batch source."""

    def __init__(self, options: Sequence[BatchOptions]) -> None:
        super().__init__(options[0])
        self._streams = tuple(options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: without the pushdown object, whose work is done."""
        return {**super().__getstate__(), "_streams": self._streams}

    @explained
    def partitions(self) -> list[SeveralPartition]:  # type: ignore[override]  # Spark passes them to `read` as they are
        """Return the tasks of each stream."""
        found = []
        for place, options in enumerate(self._streams):
            reader = KinesisBatchReader(options)
            reader._keep_narrowing(self._narrowing)  # noqa: SLF001 - the filters of this read hold for each stream
            with naming(options.stream):
                found += [SeveralPartition(place, bounded) for bounded in reader.partitions()]
        return found

    @explained_rows
    def read(self, partition: SeveralPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # as above
        """Read one shard's range."""
        options = self._streams[partition.place]
        with naming(options.stream):
            yield from KinesisBatchReader(options).read(partition.bounded)
