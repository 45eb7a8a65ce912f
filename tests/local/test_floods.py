"""Requests of hostile or broken clients: each is refused within a bounded time, and the next client is served."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import tracemalloc
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

import pytest

from penstock_local import cbor, documents
from penstock_local import http as server_http
from penstock_local.credentials import credential_of
from penstock_local.documents import read_json
from penstock_local.first_bytes import FirstBytes
from penstock_local.http import Connections, Request, Response
from penstock_local.service_errors import RequestRefused

MIB = 1024 * 1024
JSON = "application/x-amz-json-1.1"
CBOR = "application/x-amz-cbor-1.1"


def send(
    rig, body: bytes, target: str = "Kinesis_20131202.ListStreams", content_type: str = JSON, **headers: str
):
    """Send one request on a connection of its own; returns status and body."""
    connection = http.client.HTTPConnection(urlsplit(rig.server.endpoint_url).netloc, timeout=60)
    sent = {"X-Amz-Target": target, "Content-Type": content_type}
    connection.request("POST", "/", body, sent | {n.replace("_", "-"): v for n, v in headers.items()})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def raw(rig, sent: bytes) -> bytes:
    """Send bytes and return the answer until the server closes."""
    parts = urlsplit(rig.server.endpoint_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(sent)
        with connection.makefile("rb") as file:
            return file.read()


# --- documents ---


@pytest.mark.parametrize(
    "body",
    [
        b"\x9f" + b"\x80" * MIB + b"\xff",
        cbor.head(4, MIB) + b"\x80" * MIB,
        b"\x7f" + b"\x60" * MIB + b"\xff",
        b"\xbf" + b"".join(cbor.encode(str(i)) + b"\x80" for i in range(150_000)) + b"\xff",
        b"\xa2\x01\x80\x02\x80",
        b"\x81" * 100_000,
        b"\xc1" * 100_000,
    ],
    ids=["lists", "list", "chunks", "map", "numbers as keys", "nested lists", "nested tags"],
)
def test_cbor_of_many_or_nested_values_is_refused(body):
    with pytest.raises(RequestRefused, match="SerializationException"):
        cbor.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MIB + b"[]]",
        b"[" * MIB,
        b'{"a":' * 100_000,
        b'["' + b'\\",' * MIB + b'",' + b"0," * MIB + b"0]",
        b"9" * MIB,
        b'{"a":NaN}',
    ],
    ids=["lists", "nested lists", "nested maps", "behind a string", "a long number", "no number"],
)
def test_json_of_many_or_nested_values_is_refused(body):
    with pytest.raises(RequestRefused, match="SerializationException"):
        read_json(body)


def test_commas_within_a_text_are_no_values():
    text = ",[{" * documents.VALUES_MAX
    assert read_json(json.dumps({"a": text}).encode()) == {"a": text}


def test_a_flood_of_values_takes_no_more_memory_than_its_bytes():
    body = b"\x9f" + b"\x80" * (10 * MIB) + b"\xff"
    tracemalloc.start()
    try:
        with pytest.raises(RequestRefused):
            cbor.decode(body)
        with pytest.raises(RequestRefused):
            read_json(b"[" + b"[]," * (3 * MIB) + b"[]]")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * MIB


@pytest.mark.parametrize(
    "operation", ["ListStreams", "PutRecord", "PutRecords", "GetRecords", "CreateStream"]
)
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"[]", JSON),
        (b"null", JSON),
        (b"5", JSON),
        (b'"x"', JSON),
        (b"[" * 100_000, JSON),
        (b'{"Records":' * 100_000, JSON),
        (b"\x80", CBOR),
        (b"\xf6", CBOR),
        (b"\x81" * 100_000, CBOR),
        (b"\xff", CBOR),
    ],
)
def test_a_body_that_is_no_structure_is_a_serialization_error(rig, operation, body, content_type):
    status, answer = send(rig, body, f"Kinesis_20131202.{operation}", content_type)
    assert status == 400
    assert b"SerializationException" in answer


@pytest.mark.parametrize("number", [1e308, -1e308, 10**30, 1e400])
def test_a_time_that_is_none_is_refused(rig, number):
    rig.server.create_stream("s")
    ask = {"StreamName": "s", "ShardId": "shardId-000000000000", "ShardIteratorType": "AT_TIMESTAMP"}
    body = json.dumps(ask | {"Timestamp": "@"}).replace(
        '"@"', format(number, "f") if number < 1e309 else "1e400"
    )
    assert send(rig, body.encode(), "Kinesis_20131202.GetShardIterator")[0] == 400


def test_a_long_arn_of_many_colons_is_refused_unread(rig):
    arn = "arn:aws" + ":kinesis:" * 500_000
    status, answer = send(rig, json.dumps({"StreamARN": arn}).encode(), "Kinesis_20131202.DescribeStream")
    assert status == 400
    assert b"length less than or equal to 2048" in answer
    assert len(answer) < 10_000


# --- heads ---


def test_a_signature_is_read_once():
    hostile = "Credential=" + "Credential=/" * 5000 + "/" * 40_000
    assert credential_of(hostile).region == ""
    assert credential_of(hostile).access_key == "Credential="
    assert credential_of("x Credential=AK/20260101/eu-west-1/kinesis/aws4_request, y") == (
        "AK",
        "eu-west-1",
        "kinesis",
    )


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 101 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 200_000, b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a" * 200_000, b"4"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"4"),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"400"),
    ],
    ids=[
        "target",
        "headers",
        "header",
        "endless header",
        "endless name",
        "hosts",
        "length",
        "negative length",
    ],
)
def test_a_head_beyond_all_limits_is_refused(rig, sent, status):
    assert raw(rig, sent).startswith(b"HTTP/1.1 " + status)
    rig.kinesis.list_streams()


def test_the_answer_to_head_has_no_body(rig):
    answer = raw(rig, b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    assert body == b""


def test_a_trailer_after_the_body_changes_no_header(rig):
    sent = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nX-Amz-Target: Kinesis_20131202.ListStreams\r\n\r\n"
    )
    assert raw(rig, sent).startswith(b"HTTP/1.1 404")


# --- connections ---


class Door:
    """A listening server without an application worth the name, whose clock the test reads and shifts."""

    def __init__(self) -> None:
        self.connections = Connections()
        self.answered = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self.server = await self.loop.create_server(
            lambda: FirstBytes(self.answer, self.loop, self.connections), "127.0.0.1", 0
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for connection in list(self.connections.open):
            connection.close()
        for writer in self.writers:
            writer.close()
        await self.server.wait_closed()

    def answer(self, request: Request) -> Response:
        self.answered.set()
        return Response(200, request.body)

    async def connect(self, sent: bytes) -> asyncio.StreamReader:
        """Connect, send, and wait until the server has read it."""
        before = len(self.connections.open)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sent)
        await self.until(lambda: len(self.connections.open) > before)
        await self.until(lambda: not sent or not any(c.is_new for c in self.connections.open))
        return reader

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the condition is on the server's own state
                await asyncio.sleep(0)

    def pass_time(self, seconds: float) -> None:
        """Run the server's check of its connections, so long after the last activity."""
        self.connections.end_overdue(max(c.since_s for c in self.connections.open) + seconds)


