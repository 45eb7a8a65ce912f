"""The end of a batch inside a page: cuts on Arrow columns, without a Python object per record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.core.position import Position, at_record

if TYPE_CHECKING:
    import pyarrow as pa

_SEQUENCE, _SUB, _ARRIVAL, _DATA = (
    "sequenceNumber",
    "subSequenceNumber",
    "approximateArrivalTimestamp",
    "data",
)


def position_of(rows: pa.RecordBatch, index: int) -> Position:
    """Return the position of one row."""
    return at_record(rows.column(_SEQUENCE)[index].as_py(), rows.column(_SUB)[index].as_py())


def arrival_ms_of(rows: pa.RecordBatch, index: int) -> int:
    """Return the arrival of one row, in milliseconds since the epoch."""
    return int(rows.column(_ARRIVAL)[index].value) // 1000


def bytes_of(rows: pa.RecordBatch) -> int:
    """Return the bytes of user data in all rows."""
    return int(pc.sum(pc.binary_length(rows.column(_DATA))).as_py() or 0)


def count_up_to(rows: pa.RecordBatch, end: Position) -> int:
    """Count the rows at or before a position; rows are in order."""
    low, high = 0, rows.num_rows
    while low < high:
        middle = (low + high) // 2
        if position_of(rows, middle) <= end:
            low = middle + 1
        else:
            high = middle
    return low


def count_before_ms(rows: pa.RecordBatch, until_ms: int) -> int:
    """Count the leading rows that arrived before a moment.

    Arrival times are approximate, so the first row at or after the moment ends the count even if an earlier time
    follows it.
    """
    late = pc.greater_equal(pc.cast(rows.column(_ARRIVAL), "int64"), until_ms * 1000)
    index = pc.index(late, True).as_py()
    return rows.num_rows if index < 0 else int(index)


def count_within_bytes(rows: pa.RecordBatch, bytes_max: int) -> int:
    """Count the leading rows whose data fits into a number of bytes."""
    if rows.num_rows == 0:
        return 0
    sizes = pc.cumulative_sum(pc.cast(pc.binary_length(rows.column(_DATA)), "int64"))
    index = pc.index(pc.greater(sizes, bytes_max), True).as_py()
    return rows.num_rows if index < 0 else int(index)


def data_of(rows: pa.RecordBatch, index: int) -> bytes:
    """Return the data of one row."""
    return bytes(rows.column(_DATA)[index].as_py())


def is_whole_record(rows: pa.RecordBatch, count: int) -> bool:
    """Return whether a cut after `count` rows is between two Kinesis records, and not inside an aggregate."""
    if count in (0, rows.num_rows):
        return True
    sequence = rows.column(_SEQUENCE)
    return bool(sequence[count - 1].as_py() != sequence[count].as_py())
