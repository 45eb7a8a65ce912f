"""One SELECT over streams and recordings, run by DuckDB over rows as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from penstock.sql.columns import TextColumn, scanned_schema
from penstock.sql.database import (
    MEMORY_DEFAULT,
    Database,
    empty_batch,
    marked_schema,
    relation_of,
    scan_batch,
)
from penstock.sql.packages import duckdb, pa
from penstock.sql.query_plan import QueryPlan, RowBounds, TableUse
from penstock.sql.read_ahead import ReadAhead
from penstock.sql.statement import StatementError

if TYPE_CHECKING:
    from typing import Self

    from penstock.sql.recording_rows import RecordingRows
    from penstock.sql.stream_rows import StreamRows

    RowSource: TypeAlias = StreamRows | RecordingRows

ROWS_PER_RESULT: Final = 2_048
_END_WAIT_S: Final = 10.0


class PlannedTable(Struct, frozen=True):
    """A table of a query, before it is read.

    Args:
        name: As in the query.
        use: How the query uses it; None: not at all, or in a way that the plan does not show.
        is_read: Whether the query reads its rows.
    """

    name: str
    source: RowSource
    use: TableUse | None
    is_read: bool

    @property
    def bounds(self) -> RowBounds:
        """Bounds of the rows that the query can use."""
        return RowBounds() if self.use is None else self.use.bounds

    @property
    def uses_text(self) -> bool:
        """Whether the query uses the records' text."""
        return self.use is None or self.use.uses_text


def count_not_utf8(columns: Sequence[TextColumn], tables: Sequence[PlannedTable]) -> int:
    """Count the records without text in the tables whose text the query uses."""
    pairs = zip(columns, tables, strict=True)
    return sum(column.not_utf8_count for column, table in pairs if table.uses_text)


class Query:
    """A SELECT. The constructor plans it; its tables are read when the results are requested.

    Args:
        sql: One SELECT.
        open_source: Returns the source of a table's rows; the table's name is `name` or `schema.name`.
        zone: The time zone of timestamps in the query and in results; None: that of this machine.
        memory: The limit of DuckDB's memory, for instance `1GB`; larger data goes to a temporary folder.

    Raises:
        StatementError: DuckDB refuses the statement.
        OptionError: The statement is not a single SELECT, or an option has a bad value.
    """

    def __init__(
        self,
        sql: str,
        open_source: Callable[[str], RowSource],
        *,
        zone: str | None = None,
        memory: str = MEMORY_DEFAULT,
    ) -> None:
        self._database = Database(sql, zone, memory)
        self._reads: list[ReadAhead[pa.RecordBatch]] = []
        self._text_columns: list[TextColumn] = []
        self.tables: tuple[PlannedTable, ...] = ()
        try:
            names = [".".join(name) for name in self._database.names]
            sources = [open_source(name) for name in names]
            for index in range(len(names)):
                self._add_scan(index)
            # One transaction: now() is the same moment in the plan and in the run.
            self._database.connection.execute("BEGIN TRANSACTION")
            self.plan: QueryPlan = self._database.plan()
            self.tables = tuple(
                PlannedTable(name, source, self.plan.uses.get(index), self.plan.may_read(index))
                for index, (name, source) in enumerate(zip(names, sources, strict=True))
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the reads and remove the temporary folder."""
        self.stop()
        self._database.close()

    def stop(self) -> None:
        """End the reads and interrupt the query; safe to call from any thread."""
        for each in self._reads:
            each.stop()
        self._database.connection.interrupt()

    def plan_now(self) -> QueryPlan:
        """Plan the query again, with the present `now()`. Only for a query whose results are not requested."""
        self._database.connection.execute("ROLLBACK")
        self._database.connection.execute("BEGIN TRANSACTION")
        return self._database.plan()

    @property
    def not_utf8_count(self) -> int:
        """The number of read records whose data is not UTF-8, so that their `text` is null; 0 if no text is used."""
        return count_not_utf8(self._text_columns, self.tables)

    def results(self) -> Iterator[pa.RecordBatch]:
        """Read the tables, and yield results before the reads have ended; the first batch has no rows and shows the columns.

        Raises:
            StatementError: DuckDB could not run the statement.
            PenstockError: A table could not be read.
        """
        database = self._database
        try:
            for index, table in enumerate(self.tables):
                if table.is_read and self.plan.must_store(index):
                    database.store_rows(index)
            relation = relation_of(database)
            reader = relation.to_arrow_reader(ROWS_PER_RESULT)
            schema = marked_schema(relation, reader.schema)
            yield empty_batch(schema)
            for rows in reader:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            for each in self._reads:
                if each.error is not None:
                    raise each.error from None
            raise StatementError(str(error)) from error

    def results_on_thread(self, on_wait: Callable[[], None] = lambda: None) -> Iterator[pa.RecordBatch]:
        """Yield the results, which another thread computes, so that the caller's thread can handle signals.

        Args:
            on_wait: Called about four times a second while results are waited for.
        """
        results = ReadAhead("penstock-sql", self.results, on_wait)
        try:
            yield from results
        finally:
            results.stop()
            self.stop()
            results.join(_END_WAIT_S)

    def _add_scan(self, index: int) -> None:
        """Add a table to the database. When DuckDB first requests rows, a thread begins to read them ahead."""
        text = TextColumn()
        self._text_columns.append(text)

        def read() -> Iterator[pa.RecordBatch]:
            table = self.tables[index]
            for rows in table.source.read(table.bounds):
                yield scan_batch(index, text.with_text(rows))

        rows = ReadAhead(f"penstock-sql-{index}", read)
        self._reads.append(rows)
        self._database.add_scan(index, pa.RecordBatchReader.from_batches(scanned_schema(index), iter(rows)))
