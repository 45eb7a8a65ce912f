"""A server of HTTP/2 that does to each request what a test says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded, StreamReset, WindowUpdated

TIMEOUT_S = 30.0


@dataclass
class Exchange:
    """One request, and ways to answer it."""

    peer: Peer
    number: int
    headers: dict[str, str]
    is_reset: bool = False
    is_ending: bool = False
    waiting: bytearray = field(default_factory=bytearray)

    def open(self) -> None:
        self.peer.h2.send_headers(
            self.number, [(":status", "200"), ("date", "Sun, 22 Nov 2026 08:00:00 GMT")]
        )

    def send(self, data: bytes) -> None:
        """Send what the windows take now, and the rest as they open."""
        self.waiting += data
        self.flush()

    def flush(self) -> None:
        while self.waiting and not self.is_reset:
            size = min(
                len(self.waiting),
                self.peer.h2.local_flow_control_window(self.number),
                self.peer.h2.max_outbound_frame_size,
            )
            if size <= 0:
                return
            self.peer.h2.send_data(self.number, bytes(self.waiting[:size]))
            del self.waiting[:size]
        if self.is_ending and not self.waiting and not self.is_reset:
            self.is_ending = False
            self.peer.h2.end_stream(self.number)

    def end(self) -> None:
        """End the answer behind what is still to be sent."""
        self.is_ending = True
        self.flush()

    def refuse(self, status: int, code: str, message: str) -> None:
        self.peer.h2.send_headers(self.number, [(":status", str(status))])
        body = json.dumps({"__type": code, "message": message}).encode()
        self.peer.h2.send_data(self.number, body, end_stream=True)


class Peer:
    """Serves connections one after the other until it is closed.

    Args:
        answer: Called with each exchange when its request is whole.
        farewells: How many connections are told to go away as soon as they are there.
    """

    def __init__(self, answer: Callable[[Exchange], None], farewells: int = 0) -> None:
        self._answer = answer
        self._farewells = farewells
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.exchanges: list[Exchange] = []
        self.connection_count = 0
        self.h2: H2Connection
        self._socket: socket.socket | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """Cut the connection that is open."""
        if self._socket is not None:
            self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                self._socket, _ = self._listener.accept()
            except OSError:
                return
            self.connection_count += 1
            self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
            self.h2.initiate_connection()
            with self._socket, contextlib.suppress(OSError):  # cut, by either side
                if self.connection_count <= self._farewells:
                    self._send_away(self._socket)
                else:
                    self._serve_connection(self._socket)

    def _send_away(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_S)
        self.h2.close_connection()
        connection.sendall(self.h2.data_to_send())  # together with the settings
        while connection.recv(65536):
            pass

    def _serve_connection(self, connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_S)
        mine: dict[int, Exchange] = {}
        while True:
            connection.sendall(self.h2.data_to_send())
            data = connection.recv(65536)
            if not data:
                return
            for event in self.h2.receive_data(data):
                match event:
                    case RequestReceived():
                        mine[event.stream_id] = Exchange(self, event.stream_id, dict(event.headers))
                    case StreamEnded():
                        self.exchanges.append(mine[event.stream_id])
                        self._answer(mine[event.stream_id])
                    case StreamReset():
                        mine[event.stream_id].is_reset = True
                    case WindowUpdated():
                        for exchange in mine.values():
                            exchange.flush()
