"""A recording as the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.recording import Recording, open_recording
from penstock.sql.query_plan import Need

if TYPE_CHECKING:
    import pyarrow as pa


class RecordingRows:
    """The rows of a recording; it is opened again for each read.

    Raises:
        DamagedRecording: The file is not a complete recording.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_recording(path) as recording:
            self.metadata = recording.metadata
            self._shard_ids = {shard.id for shard in recording.metadata.shards}

    def record_count(self, need: Need) -> int:
        """Return the number of Kinesis records in the batches that are read."""
        return sum(
            batch.records
            for batch in self.metadata.batches
            if (need.shard_id is None or batch.shard == need.shard_id)
            and (need.from_ms is None or batch.arrived_until_ms >= need.from_ms)
            and (need.until_ms is None or batch.arrived_from_ms < need.until_ms)
        )

    def read(self, need: Need) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a query needs, aggregates taken apart.

        Raises:
            DamagedRecording: A batch does not have its checksum.
        """
        if need.shard_id is not None and need.shard_id not in self._shard_ids:
            return
        recording: Recording
        with open_recording(self.path) as recording:
            yield from recording.batches(
                arrived_from=need.from_ms,
                arrived_until=need.until_ms,
                shards=None if need.shard_id is None else [need.shard_id],
            )
