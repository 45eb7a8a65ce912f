"""HTTP/1.1 over asyncio: parses requests with httptools, answers one at a time per connection.

Knows nothing of Kinesis. The application is a function from a request to a response, or to an awaitable
of one when the answer takes time; meanwhile the connection reads nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools

log = logging.getLogger("penstock.local")

BODY_BYTES_MAX = 32 * 1024 * 1024
_SEND_PIECE_BYTES = 256 * 1024
_PIPELINED_MAX = 16


@dataclass(slots=True)
class Request:
    """One request; header names in lower case."""

    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(slots=True)
class Response:
    """One answer.

    Attributes:
        drop: Close the connection and send nothing.
        cut_at: Send only this many bytes of the body, then close; the head promises all of it.
    """

    status: int = 200
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    drop: bool = False
    cut_at: int | None = None


Application = Callable[[Request], Response | Awaitable[Response]]


class HttpProtocol(asyncio.Protocol):
    """One connection.

    Args:
        application: Answers requests.
        loop: The loop that the connection lives on.
        connections: Set that the connection keeps itself in while it is open.
    """

    def __init__(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        connections: set[HttpProtocol],
    ) -> None:
        self._application = application
        self._loop = loop
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request = Request()
        self._pieces: list[bytes] = []
        self._body_bytes = 0
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        transport.set_write_buffer_limits(high=_SEND_PIECE_BYTES)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Forget the connection; an answer under way is given up."""
        self._connections.discard(self)
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what is not HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # the request itself was answered as HTTP/1.1; what follows in the other protocol is not read
            if self._transport is not None:
                self._transport.close()
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def pause_writing(self) -> None:
        """The client reads slower than we send."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable.set()

    def close(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # -- httptools ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start a request."""
        self._request = Request()
        self._pieces = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take the target; it may come in pieces."""
        self._request.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Tell a client that waits for permission to go on."""
        self._request.method = self._parser.get_method().decode("latin-1")
        if self._request.headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Answer the request, after those before it."""
        if self._transport is None or self._transport.is_closing():
            return
        request = self._request
        request.body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self._waiting.append((request, self._parser.should_keep_alive()))
        if len(self._waiting) > _PIPELINED_MAX:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS)
        elif self._task is None:
            self._work()

    # -- answering ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Answer what can be answered at once; go on in a task for the rest."""
        while self._waiting and self._transport is not None:
            request, keep_alive = self._waiting.popleft()
            try:
                response = self._application(request)
            except Exception:
                log.exception("%s %s failed", request.method, request.target)
                response = Response(HTTPStatus.INTERNAL_SERVER_ERROR)
            if isinstance(response, Response) and self._send_at_once(response, keep_alive):
                continue
            self._task = self._loop.create_task(self._finish(request, response, keep_alive))
            return

    async def _finish(
        self, request: Request, response: Response | Awaitable[Response], keep_alive: bool
    ) -> None:
        if self._transport is not None:
            self._transport.pause_reading()
        try:
            await self._send(
                response if isinstance(response, Response) else await _sure(request, response), keep_alive
            )
        except asyncio.CancelledError:
            # the connection is gone: nobody waits for the answer
            return
        finally:
            self._task = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._work()

    def _send_at_once(self, response: Response, keep_alive: bool) -> bool:
        """Send a small answer without a task; False when it is one of the other kind."""
        if response.drop or response.cut_at is not None or len(response.body) > _SEND_PIECE_BYTES:
            return False
        if self._transport is None or not self._writable.is_set():
            return False
        self._transport.write(_head(response, keep_alive) + response.body)
        if not keep_alive:
            self._transport.close()
        return True

    async def _send(self, response: Response, keep_alive: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        if response.drop:
            transport.abort()
            return
        transport.write(_head(response, keep_alive))
        body = memoryview(response.body)
        if response.cut_at is not None:
            body = body[: response.cut_at]
        for begin in range(0, len(body), _SEND_PIECE_BYTES):
            await self._writable.wait()
            # a connection that was lost meanwhile ignores what is written
            transport.write(body[begin : begin + _SEND_PIECE_BYTES])
        if response.cut_at is not None or not keep_alive:
            transport.close()

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer a request that cannot be read, and close."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_head(Response(status), keep_alive=False))
            self._transport.close()


async def _sure(request: Request, answer: Awaitable[Response]) -> Response:
    """Wait for an answer; the connection must not be left hanging when there is none."""
    try:
        return await answer
    except Exception:
        log.exception("%s %s failed", request.method, request.target)
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR)


def _head(response: Response, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_phrase(response.status)}"]
    lines.extend(f"{name}: {value}" for name, value in response.headers)
    lines.append(f"Content-Length: {len(response.body)}")
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Scripted"
