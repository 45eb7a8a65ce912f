"""Subscriptions over both versions of HTTP: encodings, scripted faults, slow readers, and clients that leave."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.eventstream import ChecksumMismatch
from h2.errors import ErrorCodes

from fan_out import FIRST, messages_of
from http2_client import JSON, Http2Client
from penstock_local import cbor
from penstock_local.errors import OptionError
from penstock_local.faults import Fault
from penstock_local.subscriptions import Subscription, Subscriptions

WAIT_S = 60.0
CBOR = "application/x-amz-cbor-1.1"
EVENT_STREAM = "application/vnd.amazon.eventstream"
# an event takes one of these
DATA = [bytes([number]) * 200_000 for number in range(3)]


@pytest.fixture
def consumer(rig) -> str:
    found = rig.register(rig.server.create_stream("s"))
    for data in DATA:
        rig.kinesis.put_record(StreamName="s", Data=data, PartitionKey="k")
    return found


def asking(consumer: str) -> dict[str, Any]:
    return {"ConsumerARN": consumer, "ShardId": FIRST, "StartingPosition": {"Type": "TRIM_HORIZON"}}


class Http1:
    """A subscription over HTTP/1.1."""

    def __init__(self, url: str, body: bytes, kind: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
        headers = {"X-Amz-Target": "Kinesis_20131202.SubscribeToShard", "Content-Type": kind}
        self.connection.request("POST", "/", body, headers)
        self.response = self.connection.getresponse()
        self.content_type = self.response.getheader("content-type")

    def read(self) -> tuple[bytes, bool]:
        """Read to the end; return the body, and whether its end was in order."""
        try:
            return self.response.read(), True
        except http.client.IncompleteRead as broken:
            return broken.partial, False

    def first(self, size: int) -> bytes:
        """Read the first bytes."""
        return self.response.read(size)

    def close(self) -> None:
        # the response has the socket
        self.response.close()
        self.connection.close()


class Http2:
    """The same over HTTP/2."""

    def __init__(self, url: str, body: bytes, kind: str) -> None:
        self.client = Http2Client(url)
        self.number = self.client.send("SubscribeToShard", body=body, kind=kind)
        self.answer = self.client.answers[self.number]
        self.client.receive_until(lambda: bool(self.answer.status))
        self.content_type = self.answer.headers["content-type"]

    def read(self) -> tuple[bytes, bool]:
        client = self.client
        client.receive_until(lambda: self.answer.is_over or client.goodbye is not None)
        return self.answer.body, self.answer.is_whole

    def first(self, size: int) -> bytes:
        self.client.receive_until(lambda: len(self.answer.body) >= size)
        return self.answer.body[:size]

    def close(self) -> None:
        self.client.socket.close()


@pytest.fixture(params=[Http1, Http2], ids=["HTTP/1.1", "HTTP/2"])
def subscribe(request, rig, consumer):
    opened = []

    def begin(wire: str = "json"):
        ask = asking(consumer)
        body, kind = (json.dumps(ask).encode(), JSON) if wire == "json" else (cbor.encode(ask), CBOR)
        opened.append(request.param(rig.server.endpoint_url, body, kind))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


def data_in(messages) -> list[bytes]:
    """The data of all events."""
    return [
        base64.b64decode(record["Data"])
        for message in messages
        if message.headers.get(":event-type") == "SubscribeToShardEvent"
        for record in json.loads(message.payload)["Records"]
    ]


def test_an_answer_begins_with_the_initial_response_and_ends_in_order(rig, subscribe):
    rig.faults.in_subscription("end", after_events=3)
    subscription = subscribe()
    assert subscription.content_type == EVENT_STREAM
    body, is_whole = subscription.read()
    first, *events = messages_of(body)
    assert first.headers[":event-type"] == "initial-response"
    assert (data_in(events), is_whole) == (DATA, True)


def test_a_request_in_cbor_is_answered_with_events_in_cbor(rig, subscribe):
    rig.faults.in_subscription("end", after_events=3)
    body, _ = subscribe("cbor").read()
    first, *events = messages_of(body)
    assert (first.headers[":content-type"], first.payload) == (CBOR, b"\xa0")
    assert [r["Data"] for e in events for r in cbor.decode(e.payload)["Records"]] == DATA


def test_an_exception_ends_it_in_order(rig, subscribe):
    rig.faults.in_subscription("exception", after_events=1, code="KMSThrottlingException", message="why")
    body, is_whole = subscribe().read()
    *events, last = messages_of(body)
    assert (data_in(events), is_whole) == (DATA[:1], True)
    assert last.headers[":exception-type"] == "KMSThrottlingException"
    assert json.loads(last.payload) == {"message": "why"}


@pytest.mark.parametrize("kind", ["reset", "goaway"])
def test_it_breaks_off_behind_whole_events(rig, subscribe, kind):
    rig.faults.in_subscription(kind, after_events=2)
    subscription = subscribe()
    body, is_whole = subscription.read()
    assert (data_in(messages_of(body)), is_whole) == (DATA[:2], False)
    if isinstance(subscription, Http2):
        goodbye = subscription.client.goodbye
        assert (goodbye is not None, subscription.answer.reset) == (
            (True, None) if kind == "goaway" else (False, ErrorCodes.INTERNAL_ERROR)
        )
        assert goodbye is None or goodbye.error_code == ErrorCodes.NO_ERROR


def test_an_event_has_a_wrong_checksum(rig, subscribe):
    rig.faults.in_subscription("end", after_events=3)
    rig.faults.in_subscription("corrupt", after_events=3, skip=1)
    whole, _ = subscribe().read()
    rig.faults.clear()
    rig.faults.in_subscription("end", after_events=3)
    rig.faults.in_subscription("corrupt", after_events=2)
    body, is_whole = subscribe().read()
    assert is_whole
    assert len(body) == len(whole)
    # all but the last one are right
    last = messages_of(whole)[-1].prelude.total_length
    assert data_in(messages_of(body[:-last])) == DATA[:2]
    with pytest.raises(ChecksumMismatch):
        messages_of(body)


def test_an_event_is_cut_in_the_middle(rig, subscribe):
    rig.faults.in_subscription("cut", after_events=1)
    body, is_whole = subscribe().read()
    length = messages_of_prefix(body)
    assert data_in(messages_of(body[:length])) == DATA[:1]
    assert (length < len(body), is_whole) == (True, True)


def messages_of_prefix(body: bytes) -> int:
    """The length of all whole frames at the beginning."""
    at = 0
    while at + 4 <= len(body) and at + int.from_bytes(body[at : at + 4]) <= len(body):
        at += int.from_bytes(body[at : at + 4])
    return at


def test_an_event_comes_twice(rig, subscribe):
    rig.faults.in_subscription("repeat", after_events=1)
    rig.faults.in_subscription("end", after_events=3)
    body, _ = subscribe().read()
    assert data_in(messages_of(body)) == [DATA[0], DATA[1], DATA[1], DATA[2]]


def test_it_falls_silent_and_stays_open(rig, consumer):
    rig.faults.in_subscription("silence", after_events=1)
    with Http2Client(rig.server.endpoint_url) as client:
        number = client.send("SubscribeToShard", asking(consumer))
        answer = client.answers[number]
        client.receive_until(lambda: messages_of_prefix(answer.body) > 200_000)
        silent_from = len(answer.body)
        rig.clock.advance(400)
        assert client.call("ListStreams").status == 200
        assert (len(answer.body), answer.is_over) == (silent_from, False)


def test_a_subscription_is_refused_by_the_faults_of_every_call(rig, consumer):
    rig.faults.error("SubscribeToShard", code="ResourceInUseException", status=400)
    assert rig.refused(rig.kinesis.subscribe_to_shard, **asking(consumer)) == ("ResourceInUseException", 400)
    assert next(rig.subscribe(consumer))["Records"]


def test_faults_in_a_subscription_are_for_subscriptions():
    with pytest.raises(OptionError, match="for SubscribeToShard"):
        Fault("silence", "GetRecords")
    with pytest.raises(OptionError, match="after_events"):
        Fault("silence", "SubscribeToShard", after_events=-1)


# -- clients ------------------------------------------------------------------------------------------------


def test_a_subscription_is_over_when_its_client_leaves(subscribe, monkeypatch):
    left = threading.Event()
    remove = Subscriptions.remove

    def removed(self: Subscriptions, subscription: Subscription) -> None:
        remove(self, subscription)
        left.set()

    monkeypatch.setattr(Subscriptions, "remove", removed)
    # all records have arrived, and on a stopped clock no event will
    subscription = subscribe()
    subscription.first(3 * len(base64.b64encode(DATA[0])))
    assert not left.is_set()
    subscription.close()
    assert left.wait(WAIT_S)


def test_a_slow_reader_costs_one_event_and_holds_up_nobody(rig, consumer, monkeypatch):
    made: list[Subscription] = []
    next_step = Subscription.next_step

    def counted(self: Subscription, now_ms: int) -> Any:
        step = next_step(self, now_ms)
        made.extend([self] if step.frame else [])
        return step

    monkeypatch.setattr(Subscription, "next_step", counted)
    with Http2Client(rig.server.endpoint_url, window_bytes=1000, gives_back=False) as slow:
        number = slow.send("SubscribeToShard", asking(consumer))
        answer = slow.answers[number]
        slow.receive_until(lambda: len(answer.body) == 1000)
        assert next(rig.subscribe(rig.register(rig.summary("s")["StreamARN"], "d")))["Records"]
        assert made.count(made[0]) == 1
        slow.gives_back = True
        slow.give_back(number)
        slow.receive_until(lambda: len(answer.body) > sum(map(len, DATA)))


def test_a_request_behind_a_subscription_is_answered_after_it(rig, consumer):
    rig.faults.in_subscription("end", after_events=4)
    address = urlsplit(rig.server.endpoint_url)
    head = "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: Kinesis_20131202.{}\r\nContent-Length: {}\r\n\r\n"
    ask = json.dumps(asking(consumer))
    with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as connection:
        connection.sendall((head.format("SubscribeToShard", len(ask)) + ask).encode())
        answers = bytearray()

        def receive() -> None:
            piece = connection.recv(65536)
            assert piece
            answers.extend(piece)

        while len(answers) < 3 * len(base64.b64encode(DATA[0])):
            receive()
        connection.sendall((head.format("ListStreams", 2) + "{}").encode())
        # the fourth event is the sign of life, five seconds behind the third
        rig.clock.advance(5)
        while b"StreamNames" not in answers:
            receive()
    subscribed, _, listed = answers.rpartition(b"HTTP/1.1 200 OK")
    assert subscribed.endswith(b"\r\n0\r\n\r\n")
    assert b"StreamNames" in listed
