"""AWS Signature Version 4 for requests that differ only in body and time: their common part is made once.

The signature of one of botocore's requests is recomputed here, and `Signing` signs later requests only if the two agree. So botocore
keeps signing everything that this module does not cover: another signature version, other credentials, another path.

Source: AWS Signature Version 4, "Create a signed AWS API request".
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Container
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request, SignedHeaders=([^,]+), Signature=([0-9a-f]{64})"
)
_DATE: Final = "X-Amz-Date"
_TOKEN: Final = "X-Amz-Security-Token"  # noqa: S105 - the name of a header
_OWN_HEADERS: Final = (_DATE.lower(), _TOKEN.lower())
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def host_of(url: str) -> str:
    """Return the header `Host` of an address: with its port only if it is not the scheme's default."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    is_default = parts.port is None or parts.port == DEFAULT_PORTS.get(parts.scheme)
    return host if is_default else f"{host}:{parts.port}"


class Signing:
    """Signs requests that have the address and the headers of one that botocore has signed.

    Args:
        headers: The request's headers with names in lower case, without those of its signature.
        signed_names: The names of the signed headers, in order.
    """

    def __init__(
        self, host: str, headers: dict[str, str], signed_names: list[str], region: str, service: str
    ) -> None:
        values = {**headers, "host": host}
        self._lines = [
            (name, None if name in _OWN_HEADERS else " ".join(values[name].split())) for name in signed_names
        ]
        self._names = ";".join(signed_names)
        self._has_token = _TOKEN.lower() in signed_names
        self._region = region
        self._service = service
        self._key: tuple[str, str, bytes] | None = None  # secret, day, and their signing key

    def can_sign_with(self, keys: Any) -> bool:
        """Return whether keys are of the kind that signed the request: with a session token, or without one."""
        return self._has_token == bool(keys.token)

    def headers(self, body: bytes, keys: Any, stamp: str | None = None) -> dict[str, str]:
        """Return the headers that a body's signature needs.

        Args:
            keys: The credentials to sign with.
            stamp: The moment as `X-Amz-Date` writes it; None: now.
        """
        if stamp is None:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        added = {_DATE: stamp}
        if keys.token:
            added[_TOKEN] = keys.token
        own = {_DATE.lower(): stamp, _TOKEN.lower(): keys.token}
        lines = [f"{name}:{own[name] if value is None else value}\n" for name, value in self._lines]
        request = f"POST\n/\n\n{''.join(lines)}\n{self._names}\n{sha256(body).hexdigest()}"
        scope = f"{stamp[:8]}/{self._region}/{self._service}/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._signing_key(keys.secret_key, stamp[:8]), text.encode(), "sha256").hex()
        added["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={self._names}, Signature={signature}"
        )
        return added

    def _signing_key(self, secret: str, day: str) -> bytes:
        cached_key = self._key
        if cached_key is not None and cached_key[:2] == (secret, day):
            return cached_key[2]
        key = f"AWS4{secret}".encode()
        for part in (day, self._region, self._service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._key = (secret, day, key)
        return key


def signing_from(request: Any, keys: Any, omitted_headers: Container[str] = ()) -> Signing | None:
    """Return a `Signing` for later requests like one that botocore has signed, or None if only botocore can sign them.

    Args:
        request: A POST as botocore signed it: its address, headers and body.
        keys: The credentials that botocore signed it with.
        omitted_headers: Headers that later requests do not have, in lower case.
    """
    parts = urlsplit(request.url)
    headers = {name.lower(): header_text(value) for name, value in request.headers.items()}
    authorization = headers.pop("authorization", "")
    found = _AUTHORIZATION.fullmatch(authorization)
    has_all = found is not None and set(found[3].split(";")) <= {*headers, "host"}
    if parts.path not in ("", "/") or parts.query or found is None or not has_all:
        return None
    stamp, token = headers.pop(_DATE.lower(), ""), headers.pop(_TOKEN.lower(), None)
    if token != (keys.token or None):
        return None
    host, names = host_of(request.url), found[3].split(";")
    recomputed = Signing(host, headers, names, found[1], found[2])
    if recomputed.headers(request.body, keys, stamp)["Authorization"] != authorization:
        return None
    kept = [name for name in names if name in _OWN_HEADERS or name not in omitted_headers]
    return Signing(host, headers, kept, found[1], found[2])


def header_text(value: Any) -> str:
    """Return a header's value, which botocore has as text or as bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
