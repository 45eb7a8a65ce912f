"""The checks that follow one query from its first offset to its last: one function for each promise."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from penstock.testing.stream_source import promises as p
from penstock.testing.stream_source.attempt_checks import (
    reads_in_any_process,
    two_attempts_agree,
    two_drivers_agree,
)
from penstock.testing.stream_source.outcomes import NO_ROWS, NotTried, PromiseBroken
from penstock.testing.stream_source.processes import ProcessFailed, find_leaks_after_stop, run_in_process
from penstock.testing.stream_source.query import Query, compare_with_sink, describe_difference, put, running
from penstock.testing.stream_source.source_under_test import SourceUnderTest
from penstock.testing.stream_source.spark_calls import Driver, passes_start, pickled

__tracebackhide__ = True  # pytest shows the frames of the source, not those of the kit
_RECORD_COUNT: Final = 6
_ROUNDS: Final = (1, 0, 25, 4)
_LIMIT: Final = 2
_POLL_COUNT: Final = 3
_BATCHES_MAX: Final = 50


def survives_pickling(source: SourceUnderTest) -> None:
    with running(source) as query:
        pickled(query.driver.reader, "the reader")
        put(source, _RECORD_COUNT)
        query.run_batch(p.PICKLING)
        query.tasks()


def offsets_are_json(source: SourceUnderTest) -> None:
    with running(source) as query:
        reader = query.driver.reader
        answers = [("initialOffset", reader.initialOffset)]
        put(source, _RECORD_COUNT)
        query.run_batch(p.JSON)
        if not passes_start() or not query.driver.takes_limits():
            answers.append(("latestOffset", reader.latestOffset))
        else:
            limit = reader.getDefaultReadLimit()
            answers.append(("latestOffset", lambda: reader.latestOffset(json.loads(query.start), limit)))
        for call, ask in answers:
            offset = ask()
            returned = json.loads(json.dumps(offset))
            if not isinstance(offset, dict) or returned != offset:
                raise PromiseBroken(p.JSON, f"{call} returned {offset!r}, and JSON returns {returned!r}")


def initial_offset_is_the_same(source: SourceUnderTest) -> None:
    with running(source) as query, running(source) as earlier:
        put(source, _RECORD_COUNT)
        with running(source) as later:
            offsets = {
                "a reader": query.initial,
                "the same reader, after records were put": query.driver.initial(),
                "a second reader that was made before": earlier.driver.initial(),
                "a reader that was made after": later.initial,
            }
    if len(set(offsets.values())) > 1:
        raise PromiseBroken(p.INITIAL, "; ".join(f"{who}: {offset}" for who, offset in offsets.items()))


def no_news_no_offset(source: SourceUnderTest) -> None:
    with running(source) as query:
        if put(source, _RECORD_COUNT) is None:
            raise NotTried("the source makes records by itself: it always has news")
        query.run_until(_RECORD_COUNT, p.REST)
        _settle(query)
        for _ in range(_POLL_COUNT):
            if (end := query.latest()) is not None:
                raise PromiseBroken(
                    p.REST, f"all records are read, and latestOffset({query.start}) returned {end}"
                )


def _settle(query: Query) -> None:
    """Run a few batches, which may have no rows: a shard's end, an early probe."""
    for _ in range(_POLL_COUNT):
        if query.log_next_offset():
            query.execute()
            query.commit()


def offsets_move_forward(source: SourceUnderTest) -> None:
    with running(source) as query:
        for _ in range(3):
            put(source, 2)
            query.run_batch(p.MONOTONE)
        query.latest()
        query.driver.stop()
        query.driver = query.new_driver()
        query.latest()  # raises if the offset moves back
        put(source, 2)
        query.run_batch(p.MONOTONE)


def every_record_once(source: SourceUnderTest) -> None:
    with running(source) as query:
        ids: list[Hashable] | None = []
        for count in _ROUNDS:
            ids = put(source, count, ids)  # None: the source makes records by itself
            query.run_until(len(query.rows()) + count if ids is None else len(ids), p.ONCE)
            source.reshard()
        if ids is not None:
            _settle(query)
        compare_with_sink(query, ids, p.ONCE)


