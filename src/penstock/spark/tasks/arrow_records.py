"""Raw records to Arrow columns: the last step of the data plane, with as few Python objects per field as possible.

Imported only by users of Arrow (the Spark source, the benches): `import penstock` does not need pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow_table import SCHEMA
from penstock.core.aggregation import MAGIC, DecodeCounts, MisplacedRule, UserColumns, deaggregate_record
from penstock.core.aggregation import deaggregate as deaggregate_blob
from penstock.core.position import Position
from penstock.ports.kinesis import RawRecord
from penstock.spark.tasks.arrow_columns import (
    binaries,
    booleans,
    constant_number,
    constant_text,
    floats,
    integers,
    repeat_values,
    texts,
)
from penstock.spark.tasks.page_limits import count_up_to

MISPLACED: Final = "penstock.isMisplaced"
"""A column that is there only if a page holds misplaced records. They stay in the rows until the end of the batch is fixed, so
that positions count them; `without_misplaced` removes them."""

ROWS_MAX: Final = 50_000
"""Where a slice of a page ends: about 20 MB of rows without data. A page of plain records has 10,000 at most."""


def records_to_slices(
    stream_name: str,
    shard_id: str,
    records: Sequence[RawRecord],
    *,
    after: Position | None = None,
    deaggregate: bool = True,
    counts: DecodeCounts | None = None,
    rule: MisplacedRule | None = None,
    rows_max: int = ROWS_MAX,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a page in slices, so that memory is bounded by a slice and not by the page's unpacked size.

    An empty user record takes six bytes in an aggregate but hundreds of bytes as a row, and a page of 10 MiB can hold over a
    million of them.

    Args:
        stream_name: For the column of that name.
        shard_id: For the column of that name.
        records: In sequence order.
        after: Records up to and including this position are left out; None: no record is. An aggregate that is not taken apart
            is kept whole if any of its records is after the position.
        deaggregate: Whether aggregates are taken apart.
        counts: Counters to which those of this page are added.
        rule: Which misplaced aggregates are not delivered: their rows are marked in the column `MISPLACED`.
        rows_max: A slice ends with the Kinesis record that reaches it.

    Yields:
        Rows, and the number of `records` up to and including those of the rows; at least one slice, also for no records.
    """
    counts = DecodeCounts() if counts is None else counts
    data = binaries([record.data for record in records])
    if deaggregate and pc.any(pc.starts_with(data, pattern=MAGIC)).as_py():
        slices = _deaggregated_slices(stream_name, shard_id, records, counts, rule, rows_max)
    else:
        slices = iter([(_kinesis_records(stream_name, shard_id, records, data), len(records))])
    del data, records  # frees the raw form before the rows are used
    for batch, count in slices:
        done = 0 if after is None or not after.is_record else count_up_to(batch, after)
        if after is not None and done > 0 and not deaggregate and _has_records_after(batch, done - 1, after):
            done -= 1
        yield batch.slice(done), count


def _kinesis_records(
    stream_name: str, shard_id: str, records: Sequence[RawRecord], data: pa.BinaryArray
) -> pa.RecordBatch:
    return _rows_from_columns(
        stream_name,
        shard_id,
        texts([record.sequence_number for record in records]),
        None,
        texts([record.partition_key for record in records]),
        None,
        floats([record.arrival_s for record in records]),
        data,
    )


def without_misplaced(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in Spark's schema: without those of misplaced aggregates, and without the column `MISPLACED`."""
    if rows.num_columns == len(SCHEMA):
        return rows
    return rows.filter(pc.invert(rows.column(MISPLACED))).select(SCHEMA.names)


def _deaggregated_slices(  # noqa: PLR0917 - the arguments of `records_to_slices`
    stream_name: str,
    shard_id: str,
    records: Sequence[RawRecord],
    counts: DecodeCounts,
    rule: MisplacedRule | None,
    rows_max: int,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    found = _Slice()
    for count, record in enumerate(records, 1):
        columns, is_misplaced = deaggregate_record(record.data, record.partition_key, counts, rule)
        found.add(record, columns, is_misplaced=is_misplaced)
        if len(found.data) >= rows_max or count == len(records):
            rows = found.rows(stream_name, shard_id)
            found = _Slice()  # frees the lists before the rows are used
            yield rows, count


class _Slice:
    """Collects the user records of Kinesis records. Values of a whole Kinesis record are kept once, and repeated in the columns."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self._keys: list[str | None] = []
        self._hash_keys: list[str | None] = []
        self._has_hash_keys = False
        self._subs: list[int] = []  # sub-sequence numbers
        self._row_counts: list[int] = []  # of each Kinesis record
        self._sequence: list[str] = []
        self._arrivals: list[float] = []
        self._misplaced: list[bool] = []

    def add(self, record: RawRecord, columns: UserColumns, *, is_misplaced: bool) -> None:
        """Add the user records of one Kinesis record."""
        row_count = len(columns.data)
        self.data += columns.data
        self._keys += columns.partition_keys
        self._hash_keys += columns.explicit_hash_keys or repeat(None, row_count)
        self._has_hash_keys = self._has_hash_keys or columns.explicit_hash_keys is not None
        self._subs += range(row_count)
        self._row_counts.append(row_count)
        self._sequence.append(record.sequence_number)
        self._arrivals.append(record.arrival_s)
        self._misplaced.append(is_misplaced)

    def rows(self, stream_name: str, shard_id: str) -> pa.RecordBatch:
        """Return all rows, with the column `MISPLACED` if any is misplaced."""
        batch = _rows_from_columns(
            stream_name,
            shard_id,
            repeat_values(texts(self._sequence), self._row_counts),
            integers(self._subs),
            texts(self._keys),
            texts(self._hash_keys) if self._has_hash_keys else None,
            repeat_values(floats(self._arrivals), self._row_counts),
            binaries(self.data),
        )
        if True not in self._misplaced:
            return batch
        misplaced = repeat_values(booleans(self._misplaced), self._row_counts)
        schema = SCHEMA.append(pa.field(MISPLACED, pa.bool_()))
        return pa.RecordBatch.from_arrays([*batch.columns, misplaced], schema=schema)


def _rows_from_columns(  # noqa: PLR0917 - one argument per column
    stream_name: str,
    shard_id: str,
    sequence: pa.StringArray,
    subs: pa.Int64Array | None,
    keys: pa.StringArray,
    hash_keys: pa.StringArray | None,
    arrivals: pa.DoubleArray,
    data: pa.BinaryArray,
) -> pa.RecordBatch:
    count = len(sequence)
    # The service gives milliseconds as a decimal number of seconds; rounding undoes the binary fraction.
    millis = pc.round(pc.multiply(arrivals, constant_number(1000.0, pa.float64(), count))).cast(pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            constant_text(stream_name, count),
            constant_text(shard_id, count),
            sequence,
            constant_number(0, pa.int64(), count) if subs is None else subs,
            keys,
            pa.nulls(count, pa.string()) if hash_keys is None else hash_keys,
            millis.cast(pa.timestamp("ms", tz="UTC")).cast(SCHEMA.field("approximateArrivalTimestamp").type),
            data,
        ],
        schema=SCHEMA,
    )


def _has_records_after(batch: pa.RecordBatch, index: int, after: Position) -> bool:
    """Return whether a row is a whole aggregate that has user records after the position."""
    if int(batch.column("sequenceNumber")[index].as_py()) != int(after.sequence_number or 0):
        return False
    user_records = deaggregate_blob(batch.column("data")[index].as_py())
    return user_records is not None and after.sub_sequence_number < len(user_records) - 1
