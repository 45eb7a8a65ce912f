"""The part of a stream that is read: by its clock, at its edges, and when the service refuses."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("httptools")

from penstock.sql.query import Query
from penstock.sql.query_plan import RowBounds
from penstock.sql.stream_rows import open_stream_rows
from penstock.wiring import AwsOptions, open_kinesis
from penstock_local import LocalKinesis
from spark_support import numbered, put

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(settle_s=0.0, limits=False) as server:
        yield server


@pytest.fixture(scope="module")
def hours(server):
    """A stream into which ten records arrived in each of five hours, by the service's clock, and the moment of each hour."""
    server.create_stream("hours", 2)
    begins = []
    for hour in range(5):
        begins.append(server.clock.now_ms())
        put(server.client("kinesis"), "hours", numbered(10 * hour, 10 * hour + 10))
        server.clock.advance(3600)
    return begins


@pytest.fixture
def rows(server, hours):
    return open_stream_rows(open_kinesis(AwsOptions(**server.connection())), "hours")


def read(rows, **bounds):
    return sorted(
        int(value.as_py()) for batch in rows.read(RowBounds(**bounds)) for value in batch.column("data")
    )


def test_all_is_read_without_a_bound(rows):
    assert read(rows) == list(range(50))


def test_the_read_begins_and_ends_near_the_bounds(rows, hours):
    assert read(rows, from_ms=hours[1], until_ms=hours[3]) == list(range(10, 30))
    assert rows.record_count == 20


def test_a_range_that_is_empty_makes_no_call(server, rows, hours):
    server.reset_calls()
    assert read(rows, from_ms=hours[4] + 24 * HOUR_MS) == []
    assert read(rows, from_ms=hours[3], until_ms=hours[2]) == []
    assert read(rows, shard_id="shardId-000000000007") == []
    assert server.calls().count("kinesis.GetShardIterator") == 0


def test_one_shard_is_read_if_the_query_names_it(server, rows):
    server.reset_calls()
    one = read(rows, shard_id="shardId-000000000001")
    assert 0 < len(one) < 50
    assert server.calls().count("kinesis.GetShardIterator") == 1


def test_records_that_arrive_after_the_beginning_are_left_out(server):
    server.create_stream("late", 2)
    put(server.client("kinesis"), "late", numbered(0, 10))
    rows = open_stream_rows(open_kinesis(AwsOptions(**server.connection())), "late")
    server.clock.advance(5)  # the service shows its clock in whole seconds
    put(server.client("kinesis"), "late", numbered(10, 20))
    assert read(rows) == list(range(10))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_a_query_reads_its_range_and_no_more(rows, hours, zone):
    from zoneinfo import ZoneInfo

    begin, end = (
        datetime.fromtimestamp(ms / 1000, UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for ms in (hours[2], hours[4])
    )
    sql = f"SELECT count(*) n, min(text::INT) low, max(text::INT) high FROM hours WHERE arrived >= '{begin}' AND arrived < '{end}'"
    with Query(sql, lambda _name: rows, zone=zone) as query:
        results = [row for batch in query.results() for row in batch.to_pylist()]
    assert results == [{"n": 20, "low": 20, "high": 39}]
    assert rows.record_count == 20


def test_refused_reads_are_repeated(server, rows):
    server.faults.throttle("GetRecords", count=3)
    server.faults.error("GetRecords", count=2)
    server.faults.drop_after("GetRecords", count=1)
    try:
        found = read(rows)
    finally:
        server.faults.clear()
    assert found == list(range(50))


def test_a_page_has_no_more_bytes_than_a_shard_gives_in_a_second(server):
    server.create_stream("large", 1)
    client = server.client("kinesis")
    for _ in range(2):
        put(client, "large", [("k", "x" * 100_000)] * 12)
    kinesis = open_kinesis(AwsOptions(**server.connection()))
    pages = []
    fetch = kinesis.fetch_records

    def noted(stream, iterator, record_count_max):
        page = fetch(stream, iterator, record_count_max)
        pages.append(len(page.records))
        return page

    kinesis.fetch_records = noted
    rows = open_stream_rows(kinesis, "large")
    assert sum(batch.num_rows for batch in rows.read(RowBounds())) == 24
    assert pages[:2] == [20, 4]