def a_replay_is_identical(source: SourceUnderTest) -> None:
    with running(source) as query:
        put(source, _RECORD_COUNT)
        query.plan(p.REPLAY)
        for task in query.tasks():
            attempt = task.rows()
            next(attempt, None)
            attempt.close()
        first = sorted(map(repr, query.execute()))
        if not first:
            raise NotTried(NO_ROWS)
        put(source, _RECORD_COUNT)
        second = sorted(map(repr, query.execute()))
        if first != second:
            gone = [row for row in first if row not in second]
            new = [row for row in second if row not in first]
            raise PromiseBroken(
                p.REPLAY,
                f"batch {query.range_of(0)}, first {len(first)} rows, then {len(second)}; only in the first: {gone[:2]}; "
                f"only in the second: {new[:2]}",
            )


def goes_on_after_every_call(source: SourceUnderTest) -> None:
    with running(source) as query:
        ids = put(source, 2)
        query.run_batch(p.RESTART)
        deaths: list[tuple[str, Callable[[], object]]] = [
            ("initialOffset", lambda: None),
            ("latestOffset, not logged", lambda: _plan_unlogged(query)),
            ("latestOffset", lambda: query.plan(p.RESTART)),
            ("partitions", lambda: _plan_then(query, lambda: None)),
            ("a task's first row", lambda: _plan_then(query, lambda: _read_a_row(query))),
            ("the last task", lambda: _plan_then(query, query.execute)),
            ("commit", lambda: query.run_batch(p.RESTART)),
        ]
        for call, run in deaths:
            ids = put(source, 3, ids)
            run()
            ids = put(source, 1, ids)
            query.restart()
            when = f"after a death behind {call}: "
            if ids is None:
                query.run_batch(p.RESTART)
            else:
                query.run_until(len(ids), p.RESTART, when)
            compare_with_sink(query, ids, p.RESTART, when)


def _plan_unlogged(query: Query) -> None:
    query.plan(p.RESTART)
    query.log.pop()


def _plan_then(query: Query, run: Callable[[], object]) -> None:
    query.plan(p.RESTART)
    query.tasks()
    run()


def _read_a_row(query: Query) -> None:
    for task in query.tasks():
        attempt = task.rows()
        next(attempt, None)
        attempt.close()


def an_empty_range_is_harmless(source: SourceUnderTest) -> None:
    with running(source) as query:
        ids = put(source, _RECORD_COUNT)
        query.run_until(_RECORD_COUNT, p.EMPTY)
        after_restart = query.bare_driver()
        try:
            for who, driver in (("the running reader", query.driver), ("a new reader", after_restart)):
                _expect_no_rows(query, who, driver)
            ids = put(source, 3, ids)
            query.run_until(len(query.rows()) + 3, p.EMPTY)
        finally:
            after_restart.stop()
        compare_with_sink(query, ids, p.EMPTY, "after partitions(x, x): ")


def _expect_no_rows(query: Query, who: str, driver: Driver) -> None:
    call = f"partitions({query.start}, {query.start}) of {who}"
    try:
        rows = [row for task in driver.tasks(query.start, query.start) for row in task.rows()]
    except Exception as error:
        raise PromiseBroken(p.EMPTY, f"{call}: {type(error).__name__}: {error}") from error
    if rows:
        raise PromiseBroken(p.EMPTY, f"{call} has {len(rows)} rows: {query.ids(rows)[:5]}")


def read_limits_are_kept(source: SourceUnderTest) -> None:
    options = source.limited(_LIMIT)
    if options is None:
        raise NotTried("the source has no option that limits a batch")
    with running(source, options) as query:
        ids = put(source, 3 * _LIMIT)
        query.run_until(3 * _LIMIT, p.LIMIT)
        sizes = [len(rows) for rows in query.sink.values()]
        if max(sizes) > _LIMIT:
            raise PromiseBroken(p.LIMIT, f"a limit of {_LIMIT} rows, batches of {sizes}")
        if not passes_start() or not query.driver.takes_limits():
            return
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        ids = put(source, 3 * _LIMIT, ids)
        query.plan(p.LIMIT, ReadAllAvailable())
        rows = query.execute()
        query.commit()
        difference = ids and describe_difference(ids, query.ids())
        if difference:
            raise PromiseBroken(
                p.LIMIT,
                f"{3 * _LIMIT} records, and with ReadAllAvailable a batch of {len(rows)}: {difference}",
            )


