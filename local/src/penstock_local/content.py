"""Unpacks request bodies that SDKs send compressed: boto3 and the SDKs for Java do so with PutMetricData."""

from __future__ import annotations

import zlib

from penstock_local.http import BODY_BYTES_MAX, Request
from penstock_local.service_errors import RequestRefused, serialization

_GZIP = 16 + zlib.MAX_WBITS


def unpack(request: Request) -> None:
    """Decompress a request's body in place, if it is compressed.

    Raises:
        RequestRefused: The body is packed otherwise than by gzip, is damaged, or holds more than a request may.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    # "aws-chunked" says how a body is signed; the bytes are as they are
    if encoding in ("", "identity", "aws-chunked"):
        return
    if encoding != "gzip":
        raise RequestRefused(
            "SerializationException", f"Content-Encoding {encoding[:50]!r} is not served", 415
        )
    request.body = _unzipped(request.body)
    del request.headers["content-encoding"]


def _unzipped(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        found = unpacker.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise serialization(f"the body is not gzip: {error}") from error
    if len(found) > BODY_BYTES_MAX:
        raise RequestRefused(
            "RequestEntityTooLargeException", f"the body holds more than {BODY_BYTES_MAX} bytes", 413
        )
    if not unpacker.eof or unpacker.unused_data:
        raise serialization("the body is not one whole gzip member")
    return found
