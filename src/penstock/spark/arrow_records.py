"""Raw records to Arrow columns: the last step of the data plane, without a Python object per field where it can be.

Imported only by those who want Arrow (the Spark source, the benches): `import penstock` does not need pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.aggregation import MAGIC, DecodeCounts, MisplacedRule, UserRecord, take_apart
from penstock.core.aggregation import deaggregate as take_apart_blob
from penstock.core.position import Position
from penstock.ports.kinesis import RawRecord

SCHEMA: Final = pa.schema(
    [
        ("streamName", pa.string()),
        ("shardId", pa.string()),
        ("sequenceNumber", pa.string()),
        ("subSequenceNumber", pa.int64()),
        ("partitionKey", pa.string()),
        ("explicitHashKey", pa.string()),
        ("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        ("data", pa.binary()),
    ]
)
"""Exactly what Spark expects of its schema; other string or binary layouts are refused by it."""

MISPLACED: Final = "penstock.isMisplaced"
"""A column that is there only where a page holds misplaced records. They have their rows until a batch is cut and its
end is fixed, so that positions count them; `delivered` takes them out."""

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
    """Yield the rows of a page bit by bit, so that memory follows a slice and not what a page unpacks to.

    A user record of no bytes takes six in an aggregate and hundreds as a row: a page of 10 MiB can hold over a million.

    Args:
        stream_name: For the column of that name.
        shard_id: For the column of that name.
        records: In sequence order.
        after: Leave out everything up to and including it; None keeps all. Where aggregates are not taken apart, one of
            which a part is left is kept whole.
        deaggregate: Whether aggregates are taken apart.
        counts: Added to.
        rule: Which misplaced aggregates are not delivered: their rows are marked in the column `MISPLACED`.
        rows_max: A slice ends with the Kinesis record that reaches it.

    Yields:
        Rows, and how many of `records` are read with them; at least one slice, also for no records.
    """
    counts = DecodeCounts() if counts is None else counts
    data = pa.array([record.data for record in records], pa.binary())
    if deaggregate and pc.any(pc.starts_with(data, pattern=MAGIC)).as_py():
        slices = _mixed(stream_name, shard_id, records, counts, rule, rows_max)
    else:
        slices = iter([(_plain(stream_name, shard_id, records, data), len(records))])
    for batch, count in slices:
        done = 0 if after is None else _count_done(batch, after)
        if after is not None and done > 0 and not deaggregate and _is_begun(batch, done - 1, after):
            done -= 1
        yield batch.slice(done), count


def _plain(
    stream_name: str, shard_id: str, records: Sequence[RawRecord], data: pa.BinaryArray
) -> pa.RecordBatch:
    return _batch(
        stream_name,
        shard_id,
        [record.sequence_number for record in records],
        None,
        [record.partition_key for record in records],
        None,
        [record.arrival_s for record in records],
        data,
    )


def delivered(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without those that are misplaced, in Spark's schema."""
    if rows.num_columns == len(SCHEMA):
        return rows
    return rows.filter(pc.invert(rows.column(MISPLACED))).select(SCHEMA.names)


def _mixed(  # noqa: PLR0917 - what was given to `records_to_slices`
    stream_name: str,
    shard_id: str,
    records: Sequence[RawRecord],
    counts: DecodeCounts,
    rule: MisplacedRule | None,
    rows_max: int,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    sequence: list[str] = []
    arrivals: list[float] = []
    found: list[UserRecord] = []
    misplaced: list[bool] = []
    for count, record in enumerate(records, 1):
        inner, is_misplaced = take_apart(record.data, record.partition_key, counts, rule)
        found += inner
        sequence += [record.sequence_number] * len(inner)
        arrivals += [record.arrival_s] * len(inner)
        misplaced += [is_misplaced] * len(inner)
        if len(found) >= rows_max or count == len(records):
            keys, hash_keys, data, subs = zip(*found, strict=True)
            batch = _batch(stream_name, shard_id, sequence, subs, keys, hash_keys, arrivals, data)
            marked = _marked(batch, misplaced)
            del keys, hash_keys, data, subs, batch  # while the slice is used, its raw form must not take room
            sequence, arrivals, found, misplaced = [], [], [], []
            yield marked, count


def _marked(batch: pa.RecordBatch, misplaced: list[bool]) -> pa.RecordBatch:
    if True not in misplaced:
        return batch
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(misplaced)], schema=SCHEMA.append(pa.field(MISPLACED, pa.bool_()))
    )


def _batch(  # noqa: PLR0917 - one argument per column
    stream_name: str,
    shard_id: str,
    sequence: Sequence[str],
    subs: Sequence[int] | None,
    keys: Sequence[str | None],
    hash_keys: Sequence[str | None] | None,
    arrivals: Sequence[float],
    data: Sequence[bytes] | pa.BinaryArray,
) -> pa.RecordBatch:
    count = len(sequence)
    # The service gives milliseconds as a decimal number of seconds; rounding undoes the binary fraction.
    millis = pc.round(pc.multiply(pa.array(arrivals, pa.float64()), 1000.0)).cast(pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(stream_name, pa.string()), count),
            pa.repeat(pa.scalar(shard_id, pa.string()), count),
            pa.array(sequence, pa.string()),
            pa.repeat(pa.scalar(0, pa.int64()), count) if subs is None else pa.array(subs, pa.int64()),
            pa.array(keys, pa.string()),
            pa.nulls(count, pa.string()) if hash_keys is None else pa.array(hash_keys, pa.string()),
            millis.cast(pa.timestamp("ms", tz="UTC")).cast(SCHEMA.field("approximateArrivalTimestamp").type),
            data if isinstance(data, pa.Array) else pa.array(data, pa.binary()),
        ],
        schema=SCHEMA,
    )


def _is_begun(batch: pa.RecordBatch, index: int, after: Position) -> bool:
    """Whether a row is an aggregate, given whole, of which a position has a part behind it only."""
    if int(batch.column("sequenceNumber")[index].as_py()) != int(after.sequence_number or 0):
        return False
    inner = take_apart_blob(batch.column("data")[index].as_py())
    return inner is not None and after.sub_sequence_number < len(inner) - 1


def _count_done(batch: pa.RecordBatch, after: Position) -> int:
    """Count the leading rows up to and including a position."""
    if after.sequence_number is None:
        return 0
    number, sub = int(after.sequence_number), after.sub_sequence_number
    sequence, subs = batch.column("sequenceNumber"), batch.column("subSequenceNumber")
    low, high = 0, batch.num_rows
    while low < high:
        middle = (low + high) // 2
        if (int(sequence[middle].as_py()), subs[middle].as_py()) <= (number, sub):
            low = middle + 1
        else:
            high = middle
    return low
