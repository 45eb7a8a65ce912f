"""Requests and answers, and the open connections of a server; `http1.py` and `http2.py` speak the protocols.

Knows nothing of Kinesis. The application is a function from a request to a response, or to an awaitable
of one when the answer takes time. Whatever a client sends or leaves unsent is bounded: sizes by refusal,
time by `Connections.end_overdue`, which the server calls regularly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

log = logging.getLogger("penstock_local")

BODY_BYTES_MAX = 32 * 1024 * 1024
ALL_BODIES_BYTES_MAX = 256 * 1024 * 1024
TARGET_BYTES_MAX = 16 * 1024
HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100
CONNECTIONS_MAX = 800
HEAD_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 120.0
IDLE_TIMEOUT_S = 900.0
SEND_TIMEOUT_S = 60.0
SEND_PIECE_BYTES = 256 * 1024
_CLOSE_TIMEOUT_S = 1.0


@dataclass(slots=True)
class Request:
    """One request; header names in lower case.

    Attributes:
        may_wait: Whether the application waits with its answer for something to happen. A client that closes its side
            of the connection meanwhile is taken to be gone.
    """

    method: str = ""
    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    header_bytes: int = 0
    may_wait: bool = False


def is_too_large(announced: str) -> bool:
    """Return whether a body of the announced length is refused unread."""
    return announced.isdecimal() and (len(announced) > 18 or int(announced) > BODY_BYTES_MAX)


class BreakOff(Exception):  # noqa: N818 - an effect, not an error of the program
    """A response's `stream` raises it to end the answer before its end.

    Attributes:
        in_order: Whether the connection ends with a farewell, a GOAWAY in HTTP/2; otherwise HTTP/1.1 resets the
            connection and HTTP/2 the request's stream.
    """

    def __init__(self, *, in_order: bool) -> None:
        super().__init__(in_order)
        self.in_order = in_order


@dataclass(slots=True)
class Response:
    """One answer.

    Attributes:
        stream: Follows `body` piece by piece; the next piece is asked for when the client has taken the last one.
            It is closed when the client is gone.
        drop: Send nothing and break off: HTTP/1.1 closes the connection, HTTP/2 resets the request's stream.
        cut_at: Send only this many bytes of `body` and nothing of `stream`, then break off; the head promises all.
        is_head: Answers HEAD: its body is announced and not sent.
        send_timeout_s: For how long the client may take nothing of it.
    """

    status: int = 200
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    stream: AsyncGenerator[bytes, None] | None = None
    drop: bool = False
    cut_at: int | None = None
    is_head: bool = False
    send_timeout_s: float = SEND_TIMEOUT_S

    @property
    def sent_body(self) -> memoryview:
        """Return the bytes that follow the head at once."""
        return memoryview(b"" if self.is_head else self.body)[: self.cut_at]

    @property
    def sent_stream(self) -> AsyncGenerator[bytes, None] | None:
        """Yield the bytes that follow `sent_body`, as they are produced."""
        return None if self.is_head or self.cut_at is not None else self.stream


Application = Callable[[Request], Response | Awaitable[Response]]


def answer_of(application: Application, request: Request) -> Response | asyncio.Task[Response]:
    """Return the application's answer, or a task that ends with it; a failure is answered 500.

    The task is started here: the answer goes on even if the caller is cancelled before awaiting it.
    """
    try:
        answer = application(request)
    except Exception:
        log.exception("%s %s failed", request.method, request.target)
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(answer, Response):
        answer.is_head = request.method == "HEAD"
        return answer
    return asyncio.get_running_loop().create_task(_answer_later(request, answer))


async def _answer_later(request: Request, answer: Awaitable[Response]) -> Response:
    try:
        response = await answer
    except Exception:
        log.exception("%s %s failed", request.method, request.target)
        return Response(HTTPStatus.INTERNAL_SERVER_ERROR)
    response.is_head = request.method == "HEAD"
    return response


class Connection(Protocol):
    """A connection, as `Connections` uses it.

    Attributes:
        is_new: Whether no request has begun on it yet.
        since_s: Time of its last activity, by the loop's clock: it was opened, began a request, or was answered.
    """

    is_new: bool
    since_s: float

    @property
    def waits_for_client(self) -> bool:
        """Return whether the server waits for the client to send a request or the rest of one."""

    def end_if_overdue(self, now_s: float) -> None:
        """Close the connection if its client has exceeded its time, by the loop's clock."""

    def close(self) -> None:
        """End the connection; send the protocol's farewell, if it has one."""

    def abort(self) -> None:
        """End the connection now."""


class Connections:
    """The open connections of one server, and how many bytes of bodies they hold together.

    Attributes:
        open: The connections.
        body_bytes: Bytes of request bodies that are not complete yet.
    """

    def __init__(self) -> None:
        self.open: set[Connection] = set()
        self.body_bytes = 0
        self._removed = asyncio.Event()

    def add(self, connection: Connection) -> None:
        """Add a connection; if there are too many, close the one that has waited longest for its client."""
        self.open.add(connection)
        if len(self.open) > CONNECTIONS_MAX:
            waiting = [other for other in self.open if other.waits_for_client]
            min(waiting, key=lambda other: other.since_s).close()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed, or whose transport another one has taken over."""
        self.open.discard(connection)
        self._removed.set()

    def end_overdue(self, now_s: float) -> None:
        """Close the connections whose clients have kept the server waiting too long.

        Args:
            now_s: Reading of the loop's clock.
        """
        for connection in list(self.open):
            connection.end_if_overdue(now_s)

    async def close(self) -> None:
        """End all connections; those that have not ended in time are aborted."""
        for connection in list(self.open):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self.open:
                    self._removed.clear()
                    await self._removed.wait()
        for connection in list(self.open):
            connection.abort()
