"""Serve the dashboard to this machine or to holders of the token. Answers GET and HEAD only, and changes nothing."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from penstock.cli.overview.dashboard_page import (
    page_before_first_snapshot,
    page_of_all,
    page_of_application,
    page_of_shard,
    page_of_unleased_shard,
    page_of_unwatched_application,
)
from penstock.cli.overview.page_frame import CONTENT_SECURITY_POLICY
from penstock.cli.overview.snapshot import Snapshot, document_of
from penstock.cli.overview.stream_load import StreamSnapshot, stream_document
from penstock.cli.overview.stream_page import page_of_stream
from penstock.cli.terminal import safe_json
from penstock.core.leases.lease import shard_id_of, stream_id_of
from penstock.errors import PenstockError
from penstock.runtime.http_service import GetHandler, HttpService

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.cli.overview.lag_history import LagHistory
    from penstock.cli.overview.next_records import NextRecords
    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow
    from penstock.core.shard import Shard

_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_PATHS: Final = ("/", "/application", "/shard", "/stream", "/api/look", "/api/stream")
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_ACCESS_ADVICE: Final = (
    "penstock dashboard answers to localhost and loopback addresses; use one of these, or give it a --token"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    content_type: str
    body: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DashboardPages:
    """Answers requests with the pages and documents of the dashboard.

    Args:
        newest_snapshot: Returns the newest snapshot; None before the first.
        history: The lags of the snapshots so far.
        lag_limit_s: A shard that is further behind is in trouble.
        interval_s: Seconds between two snapshots.
        fetch_stream_snapshot: Takes a stream and its shards; returns the stream's newest snapshot, or None before the first.
        fetch_next_records: Takes a stream, a shard and a checkpoint; returns the records after the checkpoint.
        shows_records: Whether the keys and payloads of records are shown.
    """

    newest_snapshot: Callable[[], Snapshot | None]
    history: LagHistory
    lag_limit_s: float
    interval_s: float
    fetch_stream_snapshot: Callable[[str, Sequence[Shard]], StreamSnapshot | None]
    fetch_next_records: Callable[[str, str, str], NextRecords]
    shows_records: bool = False

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        """Return the answer for a path."""
        if path not in _PATHS:
            return Answer(404, _TEXT, "not found\n")
        snapshot = self.newest_snapshot()
        if snapshot is None:
            page = page_before_first_snapshot(self.interval_s)
            return _not_ready_answer() if path.startswith("/api/") else Answer(200, _HTML, page)
        name, shard = (query.get(key, [""])[0] for key in ("name", "shard"))
        match path:
            case "/api/look":
                answer = _json_answer(document_of(snapshot))
            case "/api/stream":
                answer = self._stream_document(snapshot, name)
            case "/application":
                answer = self._application_page(snapshot, name)
            case "/stream":
                answer = self._stream_page(snapshot, name)
            case "/shard":
                answer = self._shard_page(snapshot, name, shard)
            case _:
                lags = {
                    each.application: self.history.points_of(each.application)
                    for each in snapshot.applications
                }
                answer = Answer(200, _HTML, page_of_all(snapshot, lags, self.interval_s))
        return answer

    def _application_page(self, snapshot: Snapshot, name: str) -> Answer:
        for each in snapshot.applications:
            if each.application == name:
                points = self.history.points_of(name)
                return Answer(
                    200, _HTML, page_of_application(each, points, self.lag_limit_s, self.interval_s)
                )
        return Answer(404, _HTML, page_of_unwatched_application(name, self.interval_s))

    def _stream_page(self, snapshot: Snapshot, stream: str) -> Answer:
        readers = _readers_of(snapshot, stream)
        if not readers:
            return Answer(404, _HTML, page_of_unwatched_application(f"stream {stream}", self.interval_s))
        found = self.fetch_stream_snapshot(stream, _shards_of(readers, stream))
        names = [each.application for each in readers]
        return Answer(200, _HTML, page_of_stream(found, stream, names, self.interval_s))

    def _stream_document(self, snapshot: Snapshot, stream: str) -> Answer:
        readers = _readers_of(snapshot, stream)
        if not readers:
            return Answer(404, _JSON, '{"problems": ["no application that is watched reads this stream"]}\n')
        found = self.fetch_stream_snapshot(stream, _shards_of(readers, stream))
        return _not_ready_answer() if found is None else _json_answer(stream_document(found))

    def _shard_page(self, snapshot: Snapshot, name: str, shard: str) -> Answer:
        application = next((each for each in snapshot.applications if each.application == name), None)
        if application is None:
            return Answer(404, _HTML, page_of_unwatched_application(name, self.interval_s))
        row = next((row for row in application.shards if row.shard == shard), None)
        if row is None:
            return Answer(404, _HTML, page_of_unleased_shard(application, shard, self.interval_s))
        next_records = self._next_records_or_reason(
            application.streams.get(stream_id_of(row.shard), application.stream), row
        )
        page = page_of_shard(
            application, row, next_records, self.interval_s, shows_records=self.shows_records
        )
        return Answer(200, _HTML, page)

    def _next_records_or_reason(self, stream: str | None, row: ShardRow) -> NextRecords | str:
        """Return the records that are read next, or a text with the reason why they are unknown."""
        if stream is None:
            return "The leases do not name their stream: give --stream."
        if not row.checkpoint or row.state == "ended":
            return "Nothing: the shard is read to its end, or has no lease."
        try:
            return self.fetch_next_records(stream, shard_id_of(row.shard), row.checkpoint)
        except PenstockError as error:
            return str(error)


def _readers_of(snapshot: Snapshot, stream: str) -> list[ApplicationSnapshot]:
    return [each for each in snapshot.applications if stream in each.shards_by_stream]


def _shards_of(readers: Sequence[ApplicationSnapshot], stream: str) -> Sequence[Shard]:
    """Return the stream's shards from the newest snapshot that has any; empty if none has."""
    newest_first = sorted(readers, key=lambda each: each.taken_ms, reverse=True)
    return next((shards for each in newest_first if (shards := each.shards_by_stream[stream])), ())