@pytest.mark.parametrize(
    ("sent", "seconds", "answer"),
    [
        (b"", server_http.HEAD_TIMEOUT_S, b""),
        (b"POST / HTTP/1.1\r\nHost: local", server_http.HEAD_TIMEOUT_S, b"HTTP/1.1 408"),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc",
            server_http.REQUEST_TIMEOUT_S,
            b"HTTP/1.1 408",
        ),
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_client_that_stops_halfway_is_let_go(sent, seconds, answer):
    async def run() -> bytes:
        async with Door() as door:
            reader = await door.connect(sent)
            door.pass_time(seconds - 1)
            assert len(door.connections.open) == 1
            door.pass_time(seconds + 1)
            async with asyncio.timeout(60):
                try:
                    said = await reader.read()
                except ConnectionResetError:
                    said = b""
            assert door.connections.body_bytes == 0
            return said

    assert asyncio.run(run())[: len(answer) or None] == answer


def test_a_connection_that_rests_between_requests_is_kept_for_minutes():
    async def run() -> None:
        async with Door() as door:
            await door.connect(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            await asyncio.wait_for(door.answered.wait(), 60)
            door.pass_time(server_http.IDLE_TIMEOUT_S - 1)
            assert len(door.connections.open) == 1
            door.pass_time(server_http.IDLE_TIMEOUT_S + 1)
            await door.until(lambda: not door.connections.open)

    asyncio.run(run())


def test_when_there_are_too_many_connections_the_one_longest_at_rest_goes(monkeypatch):
    monkeypatch.setattr(server_http, "CONNECTIONS_MAX", 3)

    async def run() -> None:
        async with Door() as door:
            first = await door.connect(b"")
            for _ in range(2):
                await door.connect(b"")
            late, writer = await asyncio.open_connection("127.0.0.1", door.port)
            door.writers.append(writer)
            writer.write(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
            )
            async with asyncio.timeout(60):
                assert (await late.read()).endswith(b"ok")
                assert await first.read() == b""
                assert len(door.connections.open) <= 3

    asyncio.run(run())


def test_bodies_under_way_are_bounded_together(monkeypatch):
    monkeypatch.setattr(server_http, "ALL_BODIES_BYTES_MAX", 1000)

    async def run() -> None:
        async with Door() as door:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 700\r\n\r\n"
            await door.connect(head + bytes(600))
            second = await door.connect(head + bytes(600))
            async with asyncio.timeout(60):
                assert (await second.read()).startswith(b"HTTP/1.1 503")
            assert door.connections.body_bytes == 600

    asyncio.run(run())
