"""Endpoint URLs: a user and a password in them, and addresses of AWS's own that are for Kinesis alone."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

_KINESIS_HOST: Final = re.compile(
    r"(?:.+\.)?(?:data-|control-)?kinesis(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?(?:amazonaws\.com(?:\.cn)?|api\.aws)"
)
"""Public, FIPS, dual-stack, account and VPC endpoints."""


def has_user(text: str) -> bool:
    """Whether a text may hold a user before a host: `https://user:password@host`."""
    return "@" in text.partition("://")[2]


def without_user(url: str) -> str:
    """Return an endpoint without its user and password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def kinesis_region(url: str | None) -> str | None:
    """Return the region of an address of AWS's own that serves Kinesis and nothing else; None for every other address."""
    try:
        found = _KINESIS_HOST.fullmatch(urlsplit(url or "").hostname or "")
    except ValueError:  # no URL; the client's error names it
        return None
    return found and found[1]
