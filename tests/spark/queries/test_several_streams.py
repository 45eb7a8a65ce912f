"""Two streams in one query: each record once, whatever happens to shards, processes and the list of streams.

The reader is driven without Spark; tests/spark/session/test_several_streams.py has the same in Spark.
"""

from __future__ import annotations

import json
import math
import re
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from java_leader import JavaLeader
from penstock import Consumer
from penstock.core.batches.several_offsets import parse_multi_stream_offset
from penstock.errors import NotFound, OptionError, PositionError, StreamChanged, Unavailable
from penstock.spark.driver.search import must_await_shard
from penstock.spark.engine import PASSES_START
from penstock.spark.streams import several_planner
from several_query import SeveralQuery
from spark_support import numbered, put, wait_for_next_second
from waiting import wait_until

ORDERS, RETURNS = 0, 1000
"""The first number of each stream's records."""


@pytest.fixture
def names(server):
    made = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "returns")]
    for name in made:
        server.create_stream(name, shards=2)
    return made


@pytest.fixture
def several(server, client, names):
    made = []

    def make(streams=None, **options):
        listed = ",".join(names if streams is None else streams)
        made.append(
            SeveralQuery(
                server,
                client,
                stream=listed,
                **{"applicationName": f"app-{names[0]}", "leaseDuration": "4s", **options},
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize("is_told_starts", {PASSES_START, False})
def test_each_record_of_two_streams_is_read_once_over_a_restart_and_a_reshard(
    several, client, names, is_told_starts
):
    orders, returns = names
    put(client, orders, numbered(ORDERS, 50))
    put(client, returns, numbered(RETURNS, RETURNS + 30))
    q = several(is_told_starts=is_told_starts)
    q.read_until(80)
    assert {(row[0], row[2] >= RETURNS) for row in q.rows} == {(orders, False), (returns, True)}
    q.reader.stop()
    put(client, orders, numbered(50, 60))
    client.split_shard(
        StreamName=returns, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    wait_until(
        lambda: (
            client.describe_stream_summary(StreamName=returns)["StreamDescriptionSummary"]["OpenShardCount"]
            == 3
        ),
        "the split",
    )
    put(client, returns, numbered(RETURNS + 30, RETURNS + 60))
    q.reader = q.fresh()
    q.read_until(120)
    assert q.numbers() == [*range(60), *range(RETURNS, RETURNS + 60)]
    keys = {row.key for row in q.table.scan().leases}
    assert all(re.fullmatch(rf"\d+:({orders}|{returns}):\d+:shardId-\d+", key) for key in keys)
    assert {key.split(":")[1] for key in keys} == {orders, returns}
    assert len({row.owner for row in q.table.scan().leases if row.owner}) <= 1


def test_a_batch_that_was_killed_is_repeated_with_the_same_rows(several, client, names):
    put(client, names[0], numbered(ORDERS, 40))
    put(client, names[1], numbered(RETURNS, RETURNS + 40))
    q = several(maxRecordsPerTrigger="50")
    end = next(filter(None, iter(q.plan, object())))
    first = q.execute(end)
    put(client, names[0], numbered(40, 80))
    q.die()
    again = q.execute(end)
    assert sorted(again) == sorted(first)
    q.commit(end, again)
    q.read_until(120)
    assert q.numbers() == [*range(80), *range(RETURNS, RETURNS + 40)]


def test_the_limit_holds_over_both_streams_and_none_waits_for_the_other_to_end(several, client, names):
    put(client, names[0], numbered(ORDERS, 60))
    put(client, names[1], numbered(RETURNS, RETURNS + 60))
    q = several(maxRecordsPerTrigger="20")
    sizes = []
    while len(q.rows) < 120:
        rows = q.batch()
        if rows:
            sizes.append([sum(row[0] == name for row in rows) for name in names])
    assert max(map(sum, sizes)) <= 20
    assert all(all(size) for size in sizes[:3])


def test_with_a_limit_of_one_record_the_streams_take_turns(several, client, names):
    for name, first in zip(names, (ORDERS, RETURNS), strict=True):
        put(client, name, numbered(first, first + 4))
    q = several(maxRecordsPerTrigger="1")
    while len(q.rows) < 8:
        q.batch()
    assert {row[0] for row in q.rows[:4]} == set(names)
    assert q.numbers() == [0, 1, 2, 3, 1000, 1001, 1002, 1003]


def test_available_now_ends_when_both_streams_are_read(several, client, names):
    put(client, names[0], numbered(ORDERS, 30))
    put(client, names[1], numbered(RETURNS, RETURNS + 30))
    q = several(maxRecordsPerTrigger="25") if PASSES_START else several()
    q.night()
    put(client, names[1], numbered(RETURNS + 30, RETURNS + 40))
    q.night()
    assert q.numbers() == [*range(30), *range(RETURNS, RETURNS + 40)]
    assert q.night() == []


def test_a_first_run_to_the_end_needs_a_shard_of_one_stream_not_of_each(
    several, server, client, names, monkeypatch
):
    single = f"single-{uuid.uuid4().hex[:8]}"
    server.create_stream(single, shards=1)
    for name in (names[0], single):
        put(client, name, numbered(0, 20))
    one, two, three = (several([names[0], single]) for _ in range(3))
    one.read_until(40)
    for each in (two, three):
        each.reader.prepareForTriggerAvailableNow()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(two.batch)
        wait_until(lambda: (one.batch(), run.done())[1], "the run")
    assert run.result() is None
    assert [len(each.planner._joined.shards.states) for each in two.planned()] == [1, 0]
    monkeypatch.setattr(
        several_planner, "must_await_shard", lambda searches, _: must_await_shard(searches, math.inf)
    )
    with pytest.raises(Unavailable, match=r"stream .*: this query reads nothing of it"):
        three.batch()


def test_a_stream_that_is_added_begins_at_its_position_and_one_left_out_keeps_its_place(
    several, client, names
):
    orders, returns = names
    put(client, orders, numbered(ORDERS, 20))
    put(client, returns, numbered(RETURNS, RETURNS + 20))
    q = several([orders, ""])
    q.read_until(20)
    q.reader.stop()
    q.given["streamName"] = f"{orders}, {returns}"
    q.reader = q.fresh()
    q.read_until(40)
    q.reader.stop()
    put(client, orders, numbered(20, 30))
    put(client, returns, numbered(RETURNS + 20, RETURNS + 30))
    q.given["streamName"] = f"{returns},"
    q.reader = q.fresh()
    q.read_until(50)
    assert max(row[2] for row in q.rows if row[0] == orders) == 19
    q.reader.stop()
    q.given["streamName"] = f"{returns},{orders}"
    q.reader = q.fresh()
    q.read_until(60)
    assert q.numbers() == [*range(30), *range(RETURNS, RETURNS + 30)]


def test_a_batch_that_is_not_done_needs_its_streams(several, client, names):
    put(client, names[0], numbered(ORDERS, 20))
    put(client, names[1], numbered(RETURNS, RETURNS + 20))
    q = several()
    read = []
    wait_until(
        lambda: (
            read.append(q.plan())
            or (read[-1] is not None and len(parse_multi_stream_offset(read[-1]).by_stream) == 2)
        ),
        "both",
    )
    q.die()
    q.given["streamName"] = f"{names[0]},"
    q.reader = q.fresh()
    with pytest.raises(OptionError, match=f"Start the query once with {names[1]}"):
        q.execute(read[-1])
    q.given["failOnDataLoss"] = "false"
    q.reader.stop()
    q.reader = q.fresh()
    assert {row[0] for row in q.execute(read[-1])} == {names[0]}


def test_a_query_of_one_stream_goes_on_with_two_under_another_application(several, query, client, names):
    orders, returns = names
    put(client, orders, numbered(ORDERS, 20))
    put(client, returns, numbered(RETURNS, RETURNS + 20))
    alone = query(stream=orders, applicationName=f"alone-{orders}", leaseDuration="2s")
    alone.drain()
    alone.reader.stop()
    put(client, orders, numbered(20, 40))
    same = several(applicationName=f"alone-{orders}")
    same.done = alone.done
    with pytest.raises(OptionError, match="under another applicationName"):
        same.plan()
    q = several()
    q.done = alone.done
    q.read_until(40)
    assert q.numbers() == [*range(20, 40), *range(RETURNS, RETURNS + 20)]
    back = query(stream=orders, applicationName=f"back-{orders}", leaseDuration="2s")
    back.done = q.done
    with pytest.raises(PositionError, match="streamName=orders,"):
        back.plan()


def consumer_of(server, names, seen):
    """A consumer of the streams, in the queries' application."""
    return Consumer(
        stream=names,
        application=f"app-{names[0]}",
        handler=lambda batch: seen.extend(int(record.data) for record in batch),
        connection=server.connection(),
        starting_position="TRIM_HORIZON",
        lease_duration_s=4.0,
        idle_time_between_reads_s=0.1,
        cold_start_jitter_s=0.0,
    )


def test_a_consumer_of_both_streams_goes_on_where_the_query_stopped_and_the_other_way_round(
    several, server, client, names
):
    put(client, names[0], numbered(ORDERS, 20))
    put(client, names[1], numbered(RETURNS, RETURNS + 20))
    q = several()
    q.read_until(40)
    wait_until(lambda: q.batch() is None, "the last batch to be settled")
    q.reader.stop()
    for name, first in zip(names, (ORDERS, RETURNS), strict=True):
        put(client, name, numbered(first + 20, first + 30))
    seen = []
    consumer = consumer_of(server, names, seen)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        wait_until(lambda: len(seen) >= 20, "the new records")
    finally:
        consumer.stop()
        thread.join()
    assert sorted(seen) == [*range(20, 30), *range(RETURNS + 20, RETURNS + 30)]
    for name, first in zip(names, (ORDERS, RETURNS), strict=True):
        put(client, name, numbered(first + 30, first + 40))
    q.reader = q.fresh()
    q.read_until(60)
    assert q.numbers() == [
        number
        for first in (ORDERS, RETURNS)
        for number in range(first, first + 40)
        if not 20 <= number - first < 30
    ]


def test_a_stream_that_does_not_exist_is_named_before_anything_is_read(several, names, client):
    put(client, names[0], numbered(ORDERS, 5))
    q = several([names[0], "no-such-stream"])
    with pytest.raises(NotFound, match="no-such-stream"):
        q.plan()
    with pytest.raises(NotFound):
        q.table.scan()


def test_a_stream_that_is_deleted_under_way_ends_the_query_with_its_name(several, client, names):
    put(client, names[0], numbered(ORDERS, 10))
    put(client, names[1], numbered(RETURNS, RETURNS + 10))
    q = several()
    q.read_until(20)
    client.delete_stream(StreamName=names[1])
    with pytest.raises(NotFound, match=names[1]):
        wait_until(lambda: q.batch() and False, "the error")
    q.reader.stop()
    q.given["streamName"] = f"{names[0]},"
    put(client, names[0], numbered(10, 20))
    q.reader = q.fresh()
    q.read_until(30)
    assert q.numbers() == [*range(20), *range(RETURNS, RETURNS + 10)]


def test_a_stream_that_is_made_again_is_refused_or_read_anew(several, server, client, names):
    put(client, names[0], numbered(ORDERS, 10))
    put(client, names[1], numbered(RETURNS, RETURNS + 10))
    q = several()
    q.read_until(20)
    q.reader.stop()
    client.delete_stream(StreamName=names[1])
    wait_until(lambda: names[1] not in client.list_streams()["StreamNames"], "the stream to go")
    server.clock.advance(5)
    server.create_stream(names[1], shards=2)
    put(client, names[1], numbered(RETURNS + 10, RETURNS + 20))
    q.reader = q.fresh()
    with pytest.raises(StreamChanged, match="failOnDataLoss=false"):
        q.plan()
    q.given["failOnDataLoss"] = "false"
    q.reader.stop()
    q.reader = q.fresh()
    q.read_until(30)
    assert q.numbers() == [*range(10), *range(RETURNS, RETURNS + 20)]
    assert len(q.done["streams"]) == 2


def test_each_stream_may_have_its_own_starting_position(several, client, names):
    put(client, names[0], numbered(ORDERS, 10))
    put(client, names[1], numbered(RETURNS, RETURNS + 10))
    wait_for_next_second()
    q = several(startingPosition=json.dumps({names[0]: "TRIM_HORIZON", "*": "LATEST"}))
    q.read_until(10)
    put(client, names[1], numbered(RETURNS + 10, RETURNS + 20))
    q.read_until(20)
    assert q.numbers() == [*range(10), *range(RETURNS + 10, RETURNS + 20)]


def test_two_queries_of_one_application_share_the_shards_of_both_streams(several, client, names):
    pair = [several(), several()]
    for name, first in zip(names, (ORDERS, RETURNS), strict=True):
        put(client, name, numbered(first, first + 20))

    def readers():
        return {(row.reader, row.stream) for row in pair[0].table.scan().leases if row.reader is not None}

    wait_until(
        lambda: [q.batch() for q in pair] and len(readers()) == 4, "a shard of each stream for each query"
    )
    for name, first in zip(names, (ORDERS, RETURNS), strict=True):
        put(client, name, numbered(first + 20, first + 60))
    wait_until(lambda: [q.batch() for q in pair] and sum(len(q.rows) for q in pair) >= 120, "all records")
    assert sorted(pair[0].numbers() + pair[1].numbers()) == [*range(60), *range(RETURNS, RETURNS + 60)]
    assert all(q.rows for q in pair)


def test_a_query_and_a_consumer_share_the_shards_of_both_streams(several, server, client, names):
    q, seen = several(), []
    wait_until(lambda: [q.batch()] and len(q.table.scan().leases) == 4, "the leases")
    consumer = consumer_of(server, names, seen)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:

        def owners():
            return Counter(row.owner for row in q.table.scan().leases)

        wait_until(
            lambda: [q.batch()] and set(owners().values()) == {2} and None not in owners(),
            "two shards for each",
        )
        for name, first in zip(names, (ORDERS, RETURNS), strict=True):
            put(client, name, numbered(first, first + 60))
        wait_until(lambda: [q.batch()] and len(q.rows) + len(seen) >= 120, "all records")
    finally:
        consumer.stop()
        thread.join()
    assert sorted(q.numbers() + seen) == [*range(60), *range(RETURNS, RETURNS + 60)]
    assert seen
    assert q.rows


def test_a_native_fleet_is_refused(several, server, client, names):
    JavaLeader(server, f"app-{names[0]}")
    with pytest.raises(OptionError, match="native KCL 3 fleet"):
        several().plan()


def test_a_stream_that_cannot_be_opened_stops_the_others(several, client, names):
    put(client, names[0], numbered(ORDERS, 10))
    put(client, names[1], numbered(RETURNS, RETURNS + 10))
    wrong = several(startingPosition=json.dumps({names[1]: {"shardId-000000000099": "TRIM_HORIZON"}}))
    for _ in range(2):
        with pytest.raises(OptionError, match=f"stream {names[1]}.*shardId-000000000099"):
            wrong.plan()
        assert wrong.planned() == []
    q = several()
    q.read_until(20)
    assert q.numbers() == [*range(10), *range(RETURNS, RETURNS + 10)]


def test_the_report_adds_up_and_names_each_stream(several, client, names):
    from penstock.spark.monitoring.progress import lags_of_progress

    put(client, names[0], numbered(ORDERS, 10))
    put(client, names[1], numbered(RETURNS, RETURNS + 10))
    q = several()
    q.read_until(20)
    wait_until(lambda: q.batch() is None, "the last batch to be settled")
    report = q.reader.reportLatestOffset()
    assert report["records"] == len(q.last_rows)
    put(client, names[1], numbered(RETURNS + 10, RETURNS + 15))
    q.read_until(25)
    wait_until(lambda: q.batch() is None, "the last batch to be settled")
    report = q.reader.reportLatestOffset()
    assert [each["records"] for each in report["streams"]] == [0, len(q.last_rows)]
    assert report["records"] == len(q.last_rows)
    assert report["stream"] == ",".join(names)
    assert report["leases"]["held"] == 4
    assert {key.partition(":")[0] for key in report["millisBehindLatest"]} == set(names)
    lags = lags_of_progress({"sources": [{"latestOffset": json.dumps(report)}], "durationMs": {}})
    assert [lag.stream for lag in lags] == names
