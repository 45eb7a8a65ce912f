"""Streamed answers and deadlines over both versions of HTTP, with an application of the test's own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from http2_client import Http2Client
from penstock_local import http as server_http
from penstock_local import http2 as server_http2
from penstock_local.first_bytes import FirstBytes
from penstock_local.http import Connections, Request, Response
from penstock_local.http2 import Http2Protocol

PIECE = bytes(100_000)


class Door:
    """A listening server in a thread of its own, with the application that a test gives it."""

    def __init__(self) -> None:
        self.application: Callable[[Request], Any] = lambda request: Response(200, request.body)
        self.loop = asyncio.new_event_loop()
        self.given = 0
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        self.run(self._listen())

    async def _listen(self) -> None:
        self.connections = Connections()
        self.server = await self.loop.create_server(
            lambda: FirstBytes(self.application, self.loop, self.connections),
            "127.0.0.1",
            0,
        )
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.run(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _close(self) -> None:
        self.server.close()
        await self.connections.close()

    def run(self, awaitable: Any) -> Any:
        """Run something in the server's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop).result(60)

    def pass_time(self, seconds: float) -> None:
        """Run the server's check of its connections, so long from now."""

        async def look() -> None:
            self.connections.end_overdue(self.loop.time() + seconds)

        self.run(look())

    async def pieces(self, count: int, failure: Exception | None = None) -> AsyncGenerator[bytes, None]:
        """Count the requested pieces; report the close."""
        try:
            for _ in range(count):
                self.given += 1
                yield PIECE
            if failure is not None:
                raise failure
        finally:
            self.closed.set()

    def connect(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(sent)
        return connection


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door()
    door.start()
    yield door
    door.stop()


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def get(client: Http2Client, method: str = "GET") -> int:
    number = client.begin(method=method)
    client.send_data(number, b"")
    return number


# --- streamed answers ---


def test_a_streamed_answer_of_http_1_is_chunked(door):
    door.application = lambda _: Response(200, b"first", stream=door.pieces(2))
    with door.connect(GET) as connection, connection.makefile("rb") as file:
        head, _, body = file.read().partition(b"\r\n\r\n")
    chunk = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
    assert b"\r\nTransfer-Encoding: chunked" in head
    assert b"Content-Length" not in head
    assert body == b"5\r\nfirst\r\n" + chunk * 2 + b"0\r\n\r\n"
    assert door.closed.wait(60)


def test_a_streamed_answer_of_http_2_has_no_length(door):
    door.application = lambda _: Response(200, b"first", stream=door.pieces(2))
    with Http2Client(door.url) as client:
        answer = client.wait(get(client))
        assert answer.is_whole
        assert answer.body == b"first" + PIECE * 2
        assert "content-length" not in answer.headers
    assert door.closed.wait(60)


def test_a_streamed_answer_may_take_its_time_to_come(door):
    async def later(_: Request) -> Response:
        await asyncio.sleep(0)
        return Response(200, stream=door.pieces(1))

    door.application = later
    with Http2Client(door.url) as client:
        assert client.wait(get(client)).body == PIECE


def test_the_next_piece_is_asked_for_when_the_client_of_http_2_has_taken_the_last(door):
    door.application = lambda _: Response(200, stream=door.pieces(10))
    with Http2Client(door.url, window_bytes=240_000, gives_back=False) as client:
        client.h2.increment_flow_control_window(10_000_000)
        number = get(client)
        answer = client.answers[number]
        client.receive_until(lambda: len(answer.body) == 240_000)
        assert door.given == 3
        client.give_back(number)
        client.receive_until(lambda: len(answer.body) == 480_000)
        assert door.given == 5
        client.h2.reset_stream(number)
        client.flush()
        assert door.closed.wait(60)
        assert get(client) == number + 2


def test_the_next_piece_is_asked_for_when_the_client_of_http_1_reads(door):
    door.application = lambda _: Response(200, stream=door.pieces(1000))
    with door.connect(GET) as connection:
        assert not door.closed.wait(0)
        connection.recv(1000)
    assert door.closed.wait(60)
    # unread bytes stay in the buffers of the sockets and of the transport
    assert door.given < 200


@pytest.mark.parametrize("version", [1, 2])
def test_a_client_that_leaves_closes_its_streamed_answer(door, version):
    door.application = lambda _: Response(200, stream=endless(door))
    if version == 1:
        with door.connect(GET) as connection:
            connection.recv(1000)
    else:
        with Http2Client(door.url) as client:
            number = get(client)
            client.receive_until(lambda: client.answers[number].body != b"")
    assert door.closed.wait(60)


async def endless(door: Door) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            yield b"x"
            await asyncio.sleep(0.01)
    finally:
        door.closed.set()


def test_an_answer_that_fails_in_the_middle_breaks_off(door, caplog):
    caplog.set_level(logging.ERROR)
    door.application = lambda _: Response(200, stream=door.pieces(1, RuntimeError("boom")))
    with Http2Client(door.url) as client:
        assert client.wait(get(client)).reset == ErrorCodes.INTERNAL_ERROR
    with door.connect(GET) as connection, connection.makefile("rb") as file:
        try:
            body = file.read()
        except ConnectionResetError:
            body = b""
    assert not body.endswith(b"0\r\n\r\n")
    assert caplog.text.count("failed in the middle of its answer") == 2


@pytest.mark.parametrize("response", [{"cut_at": 3}, {"drop": True}], ids=["cut", "dropped"])
def test_a_streamed_answer_that_breaks_off_gives_none_of_its_pieces(door, response):
    door.application = lambda _: Response(200, b"0123456", stream=door.pieces(1), **response)
    with Http2Client(door.url) as client:
        answer = client.wait(get(client))
    assert answer.reset == ErrorCodes.INTERNAL_ERROR
    assert answer.body == (b"012" if "cut_at" in response else b"")
    assert door.given == 0


@pytest.mark.parametrize("response", [{"body": b"abc"}, {}], ids=["bytes", "stream"])
def test_the_answer_to_head_has_no_body_in_http_2(door, response):
    door.application = lambda _: Response(200, **(response or {"stream": door.pieces(1)}))
    with Http2Client(door.url) as client:
        answer = client.wait(get(client, "HEAD"))
    assert (answer.status, answer.body, door.given) == (200, b"", 0)


# --- bounds ---


def test_answers_that_nobody_reads_are_not_prepared_without_end(door, monkeypatch):
    monkeypatch.setattr(server_http2, "ANSWERS_BYTES_MAX", 250_000)
    asked = []
    door.application = lambda request: asked.append(request) or Response(200, PIECE)
    with Http2Client(door.url, window_bytes=0, gives_back=False) as client:
        numbers = [get(client) for _ in range(10)]
        client.receive_until(lambda: sum(client.answers[n].status == 200 for n in numbers) == 3)
        client.h2.ping(b"12345678")
        client.flush()
        client.receive()
        assert len(asked) == 3
        client.h2.update_settings({4: 1_000_000})
        client.h2.increment_flow_control_window(10_000_000)
        client.flush()
        assert [len(client.wait(n).body) for n in numbers] == [len(PIECE)] * 10


def test_bodies_under_way_are_bounded_together(door, monkeypatch):
    monkeypatch.setattr(server_http, "ALL_BODIES_BYTES_MAX", 1000)
    with Http2Client(door.url) as client:
        first, second = client.begin(), client.begin()
        client.send_data(first, bytes(600), end=False)
        client.send_data(second, bytes(600), end=False)
        assert client.wait(second).status == 503
        client.send_data(first, b"end")
        assert len(client.wait(first).body) == 603
    assert door.connections.body_bytes == 0


class Unread(asyncio.Transport):
    """A transport whose client reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_bytes = 0
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.unread_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_a_client_that_asks_without_reading_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_http2, "UNREAD_BYTES_MAX", 20_000)
    monkeypatch.setattr(server_http, "SEND_PIECE_BYTES", 20_000)
    talker = H2Connection()
    talker.initiate_connection()
    transport = Unread()

    async def run() -> None:
        protocol = Http2Protocol(lambda _: Response(200), asyncio.get_running_loop(), Connections())
        protocol.connection_made(transport)
        while not transport.is_aborted:
            talker.ping(b"12345678")
            protocol.data_received(talker.data_to_send())
        protocol.connection_lost(None)

    asyncio.run(run())
    assert 40_000 < transport.unread_bytes < 41_000


def test_a_client_that_resets_without_end_is_told_to_calm_down(door, monkeypatch):
    monkeypatch.setattr(server_http2, "RESETS_MAX", 10)
    with Http2Client(door.url) as client:
        for _ in range(11):
            client.h2.reset_stream(client.begin())
        last = get(client)
        client.wait(last)
        door.pass_time(0)
        client.receive_to_the_end()
        assert client.goodbye.error_code == ErrorCodes.ENHANCE_YOUR_CALM


# --- deadlines ---


def test_half_a_request_is_refused_when_its_time_is_over(door):
    with Http2Client(door.url) as client:
        number = client.begin()
        client.send_data(number, b"half", end=False)
        client.wait(get(client))
        door.pass_time(server_http.REQUEST_TIMEOUT_S - 10)
        client.wait(get(client))
        assert not client.answers[number].is_over
        door.pass_time(server_http.REQUEST_TIMEOUT_S + 1)
        assert client.wait(number).status == 408
        assert client.wait(get(client)).status == 200
    assert door.connections.body_bytes == 0


def test_an_answer_that_is_not_read_is_reset_when_its_time_is_over(door):
    door.application = lambda _: Response(200, PIECE)
    with Http2Client(door.url, window_bytes=10, gives_back=False) as client:
        number = get(client)
        client.receive_until(lambda: len(client.answers[number].body) == 10)
        door.pass_time(server_http.SEND_TIMEOUT_S + 1)
        assert client.wait(number).reset == ErrorCodes.CANCEL


@pytest.mark.parametrize(
    ("is_new", "seconds"), [(True, server_http.HEAD_TIMEOUT_S), (False, server_http.IDLE_TIMEOUT_S)]
)
def test_a_connection_at_rest_is_ended_with_a_goodbye(door, is_new, seconds):
    with Http2Client(door.url) as client:
        if not is_new:
            client.wait(get(client))
        door.pass_time(seconds - 10)
        assert len(door.connections.open) == 1
        door.pass_time(seconds + 1)
        client.receive_to_the_end()
        assert client.goodbye.error_code == ErrorCodes.NO_ERROR


# --- bytes that are not HTTP/2 ---


def conversation() -> bytes:
    talker = H2Connection()
    talker.initiate_connection()
    for number in (1, 3):
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/")]
        talker.send_headers(number, [*head, ("content-type", "text/plain")])
        talker.send_data(number, b"body", end_stream=True)
    talker.ping(b"12345678")
    talker.reset_stream(1)
    talker.increment_flow_control_window(1000)
    return talker.data_to_send()


SAID = conversation()
PREFACE_BYTES = 24


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(PREFACE_BYTES, len(SAID) - 1), st.integers(0, 255)), min_size=1, max_size=6
    ),
    st.integers(PREFACE_BYTES, len(SAID)),
)
def test_a_damaged_conversation_ends_its_own_connection_and_nothing_is_logged(door, caplog, damage, end):
    caplog.clear()
    caplog.set_level(logging.WARNING)
    said = bytearray(SAID)
    for at, value in damage:
        said[at] = value
    with door.connect(bytes(said[:end])) as connection:
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert caplog.text == ""
    assert door.connections.body_bytes == 0
