"""Queries whose service refuses or fails for a while, or whose shard has left the stream."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import contextmanager

import pytest

from penstock.aws.connection import client_for
from penstock.errors import DataLossError, NotFound, PositionError, ServiceError, StreamChanged, Unavailable
from penstock.spark.driver.query_worker import QueryWorker
from spark_support import numbered, put
from waiting import wait_until

HOUR_S = 3600
FIRST = "shardId-000000000000"
QUICK = {"retryInterval": "5ms", "maxRetryInterval": "50ms"}
QUERY_OPTIONS = {"shards": 1}


def split(query, shard=FIRST):
    query.client.split_shard(StreamName=query.stream, ShardToSplit=shard, NewStartingHashKey=str(2**127))


def listed(query):
    return [shard["ShardId"] for shard in query.client.list_shards(StreamName=query.stream)["Shards"]]


def read_until(query, count):
    def is_read():
        query.batch()
        return len(query.rows) >= count

    wait_until(is_read, f"{count} records")


# --- refusals -------------------------------------------------------------------------------------------------


def test_a_query_outlives_more_refusals_than_any_count(server, query):
    """Far more failures in a row than the eleven attempts that once were all."""
    running = query(**QUICK)
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    put(running.client, running.stream, numbered(10, 20))
    server.faults.error("GetRecords", count=8)
    server.faults.throttle("dynamodb.Scan", count=40)
    server.faults.error("dynamodb.GetItem", count=40)
    read_until(running, 20)
    assert running.numbers() == list(range(20))


def test_an_idle_query_says_which_shard_gave_no_answer_for_how_long(server, query):
    running = query(retryDeadline="2s", **QUICK)
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    server.faults.error("GetRecords", count=None)
    began_s = time.monotonic()
    with pytest.raises(
        Unavailable, match=rf"{FIRST} gave no answer for \d+ s, longer than option retryDeadline"
    ):
        wait_until(lambda: running.plan() is not None, "the error")
    assert time.monotonic() - began_s >= 2


def test_one_expired_token_does_not_end_a_query(server, query):
    running = query(**QUICK)
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    server.faults.error("GetRecords", count=1, status=400, code="ExpiredTokenException")
    put(running.client, running.stream, numbered(10, 20))
    read_until(running, 20)


# --- lease writes that fail while reads work ------------------------------------------------------------------

WRITES = ("dynamodb.PutItem", "dynamodb.UpdateItem", "dynamodb.DeleteItem")


def fail_writes(server, code="InternalServerError", status=500):
    for call in WRITES:
        server.faults.error(call, count=None, code=code, status=status)


def problems(running):
    return running.reader._planner.report()["problems"]


def test_an_idle_query_whose_lease_writes_fail_reports_it_until_they_work(server, query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    assert problems(running) == []
    fail_writes(server)

    def is_reported():
        assert running.plan() is None
        return any("renewing leases" in each and "InternalServerError" in each for each in problems(running))

    wait_until(is_reported, "the failing renewals")
    server.faults.clear()
    put(running.client, running.stream, numbered(10, 20))
    read_until(running, 20)
    wait_until(lambda: problems(running) == [], "renewals that work")
    assert running.numbers() == list(range(20))


def test_a_batch_that_cannot_claim_its_end_fails_with_the_tables_error(server, query):
    running = query(retryDeadline="2s", **QUICK)
    put(running.client, running.stream, numbered(0, 10))
    end = running.next_plan()
    fail_writes(server, code="ProvisionedThroughputExceededException", status=400)
    with pytest.raises(ServiceError, match="ProvisionedThroughputExceededException"):
        running.execute(end)
    server.faults.clear()
    assert len(running.execute(end)) == 10


def test_a_run_to_now_that_cannot_take_its_leases_ends_with_the_tables_error(server, query, monkeypatch):
    running = query(retryDeadline="2s", **QUICK)
    put(running.client, running.stream, numbered(0, 10))
    running.table.ensure_exists()
    fail_writes(server, code="AccessDeniedException", status=400)
    running.reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr("penstock.spark.driver.planner._PATIENT_WAIT_S_MIN", 1.0)
    with pytest.raises(Unavailable, match=r"creating leases has failed for \d+ s.*AccessDeniedException"):
        running.plan()


@contextmanager
def late_leases(server, monkeypatch, on_late=lambda: None):
    """No lease can be created; a query's wait for its first leases ends as soon as that is known."""
    await_leases = QueryWorker.await_leases

    def await_briefly(self, _timeout_s):
        wait_until(lambda: self.problems, "failing calls")
        on_late()
        return await_leases(self, 0.1)

    monkeypatch.setattr(QueryWorker, "await_leases", await_briefly)
    fail_writes(server, code="ProvisionedThroughputExceededException", status=400)
    try:
        yield
    finally:
        server.faults.clear()


