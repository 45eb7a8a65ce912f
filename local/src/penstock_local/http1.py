"""HTTP/1.1 over asyncio: parses requests with httptools, answers one at a time per connection.

While an answer is being prepared or sent, the connection reads nothing more, except that a streamed answer lets it read
once: that shows when the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing
from http import HTTPStatus
from io import BytesIO
from typing import Any

import httptools

from penstock_local import http
from penstock_local.http import Application, BreakOff, Connections, Request, Response, answer_of

log = logging.getLogger("penstock_local")

_LINGER_S = 2.0
_PIPELINED_MAX = 16


class Http1Protocol(asyncio.Protocol):
    """One connection that speaks HTTP/1.1.

    Args:
        loop: The loop that the connection lives on.
        connections: The server's open connections, to which it adds itself.

    Attributes:
        is_new: Whether no request has begun on it yet.
        since_s: When it was opened, began its request, or was last answered, by the loop's clock.
    """

    def __init__(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        connections: Connections,
    ) -> None:
        self._application = application
        self._loop = loop
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request = Request()
        self._body = BytesIO()
        self._body_bytes = 0
        self._head_bytes = 0
        self._header_count = 0
        self._refusal: HTTPStatus | None = None
        self._is_refused = False
        self.is_new = True
        self._in_head = False
        self._in_request = False
        self.since_s = loop.time()
        self._waiting_requests: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._reads_during_answer = False
        self._send_timeout_s = http.SEND_TIMEOUT_S
        self._writable = asyncio.Event()
        self._writable.set()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, limit its buffer, and add the connection to the server's open ones."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=http.SEND_PIECE_BYTES)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Forget the connection; an answer that is being prepared is cancelled."""
        self._connections.remove(self)
        self._drop_body()
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; refuse requests that are not HTTP or too large."""
        if self._is_refused:
            return
        if self._reads_during_answer and self._transport is not None:
            # a request that follows this one waits for its answer
            self._transport.pause_reading()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # the request itself was answered as HTTP/1.1; bytes of the other protocol are not read
            if self._transport is not None:
                self._transport.close()
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal or HTTPStatus.BAD_REQUEST)
            return
        if self._in_head:
            # the parser reports a header when it is complete: one without an end is counted here
            self._head_bytes += len(data)
            if self._head_bytes > http.HEAD_BYTES_MAX + http.TARGET_BYTES_MAX:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def close(self) -> None:
        """End the connection now; HTTP/1.1 has no farewell."""
        if self._transport is not None:
            self._transport.abort()

    abort = close

    # -- deadlines ------------------------------------------------------------------------------------------

    @property
    def waits_for_client(self) -> bool:
        return self._task is None

    def end_if_overdue(self, now_s: float) -> None:
        """Close the connection when its client has had its time to send."""
        if not self.waits_for_client:
            return
        waited_s = now_s - self.since_s
        if self._in_request:
            if waited_s > (http.HEAD_TIMEOUT_S if self._in_head else http.REQUEST_TIMEOUT_S):
                self._refuse(HTTPStatus.REQUEST_TIMEOUT)
        elif waited_s > (http.HEAD_TIMEOUT_S if self.is_new else http.IDLE_TIMEOUT_S):
            self.close()

    # -- httptools ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start a request."""
        self._request = Request()
        self._head_bytes = self._header_count = 0
        self.is_new = False
        self._in_head = self._in_request = True
        self.since_s = self._loop.time()

    def on_url(self, url: bytes) -> None:
        """Add a piece of the target."""
        if len(self._request.target) + len(url) > http.TARGET_BYTES_MAX:
            self._stop_parser(HTTPStatus.REQUEST_URI_TOO_LONG)
        self._request.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add one header; those after a body are ignored."""
        self._header_count += 1
        self._request.header_bytes += len(name) + len(value)
        if self._header_count > http.HEADERS_MAX or self._request.header_bytes > http.HEAD_BYTES_MAX:
            self._stop_parser(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if not self._in_head:
            return
        key = name.decode("latin-1").lower()
        if key == "host" and key in self._request.headers:
            self._stop_parser(HTTPStatus.BAD_REQUEST)
        self._request.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Refuse a body that is announced as too large; answer a client that waits for `100 Continue`."""
        self._in_head = False
        self._request.method = self._parser.get_method().decode("latin-1")
        announced = self._request.headers.get("content-length", "")
        if http.is_too_large(announced):
            self._stop_parser(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self._request.headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Add a piece of the body."""
        self._body_bytes += len(data)
        self._connections.body_bytes += len(data)
        if self._body_bytes > http.BODY_BYTES_MAX:
            self._stop_parser(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if self._connections.body_bytes > http.ALL_BODIES_BYTES_MAX:
            self._stop_parser(HTTPStatus.SERVICE_UNAVAILABLE)
        self._body.write(data)

    def on_message_complete(self) -> None:
        """Answer the request, after those before it."""
        self._in_request = False
        request = self._request
        request.body = self._body.getvalue()
        self._drop_body()
        if self._transport is None or self._transport.is_closing():
            return
        self._waiting_requests.append((request, self._parser.should_keep_alive()))
        if len(self._waiting_requests) > _PIPELINED_MAX:
            self._stop_parser(HTTPStatus.TOO_MANY_REQUESTS)
        elif self._task is None:
            self._answer_waiting()

    def _drop_body(self) -> None:
        self._connections.body_bytes -= self._body_bytes
        self._body_bytes = 0
        self._body = BytesIO()

    def _stop_parser(self, status: HTTPStatus) -> None:
        """Make the parser fail; `data_received` refuses the request with this status."""
        self._refusal = status
        raise ValueError(status.phrase)

    # -- answering ------------------------------------------------------------------------------------------

    def _answer_waiting(self) -> None:
        """Answer the waiting requests in order; from the first answer that takes time, a task goes on."""
        while self._waiting_requests and self._transport is not None:
            request, keep_alive = self._waiting_requests.popleft()
            response = answer_of(self._application, request)
            self.since_s = self._loop.time()
            if isinstance(response, Response) and self._send_at_once(response, keep_alive):
                continue
            self._task = self._loop.create_task(self._finish(request, response, keep_alive))
            return

    async def _finish(
        self, request: Request, response: Response | asyncio.Task[Response], keep_alive: bool
    ) -> None:
        """Send an answer that takes time, then go on with the next request."""
        try:
            if request.may_wait and not isinstance(response, Response):
                self._reads_during_answer = True
                response = await response
                self._reads_during_answer = False
            if self._transport is not None:
                self._transport.pause_reading()
            await self._send(response if isinstance(response, Response) else await response, keep_alive)
        except asyncio.CancelledError:
            # the connection is gone: no client waits for the answer
            return
        except TimeoutError:
            log.info("%s %s: the client did not read its answer", request.method, request.target)
            self.close()
            return
        except BreakOff as ending:
            if ending.in_order and self._transport is not None:
                self._transport.close()
            else:
                self.close()
            return
        except Exception:
            log.exception("%s %s failed in the middle of its answer", request.method, request.target)
            self.close()
            return
        finally:
            self._task = None
            self._reads_during_answer = False
            self.since_s = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._answer_waiting()

    def _send_at_once(self, response: Response, keep_alive: bool) -> bool:
        """Send an answer without a task; False if it is large, streamed or to be broken off: then nothing was sent."""
        if response.drop or response.cut_at is not None or response.stream is not None:
            return False
        if len(response.body) > http.SEND_PIECE_BYTES:
            return False
        if self._transport is None or not self._writable.is_set():
            return False
        body = b"" if response.is_head else response.body
        self._transport.write(_head(response, keep_alive) + body)
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
        self._send_timeout_s = response.send_timeout_s
        await self._until_writable()
        transport.write(_head(response, keep_alive))
        stream = response.sent_stream
        if stream is not None:
            # such an answer may last: only a connection that is read shows that its client is gone
            self._reads_during_answer = True
            transport.resume_reading()
        if stream is None:
            await self._write(transport, response.sent_body)
        else:
            await self._write_chunk(transport, response.sent_body)
            async with aclosing(stream):
                async for piece in stream:
                    await self._write_chunk(transport, memoryview(piece))
                    # a source that never waits must not keep the others waiting, nor miss that its client is gone
                    await asyncio.sleep(0)
            transport.write(b"0\r\n\r\n")
        if response.cut_at is not None or not keep_alive:
            transport.close()

    async def _write_chunk(self, transport: asyncio.Transport, piece: memoryview) -> None:
        # an empty chunk would end the body; a connection that was lost takes nothing
        if piece and not transport.is_closing():
            await self._until_writable()
            transport.write(b"%x\r\n" % len(piece))
            await self._write(transport, piece)
            transport.write(b"\r\n")

    async def _write(self, transport: asyncio.Transport, body: memoryview) -> None:
        for begin in range(0, len(body), http.SEND_PIECE_BYTES):
            await self._until_writable()
            if transport.is_closing():
                return  # lost in between: asyncio would warn of each further write
            transport.write(body[begin : begin + http.SEND_PIECE_BYTES])

    async def _until_writable(self) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await self._writable.wait()

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer a request that cannot be read, and close.

        The client's further bytes are read and dropped for a moment: closing at once would reset the
        connection, and the client might lose the answer.
        """
        if self._is_refused or self._transport is None or self._transport.is_closing():
            return
        self._is_refused = True
        self._waiting_requests.clear()
        if self._task is not None:
            self._task.cancel()
        self._drop_body()
        self._transport.resume_reading()
        self._transport.write(_head(Response(status), keep_alive=False))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self.close)


def _head(response: Response, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_phrase(response.status)}"]
    lines.extend(f"{name}: {value}" for name, value in response.headers)
    if response.stream is None:
        lines.append(f"Content-Length: {len(response.body)}")
    else:
        lines.append("Transfer-Encoding: chunked")
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Scripted"
