"""Read a recording: metadata, checksums, and the records of one row group at a time. Needs pyarrow.

This is the server's own reader of docs/recording-format.md, so that the library's writer is not checked by itself.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from penstock_local.errors import OptionError
from penstock_local.wire import arrival_text, record_text

_VERSION: Final = 1
_FORMAT: Final = "penstock recording"
_DOCUMENT, _CHECKSUM = b"penstock.recording", b"penstock.recording.crc32"
_READ_BYTES: Final = 1 << 20
_CACHE_BYTES_MAX: Final = 256 * 1024 * 1024
_ROW_OVERHEAD_BYTES: Final = 200  # of the objects that a row becomes, beside its text
_NUMBER_DIGITS: Final = 56  # digits of every sequence number: the stored form of a record relies on them


class RecordedShard(msgspec.Struct, frozen=True):
    """A shard in the metadata."""

    id: str
    hash_range: tuple[str, str]
    starting_sequence_number: str
    ending_sequence_number: str | None = None
    parents: tuple[str, ...] = ()
    opened_ms: int | None = None
    closed_ms: int | None = None


class RecordedBatch(msgspec.Struct, frozen=True):
    """A row group in the metadata."""

    shard: str
    records: int
    first_sequence_number: str
    last_sequence_number: str
    offset: int
    length: int
    crc32: int


class RecordedStream(msgspec.Struct, frozen=True):
    """The stream in the metadata."""

    name: str
    mode: str
    retention_hours: float
    created_ms: int


class Slice(msgspec.Struct, frozen=True):
    """The recorded slice in the metadata."""

    from_ms: int
    until_ms: int


class Metadata(msgspec.Struct, frozen=True):
    """The fields of the metadata that a replay needs."""

    format: str
    version: int
    stream: RecordedStream
    recorded: Slice
    shards: tuple[RecordedShard, ...]
    batches: tuple[RecordedBatch, ...]


class Rows(NamedTuple):
    """The records of a row group.

    Attributes:
        texts: As GetRecords sends them.
        ends: Running sum of the bytes that they count for.
        numbers: Their sequence numbers.
        memory_bytes: About how much memory they take.
    """

    texts: list[bytes]
    ends: array[int]
    numbers: list[int]
    memory_bytes: int


class RecordingFile:
    """An open recording.

    Args:
        path: The file.

    Raises:
        OptionError: It cannot be read, is not a recording, or is damaged: the message has the place.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._parquet_module, self._arrow_error = _import_pyarrow()
        try:
            self._file: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise OptionError(f"recording {path} cannot be read: {error.strerror or error}") from error
        try:
            self._check_ends()
            self._parquet: Any = self._parquet_module.ParquetFile(self._file)
            self.metadata: Metadata = self._read_metadata()
            self._check_batches()
        except (OSError, ValueError, self._arrow_error) as error:
            self._file.close()
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{self.path}: the footer is damaged: {error}") from error
        self._cached_rows: OrderedDict[int, Rows] = OrderedDict()
        self._cached_bytes = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def arrivals_ms(self, index: int) -> list[int]:
        """Return when the records of a row group arrived."""
        column = self._parquet.read_row_group(index, columns=["approximateArrivalTimestamp"]).column(0)
        return [microseconds // 1000 for microseconds in column.cast("int64").to_pylist()]

    def rows(self, index: int) -> Rows:
        """Return the records of a row group. Row groups that were used last are kept in memory."""
        found = self._cached_rows.get(index)
        if found is not None:
            self._cached_rows.move_to_end(index)
            return found
        found = self._cached_rows[index] = self._decode(index)
        self._cached_bytes += found.memory_bytes
        while self._cached_bytes > _CACHE_BYTES_MAX and len(self._cached_rows) > 1:
            self._cached_bytes -= self._cached_rows.popitem(last=False)[1].memory_bytes
        return found

    def _decode(self, index: int) -> Rows:
        columns = ["sequenceNumber", "partitionKey", "approximateArrivalTimestamp", "data"]
        table = self._parquet.read_row_group(index, columns=columns)
        numbers, keys, data = (
            table.column(name).to_pylist() for name in ("sequenceNumber", "partitionKey", "data")
        )
        arrivals = table.column("approximateArrivalTimestamp").cast("int64").to_pylist()
        texts = [
            record_text(number, arrival_text(arrival // 1000), b'"%b"' % base64.b64encode(blob), key)
            for number, key, arrival, blob in zip(numbers, keys, arrivals, data, strict=True)
        ]
        sizes = [len(blob) + len((key or "").encode()) for blob, key in zip(data, keys, strict=True)]
        ends = array("q", accumulate(sizes))
        memory_bytes = sum(map(len, texts)) + _ROW_OVERHEAD_BYTES * len(texts)
        return Rows(texts, ends, [int(number) for number in numbers], memory_bytes)

    # --- checks ---

    def _check_ends(self) -> None:
        size = self._file.seek(0, 2)
        self._file.seek(0)
        if self._file.read(4) != b"PAR1":
            raise OptionError(f"{self.path} is not a recording: it does not begin with PAR1")
        self._file.seek(max(4, size - 4))
        if self._file.read(4) != b"PAR1":
            raise OptionError(f"{self.path} is cut off at byte {size}, where its footer should end")
        self._file.seek(0)

    def _read_metadata(self) -> Metadata:
        entries = self._parquet.metadata.metadata or {}
        document, checksum = entries.get(_DOCUMENT), entries.get(_CHECKSUM)
        if document is None or checksum is None:
            raise OptionError(f"{self.path} is a Parquet file, but no recording")
        if checksum != b"%08x" % zlib.crc32(document):
            raise OptionError(f"{self.path}: the metadata in the footer is damaged")
        metadata = msgspec.json.decode(document, type=Metadata)
        if metadata.format != _FORMAT or metadata.version > _VERSION:
            raise OptionError(
                f"{self.path} is a {metadata.format!r} of version {metadata.version}; this server replays a {_FORMAT!r} up to "
                f"version {_VERSION}"
            )
        return metadata

    def _check_batches(self) -> None:
        """Check every batch: a replay must not end in the middle."""
        batches = self.metadata.batches
        if self._parquet.metadata.num_row_groups != len(batches):
            raise OptionError(
                f"{self.path}: the footer does not have the {len(batches)} batches of the metadata"
            )
        for index, batch in enumerate(batches):
            place = (
                f"{self.path}: batch {index} of {len(batches)} (bytes {batch.offset} to {batch.offset + batch.length}, "
                f"{batch.records} records of {batch.shard} from {batch.first_sequence_number} on)"
            )
            if (
                self._crc32(batch) != batch.crc32
                or self._parquet.metadata.row_group(index).num_rows != batch.records
            ):
                raise OptionError(f"{place} is damaged")
            if (
                len(batch.first_sequence_number) != _NUMBER_DIGITS
                or len(batch.last_sequence_number) != _NUMBER_DIGITS
            ):
                raise OptionError(f"{place} has sequence numbers that have not {_NUMBER_DIGITS} digits")

    def _crc32(self, batch: RecordedBatch) -> int:
        crc, left = 0, batch.length
        self._file.seek(batch.offset)
        while left:
            piece = self._file.read(min(left, _READ_BYTES))
            if not piece:
                return -1
            crc, left = zlib.crc32(piece, crc), left - len(piece)
        return crc


def _import_pyarrow() -> tuple[Any, type[Exception]]:
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ModuleNotFoundError as missing:
        raise OptionError(
            f"a replay needs the package {missing.name}, which is not installed: pip install 'penstock-local[replay]'"
        ) from missing
    return pyarrow.parquet, pyarrow.lib.ArrowException
