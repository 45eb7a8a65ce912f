"""A streaming query as Spark's micro-batch engine runs it, one call at a time: offset log, commit log, and a sink by batch id."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from penstock.testing.stream_source.outcomes import NotStarted, NotTried, PromiseBroken
from penstock.testing.stream_source.promises import EMPTY, MONOTONE, Promise
from penstock.testing.stream_source.source_under_test import SourceUnderTest
from penstock.testing.stream_source.spark_calls import Driver, Row, Task, create_data_source

__tracebackhide__ = True  # pytest shows the frames of the source, not those of the kit
_PAUSE_S: Final = 0.02
_SHOWN_MAX: Final = 5


class Query:
    """One query on a source, with the contents of its checkpoint location.

    Args:
        source: The source and its place.
        options: Options to be added to the source's.
    """

    def __init__(self, source: SourceUnderTest, options: Mapping[str, str] | None = None) -> None:
        self.source = source
        try:
            self.data_source, self.schema = create_data_source(
                source, {**source.options(), **(options or {})}
            )
            driver = self.bare_driver()
        except (PromiseBroken, NotTried):
            raise
        except Exception as error:
            raise NotStarted(f"{type(error).__name__}: {error}") from error
        self.log: list[str] = []
        self.committed_count = 0
        self.sink: dict[int, list[Row]] = {}
        self.initial = ""
        self.driver = self._resume(driver)

    # --- drivers ------------------------------------------------------------------------------------------

    def new_driver(self) -> Driver:
        """Return a driver that has only the log, as after a restart. The query keeps its present driver."""
        return self._resume(self.bare_driver())

    def _resume(self, driver: Driver) -> Driver:
        """Make the calls with which Spark begins a query, or continues one that has committed its last batch."""
        if self.committed_count == 0:
            self.initial = driver.initial()
        if self.committed_count and self.committed_count == len(self.log):
            try:
                driver.tasks(self.log[-1], self.log[-1])
            except Exception as error:
                raise PromiseBroken(EMPTY, f"at a restart: {type(error).__name__}: {error}") from error
        return driver

    def bare_driver(self) -> Driver:
        """Return a driver on which nothing has been called."""
        return Driver(self.data_source, self.schema)

    def restart(self) -> None:
        """Kill the driver and start a new one; it repeats the batch that was logged and not committed."""
        self.source.kill(self.driver.reader)
        self.driver = self.new_driver()
        if self.committed_count < len(self.log):
            self.execute()
            self.commit()

    def stop(self) -> None:
        """Stop the driver."""
        self.driver.stop()

    # --- one batch ----------------------------------------------------------------------------------------

    @property
    def start(self) -> str:
        """Return the offset from which the next batch starts."""
        return self.log[-1] if self.log else self.initial

    def range_of(self, batch: int) -> tuple[str, str]:
        """Return the offsets of a logged batch."""
        return (self.log[batch - 1] if batch else self.initial), self.log[batch]

    def log_next_offset(self, limit: Any = None) -> bool:
        """Ask for the next offset and log it; return False if it is unchanged."""
        end = self.latest(limit)
        if end is not None:
            self.log.append(end)
        return end is not None

    def latest(self, limit: Any = None, driver: Driver | None = None) -> str | None:
        """Ask a driver for the next offset and log nothing; return None if it is unchanged."""
        start = self.start
        end = (driver or self.driver).latest(start, limit)
        if end == start:
            return None
        if end in {self.initial, *self.log}:
            raise PromiseBroken(
                MONOTONE, f"the query is at {start}, and latestOffset returned {end}, which it has left"
            )
        return end

    def plan(self, promise: Promise, limit: Any = None) -> None:
        """Log the next batch, or report the promise as broken if there is none in time."""
        deadline_s = time.monotonic() + self.source.visible_s
        while not self.log_next_offset(limit):
            if time.monotonic() > deadline_s:
                raise PromiseBroken(
                    promise,
                    f"records were put, and latestOffset returned its start {self.start} for {self.source.visible_s:g} s",
                )
            time.sleep(_PAUSE_S)

    def tasks(self, driver: Driver | None = None) -> list[Task]:
        """Return the tasks of the last logged batch."""
        return (driver or self.driver).tasks(*self.range_of(len(self.log) - 1))

    def execute(self) -> list[Row]:
        """Run the last logged batch; its rows replace those of a former execution."""
        rows = [row for task in self.tasks() for row in task.rows()]
        self.sink[len(self.log) - 1] = rows
        return rows

    def commit(self) -> None:
        """Commit the last logged batch."""
        self.committed_count = len(self.log)
        self.driver.commit(self.log[-1])

    def run_batch(self, promise: Promise) -> list[Row]:
        """Plan, run and commit one batch."""
        self.plan(promise)
        rows = self.execute()
        self.commit()
        return rows

    def run_until(self, count: int, promise: Promise, when: str = "") -> None:
        """Run batches until the sink has this many rows, or report the promise as broken if they are missing."""
        deadline_s = time.monotonic() + self.source.visible_s
        while len(self.rows()) < count:
            if time.monotonic() > deadline_s:
                raise PromiseBroken(
                    promise,
                    f"{when}{count} records were put, and {len(self.log)} batches hold {len(self.rows())} rows",
                )
            if self.log_next_offset():
                self.execute()
                self.commit()
            else:
                time.sleep(_PAUSE_S)

    # --- rows ---------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Return the rows of the sink, in the order of their batches."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    def ids(self, rows: Iterable[Row] | None = None) -> list[Hashable]:
        """Return the ids of rows; None: of all rows of the sink."""
        return [self.source.id_of(row) for row in (self.rows() if rows is None else rows)]


@contextmanager
def running(source: SourceUnderTest, options: Mapping[str, str] | None = None) -> Iterator[Query]:
    """Run a query and stop its driver at the end."""
    query = Query(source, options)
    try:
        yield query
    finally:
        query.stop()


def put(
    source: SourceUnderTest, count: int, known_ids: list[Hashable] | None = None
) -> list[Hashable] | None:
    """Put records; return the ids of all that were put so far, or None if the source makes records by itself."""
    ids = source.put(count)
    if ids is None:
        return None
    assert len(ids) == count, f"put({count}) of {type(source).__name__} returned {len(ids)} ids"
    return [*(known_ids or []), *ids]


def describe_difference(wanted_ids: Iterable[Hashable], found_ids: Iterable[Hashable]) -> str | None:
    """Return how ids differ from the wanted ones, in words; None if they are the same."""
    expected, there = Counter(wanted_ids), Counter(found_ids)
    parts = []
    for what, ids in (("missing", expected - there), ("too many", there - expected)):
        if ids:
            shown = ", ".join(repr(each) for each in list(ids)[:_SHOWN_MAX])
            parts.append(f"{ids.total()} {what} ({shown}{', …' if len(ids) > _SHOWN_MAX else ''})")
    return "; ".join(parts) or None


def compare_with_sink(query: Query, ids: list[Hashable] | None, promise: Promise, when: str = "") -> None:
    """Compare the sink with the records that were put; if their ids are unknown, look for repeated ones only."""
    found = query.ids()
    wanted: Iterable[Hashable] = ids if ids is not None else set(found)
    difference = describe_difference(wanted, found)
    if difference is not None:
        raise PromiseBroken(promise, f"{when}{len(query.log)} batches with {len(found)} rows: {difference}")
