"""Endpoint URLs: a user and a password in them, and addresses of AWS's own that are for Kinesis alone."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

_SUFFIXES: Final = (
    ("amazonaws.com", "api.aws"),
    ("amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    ("amazonaws.eu", "api.amazonwebservices.eu"),
    ("c2s.ic.gov", "api.aws.ic.gov"),
    ("sc2s.sgov.gov", "api.aws.scloud"),
    ("cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
    ("csp.hci.ic.gov", "api.aws.hci.ic.gov"),
)
"""Of each partition of AWS: the suffix of its addresses, and that of the dual-stack ones (botocore's `partitions.json`)."""
_KINESIS_HOST: Final = re.compile(
    r"(?:.+\.)?(?:data-|control-)?kinesis(?:-fips)?\.([a-z0-9-]+)\.(?:vpce\.)?"
    f"(?:{'|'.join(re.escape(suffix) for pair in _SUFFIXES for suffix in pair)})"
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
