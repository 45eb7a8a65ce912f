"""Queries and plain consumers of one application share a stream: who reads what, and what moves without loss.

The reader is driven without Spark; leases are short, so that every hand-over and expiry happens within seconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from penstock import Consumer
from penstock.aws.lease_codec import claim_attribute
from penstock.core.leases.lease_writes import Create
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import OptionError, Unavailable
from penstock.spark import stream_reader
from penstock.spark.driver import joining, planner
from penstock.spark.driver.query_worker import coordinator_options
from penstock.spark.driver.search import must_await_shard
from penstock.spark.driver.startup_checks import refuse_shared_default_name
from spark_support import numbered, put
from waiting import wait_until

DEADLINE_S = 150.0
QUERY_OPTIONS = {"shards": 6}


@pytest.fixture
def fleet(query):
    def join(beside=None, **options):
        return query(**({} if beside is None else {"stream": beside.stream}), **options)

    return join


def turn(queries, until, what):
    """Run the queries' batches in turn until a condition holds."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        for query in queries:
            query.batch()
        if until():
            return
        if time.monotonic() > deadline_s:
            owners = Counter(lease.owner for lease in queries[0].table.scan().leases)
            pytest.fail(f"waited {DEADLINE_S:g} s for {what}; owners: {owners}")


def owners(query):
    return Counter(lease.reader for lease in query.table.scan().leases if not lease.is_ended)


def shares(query):
    return sorted(owners(query).values())


def consume(server, query, seen, **options):
    """A plain consumer in the query's application."""

    def handle(batch):
        seen.extend(int(record.data) for record in batch)

    return Consumer(
        stream=query.stream,
        application=query.given["applicationName"],
        handler=handle,
        connection=server.connection(),
        starting_position="TRIM_HORIZON",
        lease_duration_s=5.0,
        idle_time_between_reads_s=0.1,
        cold_start_jitter_s=0.0,
        **options,
    )


def test_two_queries_of_an_application_share_the_shards_and_every_record_comes_once(fleet, client):
    one = fleet()
    put(client, one.stream, numbered(0, 300))
    turn([one], lambda: len(one.rows) == 300, "the first query to read all")
    two = fleet(beside=one)
    turn([one, two], lambda: shares(one) == [3, 3], "three shards each")
    put(client, one.stream, numbered(300, 600))
    turn([one, two], lambda: len(one.rows) + len(two.rows) >= 600, "all records")
    one.drain()
    two.drain()
    assert sorted(one.numbers() + two.numbers()) == list(range(600))
    assert two.rows


def test_of_two_queries_without_a_name_that_begin_at_once_one_reads_everything(fleet, client, monkeypatch):
    queries = [fleet()]
    queries.append(fleet(beside=queries[0]))
    have_checked = threading.Barrier(2)

    def check(*args):
        refuse_shared_default_name(*args)
        have_checked.wait(DEADLINE_S)  # neither has a lease yet

    def begin(query):
        del query.given["applicationName"]
        query.reader = query.fresh()
        try:
            query.commit(end := query.next_plan(), query.execute(end))
        except OptionError as error:
            query.reader.stop()
            return str(error)

    monkeypatch.setattr(joining, "refuse_shared_default_name", check)
    put(client, queries[0].stream, numbered(0, 100))
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(begin, queries))
    refused, reading = sorted(zip(answers, queries, strict=True), key=lambda each: each[0] is None)
    assert "reads it under the default application name" in refused[0]
    assert reading[0] is None
    reading[1].drain()
    assert (refused[1].rows, reading[1].numbers()) == ([], list(range(100)))


def test_a_stopped_query_leaves_its_shards_at_once_and_nothing_is_repeated(fleet, client):
    one = fleet(leaseDuration="300s")
    put(client, one.stream, numbered(0, 100))
    one.drain()
    one.reader.stop()
    two = fleet(beside=one, leaseDuration="300s")
    put(client, one.stream, numbered(100, 200))
    began_s = time.monotonic()
    turn([two], lambda: len(two.rows) == 100, "the other query to have everything")
    assert time.monotonic() - began_s < 200
    assert sorted(one.numbers() + two.numbers()) == list(range(200))


def test_a_dead_querys_shards_go_to_the_other_and_no_record_is_lost(fleet, client):
    one = fleet()
    two = fleet(beside=one)
    turn([one, two], lambda: shares(one) == [3, 3], "three shards each")
    put(client, one.stream, numbered(0, 300))
    turn([one, two], lambda: len(one.rows) + len(two.rows) == 300, "all records")
    one.die()
    put(client, one.stream, numbered(300, 600))
    turn(
        [two],
        lambda: set(one.numbers() + two.numbers()) == set(range(600)),
        "the survivor to have everything",
    )
    assert shares(two) == [6]


