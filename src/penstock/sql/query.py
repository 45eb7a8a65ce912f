"""One SELECT over streams and recordings, run by DuckDB over rows as they are read.

DuckDB's file system, its extensions to install and its view of Python's variables are off, and its configuration is locked: a
query reads the tables that it names, and nothing else of the machine.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from penstock.errors import OptionError
from penstock.sql.columns import (
    TextColumn,
    prefix_of,
    scanned_schema,
    stored_columns,
    view_columns,
)
from penstock.sql.handover import HandedOver
from penstock.sql.query_plan import Need, QueryPlan, TableUse, parse_plan
from penstock.sql.statement import StatementError, named_tables

try:
    import duckdb
    import pyarrow as pa
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"`penstock sql` needs the package {missing.name}, which is not installed: pip install 'penstock[sql]'"
    ) from missing

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

MEMORY_DEFAULT: Final = "1GB"
JSON_MARK: Final = {"penstock.type": "json"}
"""Metadata of a result's column that holds JSON documents as text."""
_ROWS_PER_RESULT: Final = 2_048
_EXPLAIN: Final = "EXPLAIN (FORMAT JSON)"  # on a line of its own: errors then show the user's lines alone
_LINE: Final = re.compile(r"^LINE (\d+):", re.MULTILINE)
_SETTINGS: Final[Mapping[str, str]] = {
    "python_enable_replacements": "false",  # a table's name never means a variable of this program
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
}


class RowSource(Protocol):
    """Rows of a stream or a recording, with the columns of `penstock.frames.SCHEMA`."""

    def read(self, need: Need) -> Iterator[pa.RecordBatch]:
        """Yield the rows that a query needs; others may be among them."""


class PlannedTable(Struct, frozen=True):
    """A table of a query, before it is read.

    Args:
        name: As in the query.
        source: Its rows.
        use: How the query uses it; None: not at all, or in a way that the plan does not show.
        is_read: Whether the query reads its rows.
    """

    name: str
    source: RowSource
    use: TableUse | None
    is_read: bool

    @property
    def need(self) -> Need:
        """The rows that the query can use."""
        return Need() if self.use is None else self.use.need


