"""A recording as the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.recording import Recording, open_recording
from penstock.sql.query_plan import RowBounds

if TYPE_CHECKING:
    import pyarrow as pa


class RecordingRows:
    """The rows of a recording. Each read opens the file again.

    Raises:
        DamagedRecording: The file is not a complete recording.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_recording(path) as recording:
            self.metadata = recording.metadata
            self._shard_ids = {shard.id for shard in recording.metadata.shards}

    def record_count(self, bounds: RowBounds) -> int:
        """Return the number of Kinesis records in the recording's batches that may have rows within these bounds."""
        return sum(
            batch.records
            for batch in self.metadata.batches
            if (bounds.shard_id is None or batch.shard == bounds.shard_id)
            and (bounds.from_ms is None or batch.arrived_until_ms >= bounds.from_ms)
            and (bounds.until_ms is None or batch.arrived_from_ms < bounds.until_ms)
        )

    def read(self, bounds: RowBounds) -> Iterator[pa.RecordBatch]:
        """Yield the rows within these bounds, aggregates taken apart.

        Raises:
            DamagedRecording: A batch does not match its checksum.
        """
        if bounds.shard_id is not None and bounds.shard_id not in self._shard_ids:
            return
        recording: Recording
        with open_recording(self.path) as recording:
            yield from recording.batches(
                arrived_from=bounds.from_ms,
                arrived_until=bounds.until_ms,
                shards=None if bounds.shard_id is None else [bounds.shard_id],
            )
