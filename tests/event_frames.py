"""Frames of an event stream, made by hand."""

from __future__ import annotations

import base64
import json
import struct
import zlib

EVENT = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
OPENING = {":message-type": "event", ":event-type": "initial-response"}


def header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return bytes([len(key)]) + key + b"\x07" + struct.pack(">H", len(text)) + text


def frame(payload: bytes, headers: dict[str, str]) -> bytes:
    head = b"".join(header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", len(head) + len(payload) + 16, len(head))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return body + struct.pack(">I", zlib.crc32(body))


def event(number: int, data: bytes = b"x") -> bytes:
    """An event with one record, whose continuation is the record's number."""
    record = {
        "SequenceNumber": str(number),
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": "k",
        "ApproximateArrivalTimestamp": 1.7e9,
    }
    document = {"Records": [record], "ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0}
    return frame(json.dumps(document).encode(), EVENT)


def exception(kind: str, message: str) -> bytes:
    headers = {":message-type": "exception", ":exception-type": kind}
    return frame(json.dumps({"message": message}).encode(), headers)
