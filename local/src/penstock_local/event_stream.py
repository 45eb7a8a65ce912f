"""Frames of `application/vnd.amazon.eventstream`, the encoding of streamed answers.

A frame begins with its own length and the length of its headers (4 bytes each) and the CRC-32 of these 8 bytes. The
headers, the payload and the CRC-32 of all bytes before it follow. Source: the Smithy specification, Amazon Event Stream.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from zlib import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_PRELUDE = struct.Struct(">II")
_CRC = struct.Struct(">I")
_STRING = 7
_OVERHEAD_BYTES = _PRELUDE.size + 2 * _CRC.size


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return one frame; all headers are strings."""
    packed = b"".join(_header(name, value) for name, value in headers.items())
    prelude = _PRELUDE.pack(_OVERHEAD_BYTES + len(packed) + len(payload), len(packed))
    before = b"".join((prelude, _CRC.pack(crc32(prelude)), packed))
    return b"".join((before, payload, _CRC.pack(crc32(payload, crc32(before)))))


def event(kind: str, content_type: str, payload: bytes) -> bytes:
    """Return the frame of an event."""
    headers = {":event-type": kind, ":content-type": content_type, ":message-type": "event"}
    return frame(headers, payload)


def exception(kind: str, content_type: str, payload: bytes) -> bytes:
    """Return the frame of an exception that the service's model has in this place."""
    headers = {":exception-type": kind, ":content-type": content_type, ":message-type": "exception"}
    return frame(headers, payload)


def error(code: str, message: str) -> bytes:
    """Return the frame of an error that the service's model does not have in this place."""
    return frame({":error-code": code, ":error-message": message, ":message-type": "error"}, b"")


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return struct.pack(f">B{len(key)}sBH{len(text)}s", len(key), key, _STRING, len(text), text)
