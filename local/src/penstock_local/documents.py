"""Documents of requests: JSON that strangers send, and the one type that JSON and CBOR write differently.

The number of values and the nesting are bounded before anything is built.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock_local.service_errors import serialization

VALUES_MAX = 200_000
# a string that has no end reaches to the end of the text, so that no byte is read twice
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_MARKS = (b",", b"[", b"{")


class Timestamp:
    """A moment in milliseconds since the epoch: seconds with a fraction in JSON, tagged milliseconds in CBOR.

    Not a dataclass, because the JSON encoder would write one as an object.
    """

    __slots__ = ("ms",)

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __repr__(self) -> str:
        return f"Timestamp({self.ms})"


def read_json(body: bytes, *, values_max: int = VALUES_MAX) -> Any:
    """Return the document of a body.

    Raises:
        RequestRefused: `SerializationException`: the body is not JSON, nested too deeply, or has too many values.
    """
    check_values(body, values_max)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise serialization(f"the body is not JSON that can be read: {error}") from error


def check_values(body: bytes, values_max: int = VALUES_MAX) -> None:
    """Refuse a text with more values than any request needs: a value takes far more memory than its text."""
    if _mark_count(body) <= values_max:
        return
    # a value has at most two strings, its name and itself: with more strings there are too many values
    strings_max = 2 * values_max
    rest, string_count = _STRING.subn(b"", body, count=strings_max)
    if string_count == strings_max or _mark_count(rest) > values_max:
        raise serialization(f"the body has more than {values_max} values")


def _mark_count(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)
