"""Rows of Kinesis records become rows of user records: KPL aggregates are taken apart."""

from __future__ import annotations

from typing import Any

from penstock.core.aggregation import MAGIC, DecodeCounts, deaggregate_record
from penstock.recording.arrow import SCHEMA, pa


def take_apart(table: pa.Table) -> pa.Table:
    """Return a table with one row for each user record.

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
        taken = deaggregate_record(blob, key, counts).columns
        count = len(taken.data)
        places.extend([place] * count)
        columns["subSequenceNumber"].extend(range(count))
        columns["partitionKey"].extend(taken.partition_keys)
        columns["explicitHashKey"].extend(taken.explicit_hash_keys or [None] * count)
        columns["data"].extend(taken.data)
    whole = table.take(pa.array(places, pa.int64()))
    arrays = [
        pa.array(columns[name], SCHEMA.field(name).type) if name in columns else whole.column(name)
        for name in table.column_names
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in table.column_names]))
