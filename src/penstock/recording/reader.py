"""Read a recording: its metadata at once, its records batch by batch."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from penstock.core.aggregation import MAGIC, DecodeCounts, deaggregate_record
from penstock.core.moments import parse_moment
from penstock.core.recording.metadata import (
    CHECKSUM_KEY,
    METADATA_KEY,
    RecordedBatch,
    RecordingMetadata,
    decode_metadata,
)
from penstock.errors import DamagedRecording, OptionError
from penstock.recording.arrow import SCHEMA, pa, pq

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 8  # the footer's length and the magic
_READ_BYTES: Final = 1 << 20
_SOURCE_COLUMNS: Final = ("sequenceNumber", "partitionKey", "data")  # needed to take aggregates apart


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording and read its metadata. Close the recording, or use it as a context manager.

    Raises:
        DamagedRecording: The file is not a complete recording; the message names the place in the file.
        OSError: The file cannot be read.
    """
    return Recording(Path(path))


class Recording:
    """An open recording. Not thread-safe: each thread has to open the file itself.

    Args:
        path: The file.

    Attributes:
        metadata: The stream, its shards, the recorded slice and the file's batches.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("rb")
        try:
            self._parquet: Any = _open_parquet(self._file, path)
            self.metadata: RecordingMetadata = _read_metadata(self._parquet, path)
            self._check_layout()
        except BaseException:
            self._file.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The columns: those of the Spark source, as in `penstock.frames.SCHEMA`."""
        return SCHEMA

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def batches(
        self,
        columns: Sequence[str] | None = None,
        arrived_from: datetime | str | int | None = None,
        arrived_until: datetime | str | int | None = None,
        *,
        shards: Collection[str] | None = None,
        deaggregate: bool = True,
        rows_max: int = 65_536,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records, in order within each shard. One row group at a time is in memory.

        Args:
            columns: Names of columns of `schema`, in the order of the result; None: all.
            arrived_from: Only records that arrived at this moment or later: a datetime or a text with its time zone, or
                milliseconds since the epoch.
            arrived_until: Only records that arrived before this moment.
            shards: Only records of these shards; None: all.
            deaggregate: Take KPL aggregates apart, as the Spark source does by default. False returns Kinesis records as they
                were in the stream.
            rows_max: At most this many rows are in a batch.

        Raises:
            DamagedRecording: A batch does not match its checksum; the message names the place. The batches before are whole.
            OptionError: There is no such column or shard, or a moment has no time zone.
            PositionError: A text is not a moment.
        """
        names = _checked_columns(columns)
        if isinstance(shards, str):
            raise OptionError(f"shards={shards!r}: expected several names, for instance [{shards!r}]")
        from_ms, until_ms = _to_ms(arrived_from, "arrived_from"), _to_ms(arrived_until, "arrived_until")
        known = {shard.id for shard in self.metadata.shards}
        for shard in () if shards is None else sorted(set(shards) - known):
            raise OptionError(f"shard {shard}: recording {self.path} has no such shard")
        tables = self._tables(names, (from_ms, until_ms), shards, deaggregate=deaggregate)
        return (batch for table in tables for batch in table.to_batches(max_chunksize=rows_max))

    def _tables(
        self,
        names: list[str],
        arrived: tuple[int | None, int | None],
        shards: Collection[str] | None,
        *,
        deaggregate: bool,
    ) -> Iterator[pa.Table]:
        from_ms, until_ms = arrived
        for index, batch in enumerate(self.metadata.batches):
            if (
                (shards is not None and batch.shard not in shards)
                or (from_ms is not None and batch.arrived_until_ms < from_ms)
                or (until_ms is not None and batch.arrived_from_ms >= until_ms)
            ):
                continue
            needs_filter = (from_ms is not None and batch.arrived_from_ms < from_ms) or (
                until_ms is not None and batch.arrived_until_ms >= until_ms
            )
            extra = ("approximateArrivalTimestamp",) if needs_filter else ()
            wanted = dict.fromkeys((*names, *(_SOURCE_COLUMNS if deaggregate else ()), *extra))
            table = self._read_batch(index, batch, list(wanted))
            if needs_filter:
                table = _filter_by_arrival(table, from_ms, until_ms)
            if deaggregate:
                table = _deaggregate_table(table)
            yield table.select(names)

    def verify(self) -> None:
        """Check the checksum of every batch.

        Raises:
            DamagedRecording: A checksum is wrong.
        """
        for index, batch in enumerate(self.metadata.batches):
            self._check_checksum(index, batch)

    def _read_batch(self, index: int, batch: RecordedBatch, columns: list[str]) -> pa.Table:
        self._check_checksum(index, batch)
        try:
            return self._parquet.read_row_group(index, columns=columns).select(columns)
        except (pa.ArrowException, OSError) as error:
            raise DamagedRecording(f"{self._place_of(index, batch)} cannot be read: {error}") from error

    def _check_checksum(self, index: int, batch: RecordedBatch) -> None:
        """Raise an error if the bytes of a batch in the file do not match its checksum."""
        crc, left = 0, batch.length
        self._file.seek(batch.offset)
        while left:
            piece = self._file.read(min(left, _READ_BYTES))
            if not piece:
                raise DamagedRecording(
                    f"{self._place_of(index, batch)} is cut off {left} bytes before its end"
                )
            crc, left = zlib.crc32(piece, crc), left - len(piece)
        if crc != batch.crc32:
            raise DamagedRecording(
                f"{self._place_of(index, batch)} is damaged: its CRC-32 is {crc:08x}, not {batch.crc32:08x}"
            )

    def _check_layout(self) -> None:
        """Check that the metadata describes exactly the footer's row groups.

        The metadata must have as many batches, with the same numbers of rows. In the file, no gap is between the batches.
        """
        batches, found = self.metadata.batches, self._parquet.metadata
        if found.num_row_groups != len(batches):
            raise DamagedRecording(
                f"{self.path}: {found.num_row_groups} row groups, but its metadata describes {len(batches)}"
            )
        end = len(_MAGIC)
        for index, batch in enumerate(batches):
            if batch.offset != end or found.row_group(index).num_rows != batch.records:
                raise DamagedRecording(f"{self._place_of(index, batch)} is not where the footer has it")
            end += batch.length

    def _place_of(self, index: int, batch: RecordedBatch) -> str:
        return (
            f"{self.path}: batch {index} of {len(self.metadata.batches)} (bytes {batch.offset} to "
            f"{batch.offset + batch.length}, {batch.records} records of {batch.shard} from {batch.first_sequence_number} on)"
        )


def _open_parquet(file: BinaryIO, path: Path) -> Any:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(len(_MAGIC))
    if head != _MAGIC:
        raise DamagedRecording(
            f"{path}: no recording: it does not begin with {_MAGIC.decode()}, but with {head!r}"
        )
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read(_TAIL_BYTES)
    if tail[-len(_MAGIC) :] != _MAGIC or size < len(_MAGIC) + _TAIL_BYTES:
        raise DamagedRecording(
            f"{path}: cut off at byte {size}, where its footer should end. Copy it again, or record again"
        )
    footer = int.from_bytes(tail[:4], "little")
    if footer + _TAIL_BYTES > size:
        raise DamagedRecording(
            f"{path}: damaged at byte {size - _TAIL_BYTES}: the footer's length of {footer} bytes"
        )
    file.seek(0)
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        start = size - _TAIL_BYTES - footer
        raise DamagedRecording(f"{path}: the footer at byte {start} is damaged: {error}") from error


def _read_metadata(parquet: Any, path: Path) -> RecordingMetadata:
    entries = parquet.metadata.metadata or {}
    document, checksum = entries.get(METADATA_KEY), entries.get(CHECKSUM_KEY)
    if document is None or checksum is None:
        raise DamagedRecording(
            f"{path}: a Parquet file, but no recording: {METADATA_KEY.decode()} is not in its footer"
        )
    if checksum.decode(errors="replace") != f"{zlib.crc32(document):08x}":
        raise DamagedRecording(
            f"{path}: the metadata in the footer is damaged: its CRC-32 is not {checksum!r}"
        )
    if not parquet.schema_arrow.remove_metadata().equals(SCHEMA):
        raise DamagedRecording(
            f"{path}: the columns are not those of a recording: {parquet.schema_arrow.names}"
        )
    return decode_metadata(document, str(path))


def _checked_columns(columns: Sequence[str] | None) -> list[str]:
    names = list(SCHEMA.names if columns is None else columns)
    for name in names:
        if name not in SCHEMA.names:
            raise OptionError(f"column {name!r}: a recording has {', '.join(SCHEMA.names)}")
    return names


def _to_ms(moment: datetime | str | int | None, name: str) -> int | None:
    if moment is None or isinstance(moment, int):
        return moment
    if not isinstance(moment, datetime):
        return parse_moment(moment, name)
    if moment.tzinfo is None:
        raise OptionError(f"{name}={moment}: expected a time zone")
    return round(moment.timestamp() * 1000)


def _filter_by_arrival(table: pa.Table, from_ms: int | None, until_ms: int | None) -> pa.Table:
    import pyarrow.compute as pc

    arrivals = table.column("approximateArrivalTimestamp").cast(pa.int64())
    if from_ms is not None:
        keep = pc.greater_equal(arrivals, from_ms * 1000)
        table, arrivals = table.filter(keep), arrivals.filter(keep)
    if until_ms is not None:
        table = table.filter(pc.less(arrivals, until_ms * 1000))
    return table


def _deaggregate_table(table: pa.Table) -> pa.Table:
    """Return a table with one row for each user record: KPL aggregates are taken apart.

    Args:
        table: Columns of `SCHEMA`, with at least `partitionKey` and `data`.
    """
    import pyarrow.compute as pc

    data = table.column("data")
    # No comparison with `pa.scalar`: it would import pandas, which takes half a second.
    if not pc.any(pc.starts_with(data, pattern=MAGIC), min_count=0).as_py():
        return table
    counts = DecodeCounts()
    places: list[int] = []
    columns: dict[str, list[Any]] = {
        "subSequenceNumber": [],
        "partitionKey": [],
        "explicitHashKey": [],
        "data": [],
    }
    rows = zip(data.to_pylist(), table.column("partitionKey").to_pylist(), strict=True)
    for place, (blob, key) in enumerate(rows):
        user_records = deaggregate_record(blob, key, counts).columns
        count = len(user_records.data)
        places.extend([place] * count)
        columns["subSequenceNumber"].extend(range(count))
        columns["partitionKey"].extend(user_records.partition_keys)
        columns["explicitHashKey"].extend(user_records.explicit_hash_keys or [None] * count)
        columns["data"].extend(user_records.data)
    whole = table.take(pa.array(places, pa.int64()))
    arrays = [
        pa.array(columns[name], SCHEMA.field(name).type) if name in columns else whole.column(name)
        for name in table.column_names
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in table.column_names]))