def _not_ready_answer() -> Answer:
    text = '{"problems": ["the first snapshot is under way"]}\n'
    return Answer(503, _JSON, text, (("Retry-After", "1"),))


def _json_answer(document: dict[str, Any]) -> Answer:
    return Answer(200, _JSON, safe_json(document) + "\n")


class Gate:
    """Access control: decides which requests are answered.

    Args:
        token: Required of every client. None: every program of this machine is answered, except web pages
            of other hosts in its browsers.
    """

    def __init__(self, token: str | None) -> None:
        self._token = token

    def refuse(
        self, path: str, query: Mapping[str, list[str]], headers: Mapping[str, str], port: int
    ) -> Answer | None:
        """Return the refusal of a request, or the redirect after a request with the token; None if the request is allowed.

        Args:
            query: The parameters of its query string.
            headers: The request's, names in lower case.
            port: The served port. Browsers send a host's cookies to all of its ports, so the cookie's name contains the port.
        """
        if self._token is None:
            refusal = refusal_of(headers)
            return None if refusal is None else Answer(403, _TEXT, f"{refusal}\n")
        if path == "/" and self._is_token(query.get("token", [""])[0]):
            # The browser keeps the token as a cookie. After the redirect, the address in its history has no token.
            cookie = f"{_cookie_name(port)}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            return Answer(303, _TEXT, "", (("Location", "/"), ("Set-Cookie", cookie)))
        kind, _, sent_token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(sent_token.strip()):
            return None
        if any(self._is_token(value) for value in _cookies_of(headers, _cookie_name(port))):
            return None
        text = "the token is missing or wrong: open /?token=TOKEN, or send Authorization: Bearer TOKEN\n"
        return Answer(401, _TEXT, text, (("WWW-Authenticate", "Bearer"),))

    def _is_token(self, text: str) -> bool:
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())


def _cookie_name(port: int) -> str:
    return f"penstock-dashboard-{port}"


def _cookies_of(headers: Mapping[str, str], name: str) -> list[str]:
    """Return the values of all cookies of a name.

    `http.cookies` would leave out all cookies after a malformed one, which another program of the host may have set.
    """
    pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
    return [value for key, _, value in pairs if key == name]


class DashboardServer(HttpService):
    """The HTTP server of the dashboard; serves until it is closed.

    Args:
        pages: The pages and documents.
        gate: Access control.
        port: TCP port; 0 takes a free one, see `port` afterwards.

    Raises:
        OptionError: The address cannot be used.
    """

    def __init__(self, pages: DashboardPages, gate: Gate, host: str, port: int) -> None:
        class Handler(GetHandler):
            server_version = "penstock"
            sys_version = ""

            def respond(self) -> None:
                path, _, query_text = self.path.partition("?")
                query = parse_qs(query_text)
                headers = {name.lower(): value for name, value in self.headers.items()}
                port = self.connection.getsockname()[1]
                answer = gate.refuse(path, query, headers, port) or pages.answer(path, query)
                self.send(answer.status, answer.content_type, answer.body, (*_HEADERS, *answer.headers))

        super().__init__(host, port, Handler, "the dashboard")


# --- requests without the token ---------------------------------------------------------------------------


def refusal_of(headers: Mapping[str, str]) -> str | None:
    """Return the reason why a request without the token is refused; None if it is answered.

    Requests of this machine are answered, unless a web page of another host makes them. A browser sends requests to loopback for any page
    that asks it to. Such a request has the page's `Origin`, or, if the site's name resolves to loopback, a foreign `Host`.

    Args:
        headers: The request's, names in lower case.
    """
    host = headers.get("host")
    if host is None or not _is_this_machine(_host_of(host)):
        return f"the Host {_header_text(host)} is not a name of this machine. {_ACCESS_ADVICE}."
    origin = headers.get("origin")
    if origin is not None:
        if not _is_this_machine(_host_of(origin.partition("://")[2])):
            return f"the Origin {_header_text(origin)} is a web page of another host. {_ACCESS_ADVICE}."
    elif headers.get("sec-fetch-site") == "cross-site":
        return "the request was made by a web page of another host (Sec-Fetch-Site: cross-site)."
    return None


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _is_this_machine(name: str) -> bool:
    return name.endswith(".localhost") or is_loopback(name)


def _host_of(authority: str) -> str:
    """Return the name in `name:port` or `[address]:port`, in lower case."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().removesuffix(".")


def _header_text(value: str | None) -> str:
    return "(none)" if value is None else repr(value[:100])
