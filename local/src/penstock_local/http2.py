"""HTTP/2 over asyncio: h2 keeps the protocol's state, this module the requests and the answers under way.

Requests of one connection are answered beside each other. Windows are reopened when data is received, since other limits
bound the bodies; an answer is sent as the client's windows and the transport take it, a piece of each answer
in turn. A client's protocol error ends its connection, with a GOAWAY that names the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from io import BytesIO

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from penstock_local import http
from penstock_local.goaway_filter import GoawayFilter
from penstock_local.http import Application, BreakOff, Connections, Request, Response, answer_of

log = logging.getLogger("penstock_local")

STREAMS_MAX = 1000
ANSWERS_BYTES_MAX = 32 * 1024 * 1024
RESETS_MAX = 2000
UNREAD_BYTES_MAX = 1024 * 1024
_STREAM_WINDOW_BYTES = 2 * 1024 * 1024
_CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
_FIRST_WINDOW_BYTES = 65_535  # a connection's first window: RFC 9113, 6.9.2
_SETTINGS = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
    SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
    SettingCodes.MAX_HEADER_LIST_SIZE: http.HEAD_BYTES_MAX,
}


class _Stream:
    """One request and its answer.

    Attributes:
        number: The stream's id.
        since_s: When the request began, or the last piece of its answer was sent.
        is_received: Whether the whole request is there.
        refusal: The status with which the request is refused; None if it is not.
        answer_bytes: Bytes of the answer's body that count for the connection.
        rest: The bytes that are not sent yet.
        is_last: Whether the answer ends after `rest`.
        is_cut: Whether the answer is broken off after `rest`.
        is_blocked: Whether `rest` waits for the client to open the stream's window.
        rest_sent: Set while `rest` is empty.
        send_timeout_s: For how long the client may take nothing of the answer.
    """

    __slots__ = (
        "answer_bytes",
        "body",
        "body_bytes",
        "is_blocked",
        "is_cut",
        "is_last",
        "is_received",
        "number",
        "refusal",
        "request",
        "rest",
        "rest_sent",
        "send_timeout_s",
        "since_s",
        "task",
    )

    def __init__(self, number: int, now_s: float) -> None:
        self.number = number
        self.request = Request()
        self.since_s = now_s
        self.body = BytesIO()
        self.body_bytes = self.answer_bytes = 0
        self.is_received = False
        self.refusal: HTTPStatus | None = None
        self.task: asyncio.Task[None] | None = None
        self.rest = memoryview(b"")
        self.is_last = self.is_cut = self.is_blocked = False
        self.rest_sent = asyncio.Event()
        self.send_timeout_s = http.SEND_TIMEOUT_S


class Http2Protocol(asyncio.Protocol):
    """One connection that speaks HTTP/2.

    Args:
        loop: The loop that the connection lives on.
        connections: The server's open connections, to which it adds itself.

    Attributes:
        is_new: Whether no request has begun on it yet.
        since_s: When the client last sent something or took a piece of an answer, by the loop's clock.
    """

    def __init__(
        self, application: Application, loop: asyncio.AbstractEventLoop, connections: Connections
    ) -> None:
        self._application = application
        self._loop = loop
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        # headers that we write are written as the protocol wants them
        settings = H2Configuration(
            client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._h2 = H2Connection(settings)
        self._h2.local_settings = Settings(client=False, initial_values=_SETTINGS)
        self._goaway = GoawayFilter()
        self._streams: dict[int, _Stream] = {}
        self._refused_streams: list[_Stream] = []
        self._received_streams: deque[_Stream] = deque()
        self._sending_streams: deque[_Stream] = deque()
        self._answers_bytes = 0
        self._reset_count = 0
        self._is_writable = True
        self.is_new = True
        self.since_s = loop.time()

    # -- asyncio.Protocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; send the settings."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=http.SEND_PIECE_BYTES)
        self._connections.add(self)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Forget the connection; answers that are being prepared are cancelled."""
        self._connections.remove(self)
        self._transport = None
        self._forget_all()

    def data_received(self, data: bytes) -> None:
        """Feed the protocol's state, and act on the events that it returns."""
        if self._transport is None or self._transport.is_closing():
            return
        self.since_s = self._loop.time()
        try:
            for event in self._h2.receive_data(self._goaway.remove_goaways(data)):
                match event:
                    case DataReceived():
                        self._take_data(event)
                    case WindowUpdated() | RemoteSettingsChanged():
                        self._requeue_unblocked(event)
                    case RequestReceived():
                        self._begin_request(event)
                    case StreamEnded():
                        self._complete_request(event.stream_id)
                    case StreamReset():
                        self._reset_count += 1
                        self._forget_number(event.stream_id)
        except ProtocolError as error:
            log.info("a client broke HTTP/2: %s", error)
            # h2 has prepared the GOAWAY
            self._end_connection()
            return
        self._go_on()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._go_on()

    def close(self) -> None:
        """Send GOAWAY and end the connection; answers under way are lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._h2.close_connection()
            self._end_connection()

    def _end_connection(self) -> None:
        assert self._transport is not None
        self._flush()
        self._transport.close()
        self._forget_all()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- deadlines ------------------------------------------------------------------------------------------

    @property
    def waits_for_client(self) -> bool:
        return not any(stream.is_received for stream in self._streams.values())

    def end_if_overdue(self, now_s: float) -> None:
        """End the requests, the answers or the connection whose client has exceeded its time."""
        if self._transport is None or self._transport.is_closing():
            # the client does not read the end of the connection either
            if now_s - self.since_s > http.SEND_TIMEOUT_S:
                self.abort()
            return
        if self._reset_count > RESETS_MAX:
            log.info("a client reset more than %d requests within a second", RESETS_MAX)
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self._end_connection()
            return
        self._reset_count = 0
        if not self._is_writable and now_s - self.since_s > http.SEND_TIMEOUT_S:
            self.abort()
            return
        for stream in list(self._streams.values()):
            waited_s = now_s - stream.since_s
            if stream.rest and waited_s > stream.send_timeout_s:
                log.info(
                    "%s %s: the client did not read its answer", stream.request.method, stream.request.target
                )
                self._reset_stream(stream, ErrorCodes.CANCEL)
            elif not stream.is_received and waited_s > http.REQUEST_TIMEOUT_S:
                self._refuse(stream, HTTPStatus.REQUEST_TIMEOUT)
        if not self._streams and now_s - self.since_s > (
            http.HEAD_TIMEOUT_S if self.is_new else http.IDLE_TIMEOUT_S
        ):
            self.close()
        self._go_on()

    # -- requests -------------------------------------------------------------------------------------------

    def _begin_request(self, event: RequestReceived) -> None:
        """Read the head of a new request; refuse one that is too large."""
        self.is_new = False
        assert event.stream_id is not None
        stream = _Stream(event.stream_id, self.since_s)
        self._streams[stream.number] = stream
        request = stream.request
        headers = event.headers or []
        for name, value in headers:
            request.header_bytes += len(name) + len(value)
            key, text = name.decode("latin-1"), value.decode("latin-1")
            if not key.startswith(":"):
                request.headers.setdefault(key, text)
            elif key == ":method":
                request.method = text
            elif key == ":path":
                request.target = text
            elif key == ":authority":
                request.headers["host"] = text
        announced = request.headers.get("content-length", "")
        if len(headers) > http.HEADERS_MAX or request.header_bytes > http.HEAD_BYTES_MAX:
            self._refuse(stream, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif len(request.target) > http.TARGET_BYTES_MAX:
            self._refuse(stream, HTTPStatus.REQUEST_URI_TOO_LONG)
        elif http.is_too_large(announced):
            self._refuse(stream, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _take_data(self, event: DataReceived) -> None:
        assert event.stream_id is not None
        assert event.flow_controlled_length is not None
        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.refusal is not None or not event.data:
            return
        stream.body_bytes += len(event.data)
        self._connections.body_bytes += len(event.data)
        stream.body.write(event.data)
        if stream.body_bytes > http.BODY_BYTES_MAX:
            self._refuse(stream, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif self._connections.body_bytes > http.ALL_BODIES_BYTES_MAX:
            self._refuse(stream, HTTPStatus.SERVICE_UNAVAILABLE)

    def _complete_request(self, number: int | None) -> None:
        stream = self._streams.get(number or 0)
        if stream is not None:
            stream.is_received = True
            if stream.refusal is None:
                self._received_streams.append(stream)

    def _refuse(self, stream: _Stream, status: HTTPStatus) -> None:
        """Refuse a request once all frames received with it are read: one of them may have reset it."""
        stream.refusal = status
        self._drop_body(stream)
        self._refused_streams.append(stream)

    def _answer_refused(self, stream: _Stream, status: HTTPStatus) -> None:
        """Answer a request that is not read to its end, and stop reading it."""
        headers = [(":status", str(status.value)), ("content-length", "0")]
        self._h2.send_headers(stream.number, headers, end_stream=True)
        if not stream.is_received:
            self._h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
        self._forget_stream(stream)

    # -- answers --------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Answer received requests as far as there is room, and send as much as the client takes."""
        refused_streams, self._refused_streams = self._refused_streams, []
        for stream in refused_streams:
            if stream.number in self._streams and stream.refusal is not None:
                self._answer_refused(stream, stream.refusal)
        self._send_pieces()
        while self._received_streams and self._answers_bytes < ANSWERS_BYTES_MAX:
            stream = self._received_streams.popleft()
            if stream.number in self._streams:
                self._answer(stream)
                self._send_pieces()
        self._flush()
        if self._goaway.has_goaway and not self._streams:
            self.close()

    def _answer(self, stream: _Stream) -> None:
        request = stream.request
        request.body = stream.body.getvalue()
        self._drop_body(stream)
        response = answer_of(self._application, request)
        if not isinstance(response, Response):
            stream.task = self._loop.create_task(self._answer_later(stream, response))
            return
        self._respond(stream, response)

    async def _answer_later(self, stream: _Stream, answer: asyncio.Task[Response]) -> None:
        response = await answer
        stream.task = None
        self._respond(stream, response)
        self._go_on()

    def _respond(self, stream: _Stream, response: Response) -> None:
        self._start_answer(stream, response)
        if stream.number in self._streams and response.sent_stream is not None:
            stream.task = self._loop.create_task(self._send_stream(stream, response.sent_stream))

    def _start_answer(self, stream: _Stream, response: Response) -> None:
        """Send the head of an answer, and queue the body that it has already."""
        if response.drop:
            self._reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
            return
        headers = [(":status", str(response.status))]
        headers.extend((name.lower(), value) for name, value in response.headers)
        if response.stream is None:
            headers.append(("content-length", str(len(response.body))))
        stream.rest = response.sent_body
        stream.send_timeout_s = response.send_timeout_s
        stream.is_last = response.sent_stream is None
        stream.is_cut = response.cut_at is not None
        stream.since_s = self._loop.time()
        is_over = stream.is_last and not stream.is_cut and not stream.rest
        self._h2.send_headers(stream.number, headers, end_stream=is_over)
        if stream.rest:
            stream.answer_bytes = len(response.body)
            self._answers_bytes += stream.answer_bytes
            self._sending_streams.append(stream)
        else:
            self._finish_rest(stream, is_over)

    async def _send_stream(self, stream: _Stream, source: AsyncGenerator[bytes, None]) -> None:
        """Send the pieces of an answer, each when the client has taken the one before."""
        try:
            async with aclosing(source) as pieces:
                await stream.rest_sent.wait()
                async for piece in pieces:
                    if piece:
                        stream.rest = memoryview(piece)
                        stream.since_s = self._loop.time()
                        stream.rest_sent.clear()
                        self._sending_streams.append(stream)
                        self._go_on()
                        await stream.rest_sent.wait()
                    # a source that never waits must not keep the others waiting, nor miss that its client is gone
                    await asyncio.sleep(0)
        except BreakOff as ending:
            stream.task = None
            if ending.in_order:
                self.close()
            else:
                self._reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
        except Exception:
            log.exception(
                "%s %s failed in the middle of its answer", stream.request.method, stream.request.target
            )
            stream.task = None
            self._reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
        else:
            stream.task = None
            self._h2.end_stream(stream.number)
            self._forget_stream(stream)
        self._go_on()

    def _send_pieces(self) -> None:
        """Send a piece of each answer in turn, as far as the client's windows and the transport take it."""
        h2 = self._h2
        while self._sending_streams and self._is_writable and h2.outbound_flow_control_window > 0:
            stream = self._sending_streams.popleft()
            if not stream.rest:
                continue
            room = h2.local_flow_control_window(stream.number)
            if room <= 0:
                stream.is_blocked = True
                continue
            piece = stream.rest[: min(room, http.SEND_PIECE_BYTES)]
            stream.rest = stream.rest[len(piece) :]
            stream.since_s = self.since_s = self._loop.time()
            is_over = stream.is_last and not stream.is_cut and not stream.rest
            frame_bytes = h2.max_outbound_frame_size
            for begin in range(0, len(piece), frame_bytes):
                part = piece[begin : begin + frame_bytes]
                h2.send_data(stream.number, part, is_over and begin + frame_bytes >= len(piece))
            if stream.rest:
                self._sending_streams.append(stream)
            else:
                self._finish_rest(stream, is_over)
            self._flush()

    def _finish_rest(self, stream: _Stream, is_over: bool) -> None:
        if is_over:
            self._forget_stream(stream)
        elif stream.is_cut:
            self._reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
        else:
            stream.rest_sent.set()

    def _requeue_unblocked(self, event: WindowUpdated | RemoteSettingsChanged) -> None:
        """Queue the answers whose own window may have opened."""
        if isinstance(event, RemoteSettingsChanged):
            streams = list(self._streams.values())
        else:
            streams = [self._streams[n] for n in (event.stream_id,) if n in self._streams]
        for stream in streams:
            if stream.is_blocked:
                stream.is_blocked = False
                self._sending_streams.append(stream)

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        prepared = self._h2.data_to_send()
        if prepared:
            self._transport.write(prepared)
            # bodies wait for the transport: so many bytes can only be answers to control frames, and the client reads nothing
            if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX + http.SEND_PIECE_BYTES:
                self.abort()

    # -- the end of a stream --------------------------------------------------------------------------------

    def _forget_number(self, number: int | None) -> None:
        stream = self._streams.get(number or 0)
        if stream is not None:
            self._forget_stream(stream)

    def _reset_stream(self, stream: _Stream, code: ErrorCodes) -> None:
        self._h2.reset_stream(stream.number, code)
        self._forget_stream(stream)

    def _forget_all(self) -> None:
        for stream in list(self._streams.values()):
            self._forget_stream(stream)

    def _forget_stream(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        self._drop_body(stream)
        self._answers_bytes -= stream.answer_bytes
        stream.answer_bytes = 0
        stream.rest = memoryview(b"")
        if stream.task is not None:
            stream.task.cancel()

    def _drop_body(self, stream: _Stream) -> None:
        self._connections.body_bytes -= stream.body_bytes
        stream.body_bytes = 0
        stream.body = BytesIO()
