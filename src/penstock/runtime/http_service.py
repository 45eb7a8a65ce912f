"""A small HTTP server on a thread of its own, by the standard library: for metrics and for the dashboard."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from penstock.errors import OptionError

_CLIENT_TIMEOUT_S: Final = 10.0
"""A connection without traffic for this long is closed."""
_CONNECTIONS_MAX: Final = 64
_CONNECTION_TIME_MAX_S: Final = 60.0
"""The longest duration of a connection, also of one with slow traffic."""


class _Server(ThreadingHTTPServer):
    """Answers each connection on its own thread. Connections above `_CONNECTIONS_MAX` at once are closed."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free_slots = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._connected_s: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        if not self._free_slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            self._connected_s[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started that would release the semaphore
            self._free_slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_slots.release()

    def service_actions(self) -> None:
        """End connections that have lasted too long. Called several times a second."""
        super().service_actions()
        now_s = time.monotonic()
        with self._lock:
            for request, began_s in self._connected_s.items():
                if now_s - began_s >= _CONNECTION_TIME_MAX_S:
                    with contextlib.suppress(OSError):  # the client has gone
                        request.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._connected_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a defect. A client that has gone is not a defect."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class GetHandler(BaseHTTPRequestHandler):
    """Answers GET, and HEAD without a body, by `respond` of the class that inherits it. Logs no requests."""

    timeout = _CLIENT_TIMEOUT_S

    def respond(self) -> None:
        """Answer the request by one call of `send`."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer with a body."""
        self.respond()

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self.respond()

    def send(
        self, status: int, content_type: str, text: str, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Send an answer."""
        body = text.encode("utf-8", "backslashreplace")  # a folder's name need not be UTF-8
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the server's name
        """Log nothing: requests are many, and may hold a token."""


class HttpService:
    """An HTTP server on threads of its own, which serves until it is closed.

    Args:
        port: TCP port; 0 takes a free one, see `port` afterwards.
        what: The name of the service, for messages.

    Raises:
        OptionError: The address cannot be used.
    """

    def __init__(self, host: str, port: int, handler: type[GetHandler], what: str) -> None:
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), handler)
        except (OSError, OverflowError, TypeError) as error:
            raise OptionError(
                f"cannot serve {what} on {host}:{port}: {error}; give a port that is free (each process needs its own), or 0 for any"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="penstock-http",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
