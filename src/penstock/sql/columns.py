"""The columns of a stream as a table: those of the Spark source, and `arrived`, `text` and `json` for people.

The rows that DuckDB scans have the source's columns and `text`. A view over them adds `arrived` and `json`, so DuckDB computes
only the columns that a query uses. In the scan, each column's name begins with the table's own prefix: a query plan
names the columns of a scan, but not its table.
"""

from __future__ import annotations

from typing import Final

from penstock.sql.packages import pa  # before penstock.arrow_table, which names another extra for pyarrow

from penstock.arrow_table import SCHEMA  # isort: skip
from penstock.spark.tasks.arrow_columns import texts

ARRIVAL: Final = "approximateArrivalTimestamp"
SHARD: Final = "shardId"
TEXT: Final = "text"
ROWS_SCHEMA: Final = SCHEMA.append(pa.field(TEXT, pa.string()))
"""A scan's columns; their names have no prefix yet."""


class TextColumn:
    """Adds the column `text` to rows, and counts the records whose data is not UTF-8."""

    def __init__(self) -> None:
        self.not_utf8_count = 0

    def with_text(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of `SCHEMA` with the column `text`: null for data that is not UTF-8."""
        data = rows.column("data")
        try:
            text = data.cast(pa.string())  # checks the bytes, and does not copy them
        except pa.ArrowInvalid:
            values = [_text_of(value) for value in data.to_pylist()]
            text = texts(values)
            self.not_utf8_count += text.null_count - data.null_count
        return pa.RecordBatch.from_arrays([*rows.columns, text], schema=ROWS_SCHEMA)


def _text_of(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def column_prefix(index: int) -> str:
    """Return the prefix of column names for the query's table at this index."""
    return f"t{index}_"


def scanned_schema(index: int) -> pa.Schema:
    """Return the schema of the scan of the query's table at this index."""
    return pa.schema([pa.field(column_prefix(index) + field.name, field.type) for field in ROWS_SCHEMA])


def view_columns(index: int, *, is_stored: bool = False) -> str:
    """Return the select list of a table's view.

    Args:
        is_stored: The rows are in a table of DuckDB, which has `has_text` in place of the text.
    """
    prefix = column_prefix(index)
    text = f'"{prefix}{TEXT}"'
    if is_stored:
        text = f'CASE WHEN has_text THEN decode("{prefix}data") END'
    source = ", ".join(f'"{prefix}{name}" AS "{name}"' for name in SCHEMA.names)
    return f'{source}, "{prefix}{ARRIVAL}" AS arrived, {text} AS text, TRY_CAST({text} AS JSON) AS json'


def stored_columns(index: int) -> str:
    """Return the select list for storing a scan in a table of DuckDB: without the text, which `data` has already."""
    prefix = column_prefix(index)
    return f'* EXCLUDE ("{prefix}{TEXT}"), "{prefix}{TEXT}" IS NOT NULL AS has_text'