def test_a_consumer_shares_with_a_query_and_goes_on_alone_when_it_stops(fleet, server, client):
    query = fleet()
    put(client, query.stream, numbered(0, 200))
    query.drain()
    seen = []
    consumer = consume(server, query, seen)
    consumer.start()
    try:
        turn([query], lambda: shares(query) == [3, 3], "three shards each")
        put(client, query.stream, numbered(200, 400))
        turn([query], lambda: len(query.rows) + len(seen) >= 400, "all records")
        query.drain()
        query.reader.stop()
        put(client, query.stream, numbered(400, 600))
        deadline_s = time.monotonic() + DEADLINE_S
        while len(query.rows) + len(seen) < 600 and time.monotonic() < deadline_s:
            threading.Event().wait(0.05)
    finally:
        consumer.stop()
    assert sorted(query.numbers() + seen) == list(range(600))


def test_a_query_takes_over_from_a_consumer_and_releases_with_its_position(fleet, server, client):
    query = fleet()
    put(client, query.stream, numbered(0, 150))
    seen = []
    with consume(server, query, seen):
        deadline_s = time.monotonic() + DEADLINE_S
        while len(seen) < 150 and time.monotonic() < deadline_s:
            threading.Event().wait(0.05)
    put(client, query.stream, numbered(150, 300))
    turn([query], lambda: len(query.rows) == 150, "the query to read the rest")
    query.drain()
    query.reader.stop()
    put(client, query.stream, numbered(300, 400))
    with consume(server, query, seen):
        deadline_s = time.monotonic() + DEADLINE_S
        while len(seen) < 250 and time.monotonic() < deadline_s:
            threading.Event().wait(0.05)
    assert query.numbers() == list(range(150, 300))
    assert sorted(seen) == [*range(150), *range(300, 400)]


def test_a_lease_is_not_handed_over_before_the_batch_that_reads_it_is_done(fleet, client):
    one = fleet()
    put(client, one.stream, numbered(0, 120))
    end = one.next_plan()
    parts = one.reader.partitions({}, end)
    mine = end["worker"]
    two = fleet(beside=one)
    deadline_s = time.monotonic() + DEADLINE_S
    while not any(lease.checkpoint_owner == mine for lease in one.table.scan().leases):
        two.batch()
        assert time.monotonic() < deadline_s
    rows = [row for part in parts for row in one.read(part)]
    assert {lease.reader for lease in one.table.scan().leases} == {mine}
    assert two.rows == []
    one.commit(end, rows)
    turn([one, two], lambda: shares(one) == [3, 3], "three shards each")
    two.drain()
    assert sorted(one.numbers() + two.numbers()) == list(range(120))


def test_a_lease_stolen_in_mid_batch_keeps_its_claim_and_a_late_checkpoint(fleet, client):
    one = fleet(shards=1, leaseDuration="60s")  # else the thief, which never renews, would lose it again
    put(client, one.stream, numbered(0, 40))
    one.drain()
    put(client, one.stream, numbered(40, 80))
    end = one.next_plan()
    rows = one.execute(end)
    row = one.steal(one.table.scan().leases[0].key)
    one.commit(end, rows)
    deadline_s = time.monotonic() + DEADLINE_S
    while one.table.fetch(row.key).checkpoint != row.pending_checkpoint and time.monotonic() < deadline_s:
        assert one.plan() is None
    after = one.table.fetch(row.key)
    assert (after.owner, after.checkpoint) == ("thief", row.pending_checkpoint)
    assert [number for *_, number in one.rows] == list(range(80))


def test_a_java_taker_leaves_the_claim_and_the_late_checkpoint_saves_it_the_batch(fleet, server, client):
    one = fleet(shards=1, leaseDuration="60s")
    put(client, one.stream, numbered(0, 40))
    end = one.next_plan()
    rows = one.execute(end)
    claimed = one.table.scan().leases[0]
    # KCL 2.x's take: owner and counter, nothing else.
    server.client("dynamodb").update_item(
        TableName=one.given["applicationName"],
        Key={"leaseKey": {"S": claimed.key}},
        UpdateExpression="SET leaseOwner = :me, leaseCounter = :next",
        ExpressionAttributeValues={":me": {"S": "java"}, ":next": {"N": str(claimed.counter + 1)}},
    )
    one.commit(end, rows)
    deadline_s = time.monotonic() + DEADLINE_S
    while (
        one.table.fetch(claimed.key).checkpoint != claimed.pending_checkpoint
        and time.monotonic() < deadline_s
    ):
        one.plan()
    after = one.table.fetch(claimed.key)
    assert (after.owner, after.checkpoint) == ("java", claimed.pending_checkpoint)