def test_a_query_whose_first_leases_are_late_waits_for_its_records(server, query, monkeypatch):
    running = query(leaseDuration="1s", **QUICK)
    put(running.client, running.stream, numbered(0, 10))
    works_again = threading.Timer(2.0, server.faults.clear)
    with late_leases(server, monkeypatch, works_again.start):
        end = running.plan()
        works_again.join()
    assert end is not None


def test_a_query_that_gets_no_lease_goes_on_with_a_warning_that_names_table_and_cause(
    server, query, monkeypatch, caplog
):
    monkeypatch.setattr("penstock.spark.driver.planner._PATIENT_WAIT_S_MIN", 0.5)
    running = query(leaseDuration="1s", retryDeadline="2s", **QUICK)
    put(running.client, running.stream, numbered(0, 10))
    with late_leases(server, monkeypatch):
        assert running.plan() is None
    held = f"0 leases held in table {running.table.name}"
    assert re.search(rf"stream {running.stream}: .*creating leases has failed .*; {held}", caplog.text)
    read_until(running, 10)


# --- a replay -------------------------------------------------------------------------------------------------


@contextmanager
def hidden_records(query, count):
    """Answers that say that nothing is there, in a shard that goes on; they give an iterator that leads nowhere."""
    left = [count]

    def alter(parsed, **_):
        if left[0] > 0:
            left[0] -= 1
            parsed["Page"].records = []
            parsed["Page"].millis_behind_latest = 0
            parsed["Page"].next_iterator, parsed["Page"].children = "nowhere", None

    events = client_for("kinesis", query.options.connection).meta.events
    events.register("after-call.kinesis.GetRecords", alter)
    yield left
    events.unregister("after-call.kinesis.GetRecords", alter)


