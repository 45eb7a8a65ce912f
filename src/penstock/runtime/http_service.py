"""A small HTTP server on a thread of its own, by the standard library: for metrics and for the dashboard."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from penstock.errors import OptionError

CLIENT_TIMEOUT_S: Final = 10.0
"""A client that sends or takes nothing for so long is left."""
_CONNECTIONS_MAX: Final = 64


class _Server(ThreadingHTTPServer):
    """Answers each connection on a thread of its own, and at most so many at once: others are closed."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._rooms = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer."""
        if not self._rooms.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, so none gives the room back
            self._rooms.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._rooms.release()


class _Server6(_Server):
    address_family = socket.AF_INET6


class HttpService:
    """Serves until it is closed.

    Args:
        host: Address to listen on.
        port: TCP port; 0 takes a free one, see `port` afterwards.
        handler: Answers a request. Its `timeout` should be `CLIENT_TIMEOUT_S`.
        what: What is served, for messages.

    Raises:
        OptionError: The address cannot be used.
    """

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], what: str) -> None:
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), handler)
        except (OSError, OverflowError) as error:
            raise OptionError(
                f"cannot serve {what} on {host}:{port}: {error}; give a port that is free, or 0 for any"
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
