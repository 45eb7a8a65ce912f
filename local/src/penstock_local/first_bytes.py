"""Begins a connection: the TLS handshake if the server has TLS, then the client's choice of the HTTP version.

A client of HTTP/2 begins with a preface that is not a request of HTTP/1.1. Under TLS it has agreed on the version
before (ALPN), and its first bytes show on which.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from penstock_local import http
from penstock_local.http import Application, Connections
from penstock_local.http1 import Http1Protocol
from penstock_local.http2 import Http2Protocol

log = logging.getLogger("penstock_local")

_TLS_CLOSE_TIMEOUT_S = 5.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class FirstBytes(asyncio.Protocol):
    """A new connection, until its first bytes show its protocol.

    Args:
        loop: The loop that the connection lives on.
        connections: The server's open connections, to which it adds itself.
        tls: The settings of the TLS handshake; None: no TLS.
    """

    waits_for_client = True
    is_new = True

    def __init__(
        self,
        application: Application,
        loop: asyncio.AbstractEventLoop,
        connections: Connections,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._application = application
        self._loop = loop
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._tls = tls
        self._handshake: asyncio.Task[None] | None = None
        self._first_bytes = b""
        self.since_s = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; begin the TLS handshake if there is one."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        if self._tls is not None:
            transport.pause_reading()
            self._handshake = self._loop.create_task(self._shake_hands(transport, self._tls))

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        # Not in create_server, so that the server counts this connection, and ends it when it stops.
        try:
            secured = await self._loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=http.HEAD_TIMEOUT_S,
                ssl_shutdown_timeout=_TLS_CLOSE_TIMEOUT_S,
            )
        except OSError as error:
            log.info("a TLS handshake failed: %s", error)
            secured = None
        self._handshake = None
        if secured is None:
            self.connection_lost(None)
            return
        self._transport = secured
        self._choose_protocol()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Forget the connection."""
        self._connections.remove(self)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Keep the bytes until they show the client's protocol."""
        self._first_bytes += data
        if self._handshake is None:
            self._choose_protocol()

    def _choose_protocol(self) -> None:
        """Pass the connection to HTTP/2 when the whole preface has arrived, or to HTTP/1.1 when the bytes differ from the preface."""
        is_undecided = _PREFACE.startswith(self._first_bytes) and len(self._first_bytes) < len(_PREFACE)
        if self._transport is None or is_undecided:
            return
        protocol_class = Http2Protocol if self._first_bytes.startswith(_PREFACE) else Http1Protocol
        protocol = protocol_class(self._application, self._loop, self._connections)
        self._connections.remove(self)
        transport, self._transport = self._transport, None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._first_bytes)

    def end_if_overdue(self, now_s: float) -> None:
        """Close the connection of a client that has sent nothing for too long."""
        if now_s - self.since_s > http.HEAD_TIMEOUT_S:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    abort = close
