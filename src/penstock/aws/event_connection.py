"""A connection of HTTP/2 that receives event streams: h2 keeps the protocol's state, asyncio the bytes.

Received bytes reopen the connection's flow-control window at once, but a stream's window only when its events are taken: a reader
that takes nothing stops its own stream and no other. A requested event may be larger than the stream's window, so the window is
reopened for the received part of that event too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from msgspec import Struct

from penstock.aws.event_stream import BrokenFrameError, Frame, FrameBuffer, decode_event
from penstock.aws.kinesis import moment_ms
from penstock.aws.request_signing import header_text
from penstock.ports.fan_out import FanOutEnded, FanOutEvent, FanOutOpened, FanOutPage

log = logging.getLogger("penstock.aws")

STREAM_WINDOW_BYTES: Final = 512 * 1024
_CONNECTION_WINDOW_BYTES: Final = 16 * 1024 * 1024
_FIRST_WINDOW_BYTES: Final = 65_535  # a connection's first window: RFC 9113, 6.9.2
_FRAME_BYTES_MAX: Final = 256 * 1024
_HTTP1: Final = b"HTTP/1."
_STATUS_BYTES_MAX: Final = 100
_ERROR_BYTES_MAX: Final = 64 * 1024
PING_INTERVAL_S: Final = 20.0
_CLOSED_AFTER_IDLE_S: Final = 10.0
_SETTINGS: Final = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
    SettingCodes.MAX_FRAME_SIZE: _FRAME_BYTES_MAX,
    SettingCodes.MAX_HEADER_LIST_SIZE: _ERROR_BYTES_MAX,
}


class Refusal(Struct, frozen=True):
    """An answer that is not an event stream, or an exception in one.

    Args:
        status: The HTTP status; 400 for an exception in the event stream, 500 for an error in it.
        code: The service's, or an empty text.
    """

    status: int
    code: str
    message: str


class ConnectionLost(Struct, frozen=True):
    """The connection or its stream is gone."""

    reason: str


StreamOutcome = FanOutEvent | Refusal | ConnectionLost


class SignedRequest(Struct, frozen=True):
    """A POST that is ready to be sent."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Receiver:
    """One request and the events of its answer. Used only on the thread of the connection's loop.

    Args:
        request: The request to send.
        report: Called with each outcome, up to the one that ends the request.
    """

    def __init__(self, request: SignedRequest, report: Callable[[StreamOutcome], None]) -> None:
        self.request = request
        self.frames = FrameBuffer()
        self.number: int | None = None  # of its HTTP/2 stream, once the request is sent
        self.connection: EventConnection | None = None
        self.is_over = False  # the last outcome is reported
        self.status = 0  # of the answer; 0 before it
        self.unreturned_bytes = 0  # received, and not yet part of the stream's window again
        self.ahead_ms: int | None = None  # the service's clock minus the loop's
        self._report = report
        self._is_requested = False  # an event is requested and not reported
        self._has_ended = False  # the answer has ended; events of it may be left

    def request_event(self) -> None:
        """Report the next event, as soon as it is received."""
        self._is_requested = True
        self.report_ready_outcomes()

    def report(self, outcome: StreamOutcome) -> None:
        """Report an outcome; any but `FanOutOpened` and `FanOutPage` is the last one."""
        if self.is_over:
            return
        if not isinstance(outcome, FanOutOpened | FanOutPage):
            self.is_over = True
        self._report(outcome)

    def on_answer(self, status: int) -> None:
        """Handle the beginning of the answer."""
        self.status = status
        if status == 200:
            self.report(FanOutOpened())

    def on_end(self) -> None:
        """Handle the end of the answer."""
        self._has_ended = True
        self.report_ready_outcomes()

    def report_ready_outcomes(self) -> None:
        """Report the outcomes that are ready: a refusal once it is complete, requested events, then the end."""
        if self.is_over:
            return
        if self.status != 200:
            if self._has_ended:
                self.report(_refusal_of(self.status, self.frames.drain()))
            return
        try:
            while self._is_requested and not self.is_over:
                frame = self.frames.take()
                if frame is None:
                    break
                self._on_frame(frame)
        except BrokenFrameError as error:
            self._fail(ConnectionLost(str(error)))
            return
        if self._has_ended:
            self._report_end()
        self._return_window()

    def _report_end(self) -> None:
        """Report the end, unless events are left that were not requested yet."""
        left_bytes = len(self.frames)
        if not left_bytes:
            self.report(FanOutEnded())
        elif self._is_requested:  # no whole event is left
            self.report(ConnectionLost(f"it ended inside a frame, {left_bytes} bytes into it"))

    def _on_frame(self, frame: Frame) -> None:
        headers = frame.headers
        match headers.get(":message-type"):
            case "event":
                if headers.get(":event-type") == "SubscribeToShardEvent":
                    self._is_requested = False
                    self._on_event(frame)
            case "exception":
                message = _document(frame.payload).get("message", "")
                self._fail(Refusal(400, headers.get(":exception-type", ""), str(message)))
            case "error":
                code, message = headers.get(":error-code", ""), headers.get(":error-message", "")
                self._fail(Refusal(500, code, message))
            case other:
                raise BrokenFrameError(f"a frame of an unknown kind, {other!r}")

    def _on_event(self, frame: Frame) -> None:
        assert self.connection is not None, "an event arrived without a connection"
        age_s = self.connection.loop.time() - frame.received_s
        age_ms = int(age_s * 1000) if age_s >= 1 else 0
        self.report(
            FanOutPage(decode_event(frame.payload, age_ms=age_ms, server_ms=self.connection.server_ms(self)))
        )

    def _fail(self, outcome: StreamOutcome) -> None:
        self.report(outcome)
        if self.connection is not None:
            self.connection.drop(self)

    def _return_window(self) -> None:
        """Reopen the stream's window for the bytes that were taken, or that belong to a requested event."""
        kept_bytes = 0 if self._is_requested else len(self.frames)
        freed_bytes = self.unreturned_bytes - kept_bytes
        # A requested event cannot become complete without room, so it does not wait until there is much to return.
        returned_min = 1 if self._is_requested else STREAM_WINDOW_BYTES // 8
        if self.connection is not None and freed_bytes >= returned_min:
            self.unreturned_bytes -= freed_bytes
            self.connection.return_window(self, freed_bytes)


