"""Records as an Arrow table: its columns, and tables of records. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

try:
    import pyarrow as pa
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "penstock.frames needs the package pyarrow, which is not installed: pip install 'penstock[arrow]'",
        name=missing.name,
    ) from missing

if TYPE_CHECKING:
    from penstock.consumer import Record

__all__ = ["SCHEMA", "to_arrow"]

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
"""The columns of records, here and in Spark. These are exactly the types that Spark expects of its schema; other string or
binary layouts are refused by it."""


def to_arrow(records: Iterable[Record]) -> pa.Table:
    """Return records as a table with the columns of the Spark source.

    Args:
        records: For instance a `Batch`, or the records of several.

    Returns:
        One row for each record, in their order, with the schema `SCHEMA`. pandas makes a frame of it by `to_pandas()`, polars by
        `polars.from_arrow(...)`.
    """
    rows = list(records)
    columns = [
        [record.stream.rpartition("/")[2] or None for record in rows],  # the name in an ARN, as in Spark
        [record.shard_id for record in rows],
        [record.sequence_number for record in rows],
        [record.sub_sequence_number for record in rows],
        [record.partition_key for record in rows],
        [record.explicit_hash_key for record in rows],
        [record.approximate_arrival_timestamp for record in rows],
        [record.data for record in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
