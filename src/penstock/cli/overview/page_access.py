"""Which requests the dashboard answers without a token: those of this machine, but of no web page of another host.

A browser sends requests to loopback for any page that asks it to. Such a request has the page's `Origin`, or, if the
site's own name was pointed to loopback, a foreign `Host`.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

_WAY_OUT: Final = (
    "penstock dashboard answers to localhost and loopback addresses; use one of these, or give it a --token"
)


def refusal_of(headers: Mapping[str, str]) -> str | None:
    """Return the reason why a request is refused; None if it is answered.

    Args:
        headers: The request's, names in lower case.
    """
    host = headers.get("host")
    if host is None or not _is_this_machine(_name_of(host)):
        return f"the Host {_printable(host)} is no name of this machine. {_WAY_OUT}."
    origin = headers.get("origin")
    if origin is not None:
        if not _is_this_machine(_name_of(origin.partition("://")[2])):
            return f"the Origin {_printable(origin)} is a web page of another host. {_WAY_OUT}."
    elif headers.get("sec-fetch-site") == "cross-site":
        return "the request was made by a web page of another host (Sec-Fetch-Site: cross-site)."
    return None


def _is_this_machine(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(authority: str) -> str:
    """Return the name in `name:port` or `[address]:port`, in lower case."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().removesuffix(".")


def _printable(value: str | None) -> str:
    return "(none)" if value is None else repr(value[:100])
