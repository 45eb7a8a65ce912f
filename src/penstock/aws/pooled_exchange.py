"""Sends finished requests over connections that stay open, and reads their answers.

urllib3 opens and verifies the connections. Sending ready bytes and reading one answer without it takes a fifth of the CPU time.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from weakref import finalize

import botocore.exceptions as sdk
import urllib3.exceptions as pool_errors
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import wait_for_read

_Idle = tuple[HTTPConnection, float]
"""An idle connection, and the end of the time in which it may be used again (monotonic seconds)."""

_HEAD_BYTES_MAX: Final = 65_536
_READ_BYTES: Final = 65_536
_IDLE_S_MAX: Final = 50.0
"""A connection that was idle for longer is replaced. Firewalls and load balancers drop idle ones silently, often after 60 s: the
next request over it would wait for its whole read timeout, and its outcome would be unknown."""
_ANSWER_TIMEOUTS: Final = 4
"""A whole answer may take this many read timeouts: each byte restarts the timeout, so a slow answer might never end."""
_NO_CONTENT: Final = (204, 304)
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
_END_OF_LINE: Final = re.compile(rb"\r?\n")
"""A sender may leave out the CR. Source: RFC 9112, section 2.2."""


class Answer(NamedTuple):
    """The answer to a request.

    Args:
        headers: By their names in lower case.
    """

    status: int
    headers: dict[str, str]
    body: bytes


class PooledExchange:
    """Exchanges requests and answers with one address; safe to use from several threads.

    Args:
        connect_timeout_s: Time for a connection to open.
        read_timeout_s: Longest wait for the next byte of the answer.
        idle_max: Open connections that are kept for later requests.
        tls: Which certificates are trusted; for `https` only.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = 60.0,
        read_timeout_s: float = 60.0,
        idle_max: int = 10,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._url = url
        self._read_timeout_s = read_timeout_s
        self._idle_max = idle_max
        self._idle: deque[_Idle] = deque()  # the one used last is used next
        finalize(self, _close_all, self._idle)
        self._new_connection: Callable[[], HTTPConnection] = partial(
            HTTPConnection, parts.hostname or "", parts.port, timeout=connect_timeout_s
        )
        if parts.scheme == "https":
            self._new_connection = partial(
                HTTPSConnection,
                parts.hostname or "",
                parts.port,
                timeout=connect_timeout_s,
                ssl_context=tls,
                cert_reqs="CERT_REQUIRED",
            )

    def exchange(self, request: bytes) -> Answer:
        """Send a request and return its answer.

        Args:
            request: Head and body, as they go over the wire.

        Raises:
            EndpointConnectionError, ConnectTimeoutError, SSLError: Nothing was sent.
            ReadTimeoutError, ConnectionClosedError: It was sent, perhaps not all of it, and there was no whole answer.
        """
        connection = self._take_idle() or self._open()
        is_usable = False
        try:
            answer, is_usable = self._send_and_read(connection.sock, request)
        finally:
            if is_usable:
                self._keep(connection)
            else:
                connection.close()
        return answer

    def _take_idle(self) -> HTTPConnection | None:
        """Return an open connection that its server has not closed and no firewall can have forgotten; None without one."""
        while True:
            try:
                connection, until_s = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() <= until_s and not wait_for_read(connection.sock, timeout=0.0):
                return connection
            connection.close()

    def _keep(self, connection: HTTPConnection) -> None:
        if len(self._idle) >= self._idle_max:
            connection.close()
        else:
            self._idle.append((connection, time.monotonic() + _IDLE_S_MAX))

    def _send_and_read(self, connection: socket.socket, request: bytes) -> tuple[Answer, bool]:
        """Return the answer, and whether the connection can be used again."""
        try:
            connection.settimeout(self._read_timeout_s)
            is_sent = _send(connection, request)
            answer, is_usable = _read_answer(connection, _ANSWER_TIMEOUTS * self._read_timeout_s)
        except TimeoutError as error:
            raise sdk.ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except (OSError, ValueError) as error:
            raise sdk.ConnectionClosedError(endpoint_url=self._url, error=error) from error
        return answer, is_usable and is_sent

    def _open(self) -> HTTPConnection:
        """Open a connection; raise botocore's error if that fails."""
        connection = self._new_connection()
        try:
            connection.connect()
        except BaseException as error:
            connection.close()
            sdk_error = _error_of(error, self._url)
            if sdk_error is None:
                raise
            raise sdk_error from error
        return connection


