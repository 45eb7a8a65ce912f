"""Queries that go on, over rows that the test sends."""

from __future__ import annotations

import queue
import threading
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

pytest.importorskip("duckdb")

import pyarrow as pa

from penstock.core.position import TRIM_HORIZON
from penstock.frames import SCHEMA
from penstock.sql.database import Database
from penstock.sql.follow import FollowedQuery
from penstock.sql.followed_rows import FollowedStream
from penstock.sql.query import Query
from penstock.sql.query_plan import RowBounds
from penstock.sql.statement import StatementError
from waiting import DEADLINE_S


def rows_of(*texts, arrived=None):
    arrived = datetime.now(UTC) if arrived is None else arrived
    rows = [
        {
            "streamName": "orders",
            "shardId": "shardId-000000000000",
            "sequenceNumber": str(n),
            "subSequenceNumber": 0,
            "partitionKey": "k",
            "explicitHashKey": None,
            "approximateArrivalTimestamp": arrived,
            "data": text.encode(),
        }
        for n, text in enumerate(texts)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


class Sent:
    """Rows that the test sends."""

    def __init__(self):
        self.queue = queue.Queue()

    def read(self, bounds):
        return iter(())

    def follow(self, bounds):
        while (rows := self.queue.get()) is not None:
            if isinstance(rows, Exception):
                raise rows
            yield rows

    def stop(self):
        self.queue.put(None)


@pytest.fixture
def follow():
    opened = []

    def start(sql, **options):
        sent = {}
        planned = Query(sql, lambda name: sent.setdefault(name, Sent()), zone="UTC")
        followed = FollowedQuery(
            planned,
            list(sent.values()),
            lambda: Database(sql, "UTC", options.get("memory", "1GB")),
            interval_s=0.01,
        )
        results = queue.Queue()

        def run():
            try:
                for rows in followed.results():
                    results.put(rows.to_pylist())
            except Exception as error:  # noqa: BLE001 - the test gets it
                results.put(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        opened.append((planned, followed, thread))
        return followed, sent, lambda: results.get(timeout=DEADLINE_S)

    yield start
    for planned, followed, thread in opened:
        followed.stop()
        thread.join(DEADLINE_S)
        followed.close()
        planned.close()


@pytest.mark.parametrize(
    ("sql", "is_row_by_row"),
    [
        ("SELECT * FROM orders", True),
        ("SELECT json->>'a' FROM orders WHERE arrived > now() - INTERVAL 1 HOUR AND text LIKE 'x%'", True),
        ("SELECT unnest([1, 2]), text FROM orders", True),
        ("SELECT count(*) FROM orders", False),
        ("SELECT DISTINCT text FROM orders", False),
        ("SELECT text FROM orders ORDER BY arrived", False),
        ("SELECT text FROM orders LIMIT 3", False),
        ("SELECT text FROM orders WHERE arrived = (SELECT max(arrived) FROM orders)", False),
        ("SELECT row_number() OVER () FROM orders", False),
        ("SELECT o.text FROM orders o JOIN payments USING (partitionKey)", False),
        ("FROM orders UNION ALL FROM payments", False),
        ("SELECT 1", False),
    ],
)
def test_a_query_over_single_rows_is_recognised(follow, sql, is_row_by_row):
    assert follow(sql)[0].is_row_by_row == is_row_by_row


def test_a_query_over_rows_gives_new_rows(follow):
    _, sent, result = follow("SELECT text FROM orders WHERE text <> 'b'")
    assert result() == []
    sent["orders"].queue.put(rows_of("a", "b"))
    assert result() == [{"text": "a"}]
    sent["orders"].queue.put(rows_of("b"))
    sent["orders"].queue.put(rows_of("c"))
    assert result() == [{"text": "c"}]


def test_an_aggregate_is_computed_over_all_rows(follow):
    _, sent, result = follow("SELECT text, count(*) n FROM orders GROUP BY 1 ORDER BY 1")
    assert result() == []
    sent["orders"].queue.put(rows_of("a", "b"))
    assert result() == [{"text": "a", "n": 1}, {"text": "b", "n": 1}]
    sent["orders"].queue.put(rows_of("b"))
    assert result() == [{"text": "a", "n": 1}, {"text": "b", "n": 2}]


def test_a_join_sees_late_partners(follow):
    _, sent, result = follow("SELECT o.text FROM orders o JOIN payments p ON o.text = p.text")
    assert result() == []
    sent["orders"].queue.put(rows_of("a", "b"))
    sent["payments"].queue.put(rows_of("b"))
    assert result() == [{"text": "b"}]


def test_rows_behind_a_moving_bound_are_removed(follow):
    followed, sent, result = follow("SELECT count(*) n FROM orders WHERE arrived > now() - INTERVAL 1 HOUR")
    assert result() == [{"n": 0}]
    sent["orders"].queue.put(rows_of("old", "old", arrived=datetime.now(UTC) - timedelta(hours=2)))
    sent["orders"].queue.put(rows_of("new"))
    assert result() == [{"n": 1}]
    sent["orders"].queue.put(rows_of("new"))
    assert result() == [{"n": 2}]
    followed.stop()


def test_a_result_without_a_bound_is_refused(follow):
    _, sent, result = follow("SELECT * FROM orders ORDER BY arrived")
    assert result() == []
    sent["orders"].queue.put(rows_of(*map(str, range(10_001))))
    error = result()
    assert isinstance(error, StatementError)
    assert "add a limit" in str(error)


def test_an_error_of_a_stream_ends_the_query(follow):
    _, sent, result = follow("SELECT count(*) FROM orders")
    result()
    sent["orders"].queue.put(OSError("gone"))
    assert str(result()) == "gone"


def test_a_closed_query_has_no_reader_any_more():
    may_end = threading.Event()

    class Slow(Sent):
        def follow(self, bounds):
            may_end.wait(DEADLINE_S)
            return iter(())

        def stop(self):
            threading.Timer(0.1, may_end.set).start()

    sql = "SELECT text FROM orders"
    with Query(sql, lambda _: Slow(), zone="UTC") as planned:
        followed = FollowedQuery(planned, [Slow()], lambda: Database(sql, "UTC", "1GB"), interval_s=0.01)
        next(followed.results())
        followed.stop()
        followed.close()
        assert "penstock-sql-0" not in {each.name for each in threading.enumerate()}


def test_a_stream_that_is_stopped_before_it_is_read_gives_no_rows():
    rows = FollowedStream(Mock(stream="orders", now_ms=0, start_of=lambda _: TRIM_HORIZON))
    rows.stop()
    assert list(rows.follow(RowBounds())) == []