def test_a_query_keeps_to_its_number_of_leases_and_leaves_the_rest(fleet, client):
    one = fleet(maxLeases="2")
    put(client, one.stream, numbered(0, 120))
    one.drain()
    assert owners(one)[one.done["worker"]] == 2
    assert owners(one)[None] == 4
    assert 0 < len(one.rows) < 120


def test_queries_of_two_zones_share_by_zone_first(fleet, client):
    east = [fleet(balance="by_zone", zone="east")]
    put(client, east[0].stream, numbered(0, 60))
    east[0].drain()
    east.append(fleet(beside=east[0], balance="by_zone", zone="east"))
    west = fleet(beside=east[0], balance="by_zone", zone="west")

    def by_zone():
        zones = Counter()
        for owner, count in owners(west).items():
            zones[str(owner).partition("/")[0]] += count
        return zones

    turn([*east, west], lambda: by_zone() == {"east": 3, "west": 3}, "three shards in each zone")
    put(client, west.stream, numbered(60, 200))
    turn(
        [*east, west],
        lambda: sum(len(query.rows) for query in (*east, west)) >= 200,
        "all records",
    )
    assert sorted(number for query in (*east, west) for number in query.numbers()) == list(range(200))


def test_a_restarted_query_has_its_leases_back_at_once(fleet, client):
    one = fleet(leaseDuration="300s")
    put(client, one.stream, numbered(0, 60))
    one.drain()
    one.die()
    put(client, one.stream, numbered(60, 120))
    began_s = time.monotonic()
    turn([one], lambda: len(one.rows) == 120, "the restarted query to go on")
    assert time.monotonic() - began_s < 200
    assert one.numbers() == list(range(120))


def test_the_coordinator_is_set_up_as_the_options_say(fleet):
    query = fleet(
        balance="by_throughput", capacity="8", maxLeases="5", leasesToAcquire="2", leaseDuration="6s"
    )
    options = coordinator_options(query.options, is_new=True, open_shard_count=4)
    assert options.cold_start_jitter_s == 0.04  # a stream of a few shards is not worth waiting for
    assert coordinator_options(query.options, is_new=True, open_shard_count=100).cold_start_jitter_s == 0.6
    assert (options.policy.value, options.max_leases, options.leases_to_acquire) == ("by_throughput", 5, 2)
    assert options.lease_duration_s == 6.0
    assert query.reader.latestOffset(query.reader.initialOffset(), None) is not None
    assert {lease.owner.partition("@")[2] for lease in query.table.scan().leases if lease.owner} == {"8"}


@pytest.mark.parametrize(
    ("option", "sizes"), [({"shardsPerTask": "3"}, [3, 3]), ({"maxPartitions": "4"}, [1, 1, 2, 2])]
)
def test_shards_share_a_task_and_the_rows_stay_the_same(fleet, client, option, sizes):
    query = fleet(**option)
    put(client, query.stream, numbered(0, 120))
    end = query.next_plan()
    parts = query.reader.partitions({}, end)
    assert sorted(len(part.parts) for part in parts) == sizes
    query.commit(end, query.execute(end))
    query.drain()
    assert query.numbers() == list(range(120))


def test_a_query_that_gets_no_shard_warns_once_with_the_way_out(fleet, caplog, monkeypatch):
    monkeypatch.setattr(planner, "_FIRST_SHARD_S", 0.0)
    one = fleet(shards=1)
    turn([one], lambda: shares(one) == [1], "the shard")
    two = fleet(beside=one)

    def warnings():
        return [text for text in caplog.messages if "this query reads nothing" in text]

    turn([one, two], warnings, "the warning")
    assert f"application {one.given['applicationName']} have all its shards, 1 (" in warnings()[0]
    assert "call load() with an applicationName of its own" in warnings()[0]
    two.batch()
    assert len(warnings()) == 1


