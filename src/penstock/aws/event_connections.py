"""The connections over which a process receives event streams: one thread with one asyncio loop serves them all.

A connection takes a bounded number of streams, so that a lost one does not stop every shard. It is closed a moment after
its last stream. A forked child begins without connections.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from penstock.aws.connecting import PROXY_REMEDY, TRUST_REMEDY
from penstock.aws.event_connection import (
    ConnectionLost,
    EventConnection,
    Receiver,
    SignedRequest,
    StreamOutcome,
)
from penstock.aws.request_signing import DEFAULT_PORTS, host_of
from penstock.runtime.threads import begin_on_daemon

STREAMS_PER_CONNECTION_MAX: Final = 25
_PROXY_ANSWER_BYTES_MAX: Final = 16 * 1024


class Origin(Struct, frozen=True):
    """The endpoint of connections, and the way to it: certificates, proxy and time limit.

    Args:
        url: The endpoint, of which the scheme, host and port are used.
        ca_file: Certificates to trust; for https.
        proxy_url: URL of an HTTP proxy, or None.
        connect_timeout_s: Time in which a connection must be ready for streams.
    """

    url: str
    ca_file: str | None
    proxy_url: str | None
    connect_timeout_s: float

    @property
    def scheme(self) -> str:
        """The scheme, http or https."""
        return urlsplit(self.url).scheme

    @property
    def host(self) -> str:
        """Name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port; the scheme's default if the URL has none."""
        return urlsplit(self.url).port or DEFAULT_PORTS[self.scheme]

    @property
    def authority(self) -> str:
        """Host and port as botocore signs them: without the scheme's default port."""
        return host_of(self.url)

    @property
    def target(self) -> str:
        """Host and port as a proxy expects them: always with the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class EventConnections:
    """The connections of a process. `open` and the functions that it returns may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open_connections: dict[Origin, list[EventConnection]] = {}
        self._opening_locks: dict[Origin, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._loop.run_forever, name="penstock-fan-out", daemon=True).start()

    def open(
        self, origin: Origin, request: SignedRequest, report: Callable[[StreamOutcome], None]
    ) -> OpenStream:
        """Send a request and report its outcomes, on the loop's thread."""
        receiver = Receiver(request, report)
        stream = OpenStream(self._loop, receiver)
        self._loop.call_soon_threadsafe(self._begin, origin, receiver)
        return stream

    # --- in the loop ---

    def _begin(self, origin: Origin, receiver: Receiver) -> None:
        task = self._loop.create_task(self._send(origin, receiver))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, origin: Origin, receiver: Receiver) -> None:
        try:
            async with asyncio.timeout(origin.connect_timeout_s):
                connection = await self._connection_to(origin)
        except (OSError, TimeoutError, ValueError) as error:  # an invalid host name raises ValueError
            where = f"no connection of HTTP/2 to {origin.scheme}://{origin.authority}"
            receiver.report(ConnectionLost(f"{where}: {str(error) or 'no answer in time'}{_remedy(error)}"))
            return
        if not receiver.is_over:
            connection.send(receiver)

    async def _connection_to(self, origin: Origin) -> EventConnection:
        # One connection is opened at a time; all requests that wait for it share it.
        async with self._opening_locks.setdefault(origin, asyncio.Lock()):
            for connection in self._open_connections.get(origin, ()):
                if connection.stream_count < min(STREAMS_PER_CONNECTION_MAX, connection.streams_max):
                    return connection
            connection = await self._dial(origin)
            self._open_connections.setdefault(origin, []).append(connection)
            return connection

    async def _dial(self, origin: Origin) -> EventConnection:
        """Open a connection, through the proxy if there is one, and wait until the service's settings are known."""
        context = _tls_context(origin.ca_file) if origin.scheme == "https" else None
        make = functools.partial(
            EventConnection,
            self._loop,
            origin.authority,
            origin.scheme,
            functools.partial(self._forget, origin),
        )
        if origin.proxy_url is None:
            _, connection = await self._loop.create_connection(make, origin.host, origin.port, ssl=context)
        else:
            tunnel = await _open_tunnel(self._loop, origin, origin.proxy_url)
            _, connection = await self._loop.create_connection(
                make, sock=tunnel, ssl=context, server_hostname=origin.host if context else None
            )
        try:
            await connection.ready
        except BaseException:
            connection.close()
            raise
        if connection.lost_reason is not None:  # it became ready and was lost before this went on
            raise ConnectionError(connection.lost_reason)
        return connection

    def _forget(self, origin: Origin, connection: EventConnection) -> None:
        found = self._open_connections.get(origin, [])
        if connection in found:
            found.remove(connection)
        if not found:
            self._open_connections.pop(origin, None)


class OpenStream:
    """Implements `penstock.ports.fan_out.EventStream`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver) -> None:
        self._loop = loop
        self._receiver = receiver

    def request(self) -> None:
        self._loop.call_soon_threadsafe(self._receiver.request_event)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._receiver.is_over = True
        if self._receiver.connection is not None:
            self._receiver.connection.drop(self._receiver)


async def _open_tunnel(loop: asyncio.AbstractEventLoop, origin: Origin, proxy_url: str) -> socket.socket:
    """Return a socket through an HTTP proxy, by CONNECT."""
    proxy = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
    if proxy.scheme != "http":
        raise ConnectionError(f"a proxy of scheme {proxy.scheme!r} is not supported, only http")
    tunnel = await _connect(proxy.hostname or "", proxy.port or 80, origin.connect_timeout_s)
    try:
        login = ""
        if proxy.username is not None:
            user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            login = f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"
        request = f"CONNECT {origin.target} HTTP/1.1\r\nHost: {origin.target}\r\n{login}\r\n"
        await loop.sock_sendall(tunnel, request.encode())
        await _check_tunnel(loop, tunnel)
    except BaseException:
        tunnel.close()
        raise
    return tunnel


async def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of a proxy that answers: its IPv6 address may have no listener."""
    connect = functools.partial(socket.create_connection, (host, port), timeout_s)
    try:
        found = await asyncio.wrap_future(begin_on_daemon("penstock-proxy", connect))
    except OSError as error:
        raise ConnectionError(f"the proxy {host}:{port} cannot be reached: {error}") from error
    found.setblocking(False)
    return found


async def _check_tunnel(loop: asyncio.AbstractEventLoop, tunnel: socket.socket) -> None:
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):  # byte by byte: the bytes after it are the service's
        byte = await loop.sock_recv(tunnel, 1)
        if not byte or len(answer) > _PROXY_ANSWER_BYTES_MAX:
            raise ConnectionError("the proxy gave no whole answer to CONNECT")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        remedy = f"; {PROXY_REMEDY}" if " 407" in status else ""
        raise ConnectionError(f"the proxy refuses the connection: {status}{remedy}")


def _remedy(error: Exception) -> str:
    is_untrusted = isinstance(error, (ssl.SSLCertVerificationError, FileNotFoundError))
    return f"; {TRUST_REMEDY}" if is_untrusted else ""


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["h2"])
    return context


_lock = threading.Lock()
_process_connections: EventConnections | None = None


def _forget_after_fork() -> None:
    global _lock, _process_connections  # noqa: PLW0603 - the parent's thread and sockets are not the child's
    _lock = threading.Lock()
    _process_connections = None


os.register_at_fork(after_in_child=_forget_after_fork)


def connections_of_process() -> EventConnections:
    """Return the connections of this process; the thread starts with the first call."""
    global _process_connections  # noqa: PLW0603 - one per process
    with _lock:
        if _process_connections is None:
            _process_connections = EventConnections()
        return _process_connections
