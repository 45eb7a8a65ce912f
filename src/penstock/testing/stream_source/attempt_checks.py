"""Checks that read one batch twice: by two attempts, by two drivers, or in another process."""

from __future__ import annotations

import logging
import threading
from itertools import islice
from typing import Final

from penstock.testing.stream_source import promises as p
from penstock.testing.stream_source.outcomes import NO_ROWS, NotTried, PromiseBroken
from penstock.testing.stream_source.processes import ProcessFailed, read_rows, run_in_process
from penstock.testing.stream_source.query import Query, compare_with_sink, describe_difference, put, running
from penstock.testing.stream_source.source_under_test import SourceUnderTest
from penstock.testing.stream_source.spark_calls import Driver, FetchedTask, Row, Task

__tracebackhide__ = True  # pytest shows the frames of the source, not those of the kit
Answer = list[Row] | Exception
_log: Final = logging.getLogger(__name__)
_RECORD_COUNT: Final = 6
_ATTEMPTS_MAX: Final = 4
"""Spark's `spark.task.maxFailures`."""


def two_attempts_agree(source: SourceUnderTest) -> None:
    with running(source) as query:
        put(source, _RECORD_COUNT)
        query.plan(p.SPECULATION)
        has_rows = False
        for number, task in enumerate(query.tasks()):
            first, second = _run_overlapping(source, task)
            has_rows = has_rows or first != [] or second != []
            if isinstance(first, Exception) and isinstance(second, Exception):
                first = _run_attempts(task, _ATTEMPTS_MAX - 1)
                if isinstance(first, Exception):
                    raise PromiseBroken(
                        p.SPECULATION,
                        f"partition {number}: both attempts failed, and those after them: {type(first).__name__}: {first}",
                    ) from first
            if isinstance(first, Exception) or isinstance(second, Exception):
                continue
            difference = describe_difference(query.ids(first), query.ids(second))
            if difference is not None:
                _expect_replay(query, [task])
                raise PromiseBroken(
                    p.SPECULATION,
                    f"partition {number}: {len(first)} rows in the first attempt; in the second {difference}",
                )
        if not has_rows:
            raise NotTried(NO_ROWS)


def _expect_replay(query: Query, tasks: list[Task]) -> None:
    """Report the simpler promise as broken if the rows of two reads differ even when one read follows the other."""
    difference = describe_difference(query.ids(read_rows(tasks)), query.ids(read_rows(tasks)))
    if difference is not None:
        raise PromiseBroken(p.REPLAY, f"tasks that are read twice, one read after the other: {difference}")


def _run_overlapping(source: SourceUnderTest, task: Task) -> tuple[Answer, Answer]:
    """Return the answers of two attempts. The second runs while the first is under way."""
    attempt = task.rows()
    first_rows: list[Row] = []
    failed: Exception | None = None
    try:
        first_rows.extend(islice(attempt, 1))
    except Exception as error:  # noqa: BLE001 - an attempt that fails is an answer
        failed = error
    put(source, 2)
    answers: list[Answer] = []
    second = threading.Thread(target=lambda: answers.append(_run_attempts(task, 1)), daemon=True)
    second.start()
    second.join(source.visible_s / 3)  # it may wait for the first one
    if failed is None:
        try:
            first_rows.extend(attempt)
        except Exception as error:  # noqa: BLE001 - as above
            failed = error
    second.join(source.visible_s)
    if not answers:
        raise PromiseBroken(
            p.SPECULATION, f"an attempt beside another one did not end within {source.visible_s:g} s"
        )
    return failed or first_rows, answers[0]


def _run_attempts(task: Task, count: int) -> Answer:
    """Return a task's rows, or the error of the last attempt."""
    last: Exception = RuntimeError("no attempt")
    for _ in range(count):
        try:
            return list(task.rows())
        except Exception as error:  # noqa: BLE001 - Spark repeats the task
            last = error
    return last


def two_drivers_agree(source: SourceUnderTest) -> None:
    with running(source) as query:
        ids = put(source, _RECORD_COUNT)
        query.run_batch(p.TWO_DRIVERS)
        ids = put(source, 3, ids)
        query.plan(p.TWO_DRIVERS)
        old, query.driver = query.driver, query.bare_driver()
        try:
            at = query.range_of(0)[1]
            query.driver.tasks(at, at)
            ours, theirs = _read_batch(query, query.driver), _read_batch(query, old)
            if isinstance(ours, Exception):
                raise PromiseBroken(
                    p.TWO_DRIVERS,
                    f"the new driver cannot read the batch that the old one logged: {type(ours).__name__}: {ours}",
                ) from ours
            if not isinstance(theirs, Exception):  # an old driver that fails does no harm
                difference = describe_difference(query.ids(ours), query.ids(theirs))
                if difference is not None:
                    _expect_replay(query, query.tasks())
                    raise PromiseBroken(
                        p.TWO_DRIVERS,
                        f"the logged batch has {len(ours)} rows for the new driver; for the old one {difference}",
                    )
            query.sink[len(query.log) - 1] = ours
            query.commit()
            query.latest()
            ids = put(source, 2, ids)
            _plan_in_vain(query, old)
        finally:
            old.stop()
        query.run_until(len(query.rows()) + 2 if ids is None else len(ids), p.TWO_DRIVERS)
        compare_with_sink(query, ids, p.TWO_DRIVERS, "after the old driver has stopped: ")


def _read_batch(query: Query, driver: Driver) -> Answer:
    """Return the rows of the last logged batch as a driver has them, or its error."""
    try:
        return [row for task in query.tasks(driver) for row in task.rows()]
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error


def _plan_in_vain(query: Query, old: Driver) -> None:
    """Plan a batch with the old driver, which cannot log it and may refuse."""
    try:
        query.latest(driver=old)
    except PromiseBroken:
        raise
    except Exception as error:  # noqa: BLE001 - its refusal is in order
        _log.debug("the old driver was refused: %s", error)


def reads_in_any_process(source: SourceUnderTest) -> None:
    with running(source) as query:
        put(source, _RECORD_COUNT)
        query.plan(p.ANY_PROCESS)
        tasks = [task for task in query.tasks() if not isinstance(task, FetchedTask)]
        if not tasks:
            # A simple reader has fetched the rows; another one reads them by the offsets.
            query.driver.stop()
            query.driver = query.bare_driver()
            tasks = query.tasks()
        try:
            there = query.ids(run_in_process(read_rows, tasks))
        except ProcessFailed as failed:
            raise PromiseBroken(p.ANY_PROCESS, f"a new process failed: {failed}") from failed
        here = query.ids(read_rows(tasks))
        if not here and not there:
            raise NotTried(NO_ROWS)
        difference = describe_difference(here, there)
        if difference is not None:
            _expect_replay(query, tasks)
            raise PromiseBroken(p.ANY_PROCESS, f"in a new process {difference}")
