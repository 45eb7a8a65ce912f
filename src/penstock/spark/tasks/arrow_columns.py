"""Arrow columns of Python values, made of buffers.

`pyarrow.array` and `pyarrow.scalar` import pandas to check for its types, which costs each new Python process of Spark half
a second and 40 MB. These functions make the same columns without it, as fast.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BLOCK: Final = 1000
_BYTES_MAX: Final = 2**31 - 1


def texts(values: Sequence[str | None]) -> pa.StringArray:
    """Return a column of texts; None is null."""
    present = [value or "" for value in values] if None in values else cast(Sequence[str], values)
    # The text is encoded in blocks, whose memory is reused. Memory for a whole page would be requested from the system.
    blocks = ("".join(present[at : at + _BLOCK]) for at in range(0, len(present), _BLOCK))
    data = b"".join([block.encode() for block in blocks])
    lengths = _lengths(present)
    if len(data) != lengths.sum():  # some are not ASCII, and their bytes are more than their characters
        lengths = _lengths([value.encode() for value in present])
    column = _variable_width(pa.string(), lengths, data)
    return column if present is values else _with_nulls(column, values)


def constant_text(value: str, count: int) -> pa.StringArray:
    """Return a column that holds one text in every row."""
    data = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def constant_number(value: float, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column that holds one number in every row."""
    return _fixed_width(kind, np.full(count, value, kind.to_pandas_dtype()))


def binaries(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return a column of bytes."""
    return _variable_width(pa.binary(), _lengths(values), b"".join(values))


def integers(values: Sequence[int]) -> pa.Int64Array:
    """Return a column of whole numbers of 64 bits."""
    return _fixed_width(pa.int64(), array("q", values))


def floats(values: Sequence[float]) -> pa.DoubleArray:
    """Return a column of floating point numbers."""
    return _fixed_width(pa.float64(), array("d", values))


def booleans(values: Sequence[bool]) -> pa.BooleanArray:
    """Return a column of truth values."""
    return _fixed_width(pa.int8(), array("b", values)).cast(pa.bool_())


def repeat_values(values: pa.Array, counts: Sequence[int]) -> pa.Array:
    """Return each value as often as its count says."""
    return values.take(_fixed_width(pa.int64(), np.repeat(np.arange(len(counts), dtype=np.int64), counts)))


def _lengths(values: Sequence[Any]) -> Any:
    return np.fromiter(map(len, values), np.int32, len(values))


def _variable_width(kind: pa.DataType, lengths: Any, data: bytes) -> Any:
    """Return a column of values whose bytes are contiguous."""
    if len(data) > _BYTES_MAX:
        raise OverflowError(f"a column of {len(data):,} bytes: Arrow's {kind} holds 2 GiB at most")
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _fixed_width(kind: pa.DataType, values: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _with_nulls(column: pa.Array, values: Sequence[Any]) -> Any:
    present = booleans([value is not None for value in values])
    return pc.if_else(present, column, pa.nulls(len(values), column.type))
