"""A client of HTTP/2 over a blocking socket, for tests that look at streams, windows and farewells."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes

TIMEOUT_S = 60.0
JSON = "application/x-amz-json-1.1"


@dataclass
class Answer:
    """What has come of an answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    reset: int | None = None
    unacknowledged_bytes: int = 0

    @property
    def is_over(self) -> bool:
        return self.is_whole or self.reset is not None

    def document(self) -> Any:
        return json.loads(self.body)


class Http2Client:
    """One connection.

    Args:
        url: Of the server; `https` with `tls`.
        window_bytes: Initial window of each stream.
        gives_back: Whether windows are given back as data comes; otherwise by `give_back`.
        tls: Context for `https`.
        slowly: Whether every byte is sent by itself.
    """

    def __init__(
        self,
        url: str,
        *,
        window_bytes: int = 1024 * 1024,
        gives_back: bool = True,
        tls: ssl.SSLContext | None = None,
        slowly: bool = False,
    ) -> None:
        parts = urlsplit(url)
        self.authority = parts.netloc
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=parts.hostname)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.gives_back = gives_back
        self.slowly = slowly
        self.answers: dict[int, Answer] = {}
        self.goodbye: ConnectionTerminated | None = None
        self.is_closed = False
        self.has_settings = False
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        self.flush()
        self.receive_until(lambda: self.has_settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def flush(self) -> None:
        data = self.h2.data_to_send()
        for piece in (data[i : i + 1] for i in range(len(data))) if self.slowly else (data,):
            self.socket.sendall(piece)

    def begin(
        self, headers: list[tuple[str, str]] | None = None, *, method: str = "POST", **named: str
    ) -> int:
        """Send a request's head; returns its stream."""
        number = self.h2.get_next_available_stream_id()
        head = {":method": method, ":scheme": "http", ":authority": self.authority, ":path": "/"}
        head |= {f":{name}": value for name, value in named.items()}
        self.h2.send_headers(number, [*head.items(), *(headers or [])])
        self.answers[number] = Answer()
        self.flush()
        return number

    def send(
        self, operation: str, document: object = None, *, body: bytes | None = None, kind: str = JSON
    ) -> int:
        """Send a whole request of Kinesis; returns its stream."""
        target = operation if "." in operation else f"Kinesis_20131202.{operation}"
        number = self.begin([("x-amz-target", target), ("content-type", kind)])
        self.send_data(number, json.dumps(document or {}).encode() if body is None else body)
        return number

    def send_data(self, number: int, data: bytes, *, end: bool = True) -> None:
        """Send a body, as the server's windows take it."""
        while data or end:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if data and not room:
                self.receive()
                continue
            piece, data = data[:room], data[room:]
            self.h2.send_data(number, piece, end_stream=end and not data)
            self.flush()
            if not data:
                return

    def call(self, operation: str, document: object = None, **options: Any) -> Answer:
        """Send a request of Kinesis and wait for its answer."""
        return self.wait(self.send(operation, document, **options))

    def wait(self, number: int) -> Answer:
        self.receive_until(lambda: self.answers[number].is_over)
        return self.answers[number]

    def receive_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition():
            assert not self.is_closed, "the server has closed the connection"
            assert time.monotonic() < deadline_s
            self.receive()

    def receive_to_the_end(self) -> None:
        """Read until the server closes the connection."""
        while not self.is_closed:
            self.receive()

    def receive(self) -> None:
        """Read once."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        self.is_closed = not data
        for event in self.h2.receive_data(data) if data else ():
            self._see(event)
        if not self.is_closed and self.goodbye is None:
            self.flush()

    def give_back(self, number: int) -> None:
        """Open the windows by what an answer has brought."""
        answer = self.answers[number]
        self.h2.acknowledge_received_data(answer.unacknowledged_bytes, number)
        answer.unacknowledged_bytes = 0
        self.flush()

    def _see(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                headers = dict(event.headers)
                answer = self.answers[event.stream_id]
                answer.status = int(headers.pop(":status"))
                answer.headers = headers
            case DataReceived():
                answer = self.answers[event.stream_id]
                answer.body += event.data
                answer.unacknowledged_bytes += event.flow_controlled_length
                if self.gives_back:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    answer.unacknowledged_bytes = 0
            case StreamEnded():
                self.answers[event.stream_id].is_whole = True
            case StreamReset() if not self.answers[event.stream_id].is_whole:
                self.answers[event.stream_id].reset = int(event.error_code)
            case ConnectionTerminated():
                self.goodbye = event
            case SettingsAcknowledged():
                self.has_settings = True
