"""The access key, region and service with which a request is signed. The signature is not checked."""

from __future__ import annotations

import re
from typing import NamedTuple

_MARK = "Credential="
_CREDENTIAL_CHARS_MAX = 512
_KEY_CHARS_MAX = 128
_SCOPE_PARTS = 5
_REGION = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)


class Credential(NamedTuple):
    """Access key, region and service that a request is signed with; each is empty if the header lacks it."""

    access_key: str = ""
    region: str = ""
    service: str = ""


def credential_of(authorization: str) -> Credential:
    """Return the credential of an Authorization header: `... Credential=KEY/DATE/REGION/SERVICE/aws4_request, ...`."""
    begin = authorization.find(_MARK)
    if begin < 0:
        return Credential()
    text = authorization[begin + len(_MARK) :][:_CREDENTIAL_CHARS_MAX]
    parts = text.replace(",", " ").partition(" ")[0].split("/")
    key = parts[0][:_KEY_CHARS_MAX]
    return Credential(key, parts[2], parts[3]) if len(parts) == _SCOPE_PARTS else Credential(key)


def is_region(text: str) -> bool:
    """Return whether a text has the form of a region's name."""
    return _REGION.fullmatch(text) is not None
