"""A query that is stopped while no batch is under way gives its leases back, whatever it is doing at that moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from penstock.aws.connection import client_for
from reader_query import Query
from spark_support import numbered, put
from waiting import wait_until


@pytest.fixture
def query(server):
    made = Query(server, server.client("kinesis"), shards=2)
    put(made.client, made.stream, numbered(0, 20))
    yield made
    made.stop()


def owners(query):
    return {lease.owner for lease in query.table.scan().leases}


@contextmanager
def told_to_exit(query, call):
    """The process gets SIGTERM during a call of its main thread."""
    service, _, operation = call.partition(".")
    client = client_for(service, query.options.connection)
    left = [1]

    def stop(**_):
        if threading.current_thread() is threading.main_thread() and left[0]:
            left[0] = 0
            raise SystemExit(0)

    client.meta.events.register(f"before-send.{service}.{operation}", stop)
    try:
        yield left
    finally:
        client.meta.events.unregister(f"before-send.{service}.{operation}", stop)


def stop_in(query, call):
    """Request the next offset, get SIGTERM during the call, and stop as Spark's runner does then."""
    with told_to_exit(query, call) as left:
        try:
            with pytest.raises(SystemExit):
                wait_until(lambda: query.plan() is not None, "the exit")
        finally:
            query.reader.stop()
        assert left == [0]


def test_a_query_stopped_while_it_settles_its_last_batch_releases_its_leases(query):
    assert len(query.next_batch()) == 20
    assert owners(query) != {None}
    stop_in(query, "dynamodb.*")
    assert owners(query) == {None}
    query.reader = query.fresh()
    put(query.client, query.stream, numbered(20, 30))
    wait_until(lambda: query.batch() is not None, "the next batch")
    assert query.numbers() == list(range(30))


def test_a_query_that_is_stopped_while_its_batch_is_under_way_keeps_its_leases(query):
    end = query.next_plan()
    rows = query.execute(end)
    query.reader.stop()
    assert owners(query) != {None}
    query.reader = query.fresh()
    assert sorted(query.execute(end)) == sorted(rows)


def test_a_query_that_is_stopped_when_its_batch_is_planned_gives_its_leases_back(query):
    end = query.next_plan()
    query.reader.stop()
    assert owners(query) == {None}
    query.reader = query.fresh()
    query.commit(end, query.execute(end))
    query.drain()
    assert query.numbers() == list(range(20))


def test_what_the_coordinator_said_and_nobody_heard_to_the_end_is_said_again(query):
    query.next_batch()
    fleet = query.reader._planner._joined.query_worker
    words = ["a", "b", "c"]
    with fleet._changed:
        fleet._commands.extend(words)
    for word in fleet.take_commands():
        if word == "b":
            break
    assert list(fleet.take_commands()) == ["b", "c"]
    assert list(fleet.take_commands()) == []


PROGRAM = """
import signal, sys, threading
from penstock.spark.spark_errors import exit_on_termination
exit_on_termination()
try:
    print("ready", flush=True)
    threading.Event().wait(60)
finally:
    print("leaving", flush=True)
    sys.stdin.readline()
    print("farewell is said", flush=True)
"""


def test_a_second_request_to_end_does_not_break_off_the_farewell():
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == "leaving\n"
        program.send_signal(signal.SIGTERM)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "farewell is said\n"
        assert program.wait(60) == 0


def consumers(query):
    arn = query.client.describe_stream_summary(StreamName=query.stream)["StreamDescriptionSummary"][
        "StreamARN"
    ]
    return [each["ConsumerName"] for each in query.client.list_stream_consumers(StreamARN=arn)["Consumers"]]


@pytest.mark.parametrize("way", ["deregisterConsumer", "requireConsumerDeregistration"])
def test_a_query_deregisters_its_consumer_at_its_end_if_asked(server, way):
    query = Query(server, server.client("kinesis"), shards=1, consumerType="fan-out", consumerName="mine")
    put(query.client, query.stream, numbered(0, 20))
    wait_until(lambda: query.plan() is not None, "a batch")
    query.stop()
    assert consumers(query) == ["mine"]
    query.given |= {way: "true"}
    query.reader = query.fresh()
    wait_until(lambda: query.plan() is not None, "a batch")
    query.stop()
    assert consumers(query) == []


def test_a_consumer_that_cannot_be_deregistered_is_named_with_the_remedy(server, caplog):
    query = Query(
        server, server.client("kinesis"), shards=1, consumerType="fan-out", deregisterConsumer="true"
    )
    put(query.client, query.stream, numbered(0, 20))
    wait_until(lambda: query.plan() is not None, "a batch")
    query.client.delete_stream(StreamName=query.stream, EnforceConsumerDeletion=True)
    query.reader.stop()
    assert f"(penstock streams consumers {query.stream} --deregister app-{query.stream})" in caplog.text
