"""One request and its answer over a connection of botocore's pool, without what urllib3 and `http.client` do beside it.

Connections are opened, verified, kept and dropped by urllib3's pool, as for all calls of the client; sending a request that is
ready and reading an answer of known length needs little else. It costs a fifth of the CPU time.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from typing import Any, Final, NamedTuple

import botocore.exceptions as sdk
import urllib3.exceptions as pool_errors

_HEAD_BYTES_MAX: Final = 65_536
_READ_BYTES: Final = 65_536
_IDLE_S_MAX: Final = 50.0
"""A connection that was idle for longer is opened anew. Firewalls and load balancers forget one without a word, often after 60 s: the
next request over it would wait for its whole read timeout, and nobody could tell whether it was applied."""
_ANSWER_TIMEOUTS: Final = 4
"""A whole answer may take so many times as long as may pass without a byte: else one that drips would never end."""
_KEPT_UNTIL: Final = "penstock_kept_until_s"
"""An attribute of the pool's connections. One that botocore alone has used has none."""
_FOR_EVER_S: Final = float("inf")
_NO_CONTENT: Final = (204, 304)
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
_END_OF_LINE: Final = re.compile(rb"\r?\n")
"""A sender may leave out the CR. Source: RFC 9112, section 2.2."""


class Answer(NamedTuple):
    """What came back.

    Args:
        status: As a number.
        headers: By their names in lower case.
        body: All of it.
    """

    status: int
    headers: dict[str, str]
    body: bytes


class PooledExchange:
    """Exchanges requests and answers with one address; safe to use from several threads.

    Args:
        session: botocore's session of HTTP of a client.
        url: The address.

    Raises:
        AttributeError: This botocore or urllib3 shows no connections, or a proxy is between: its session has to send.
    """

    def __init__(self, session: Any, url: str) -> None:
        if session._proxy_config.proxy_url_for(url):  # noqa: SLF001 - docs/internals-used.md
            raise AttributeError("a proxy is between")
        self._url = url
        self._pool = session._manager.connection_from_url(url)  # noqa: SLF001 - docs/internals-used.md
        session._setup_ssl_cert(self._pool, url, session._verify)  # noqa: SLF001 - docs/internals-used.md
        self._timeout = self._pool.timeout
        self._take = self._pool._get_conn  # noqa: SLF001 - docs/internals-used.md
        self._give_back = self._pool._put_conn  # noqa: SLF001 - docs/internals-used.md

    def exchange(self, request: bytes) -> Answer:
        """Send a request and return its answer.

        Args:
            request: Head and body, as they go over the wire.

        Raises:
            EndpointConnectionError, ConnectTimeoutError, SSLError: Nothing was sent.
            ReadTimeoutError, ConnectionClosedError: It was sent, perhaps not all of it, and no whole answer came.
        """
        connection = self._take()
        is_usable = False
        try:
            if time.monotonic() > getattr(connection, _KEPT_UNTIL, _FOR_EVER_S):
                connection.close()
            if connection.sock is None:
                self._open(connection)
            answer, is_usable = self._ask(connection.sock, request)
        finally:
            if not is_usable:
                connection.close()  # the pool opens it again
            setattr(connection, _KEPT_UNTIL, time.monotonic() + _IDLE_S_MAX)
            self._give_back(connection)
        return answer

    def _ask(self, connection: socket.socket, request: bytes) -> tuple[Answer, bool]:
        try:
            connection.settimeout(self._timeout.read_timeout)
            is_sent = _send(connection, request)
            answer, is_usable = _read_answer(connection, _ANSWER_TIMEOUTS * self._timeout.read_timeout)
        except TimeoutError as error:
            raise sdk.ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except (OSError, ValueError) as error:
            raise sdk.ConnectionClosedError(endpoint_url=self._url, error=error) from error
        return answer, is_usable and is_sent

    def _open(self, connection: Any) -> None:
        connection.timeout = self._timeout.connect_timeout
        try:
            connection.connect()
        except (pool_errors.SSLError, ssl.SSLError, ValueError) as error:  # a name that does not match
            raise sdk.SSLError(endpoint_url=self._url, error=error) from error
        except pool_errors.NewConnectionError as error:  # in urllib3 a kind of timeout
            raise sdk.EndpointConnectionError(endpoint_url=self._url, error=error) from error
        except (pool_errors.ConnectTimeoutError, TimeoutError) as error:
            raise sdk.ConnectTimeoutError(endpoint_url=self._url, error=error) from error
        except (pool_errors.HTTPError, OSError) as error:
            raise sdk.EndpointConnectionError(endpoint_url=self._url, error=error) from error


def _send(connection: socket.socket, request: bytes) -> bool:
    """Send a request; return False where nobody reads on: a server that refuses a large one may have answered already."""
    try:
        connection.sendall(request)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


class _Reader:
    """Reads from a socket what belongs to one answer.

    Args:
        connection: With its timeout, which holds for each wait.
        time_s: For the whole answer.

    Raises:
        TimeoutError: The answer was not whole in time.
    """

    def __init__(self, connection: socket.socket, time_s: float) -> None:
        self._connection = connection
        self._time_s = time_s
        self._deadline_s = time.monotonic() + time_s
        self._left = b""  # received and not taken yet

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._deadline_s:
            raise TimeoutError(f"the answer was not whole after {self._time_s:g} s")

    def _receive(self) -> bytes:
        self._look_at_clock()
        got = self._connection.recv(_READ_BYTES)
        if not got:
            raise ConnectionError("the connection was closed within the answer")
        return got

    def until(self, end: re.Pattern[bytes]) -> bytes:
        """Return what comes before an end, and take the end too."""
        got = self._left
        while (found := end.search(got)) is None:
            if len(got) > _HEAD_BYTES_MAX:
                raise ValueError(f"no end of the answer's head within {_HEAD_BYTES_MAX} bytes")
            got += self._receive()
        self._left = got[found.end() :]
        return got[: found.start()]

    def exactly(self, count: int) -> bytes:
        """Return so many bytes."""
        got = self._left
        if len(got) >= count:
            self._left = got[count:]
            return got[:count]
        body = bytearray(count)
        body[: len(got)] = got
        view, at = memoryview(body), len(got)
        while at < count:
            self._look_at_clock()
            size = self._connection.recv_into(view[at:])
            if not size:
                raise ConnectionError(f"the answer was cut off: {at} of {count} bytes came")
            at += size
        self._left = b""
        return bytes(body)

    def rest(self) -> bytes:
        """Return what comes until the connection is closed."""
        parts = [self._left]
        while got := self._connection.recv(_READ_BYTES):
            parts.append(got)
            self._look_at_clock()
        return b"".join(parts)

    @property
    def is_clean(self) -> bool:
        """Whether nothing has come behind the answer."""
        # What TLS has decrypted already is not seen by whoever asks the pool whether the connection is still quiet.
        return not self._left and not (
            isinstance(self._connection, ssl.SSLSocket) and self._connection.pending()
        )


def _read_answer(connection: socket.socket, time_s: float) -> tuple[Answer, bool]:
    """Read an answer within a time; return whether the connection can be used again."""
    reader = _Reader(connection, time_s)
    status = 100
    while 100 <= status < 200:  # an interim answer has another one behind it
        head = reader.until(_END_OF_HEAD).decode("latin-1").replace("\r\n", "\n")
        first, _, lines = (
            head.replace("\n ", " ").replace("\n\t", " ").partition("\n")
        )  # a value may be folded
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
