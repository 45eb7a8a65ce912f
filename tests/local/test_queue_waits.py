"""Receives that wait: they end with a record, a clock that moves, the queue's end or their time, over every protocol."""

from __future__ import annotations

import datetime as dt
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.local.conftest import Rig

from http2_client import Http2Client
from penstock_local import LocalKinesis, cbor
from queue_rig import QueueRig, knows_queues
from waiting import wait_until

pytestmark = knows_queues


@pytest.fixture
def queues(rig) -> QueueRig:
    return QueueRig(rig)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as found:
        yield found


def waiting(queues: QueueRig, pool, count: int = 1, **options):
    """Begin receives that wait; they wait on return."""
    before = received(queues)
    futures = [pool.submit(queues.receive, **options) for _ in range(count)]
    wait_until(lambda: polls(queues) == count)
    assert received(queues) == before
    return futures


def received(queues: QueueRig) -> int:
    return queues.rig.server.calls().total.get("kinesis.ReceiveQueueRecords", 0)


def polls(queues: QueueRig) -> int:
    return sum(queue["waiting"] for queue in queues.rig.server.state()["streams"]["s"]["queues"].values())


def test_a_receive_returns_with_the_first_record_that_is_put(queues, pool):
    arn = queues.create()
    (future,) = waiting(queues, pool, queue=arn)
    queues.put(b"a", b"b")
    assert sorted(record["Data"] for record in future.result(60)) == [b"a", b"b"]


def test_a_receive_ends_empty_after_its_time(rig, queues, pool):
    arn = queues.create()
    for options, wait_s in (({}, 9), ({"WaitTimeSeconds": 20}, 20), ({"WaitTimeSeconds": 1}, 1)):
        (future,) = waiting(queues, pool, queue=arn, **options)
        rig.clock.advance(wait_s - 0.001)
        assert polls(queues) == 1
        rig.clock.advance(0.001)
        assert future.result(60) == []


def test_a_receive_returns_when_a_record_becomes_visible_again(rig, queues, pool):
    arn = queues.create()
    queues.put(b"a")
    (first,) = queues.receive(arn, VisibilityTimeoutSeconds=5)
    (future,) = waiting(queues, pool, queue=arn)
    rig.clock.advance(5)
    (again,) = future.result(60)
    assert again["ReceiveCount"] == 2
    (future,) = waiting(queues, pool, queue=arn)
    assert queues.set_visibility(arn, 0, first, again) == ["ResourceNotFoundException", "ok"]
    assert future.result(60)[0]["ReceiveCount"] == 3


def test_a_record_becomes_visible_by_the_running_clock():
    with LocalKinesis(limits=False, time_factor=10) as server, Rig(server) as rig:
        queues = QueueRig(rig)
        arn = queues.create()
        queues.put(b"a")
        queues.receive(arn, VisibilityTimeoutSeconds=2)
        (again,) = queues.receive(arn, WaitTimeSeconds=20)
        assert again["ReceiveCount"] == 2
        assert queues.receive(arn, WaitTimeSeconds=1) == []


def test_a_receive_of_dead_letters_waits_for_one(rig, queues, pool):
    once = {"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}}
    arn = queues.create(QueueAttributes=once)
    queues.put(b"a")
    queues.receive(arn, VisibilityTimeoutSeconds=5)
    (future,) = waiting(queues, pool, queue=arn, dead=True)
    # a record of the other kind is not for it
    queues.put(b"b")
    assert [record["Data"] for record in queues.receive(arn)] == [b"b"]
    rig.clock.advance(5)
    assert [record["Data"] for record in future.result(60)] == [b"a"]


def test_each_of_many_waiting_receives_gets_its_records(queues, pool):
    arn = queues.create()
    futures = waiting(queues, pool, 5, queue=arn, Limit=2)
    sent = [b"%d" % i for i in range(10)]
    queues.put(*sent)
    assert sorted(record["Data"] for future in futures for record in future.result(60)) == sent


def test_a_waiting_receive_ends_with_its_queue(rig, queues, pool):
    arn = queues.create()
    (future,) = waiting(queues, pool, queue=arn)
    rig.kinesis.delete_queue(QueueARN=arn)
    error = future.exception(60)
    assert error is not None
    assert "ResourceNotFoundException" in str(error)


def test_a_client_that_is_gone_takes_no_record(rig, queues):
    arn = queues.create()
    host, port = rig.server.endpoint_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request(arn))
        wait_until(lambda: polls(queues) == 1)
    wait_until(lambda: polls(queues) == 0)
    queues.put(b"a")
    assert [record["ReceiveCount"] for record in queues.receive(arn)] == [1]


def request(arn: str, content_type: str = "application/x-amz-json-1.1", body: bytes = b"") -> bytes:
    body = body or json.dumps({"QueueARN": arn}).encode()
    return (
        f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.ReceiveQueueRecords\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


def test_an_answer_in_cbor_has_the_same_members_as_one_in_json(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    (expected,) = queues.receive(arn, VisibilityTimeoutSeconds=0)
    host, port = rig.server.endpoint_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request(arn, "application/x-amz-cbor-1.1", cbor.encode({"QueueARN": arn})))
        answer = client.makefile("rb").read()
    (record,) = cbor.decode(answer.partition(b"\r\n\r\n")[2])["QueueRecords"]
    assert record.keys() == expected.keys()
    assert (record["RecordId"], record["Data"], record["PartitionKey"], record["ReceiveCount"]) == (
        expected["RecordId"],
        b"a",
        "a",
        2,
    )
    for name in ("ApproximateArrivalTimestamp", "FirstReceiveTimestamp"):
        moment = dt.datetime.fromtimestamp(record[name].ms / 1000, dt.UTC)
        assert moment == expected[name]


def test_a_receive_over_http2_waits_beside_other_calls_and_ends_with_its_stream(rig, queues):
    arn = queues.create()
    with Http2Client(rig.server.endpoint_url) as client:
        first = client.send("ReceiveQueueRecords", {"QueueARN": arn})
        wait_until(lambda: polls(queues) == 1)
        assert client.call("ListQueues").status == 200
        queues.put(b"a")
        assert len(client.wait(first).document()["QueueRecords"]) == 1
        second = client.send("ReceiveQueueRecords", {"QueueARN": arn})
        wait_until(lambda: polls(queues) == 1)
        client.h2.reset_stream(second)
        client.flush()
        wait_until(lambda: polls(queues) == 0)
    queues.put(b"b")
    assert [record["ReceiveCount"] for record in queues.receive(arn)] == [1]


def test_a_receive_that_waits_for_room_goes_on_with_an_acknowledgement(limited, pool, monkeypatch):
    monkeypatch.setattr("penstock_local.operations.queue_records.IN_FLIGHT_MAX", 2)
    queues = QueueRig(limited)
    arn = queues.create()
    queues.put(b"a", b"b", b"c")
    records = queues.receive(arn)
    (future,) = waiting(queues, pool, queue=arn)
    assert queues.acknowledge(arn, *records) == ["ok", "ok"]
    assert len(future.result(60)) == 1


def test_a_server_that_stops_does_not_wait_for_receives(pool):
    server = LocalKinesis(limits=False, time_factor=0).start()
    with Rig(server) as rig:
        queues = QueueRig(rig)
        arn = queues.create()
        (future,) = waiting(queues, pool, queue=arn)
        stopped = threading.Thread(target=server.stop)
        stopped.start()
        stopped.join(30)
        assert not stopped.is_alive()
        assert future.exception(60) is not None
