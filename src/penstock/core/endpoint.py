"""Endpoints that name a user and a password: the credentials are removed before the endpoint is shown."""

from __future__ import annotations


def has_user(text: str) -> bool:
    """Whether a text may hold a user before a host: `https://user:password@host`."""
    return "@" in text.partition("://")[2]


def without_user(url: str) -> str:
    """Return an endpoint without its user and password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