def _error_of(error: BaseException, url: str) -> sdk.BotoCoreError | None:
    """Return botocore's error for an exception that was raised when a connection was opened; None if botocore has none for it."""
    if isinstance(error, pool_errors.SSLError | ssl.SSLError | ValueError):  # a certificate of another host
        return sdk.SSLError(endpoint_url=url, error=error)
    if isinstance(error, pool_errors.NewConnectionError):  # urllib3 derives it from a timeout
        return sdk.EndpointConnectionError(endpoint_url=url, error=error)
    if isinstance(error, pool_errors.ConnectTimeoutError | TimeoutError):
        return sdk.ConnectTimeoutError(endpoint_url=url, error=error)
    if isinstance(error, pool_errors.HTTPError | OSError):
        return sdk.EndpointConnectionError(endpoint_url=url, error=error)
    return None


def _close_all(idle: deque[_Idle]) -> None:
    while idle:
        idle.pop()[0].close()


def _send(connection: socket.socket, request: bytes) -> bool:
    """Send a request; return False if the server stopped reading. The server may have answered before, for instance to refuse a large request."""
    try:
        connection.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


class _Reader:
    """Reads one answer from a socket.

    Args:
        connection: With its timeout, which holds for each wait.
        time_s: Time for the whole answer.

    Raises:
        TimeoutError: The answer was not whole in time.
    """

    def __init__(self, connection: socket.socket, time_s: float) -> None:
        self._connection = connection
        self._time_s = time_s
        self._deadline_s = time.monotonic() + time_s
        self._left = b""  # received and not taken yet

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline_s:
            raise TimeoutError(f"the answer was not whole after {self._time_s:g} s")

    def _receive(self) -> bytes:
        self._check_time()
        got = self._connection.recv(_READ_BYTES)
        if not got:
            raise ConnectionError("the connection was closed within the answer")
        return got

    def until(self, end: re.Pattern[bytes]) -> bytes:
        """Return the bytes up to a separator, and consume the separator too."""
        got = self._left
        while (found := end.search(got)) is None:
            if len(got) > _HEAD_BYTES_MAX:
                raise ValueError(f"no end of the answer's head within {_HEAD_BYTES_MAX} bytes")
            got += self._receive()
        self._left = got[found.end() :]
        return got[: found.start()]

    def exactly(self, count: int) -> bytes:
        """Return this many bytes."""
        got = self._left
        if len(got) >= count:
            self._left = got[count:]
            return got[:count]
        # The answer is received into its own bytes object: a page has up to 14 MB, and a copy would double its memory.
        body, at = io.BytesIO(bytes(count)), len(got)
        with body.getbuffer() as view:
            view[:at] = got
            while at < count:
                self._check_time()
                with view[at:] as rest:
                    size = self._connection.recv_into(rest)
                if not size:
                    raise ConnectionError(f"the answer was cut off: {at} of {count} bytes arrived")
                at += size
        self._left = b""
        return body.getvalue()

    def rest(self) -> bytes:
        """Return all bytes until the connection is closed."""
        parts = [self._left]
        while got := self._connection.recv(_READ_BYTES):
            parts.append(got)
            self._check_time()
        return b"".join(parts)

    @property
    def is_clean(self) -> bool:
        """Whether no bytes follow the answer."""
        # The pool's check for a quiet connection does not see bytes that TLS has decrypted already.
        return not self._left and not (
            isinstance(self._connection, ssl.SSLSocket) and self._connection.pending()
        )


def _read_answer(connection: socket.socket, time_s: float) -> tuple[Answer, bool]:
    """Read an answer within `time_s`; the second value is True if the connection can be used again."""
    reader = _Reader(connection, time_s)
    status = 100
    while 100 <= status < 200:  # another answer follows an interim one
        head = reader.until(_END_OF_HEAD).decode("latin-1").replace("\r\n", "\n")
        # The value of a header may be folded.
        first, _, lines = head.replace("\n ", " ").replace("\n\t", " ").partition("\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"no answer of HTTP/1.1: {first[:80]!r}")
        status = int(rest[:3])
    headers: dict[str, str] = {}
    for line in lines.split("\n"):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    is_kept = version != "HTTP/1.0" and "close" not in headers.get("connection", "").lower()
    if status in _NO_CONTENT:
        body = b""
    elif "chunked" in headers.get("transfer-encoding", "").lower():
        body = _read_chunks(reader)
    elif "content-length" in headers:
        body = reader.exactly(_length(headers["content-length"], 10))
    else:
        body, is_kept = reader.rest(), False
    return Answer(status, headers, body), is_kept and reader.is_clean


def _length(text: str | bytes, base: int) -> int:
    length = int(text, base)
    if length < 0:
        raise ValueError(f"an answer of {length} bytes")
    return length


def _read_chunks(reader: _Reader) -> bytes:
    parts = []
    while size := _length(reader.until(_END_OF_LINE).partition(b";")[0], 16):
        parts.append(reader.exactly(size))
        reader.until(_END_OF_LINE)
    while reader.until(_END_OF_LINE):
        pass  # a trailer
    return b"".join(parts)
