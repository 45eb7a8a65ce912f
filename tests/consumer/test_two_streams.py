"""Two streams under one application name, on the embedded server: shard ids are the same in every stream."""

import logging
import threading
import time

import pytest

from penstock.consumer import Consumer
from penstock.errors import OptionError
from penstock_local import LocalKinesis

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as server:
        yield server


def worker(server, stream, application, seen, **options):
    return Consumer(
        stream,
        application,
        lambda batch: seen.extend(record.data for record in batch),
        connection=server.connection(),
        **{
            "starting_position": "TRIM_HORIZON",
            "lease_duration_s": 10.0,
            "idle_time_between_reads_s": 0.1,
            "cold_start_jitter_s": 0.0,
            **options,
        },
    )


def put(server, stream, count):
    client = server.client("kinesis")
    for number in range(count):
        client.put_record(StreamName=stream, PartitionKey=str(number), Data=f"{stream}-{number}".encode())


def wait(condition, what):
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited for {what}"
        threading.Event().wait(0.02)


def consume(server, stream, application, count):
    seen = []
    with worker(server, stream, application, seen):
        wait(lambda: len(seen) >= count, "the records")
    return seen


def rows(server, table):
    return server.client("dynamodb").scan(TableName=table, ConsistentRead=True)["Items"]


def refuse(server, stream, application):
    """Run a worker that must end by itself; return its output, and its records."""
    seen = []
    consumer = worker(server, stream, application, seen)
    with pytest.raises(OptionError) as refused:
        consumer.run()
    assert not consumer.is_running
    return str(refused.value), seen


def test_a_second_stream_under_the_same_application_is_refused_and_nothing_is_taken(server):
    for stream in ("orders", "returns"):
        server.create_stream(stream, shards=2)
        put(server, stream, 10)
    assert len(consume(server, "orders", "billing", 10)) == 10
    before = rows(server, "billing")
    message, seen = refuse(server, "returns", "billing")
    for word in ("lease table billing", "stream returns", "stream/orders", "choose another application"):
        assert word in message
    assert seen == []
    assert rows(server, "billing") == before


def test_a_stream_that_was_deleted_and_made_again_is_refused_by_its_creation(server):
    client = server.client("kinesis")
    server.create_stream("again", shards=1)
    put(server, "again", 3)
    consume(server, "again", "again-app", 3)
    client.delete_stream(StreamName="again")
    server.clock.advance(60.0)
    server.create_stream("again", shards=1)
    put(server, "again", 3)
    message, seen = refuse(server, "again", "again-app")
    assert "deleted and created again" in message
    assert seen == []


def test_rows_of_a_java_worker_on_another_stream_are_told_by_their_hash_ranges(server):
    server.create_stream("four", shards=4)
    server.create_stream("two", shards=2)
    put(server, "four", 8)
    consume(server, "four", "java-app", 8)
    as_java_writes(server, "java-app")
    message, seen = refuse(server, "two", "java-app")
    assert "it covers the hash keys" in message
    assert seen == []


def test_rows_of_a_java_worker_on_the_same_stream_are_taken_and_marked(server, caplog):
    server.create_stream("ours", shards=2)
    put(server, "ours", 8)
    consume(server, "ours", "ours-app", 8)
    as_java_writes(server, "ours-app")
    put(server, "ours", 8)
    with caplog.at_level(logging.ERROR):
        assert len(consume(server, "ours", "ours-app", 8)) == 8
    assert all("stream/ours" in row["penstockStream"]["S"] for row in rows(server, "ours-app"))


def as_java_writes(server, table):
    """Reduce the rows to the attributes that KCL 2.x writes."""
    for row in rows(server, table):
        java = {name: value for name, value in row.items() if not name.startswith("penstock")}
        server.client("dynamodb").put_item(TableName=table, Item=java)


def test_a_latest_of_a_java_worker_gets_its_moment_when_it_is_taken(server):
    server.create_stream("late", shards=1)
    put(server, "late", 3)
    put_s = time.time()
    consume(server, "late", "late-app", 3)
    wait(lambda: int(time.time()) > int(put_s), "the next second: the service tells no finer moment")
    (row,) = rows(server, "late-app")
    fresh = {
        name: value
        for name, value in row.items()
        if name in ("leaseKey", "startingHashKey", "endingHashKey", "ownerSwitchesSinceCheckpoint")
    }
    server.client("dynamodb").put_item(
        TableName="late-app",
        Item={
            **fresh,
            "leaseCounter": {"N": "0"},
            "checkpoint": {"S": "LATEST"},
            "checkpointSubSequenceNumber": {"N": "0"},
        },
    )
    with worker(server, "late", "late-app", []):
        wait(lambda: "penstockStartMillis" in rows(server, "late-app")[0], "the moment")
    # No worker ran when these arrived, and the row had LATEST: they are delivered all the same.
    put(server, "late", 4)
    assert len(consume(server, "late", "late-app", 4)) == 4