class Query:
    """A SELECT that is planned when it is entered as a context, and read when its results are requested.

    Args:
        sql: One SELECT.
        open_source: Returns the rows of a table by its name, parts joined by a dot.
        zone: The time zone of timestamps in the query and in results; None: that of this machine.
        memory: DuckDB's memory, for instance `1GB`; what needs more goes to a temporary folder.

    Raises:
        StatementError: DuckDB refuses the statement.
        OptionError: It is no single SELECT, or an option has a bad value.
    """

    def __init__(
        self,
        sql: str,
        open_source: Callable[[str], RowSource],
        *,
        zone: str | None = None,
        memory: str = MEMORY_DEFAULT,
    ) -> None:
        self._sql = sql
        self._names: tuple[tuple[str, ...], ...] = ()
        self.tables: tuple[PlannedTable, ...] = ()
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-sql-")
        self._connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
        self._handed_over: list[HandedOver] = []
        self._texts: list[TextColumn] = []
        try:
            self._configure(zone, memory)
            self._names = named_tables(self._connection, sql)
            self.tables = self._plan(self._names, open_source)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the reads and remove the temporary folder."""
        self.close()

    def close(self) -> None:
        """End the reads and remove the temporary folder."""
        self.stop()
        self._connection.close()
        self._folder.cleanup()

    def stop(self) -> None:
        """End the reads and interrupt the query; safe to call from any thread."""
        for each in self._handed_over:
            each.stop()
        self._connection.interrupt()

    @property
    def not_utf8_count(self) -> int:
        """Records that were read and whose `text` is null because their data is not UTF-8; 0 if no text is used."""
        return sum(
            text.not_utf8_count
            for text, table in zip(self._texts, self.tables, strict=True)
            if table.use is None or table.use.uses_text
        )

    def results(self) -> Iterator[pa.RecordBatch]:
        """Read the tables, and yield results before the reads have ended; the first batch has no rows and shows the columns.

        Raises:
            StatementError: DuckDB could not run the statement.
            PenstockError: A table could not be read.
        """
        try:
            for index in range(len(self.tables)):
                if self.tables[index].is_read and self.plan.must_store(index):
                    self._store(index)
            relation = self._connection.sql(self._sql)
            kinds = [str(kind) for kind in relation.types]
            reader = relation.to_arrow_reader(_ROWS_PER_RESULT)
            schema = pa.schema(
                [
                    field.with_metadata(JSON_MARK if kind == "JSON" else None)
                    for field, kind in zip(reader.schema, kinds, strict=True)
                ]
            )
            yield pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            for rows in reader:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            for each in self._handed_over:
                if each.error is not None:
                    raise each.error from None
            raise StatementError(str(error)) from error

    def _configure(self, zone: str | None, memory: str) -> None:
        run = self._connection.execute
        run("SET temp_directory = $folder", {"folder": self._folder.name})
        for option, setting, value in (
            ("--memory", "memory_limit", memory),
            ("--time-zone", "TimeZone", zone),
        ):
            if value is None:
                continue
            try:
                run(f"SET {setting} = $value", {"value": value})
            except duckdb.Error as error:
                reason = str(error).partition("\n")[0]
                raise OptionError(f"{option} {value}: {reason}") from error
        run("SET streaming_buffer_size = '64KB'")  # the first rows of a result are there soon
        run("SET enable_external_access = false")
        run("SET lock_configuration = true")

    def _plan(
        self, names: tuple[tuple[str, ...], ...], open_source: Callable[[str], RowSource]
    ) -> tuple[PlannedTable, ...]:
        _check_case(names)
        sources = [open_source(".".join(name)) for name in names]
        for index, name in enumerate(names):
            self._register(index, name)
        # One transaction: now() is the same moment in the plan and in the run.
        self._connection.execute("BEGIN TRANSACTION")
        try:
            (row,) = self._connection.execute(f"{_EXPLAIN}\n{self._sql}").fetchall()
        except duckdb.Error as error:
            raise StatementError(_LINE.sub(_line_before, str(error))) from error
        self.plan: QueryPlan = parse_plan(row[1], len(names))
        return tuple(
            PlannedTable(".".join(name), source, self.plan.uses.get(index), self.plan.may_read(index))
            for index, (name, source) in enumerate(zip(names, sources, strict=True))
        )

    def _register(self, index: int, name: tuple[str, ...]) -> None:
        if len(name) > 2:
            raise OptionError(f'table {".".join(name)}: write a name with dots in double quotes: "a.b.c"')
        text = TextColumn()
        self._texts.append(text)
        schema = scanned_schema(index)

        def read() -> Iterator[pa.RecordBatch]:
            table = self.tables[index]
            for rows in table.source.read(table.need):
                yield pa.RecordBatch.from_arrays(text.with_text(rows).columns, schema=schema)

        rows = HandedOver(f"penstock-sql-{index}", read)
        self._handed_over.append(rows)
        self._connection.register(_scan_name(index), pa.RecordBatchReader.from_batches(schema, iter(rows)))
        if len(name) > 1:
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(name[0])}")
        self._create_view(index, name, _scan_name(index), is_stored=False)

    def _create_view(self, index: int, name: tuple[str, ...], rows: str, *, is_stored: bool) -> None:
        view = ".".join(_quoted(part) for part in name)
        columns = view_columns(index, is_stored=is_stored)
        try:
            statement = f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {rows}"  # noqa: S608 - quoted
            self._connection.execute(statement)
        except duckdb.Error as error:
            raise OptionError(f"table {'.'.join(name)}: {error}") from error

    def _store(self, index: int) -> None:
        """Read a table into DuckDB: the query needs its rows more than once."""
        prefix = prefix_of(index)
        stored = f"stored_{prefix}rows"
        rows = f"SELECT {stored_columns(index)} FROM {_scan_name(index)}"  # noqa: S608 - our own names
        self._connection.execute(f"CREATE TEMP TABLE {stored} AS {rows}")
        self._create_view(index, self._names[index], stored, is_stored=True)


def _check_case(names: tuple[tuple[str, ...], ...]) -> None:
    by_lower: dict[str, str] = {}
    for name in map(".".join, names):
        other = by_lower.setdefault(name.lower(), name)
        if other != name:
            raise OptionError(
                f"tables {other} and {name}: SQL does not distinguish names by case, Kinesis does; ask for one of them at a time"
            )


def _line_before(match: re.Match[str]) -> str:
    return f"LINE {max(1, int(match[1]) - 1)}:"


def _scan_name(index: int) -> str:
    return f"penstock_scan_{index}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
