"""Decides which requests are answered: those of programs of this machine, but not those of web pages in its browsers.

A browser sends requests to loopback for any page that asks it to. Such a request is recognised by the
`Origin` of the page or, if the page's host name points to loopback, by the `Host`. Signatures are
not checked: any client that reaches the port under a name of this machine may do everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from penstock_local.errors import OptionError
from penstock_local.http import Request, Response

_PREFLIGHT_S: Final = 7200
"""How long a browser may keep the answer to a preflight request. No browser keeps it longer."""
_SHOWN_HEADERS: Final = (
    "x-amzn-RequestId,x-amzn-ErrorType,x-amz-crc32,x-amz-request-id,x-amz-id-2,x-amzn-ErrorMessage,Date"
)
_REMEDY: Final = "allow others with --allow-host NAME or allow_hosts=(NAME,)"


class Access:
    """Decides by `Host` and `Origin` which requests are answered.

    Args:
        allow_hosts: Host names to answer to beside those of loopback.

    Raises:
        OptionError: A name is not a host name.
    """

    def __init__(self, allow_hosts: Iterable[str] = ()) -> None:
        if isinstance(allow_hosts, str):
            raise OptionError(f"allow_hosts takes a tuple of names, not the text {allow_hosts!r}")
        for name in allow_hosts:
            if not name or name.lower() != _name_of(name):
                raise OptionError(f"allow_hosts takes host names without scheme and port, not {name!r}")
        self._names = frozenset(name.lower() for name in allow_hosts)

    def refusal(self, headers: Mapping[str, str]) -> str | None:
        """Return why a request is refused; None if it is to be answered.

        Args:
            headers: The request's, names in lower case.
        """
        host = headers.get("host")
        if host is None or not self._is_own_name(_name_of(host)):
            return (
                f"the Host {_quoted(host)} is not a name of this machine. penstock-local answers to localhost and "
                f"loopback addresses; {_REMEDY}."
            )
        origin = headers.get("origin")
        if origin is not None:
            if not self._is_own_name(_name_of(origin.partition("://")[2])):
                return (
                    f"the Origin {_quoted(origin)} is a web page of another host. penstock-local answers to no page "
                    f"but those of this machine; {_REMEDY}."
                )
        elif headers.get("sec-fetch-site") == "cross-site":
            return "the request was made by a web page of another host (Sec-Fetch-Site: cross-site)."
        return None

    def _is_own_name(self, name: str) -> bool:
        return name in self._names or name == "localhost" or name.endswith(".localhost") or _is_loopback(name)


def _name_of(authority: str) -> str:
    """Return the name in `name:port` or `[address]:port`, in lower case."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().removesuffix(".")


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _quoted(value: str | None) -> str:
    return "(none)" if value is None else repr(value[:100])


# -- headers by which a browser shows answers to pages of this machine (cross-origin resource sharing) ------------


def preflight_answer(request: Request) -> Response:
    """Return the answer to a browser that asks whether a page may send a request."""
    wanted = request.headers.get("access-control-request-headers", "")
    return Response(
        200,
        headers=[
            ("Access-Control-Allow-Methods", "GET, POST, DELETE"),
            *([("Access-Control-Allow-Headers", wanted)] if wanted else []),
            ("Access-Control-Max-Age", str(_PREFLIGHT_S)),
        ],
    )


def allow_page(response: Response, origin: str) -> Response:
    """Allow a page to read a response; the page must be one that `Access` allows."""
    response.headers += [
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Expose-Headers", _SHOWN_HEADERS),
        ("Vary", "Origin"),
    ]
    return response
