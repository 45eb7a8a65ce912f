"""Rows that Java KCL workers created: their starting positions have no moment, and the query finds one that loses nothing.

The reader is driven without Spark.
"""

from __future__ import annotations

import time

from lease_hands import put_java_row
from spark_support import numbered, put, wait_for_next_second

QUERY_OPTIONS = {"shards": 1}


def test_a_row_at_a_moment_that_only_java_knows_starts_at_the_querys_own_moment(server, query, client):
    q = query(startingPosition="AT_TIMESTAMP 2020-01-01T00:00:00Z")
    put_java_row(server, q, "AT_TIMESTAMP")
    put(client, q.stream, numbered(0, 5))
    end = q.next_plan()
    first = q.execute(end)
    assert [row[3] for row in first] == list(range(5))
    q.die()
    assert q.execute(end) == first
    q.commit(end, first)
    put(client, q.stream, numbered(5, 8))
    q.drain()
    assert q.numbers() == list(range(8))


def test_a_row_at_a_moment_starts_at_the_beginning_where_the_query_names_none(server, query, client):
    q = query(startingPosition="LATEST")
    put_java_row(server, q, "AT_TIMESTAMP")
    put(client, q.stream, numbered(0, 5))
    q.drain()
    assert q.numbers() == list(range(5))


def test_runs_to_the_end_read_what_came_after_the_first_of_them_behind_javas_latest(server, query, client):
    q = query(startingPosition="TRIM_HORIZON")
    put(client, q.stream, numbered(100, 103))
    wait_for_next_second()
    key = put_java_row(server, q, "LATEST")
    q.reader.prepareForTriggerAvailableNow()
    before_ms = int(time.time() * 1000)
    assert q.batch() is None
    pinned = q.table.fetch(key).checkpoint.timestamp_ms
    assert pinned is not None
    assert pinned <= before_ms + 60_000
    sent = 0
    for _ in range(3):
        q.reader.stop()
        q.reader = q.fresh()
        wait_for_next_second()
        put(client, q.stream, numbered(sent, sent + 5))
        sent += 5
        q.reader.prepareForTriggerAvailableNow()
        while q.batch() is not None:
            pass
        assert q.numbers() == list(range(sent))
