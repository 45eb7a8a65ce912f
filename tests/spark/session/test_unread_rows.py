"""Queries whose actions leave rows unread, or read a stream twice, as Spark runs them."""

from __future__ import annotations

import pytest

from spark_support import numbered, put
from waiting import wait_until


def load(spark, stream, application, **options):
    reader = spark.readStream.format("kinesis").option("streamName", stream)
    given = {
        "applicationName": application,
        "startingPosition": "TRIM_HORIZON",
        "leaseDuration": "5s",
        "fetchInterval": "0ms",
        "probeInterval": "200ms",
        **options,
    }
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader.load()


@pytest.fixture
def start(tmp_path):
    running = []

    def begin(writer, *, available_now=False):
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{len(running)}"))
        writer = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        )
        running.append(writer.start())
        return running[-1]

    yield begin
    for query in running:
        query.stop()


def failed(query):
    return None if query.isActive else query.exception()


def test_a_query_whose_batches_look_at_their_first_rows_only_goes_on(spark, stream, client, start):
    seen = {}

    def look(frame, batch_id):
        if batch_id % 2:
            frame.selectExpr("cast(data as string) as data").show(3)
        seen[batch_id] = [int(row.data) for row in frame.limit(3).collect()]

    put(client, stream, numbered(0, 40))
    query = start(load(spark, stream, f"app-{stream}").writeStream.foreachBatch(look))
    sent = 40
    for count in (1, 2, 3):
        wait_until(lambda count=count: failed(query) or len(seen) >= count, f"batch {count}")
        assert failed(query) is None
        put(client, stream, numbered(sent, sent + 20))
        sent += 20
    wait_until(lambda: failed(query) or len(seen) >= 4, "the last batch")
    assert failed(query) is None
    numbers = [number for batch in seen.values() for number in batch]
    assert len(numbers) == len(set(numbers))
    assert all(seen.values())


@pytest.mark.parametrize("side", ["inner", "left_semi"])
def test_an_available_now_run_joined_with_nothing_ends_after_its_batches(spark, stream, client, start, side):
    put(client, stream, numbered(0, 60))
    nothing = spark.sql("select 'k' as key where false")
    rows = load(spark, stream, f"app-{stream}", maxRecordsPerTrigger="20")
    joined = rows.join(nothing, rows.partitionKey == nothing.key, side)
    query = start(joined.writeStream.format("noop"), available_now=True)
    wait_until(lambda: not query.isActive, "the run to end")
    assert query.exception() is None
    assert 1 <= len(query.recentProgress) <= 6
    rest = start(load(spark, stream, f"app-{stream}").writeStream.format("noop"), available_now=True)
    wait_until(lambda: not rest.isActive, "another query of the application to end")
    assert sum(progress.numInputRows for progress in rest.recentProgress) == 0


def test_reading_a_stream_twice_under_one_application_ends_with_the_way_out(spark, stream, client, start):
    put(client, stream, numbered(0, 40))
    one, two = (load(spark, stream, f"app-{stream}") for _ in range(2))
    query = start(one.union(two).writeStream.format("noop"))

    def ended():
        if query.isActive:
            put(client, stream, numbered(0, 20))  # both sources have something to read in some batch
        return not query.isActive

    wait_until(ended, "the query to be refused")
    text = str(query.exception())
    assert f"reads it twice under the applicationName app-{stream}" in text
    assert "Give each load() an applicationName of its own" in text


def test_reading_a_stream_twice_under_two_applications_gets_everything_twice(spark, stream, client, start):
    seen = []
    put(client, stream, numbered(0, 40))
    one, two = (load(spark, stream, f"app-{stream}-{name}") for name in ("one", "two"))
    query = start(
        one.union(two).writeStream.foreachBatch(
            lambda frame, _: seen.extend(int(row.data) for row in frame.collect())
        )
    )
    wait_until(lambda: failed(query) or len(seen) >= 80, "all records twice")
    assert failed(query) is None
    assert sorted(seen) == sorted([*range(40)] * 2)
