"""A query that follows its streams: new records change its result.

If each row of the result depends on one record (no aggregate, join, `order by` or `limit`), the query is run over each batch of
new records alone. Every other query is run again over all records that were read, at an interval. DuckDB keeps these
records in memory and in its temporary folder. When the query's lower bound of the arrival moves on, as `now() - INTERVAL 5 MINUTES`
does, the records before the bound are removed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.sql.columns import ARRIVAL, TextColumn, column_prefix, scanned_schema
from penstock.sql.database import Database, marked_schema, relation_of, scan_batch, stored_table_name
from penstock.sql.packages import duckdb, pa
from penstock.sql.query import ROWS_PER_RESULT, Query, count_not_utf8
from penstock.sql.query_plan import QueryPlan
from penstock.sql.statement import StatementError

if TYPE_CHECKING:
    from penstock.sql.followed_rows import FollowedRecording, FollowedStream

ROWS_MAX: Final = 10_000
"""Most rows of a result that is computed repeatedly."""
_BATCHES_WAITING_MAX: Final = 8
_CHECK_INTERVAL_S: Final = 0.25
_END_WAIT_S: Final = 5.0
_ROW_OPERATORS: Final = frozenset({"PROJECTION", "FILTER", "UNNEST"})


def is_row_by_row(plan: QueryPlan) -> bool:
    """Return whether each row of the result depends on a single record."""
    others = {name for name in plan.operators if "ARROW_SCAN" not in name} - _ROW_OPERATORS
    return plan.scan_count == 1 and len(plan.uses) == 1 and not plan.is_recursive and not others


class FollowedQuery:
    """Runs a planned query repeatedly.

    Args:
        query: The query as planned; its `results` must not be requested, since this class computes them.
        sources: The rows of its tables, in the order of `query.tables`.
        open_database: Opens the database that keeps rows.
        interval_s: Seconds between two results over all records.
    """

    def __init__(
        self,
        query: Query,
        sources: Sequence[FollowedStream | FollowedRecording],
        open_database: Callable[[], Database],
        *,
        interval_s: float,
    ) -> None:
        self._query = query
        self._sources = sources
        self._database = open_database()
        self._interval_s = interval_s
        self._text_columns = [TextColumn() for _ in sources]
        self._batches: queue.Queue[tuple[int, pa.RecordBatch] | BaseException] = queue.Queue(
            _BATCHES_WAITING_MAX
        )
        self._is_stopped = threading.Event()
        self._readers: list[threading.Thread] = []
        self.is_row_by_row = is_row_by_row(query.plan)

    def stop(self) -> None:
        """End the results; safe to call from any thread."""
        self._is_stopped.set()
        for source in self._sources:
            source.stop()
        self._database.connection.interrupt()

    def close(self) -> None:
        """Wait for the ends of the readers, and remove all rows. Call it after `stop`, when the results have ended."""
        until_s = time.monotonic() + _END_WAIT_S
        for reader in self._readers:
            reader.join(max(0.0, until_s - time.monotonic()))
        self._database.close()

    @property
    def not_utf8_count(self) -> int:
        """The number of read records whose data is not UTF-8, so that their `text` is null; 0 if no text is used."""
        return count_not_utf8(self._text_columns, self._query.tables)

    def results(self) -> Iterator[pa.Table]:
        """Yield the new rows of a row-by-row query; for any other query, each changed result.

        The first result is computed over no records, and shows the columns.

        Raises:
            StatementError: DuckDB could not run the query, or the result has more than `ROWS_MAX` rows.
            PenstockError: A table could not be read.
        """
        for index in range(len(self._sources)):
            self._database.add_scan(index, scanned_schema(index).empty_table())
            if not self.is_row_by_row:
                self._database.store_rows(index)
            reader = threading.Thread(
                target=self._read, args=(index,), name=f"penstock-sql-{index}", daemon=True
            )
            reader.start()
            self._readers.append(reader)
        try:
            if self.is_row_by_row:
                yield from self._new_rows()
            else:
                yield from self._changed_results()
        except duckdb.InterruptException:
            return
        except (duckdb.Error, pa.ArrowException) as error:
            raise StatementError(str(error)) from error

    # --- the threads of the tables ------------------------------------------------------------------------

    def _read(self, index: int) -> None:
        try:
            for rows in self._sources[index].follow(self._query.tables[index].bounds):
                self._enqueue((index, scan_batch(index, self._text_columns[index].with_text(rows))))
                if self._is_stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again on the thread of the results
            self._enqueue(error)

    def _enqueue(self, item: tuple[int, pa.RecordBatch] | BaseException) -> None:
        while not self._is_stopped.is_set():
            try:
                self._batches.put(item, timeout=_CHECK_INTERVAL_S)
            except queue.Full:
                continue
            return

    # --- the thread of the results ------------------------------------------------------------------------

    def _next_rows(self, until_s: float | None = None) -> tuple[int, pa.RecordBatch] | None:
        """Wait for the next batch of rows; return None after `stop`, or when `until_s` has passed."""
        while not self._is_stopped.is_set():
            wait_s = _CHECK_INTERVAL_S
            if until_s is not None:
                wait_s = min(wait_s, until_s - time.monotonic())
                if wait_s <= 0:
                    return None
            try:
                item = self._batches.get(timeout=wait_s)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            return item
        return None

    def _new_rows(self) -> Iterator[pa.Table]:
        """Yield an empty result, which shows the columns. Then yield the result over each batch of new rows, if it has rows."""
        yield self._run_query()
        while (item := self._next_rows()) is not None:
            index, rows = item
            self._database.add_scan(index, pa.Table.from_batches([rows]))
            result = self._run_query()
            if result.num_rows:
                yield result

    def _changed_results(self) -> Iterator[pa.Table]:
        """Yield the result over all rows that are kept, at each interval if it has changed."""
        last_result = self._run_query()
        yield last_result
        while not self._is_stopped.is_set():
            until_s = time.monotonic() + self._interval_s
            while (item := self._next_rows(until_s)) is not None:
                index, rows = item
                self._database.append_rows(index, pa.Table.from_batches([rows]))
            if self._is_stopped.is_set():
                return
            self._remove_old_rows()
            result = self._run_query()
            if not result.equals(last_result):
                yield result
            last_result = result

    def _run_query(self) -> pa.Table:
        """Run the query over the rows that the database has now."""
        relation = relation_of(self._database)
        reader = relation.to_arrow_reader(ROWS_PER_RESULT)
        schema = marked_schema(relation, reader.schema)
        batches, count = [], 0
        for rows in reader:
            batches.append(rows)
            count += rows.num_rows
            if count > ROWS_MAX and not self.is_row_by_row:
                raise StatementError(
                    f"the result has more than {ROWS_MAX:,} rows, and a followed result is recomputed for new records: add a limit"
                )
        return pa.Table.from_batches(batches, reader.schema).rename_columns(schema.names).cast(schema)

    def _remove_old_rows(self) -> None:
        """Rewrite each table without the rows before the query's lower bound, if these are more than half of its rows."""
        run = self._database.connection.execute
        for index, table_use in self._query.plan_now().uses.items():
            if table_use.bounds.from_ms is None:
                continue
            column, table = f'"{column_prefix(index)}{ARRIVAL}"', stored_table_name(index)
            is_new = f"{column} >= make_timestamptz({table_use.bounds.from_ms * 1000})"
            ((old, new),) = run(
                f"SELECT count(*) FILTER (NOT {is_new}), count(*) FILTER ({is_new}) FROM {table}"  # noqa: S608 - our own names
            ).fetchall()
            if old > new:
                run(f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT * FROM {table} WHERE {is_new}")  # noqa: S608 - our own names
