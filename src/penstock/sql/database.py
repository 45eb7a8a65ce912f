"""An empty DuckDB for one query: without access to files, the network, extensions and this program's variables.

Its configuration is locked, so a query reads the tables that it names and nothing else of the machine.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from typing import Any, Final

from penstock.core.option_table import SIZE
from penstock.errors import OptionError
from penstock.sql.columns import column_prefix, scanned_schema, stored_columns, view_columns
from penstock.sql.packages import duckdb, pa
from penstock.sql.query_plan import QueryPlan, parse_plan
from penstock.sql.statement import StatementError, named_tables

MEMORY_DEFAULT: Final = "1GB"
JSON_MARK: Final = {"penstock.type": "json"}
"""Metadata of a result's column that holds JSON documents as text."""
_NOT_IN_ARROW: Final = frozenset({"BIGNUM", "BIT", "UHUGEINT"})
"""In Arrow they would be bytes in DuckDB's own layout, or overflow."""
_EXPLAIN: Final = "EXPLAIN (FORMAT JSON)"  # on a line of its own: errors then show the user's lines alone
_LINE: Final = re.compile(r"^LINE (\d+):", re.MULTILINE)
_SETTINGS: Final[Mapping[str, str]] = {
    "python_enable_replacements": "false",  # a table's name never means a variable of this program
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
}


class Database:
    """An in-memory DuckDB that has the query's tables as views.

    Args:
        sql: One SELECT.
        zone: The time zone of timestamps in the query and in results; None: that of this machine.
        memory: The limit of DuckDB's memory, for instance `1GB`; larger data goes to a temporary folder.

    Attributes:
        names: The names of the query's tables, each as (name,) or (schema, name).

    Raises:
        StatementError: DuckDB cannot parse the statement.
        OptionError: The statement is not a single SELECT, or an option has a bad value.
    """

    def __init__(self, sql: str, zone: str | None, memory: str) -> None:
        self.sql = sql
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-sql-")
        self.connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
        try:
            self._configure(zone, memory)
            self.names = named_tables(self.connection, sql)
            _check_names(self.names)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close DuckDB and remove the temporary folder."""
        self.connection.close()
        self._folder.cleanup()

    def add_scan(self, index: int, rows: Any) -> None:
        """Register the rows of one of the query's tables.

        Args:
            index: The table's place in `names`.
            rows: An Arrow table, or a reader that is read once, with the schema `scanned_schema(index)`.
        """
        self.connection.register(_scan_name(index), rows)
        self._create_view(index, is_stored=False)

    def plan(self) -> QueryPlan:
        """Return DuckDB's plan of the query, without reading a row.

        Raises:
            StatementError: DuckDB refuses the query.
        """
        try:
            (row,) = self.connection.execute(f"{_EXPLAIN}\n{self.sql}").fetchall()
        except duckdb.Error as error:
            raise StatementError(_LINE.sub(_user_line, str(error))) from error
        return parse_plan(row[1], len(self.names))

    def store_rows(self, index: int) -> None:
        """Copy the rows of a table's scan into DuckDB's own table, and let the view read that."""
        rows = f"SELECT {stored_columns(index)} FROM {_scan_name(index)}"  # noqa: S608 - our own names
        self.connection.execute(f"CREATE TEMP TABLE {stored_table_name(index)} AS {rows}")
        self._create_view(index, is_stored=True)

    def append_rows(self, index: int, rows: pa.Table) -> None:
        """Add rows to a table that `store_rows` has stored."""
        self.connection.register(_scan_name(index), rows)
        selected = f"SELECT {stored_columns(index)} FROM {_scan_name(index)}"  # noqa: S608 - our own names
        self.connection.execute(f"INSERT INTO {stored_table_name(index)} {selected}")

    def _create_view(self, index: int, *, is_stored: bool) -> None:
        name = self.names[index]
        if len(name) > 1:
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quote_name(name[0])}")
        view = ".".join(_quote_name(part) for part in name)
        columns = view_columns(index, is_stored=is_stored)
        rows = stored_table_name(index) if is_stored else _scan_name(index)
        statement = f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {rows}"  # noqa: S608 - quoted
        try:
            self.connection.execute(statement)
        except duckdb.Error as error:
            raise OptionError(f"table {'.'.join(name)}: {error}") from error

    def _configure(self, zone: str | None, memory: str) -> None:
        run = self.connection.execute
        run("SET temp_directory = $folder", {"folder": self._folder.name})
        try:
            limit = f"{SIZE.read(memory)}B"
        except ValueError as error:
            raise OptionError(f"memory={memory}: {error}") from error
        options = (("memory", "memory_limit", limit), ("time_zone", "TimeZone", zone))
        for option, setting, value in options:
            if value is None:
                continue
            try:
                run(f"SET {setting} = $value", {"value": value})
            except duckdb.Error as error:
                reason = str(error).partition("\n")[0]
                raise OptionError(f"{option}={value}: {reason}") from error
        run("SET streaming_buffer_size = '64KB'")  # the first rows of a result are there soon
        run("SET enable_external_access = false")
        run("SET lock_configuration = true")


def relation_of(database: Database) -> duckdb.DuckDBPyRelation:
    """Return the query as a relation that has not run yet; columns whose types Arrow lacks become text."""
    relation = database.connection.sql(database.sql)
    if not any(str(kind) in _NOT_IN_ARROW for kind in relation.types):
        return relation
    columns = [
        f"#{place}::VARCHAR AS {_quote_name(name)}"
        if str(kind) in _NOT_IN_ARROW
        else f"#{place} AS {_quote_name(name)}"
        for place, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), 1)
    ]
    return relation.project(", ".join(columns))


def marked_schema(relation: duckdb.DuckDBPyRelation, schema: pa.Schema) -> pa.Schema:
    """Return a result's schema: `JSON_MARK` marks the columns that hold JSON, and no two columns have the same name."""
    names: set[str] = set()
    fields = []
    for field, kind in zip(schema, relation.types, strict=True):
        name, count = field.name, 0
        while name in names:  # both sides of a join may have a column of this name
            count += 1
            name = f"{field.name}_{count}"
        names.add(name)
        fields.append(field.with_name(name).with_metadata(JSON_MARK if str(kind) == "JSON" else None))
    return pa.schema(fields)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows, which shows a result's columns."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def scan_batch(index: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of `ROWS_SCHEMA` under the column names of a table's scan."""
    return pa.RecordBatch.from_arrays(rows.columns, schema=scanned_schema(index))


def stored_table_name(index: int) -> str:
    """Return the name of DuckDB's own table, which keeps the rows of the query's table at this index."""
    return f"stored_{column_prefix(index)}rows"


def _scan_name(index: int) -> str:
    return f"penstock_scan_{index}"


def _check_names(names: tuple[tuple[str, ...], ...]) -> None:
    names_by_lower_case: dict[str, str] = {}
    for parts in names:
        name = ".".join(parts)
        if len(parts) > 2:
            raise OptionError(f'table {name}: write a name with dots in double quotes: "{name}"')
        other = names_by_lower_case.setdefault(name.lower(), name)
        if other != name:
            raise OptionError(
                f"tables {other} and {name}: SQL does not distinguish names by case, Kinesis does; ask for one of them at a time"
            )


def _user_line(match: re.Match[str]) -> str:
    """Return the number of a line of the user's query: in DuckDB's error, the line of `EXPLAIN` counts too."""
    return f"LINE {max(1, int(match[1]) - 1)}:"


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