class EventConnection(asyncio.Protocol):
    """One HTTP/2 connection, with the event streams of several requests.

    Args:
        loop: The loop that it runs on.
        authority: Host, and port if it is not the scheme's own.
        scheme: http or https.
        on_closed: Called when the connection stops taking new streams.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        authority: str,
        scheme: str,
        on_closed: Callable[[EventConnection], None],
    ) -> None:
        self.loop = loop
        self._authority = authority
        self._scheme = scheme
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(client=True, initial_values=dict(_SETTINGS))
        self._h2.max_inbound_frame_size = _FRAME_BYTES_MAX
        self._receivers: dict[int, Receiver] = {}
        self._unreturned_bytes = 0
        self._received_s = 0.0
        self._pinged_s: float | None = None
        self._idle_since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_open = False
        self.lost_reason: str | None = None
        """Why the connection takes no new streams; None while it does."""
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the service's settings are known; fails with an OSError if the connection ends before that."""

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the settings."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - _FIRST_WINDOW_BYTES)
        self.is_open = True
        self._received_s = self._idle_since_s = self.loop.time()
        self._flush()
        self._timer = self.loop.call_later(PING_INTERVAL_S / 4, self._keep_alive)

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes."""
        now_s = self._received_s = self.loop.time()
        if not self.ready.done() and data.startswith(_HTTP1):  # h2 would wait for the rest of a frame
            status = data.split(b"\r\n", 1)[0][:_STATUS_BYTES_MAX].decode("latin-1")
            remedy = "keep a proxy that opens TLS out of the way with NO_PROXY, or read by polling"
            self._close(f"it does not speak HTTP/2, but answers {status}; {remedy}")
            return
        fed_receivers: dict[int, Receiver] = {}
        try:
            for event in self._h2.receive_data(data):
                self._on_event(event, now_s, fed_receivers)
        except ProtocolError as error:
            self._flush()
            self._close(f"the service broke the protocol: {error}")
        if not self.is_open:
            return
        for receiver in fed_receivers.values():
            receiver.report_ready_outcomes()
        if self._unreturned_bytes >= _CONNECTION_WINDOW_BYTES // 4:
            self._h2.increment_flow_control_window(self._unreturned_bytes)
            self._unreturned_bytes = 0
        self._flush()

    def _on_event(self, event: Event, now_s: float, fed_receivers: dict[int, Receiver]) -> None:
        match event:
            case DataReceived():
                self._on_data(event, now_s, fed_receivers)
            case ResponseReceived():
                self._on_response(event, now_s)
            case StreamEnded() | StreamReset():
                receiver = self._receivers.pop(event.stream_id or 0, None)
                if receiver is not None and isinstance(event, StreamReset):
                    receiver.report(ConnectionLost(f"the service reset the stream ({event.error_code!s})"))
                elif receiver is not None:
                    receiver.on_end()
            case ConnectionTerminated():
                self._close(f"the service closed the connection (GOAWAY, {event.error_code!s})")
            case PingAckReceived():
                self._pinged_s = None
            case RemoteSettingsChanged():
                if not self.ready.done():
                    self.ready.set_result(None)

    def _on_data(self, event: DataReceived, now_s: float, fed_receivers: dict[int, Receiver]) -> None:
        """Add received bytes to their receiver, and this receiver to `fed_receivers`."""
        self._unreturned_bytes += event.flow_controlled_length or 0
        number = event.stream_id or 0
        receiver = self._receivers.get(number)
        if receiver is None:
            return  # its stream was closed from here
        if receiver.status != 200 and len(receiver.frames) > _ERROR_BYTES_MAX:
            receiver.report(ConnectionLost(f"an answer of status {receiver.status} is too long"))
            self.drop(receiver)
            return
        receiver.unreturned_bytes += event.flow_controlled_length or 0
        receiver.frames.add(event.data or b"", now_s)
        fed_receivers[number] = receiver

    def _on_response(self, event: ResponseReceived, now_s: float) -> None:
        receiver = self._receivers.get(event.stream_id or 0)
        if receiver is None:
            return
        headers = {header_text(name): header_text(value) for name, value in event.headers or ()}
        server_ms = moment_ms(headers.get("date"))
        receiver.ahead_ms = None if server_ms is None else server_ms - int(now_s * 1000)
        receiver.on_answer(int(headers.get(":status", "0")))

    def eof_received(self) -> None:
        """Close."""

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all streams."""
        self._close("the connection was lost" + (f": {error!r}" if error else ""))

    # --- the pool's calls ---

    @property
    def stream_count(self) -> int:
        """Streams that are open."""
        return len(self._receivers)

    @property
    def streams_max(self) -> int:
        """Streams that the service takes on one connection."""
        return int(self._h2.remote_settings.max_concurrent_streams)

    def send(self, receiver: Receiver) -> None:
        """Send a receiver's request; the receiver gets the answer."""
        self._idle_since_s = None
        head = [
            (":method", "POST"),
            (":scheme", self._scheme),
            (":authority", self._authority),
            (":path", receiver.request.path),
            *receiver.request.headers,
        ]
        try:
            number = self._h2.get_next_available_stream_id()
            receiver.number, receiver.connection = number, self
            self._receivers[number] = receiver
            self._h2.send_headers(number, head)
            self._h2.send_data(number, receiver.request.body, end_stream=True)
        except ProtocolError as error:  # its stream numbers are used up, for example
            reason = f"the connection takes no request: {error}"
            self._close(reason)
            receiver.report(ConnectionLost(reason))
            return
        self._flush()

    def drop(self, receiver: Receiver) -> None:
        """Reset the stream of a receiver, and report nothing more to it."""
        receiver.is_over = True
        number = receiver.number
        if number is None or self._receivers.pop(number, None) is None or not self.is_open:
            return
        self._h2.reset_stream(number, ErrorCodes.CANCEL)
        self._flush()

    def return_window(self, receiver: Receiver, freed_bytes: int) -> None:
        """Open a stream's window by this many bytes."""
        if self.is_open and receiver.number in self._receivers:
            self._h2.increment_flow_control_window(freed_bytes, receiver.number)
            self._flush()

    def server_ms(self, receiver: Receiver) -> int | None:
        """Return the service's current time, from the date in the answer's head; None if it has no date."""
        return None if receiver.ahead_ms is None else int(self.loop.time() * 1000) + receiver.ahead_ms

    def close(self) -> None:
        """Close the connection in an orderly way."""
        self._close("the connection was closed here")

    # --- inside ---

    def _keep_alive(self) -> None:
        """Ping a silent service. Close the connection if no ping is answered, or if it has had no streams for a while."""
        now_s = self.loop.time()
        if not self.is_open:
            return
        if self._pinged_s is not None and now_s - max(self._pinged_s, self._received_s) >= PING_INTERVAL_S:
            self._close(f"nothing came for {PING_INTERVAL_S:g} s, and no answer to a ping")
            return
        if self._receivers:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= _CLOSED_AFTER_IDLE_S:
            self._close("the connection is not needed any more")
            return
        if self._pinged_s is None and now_s - self._received_s >= PING_INTERVAL_S:
            self._pinged_s = now_s
            self._h2.ping(b"penstock")
            self._flush()
        self._timer = self.loop.call_later(PING_INTERVAL_S / 4, self._keep_alive)

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self, reason: str) -> None:
        """Take no more streams, fail those that are open, and close the transport."""
        if self._timer is not None:
            self._timer.cancel()
        was_open, self.is_open = self.is_open, False
        if was_open:
            self.lost_reason = reason
            self._on_closed(self)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        receivers, self._receivers = list(self._receivers.values()), {}
        for receiver in receivers:
            receiver.report(ConnectionLost(reason))
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()


def _refusal_of(status: int, body: bytes) -> Refusal:
    document = _document(body)
    code = str(document.get("__type", "")).rpartition("#")[2]
    return Refusal(status, code, str(document.get("message") or document.get("Message") or ""))


def _document(body: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}