def available_now_ends(source: SourceUnderTest) -> None:
    with running(source) as query:
        if not passes_start():
            raise NotTried("this Spark runs one batch with availableNow and asks the source nothing")
        if not query.driver.has_available_now():
            raise NotTried("the source has no SupportsTriggerAvailableNow: Spark runs one batch")
        ids = put(source, _RECORD_COUNT)
        for _ in range(2):
            query.driver.prepare_available_now()
            wanted = ids
            ids = _run_until_rest(query, ids)
            difference = wanted and describe_difference(wanted, query.ids())
            if difference:
                raise PromiseBroken(
                    p.AVAILABLE_NOW,
                    f"at the end of a run, beside the records that were put before it: {difference}",
                )
            query.driver.stop()
            query.driver = query.new_driver()


def _run_until_rest(query: Query, ids: list[Hashable] | None) -> list[Hashable] | None:
    """Run batches, and put a record after each, until no offset is new; return the ids of all records, None if unknown."""
    batches = 0
    while query.log_next_offset():
        batches += 1
        if batches > _BATCHES_MAX:
            raise PromiseBroken(
                p.AVAILABLE_NOW, f"{batches} batches after the target was fixed, each with a new offset"
            )
        query.execute()
        query.commit()
        ids = put(query.source, 1, ids)
    return ids


def stop_leaves_nothing(source: SourceUnderTest) -> None:
    with running(source) as query:
        put(source, 2)
        query.run_batch(p.STOP)
        start = query.start
    put(source, 2)
    try:
        left = run_in_process(find_leaks_after_stop, query.data_source, query.schema, start, source.stop_s)
    except ProcessFailed as failed:
        raise PromiseBroken(p.STOP, f"a process that stopped its readers: {failed}") from failed
    if left:
        raise PromiseBroken(p.STOP, left)


def commit_is_advice(source: SourceUnderTest) -> None:
    with running(source) as query:
        ids: list[Hashable] | None = []
        for commits in (0, 2):
            for _ in range(2):
                ids = put(source, 3, ids)
                query.plan(p.COMMIT)
                query.execute()
                query.committed_count = len(query.log)
                for _ in range(commits):
                    query.driver.commit(query.log[-1])
        query.driver.stop()
        query.driver = query.new_driver()
        query.driver.commit(query.log[-1])
        query.latest()
        ids = put(source, 3, ids)
        query.run_until(len(query.rows()) + 3 if ids is None else len(ids), p.COMMIT)
        compare_with_sink(query, ids, p.COMMIT)


def wrong_options_are_refused(source: SourceUnderTest) -> None:
    if not source.wrong_options:
        raise NotTried("wrong_options names none")
    put(source, 1)
    for name, value in source.wrong_options.items():
        try:
            with running(source, {name: value}) as query:
                query.latest()
        except Exception as error:
            text = str(error).lower()
            if name.lower() not in text and value.lower() not in text:
                raise PromiseBroken(
                    p.OPTIONS,
                    f"{name}={value!r} is refused, and the error has neither name nor value: {error}",
                ) from error
        else:
            raise PromiseBroken(
                p.OPTIONS, f"{name}={value!r} is accepted: a query reached its first latestOffset"
            )


CHECKS: Final[Mapping[str, Callable[[SourceUnderTest], None]]] = {
    p.PICKLING.name: survives_pickling,
    p.JSON.name: offsets_are_json,
    p.INITIAL.name: initial_offset_is_the_same,
    p.REST.name: no_news_no_offset,
    p.MONOTONE.name: offsets_move_forward,
    p.ONCE.name: every_record_once,
    p.REPLAY.name: a_replay_is_identical,
    p.RESTART.name: goes_on_after_every_call,
    p.EMPTY.name: an_empty_range_is_harmless,
    p.LIMIT.name: read_limits_are_kept,
    p.AVAILABLE_NOW.name: available_now_ends,
    p.STOP.name: stop_leaves_nothing,
    p.SPECULATION.name: two_attempts_agree,
    p.TWO_DRIVERS.name: two_drivers_agree,
    p.COMMIT.name: commit_is_advice,
    p.OPTIONS.name: wrong_options_are_refused,
    p.ANY_PROCESS.name: reads_in_any_process,
}