def test_a_run_to_the_end_that_has_never_had_a_shard_fails_with_the_way_out(
    fleet, client, caplog, monkeypatch
):
    monkeypatch.setattr(planner, "must_await_shard", lambda searches, _: must_await_shard(searches, math.inf))
    one = fleet(shards=1)
    put(client, one.stream, numbered(0, 10))
    turn([one], lambda: one.rows, "a batch")
    two = fleet(beside=one)
    two.reader.prepareForTriggerAvailableNow()
    with pytest.raises(
        Unavailable, match=r"have all its shards, 1 \(.*call load\(\) with an applicationName"
    ):
        two.batch()
    two.reader.stop()
    two.done = one.done | {"worker": "spark-two"}  # it had the shard in an earlier run
    two.reader = two.fresh()
    two.reader.prepareForTriggerAvailableNow()
    assert two.batch() is None
    assert "this query reads nothing" in caplog.text


def test_a_first_run_to_the_end_waits_for_the_shards_that_others_hand_over_after_their_batches(fleet, client):
    one = fleet()
    turn([one], lambda: shares(one) == [6], "all shards")
    put(client, one.stream, numbered(0, 100))
    end = one.next_plan()
    two = fleet(beside=one)
    two.reader.prepareForTriggerAvailableNow()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(two.batch)
        wait_until(lambda: any(lease.next_owner for lease in one.table.scan().leases), "a request")
        one.commit(end, one.execute(end))
        turn([one], run.done, "the run")
        assert run.result() is None
    assert len(shares(one)) == 2


def test_a_query_does_not_warn_that_others_have_the_shards_of_a_dead_one(fleet, client, caplog, monkeypatch):
    monkeypatch.setattr(planner, "_FIRST_SHARD_S", 0.0)
    one = fleet(leaseDuration="60s")
    put(client, one.stream, numbered(0, 10))
    turn([one], lambda: one.rows, "a batch")
    one.die()
    two = fleet(beside=one, leaseDuration="60s")
    assert two.plan() is None
    assert [text for text in caplog.messages if "this query reads nothing" in text] == []


def test_a_query_that_shares_the_shards_does_not_warn_of_missing_ones(fleet, client, caplog):
    queries = [one := fleet(), fleet(beside=one)]
    turn(queries, lambda: shares(one) == [3, 3], "three shards each")
    give_batches(queries, 2, client, is_read=True)
    assert [text for text in caplog.messages if "reads nothing" in text] == []


def test_a_lease_of_another_stream_in_its_table_ends_a_query_with_the_reason(fleet):
    one = fleet()
    one.plan()
    row = one.table.scan().leases[0]
    other = StreamIdentity("arn:aws:kinesis:us-east-1:000000000000:stream/other", 1)
    one.table.write(Create(replace(row, key="shardId-000000000077", owner=None, stream=other)))
    with pytest.raises(OptionError, match="row shardId-000000000077 belongs to another stream"):
        turn([one], lambda: False, "the refusal")


def give_batches(queries, count, client, *, is_read):
    """Plan batches with records, of each query in turn; run their tasks, or leave their rows unread."""
    for query in queries * count:
        put(client, query.stream, numbered(0, 100))
        ends = []
        wait_until(lambda asked=query, ends=ends: ends.append(asked.plan()) or ends[-1] is not None, "news")
        query.commit(ends[-1], query.execute(ends[-1]) if is_read else [])


def test_two_loads_are_refused_though_no_one_read_their_first_batches(fleet, client, monkeypatch):
    monkeypatch.setattr(stream_reader, "_query_id", lambda: "Spark's id of the query")
    loads = [one := fleet(), fleet(beside=one)]
    turn(loads, lambda: shares(one) == [3, 3], "three shards each")
    give_batches(loads, 4, client, is_read=False)
    with pytest.raises(OptionError, match="this query reads it twice under the applicationName"):
        give_batches(loads, 3, client, is_read=True)


def test_two_loads_are_refused_though_early_batches_showed_no_claim_of_the_other(
    server, fleet, client, monkeypatch
):
    monkeypatch.setattr(stream_reader, "_query_id", lambda: "Spark's id of the query")
    loads = [one := fleet(), two := fleet(beside=one)]
    turn(loads, lambda: shares(one) == [3, 3], "three shards each")
    give_batches([one], 3, client, is_read=True)
    one.drain()
    forget_claims(server, one)
    give_batches([two], 3, client, is_read=True)
    with pytest.raises(OptionError, match="this query reads it twice under the applicationName"):
        give_batches(loads, 4, client, is_read=True)


def forget_claims(server, query):
    """Write the leases as one who knows only the KCL's attributes may: without the query's claims."""
    for lease in query.table.scan().leases:
        server.client("dynamodb").update_item(
            TableName=query.table.name,
            Key={"leaseKey": {"S": lease.key}},
            UpdateExpression="REMOVE #claim",
            ExpressionAttributeNames={"#claim": claim_attribute(query.worker)},
        )
