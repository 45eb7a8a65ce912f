"""The values of the sink's columns, out of Spark's Arrow batches. Other columns are not converted.

A text of Spark's may be any bytes, `cast(binary as string)` for instance, and Arrow's own conversion to Python fails on the
whole batch then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Text: TypeAlias = str | bytes | None
"""A text of a row; its bytes if they are not UTF-8, None for null."""
RowValues: TypeAlias = tuple[bytes | None, Text, Text, Text]
"""One row's data, partition key, explicit hash key and stream name; None for a null, and for a missing column."""
_SLICE_BYTES: Final = 4 * 2**20
_SLICE_ROWS_MAX: Final = 10_000


def values_of_batches(batches: Iterator[pa.RecordBatch], columns: tuple[str, ...]) -> Iterator[RowValues]:
    """Yield the rows of batches, in slices of a few megabytes, since a slice is copied to Python objects.

    Args:
        batches: As Spark hands them to a sink.
        columns: As `check_columns` returned them.
    """
    for batch in batches:
        names = batch.schema.names
        found = [batch.column(names.index(name)) if name else None for name in columns]
        batch_bytes = sum(each.nbytes for each in found if each is not None)
        row_bytes = max(1, batch_bytes // max(1, batch.num_rows))
        row_count = max(1, min(_SLICE_ROWS_MAX, _SLICE_BYTES // row_bytes))
        for begin in range(0, batch.num_rows, row_count):
            data, *texts = (None if each is None else each.slice(begin, row_count) for each in found)
            assert data is not None
            yield from zip(_bytes_of(data), *(_texts_of(each, len(data)) for each in texts), strict=True)


def _bytes_of(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    found: list[Any] = column.view(as_bytes.get(column.type, column.type)).to_pylist()
    return found


def _texts_of(column: pa.Array | None, count: int) -> list[Any]:
    if column is None:
        return [None] * count
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [None if value is None else _text(value) for value in _bytes_of(column)]
    return found


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
