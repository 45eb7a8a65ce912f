"""Write a recording: row groups of one shard each, and the metadata in the footer."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from penstock.core.recording.metadata import (
    CHECKSUM_KEY,
    METADATA_KEY,
    RecordedBatch,
    RecordingMetadata,
    encode_metadata,
)
from penstock.recording.arrow import SCHEMA, pa, pq

_COMPRESSION: Final = "zstd"
DICTIONARY_COLUMNS: Final = ["streamName", "shardId"]
_STATISTICS_COLUMNS: Final = ["shardId", "approximateArrivalTimestamp", "partitionKey"]


class _CountedFile(io.RawIOBase):
    """Passes written bytes on to a file; keeps the position, and the CRC-32 since its last reset."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.position = 0
        self.crc32 = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, piece: Any) -> int:
        view = memoryview(piece).cast("B")
        self._file.write(view)
        self.position += len(view)
        self.crc32 = zlib.crc32(view, self.crc32)
        return len(view)


class RecordingWriter:
    """Writes one file; a context manager. The file is a recording only after `finish`.

    Args:
        path: The file; an existing one is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._counted_file = _CountedFile(self._file)
        self._writer = pq.ParquetWriter(
            self._counted_file,
            SCHEMA,
            compression=_COMPRESSION,
            compression_level=1,
            use_dictionary=DICTIONARY_COLUMNS,
            write_statistics=_STATISTICS_COLUMNS,
            write_page_checksum=True,
        )
        self.batches: list[RecordedBatch] = []

    def add(self, table: pa.Table) -> RecordedBatch:
        """Write consecutive records of one shard as a row group.

        Args:
            table: At least one row; the columns of `SCHEMA`.
        """
        self._counted_file.crc32, offset = 0, self._counted_file.position
        self._writer.write_table(table, row_group_size=table.num_rows)
        batch = describe_batch(table, offset, self._counted_file.position - offset, self._counted_file.crc32)
        self.batches.append(batch)
        return batch

    def finish(
        self, make_metadata: Callable[[tuple[RecordedBatch, ...]], RecordingMetadata]
    ) -> RecordingMetadata:
        """Write the footer, and sync the file to the disk."""
        metadata = make_metadata(tuple(self.batches))
        document = encode_metadata(metadata)
        self._writer.add_key_value_metadata(
            {METADATA_KEY.decode(): document.decode(), CHECKSUM_KEY.decode(): f"{zlib.crc32(document):08x}"}
        )
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        return metadata

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe_batch(table: pa.Table, offset: int = 0, length: int = 0, crc32: int = 0) -> RecordedBatch:
    """Return the description of a row group. The defaults are for a part, which has no place in the final file yet."""
    import pyarrow.compute as pc

    arrivals = pc.min_max(table.column("approximateArrivalTimestamp").cast(pa.int64()))
    numbers, data, keys = (table.column(name) for name in ("sequenceNumber", "data", "partitionKey"))
    sizes = (pc.sum(pc.binary_length(column)).as_py() or 0 for column in (data, keys))
    return RecordedBatch(
        shard=table.column("shardId")[0].as_py(),
        records=table.num_rows,
        record_bytes=sum(sizes),
        first_sequence_number=numbers[0].as_py(),
        last_sequence_number=numbers[-1].as_py(),
        arrived_from_ms=arrivals["min"].as_py() // 1000,
        arrived_until_ms=arrivals["max"].as_py() // 1000,
        offset=offset,
        length=length,
        crc32=crc32,
    )