def test_a_replay_does_not_believe_one_answer_that_nothing_is_there(query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    end = running.next_plan()
    first = running.execute(end)
    assert len(first) == 10
    with hidden_records(running, 3) as left:
        assert running.execute(end) == first
        assert left == [0]


def test_a_replay_reads_a_shard_to_its_end_past_a_word_that_nothing_is_left(query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    split(running)
    end = running.next_plan()
    first = running.execute(end)
    assert len(first) == 10
    with hidden_records(running, 1):
        assert running.execute(end) == first


def test_a_replay_whose_records_are_gone_is_a_loss(server, query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    end = running.next_plan()
    running.execute(end)
    server.clock.advance(30 * HOUR_S)
    with pytest.raises(DataLossError, match="was claimed to end at"):
        running.execute(end)


# --- a shard that left the stream -----------------------------------------------------------------------------


def expired(server, query, *, generations=1):
    """Read ten records; the query is down while ten more arrive, the shard is split, and all of it leaves the stream."""
    put(query.client, query.stream, numbered(0, 10))
    query.drain()
    query.reader.stop()
    query.reader = query.fresh()
    put(query.client, query.stream, numbered(10, 20))
    split(query)
    for generation in range(1, generations):
        server.clock.advance(HOUR_S)
        for shard in listed(query)[-(2**generation) :]:
            low = 0 if shard.endswith("1") else 2**127
            middle = str(low + 2**126)
            query.client.split_shard(StreamName=query.stream, ShardToSplit=shard, NewStartingHashKey=middle)
    server.clock.advance(30 * HOUR_S)
    assert FIRST not in listed(query)
    put(query.client, query.stream, numbered(20, 40))


def test_a_shard_that_left_the_stream_ends_the_query_with_a_loss_that_names_it(server, query):
    running = query()
    expired(server, running)
    with pytest.raises(DataLossError, match=rf"{running.stream}, shard {FIRST}: .* left the stream"):
        wait_until(lambda: running.batch() is not None, "the loss")


@pytest.mark.parametrize("generations", [1, 2])
def test_the_children_of_a_shard_that_left_the_stream_are_read_where_loss_is_allowed(
    server, query, caplog, generations
):
    caplog.set_level(logging.WARNING, "penstock.spark")
    running = query(failOnDataLoss="false")
    expired(server, running, generations=generations)
    read_until(running, 30)
    running.drain()
    assert running.numbers() == [*range(10), *range(20, 40)]
    warnings = [record for record in caplog.records if "has left the stream" in record.message]
    assert len(warnings) == 1


def test_a_running_query_goes_on_with_the_children_of_a_shard_that_left(server, query):
    """The shard is probed when it goes: no batch is planned for it yet."""
    running = query(failOnDataLoss="false")
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    split(running)
    server.clock.advance(30 * HOUR_S)
    put(running.client, running.stream, numbered(20, 40))
    read_until(running, 30)
    assert running.numbers() == [*range(10), *range(20, 40)]


def test_a_shard_whose_unread_records_have_all_left_gets_one_empty_batch(server, query, caplog):
    """No record follows them, so no record can become the position to go on from."""
    caplog.set_level(logging.WARNING, "penstock.spark")
    running = query(failOnDataLoss="false")
    put(running.client, running.stream, numbered(0, 10))
    running.drain()

    def is_told():
        running.plan()
        row = running.table.fetch(FIRST)
        return row.mark is not None and row.mark.tip_ms is not None and row.mark.position == row.checkpoint

    wait_until(is_told, "a lease that says when nothing was left")
    running.reader.stop()
    running.reader = running.fresh()
    put(running.client, running.stream, numbered(10, 20))
    server.clock.advance(30 * HOUR_S)
    running.drain(batches_max=3)
    put(running.client, running.stream, numbered(20, 30))
    read_until(running, 20)
    assert running.numbers() == [*range(10), *range(20, 30)]
    warnings = [record for record in caplog.records if "has left the stream" in record.message]
    assert len(warnings) == 1


def test_a_running_query_says_that_its_stream_is_gone(query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    running.client.delete_stream(StreamName=running.stream)
    with pytest.raises(NotFound, match=running.stream):
        wait_until(lambda: running.batch() is not None, "the error")


def test_a_running_query_says_that_its_stream_was_made_anew(server, query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    running.client.delete_stream(StreamName=running.stream)
    server.clock.advance(5)
    server.create_stream(running.stream)
    put(running.client, running.stream, numbered(0, 10))
    with pytest.raises(StreamChanged, match=running.stream):
        wait_until(lambda: running.batch() is not None, "the error")


def test_a_refusal_that_waiting_cannot_cure_is_no_matter_of_deadlines(server, query):
    running = query()
    put(running.client, running.stream, numbered(0, 10))
    running.drain()
    server.faults.error("GetRecords", count=None, status=400, code="AccessDeniedException")
    with pytest.raises(ServiceError, match="AccessDenied"):
        wait_until(lambda: running.plan() is not None, "the error")


def test_a_moment_to_come_is_refused_before_a_lease_table_is_made(server, query):
    running = query(startingPosition="AT_TIMESTAMP 2999-01-01T00:00Z")
    with pytest.raises(PositionError, match=r"option startingPosition.*: this moment is in the future"):
        running.batch()
    assert server.client("dynamodb").list_tables()["TableNames"].count(running.given["applicationName"]) == 0
