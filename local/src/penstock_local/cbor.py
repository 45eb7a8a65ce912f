"""The part of CBOR that Kinesis clients speak, with its own convention for time.

The SDK for Java speaks CBOR to Kinesis by default. It writes a timestamp as tag 1 over an integer of
*milliseconds*, where RFC 8949 has seconds, so a general decoder cannot be used. botocore's codec has seconds
too, bounds neither depth nor number of values, and writes requests only. Maps and arrays may have indefinite
lengths (the SDK streams them), and strings may be sent in chunks.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from penstock_local.documents import VALUES_MAX, Timestamp
from penstock_local.service_errors import serialization

_DEPTH_MAX = 32
_BREAK = object()
_FLOATS = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
_SIMPLE = {20: False, 21: True, 22: None, 23: None}


def encode(value: Any) -> bytes:
    """Return the CBOR of a document made of None, booleans, numbers, text, bytes, timestamps, lists and maps."""
    out = bytearray()
    _encode(value, out)
    return bytes(out)


def head(major: int, amount: int) -> bytes:
    """Return the first bytes of an item: its major type and its length or value."""
    kind = major << 5
    if amount < 24:
        return bytes((kind | amount,))
    if amount < 0x100:
        return bytes((kind | 24, amount))
    if amount < 0x10000:
        return struct.pack(">BH", kind | 25, amount)
    if amount < 0x100000000:
        return struct.pack(">BI", kind | 26, amount)
    return struct.pack(">BQ", kind | 27, amount)


def _encode(value: Any, out: bytearray) -> None:  # noqa: C901, PLR0912 - one branch per type
    if value is None:
        out.append(0xF6)
    elif value is True:
        out.append(0xF5)
    elif value is False:
        out.append(0xF4)
    elif isinstance(value, int):
        out += head(0, value) if value >= 0 else head(1, -1 - value)
    elif isinstance(value, str):
        raw = value.encode()
        out += head(3, len(raw))
        out += raw
    elif isinstance(value, bytes | bytearray | memoryview):
        out += head(2, len(value))
        out += value
    elif isinstance(value, Timestamp):
        out += b"\xc1"
        out += head(0, value.ms)
    elif isinstance(value, float):
        out += b"\xfb"
        out += struct.pack(">d", value)
    elif isinstance(value, Tagged):
        out += head(6, value.tag)
        _encode(value.value, out)
    elif isinstance(value, list | tuple):
        out += head(4, len(value))
        for item in value:
            _encode(item, out)
    elif isinstance(value, dict):
        out += head(5, len(value))
        for key, item in value.items():
            _encode(key, out)
            _encode(item, out)
    else:
        raise TypeError(f"no CBOR for {type(value).__name__}")


class Tagged(NamedTuple):
    """A tagged value for the encoder."""

    tag: int
    value: Any


def decode(data: bytes, *, times_in_seconds: bool = False) -> Any:
    """Return the document that `data` holds; tag 1 becomes a `Timestamp`.

    Args:
        data: One CBOR item.
        times_in_seconds: Whether whole numbers under tag 1 are seconds, as RFC 8949 and rpc-v2-cbor have it,
            and not milliseconds, as the SDKs for Kinesis do.

    Raises:
        RequestRefused: `SerializationException`: the item is cut short, nested too deeply, has too many values, or is
            followed by other bytes.
    """
    reader = _CborReader(data, 1000 if times_in_seconds else 1)
    try:
        value = reader.read_item(0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, OverflowError, ValueError) as error:
        raise serialization(f"the body is not CBOR: {error} at byte {reader.at}") from error
    if value is _BREAK or reader.at != len(data):
        raise serialization(f"the body is not one CBOR item: it ends at byte {reader.at} of {len(data)}")
    return value


class _CborReader:
    __slots__ = ("at", "count", "data", "tick_ms")

    def __init__(self, data: bytes, tick_ms: int) -> None:
        self.tick_ms = tick_ms
        self.data = data
        self.at = 0
        self.count = 0

    def _count_value(self) -> None:
        """Count a value: each takes far more memory and time than its bytes."""
        self.count += 1
        if self.count > VALUES_MAX:
            raise ValueError(f"more than {VALUES_MAX} values")

    def read_item(self, depth: int) -> Any:  # noqa: PLR0911 - one return per major type
        if depth > _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} levels")
        self._count_value()
        first = self.data[self.at]
        self.at += 1
        major, info = first >> 5, first & 31
        if major == 7:
            return self._simple_value(info)
        amount = self._read_amount(info)
        match major:
            case 0:
                return self._definite_amount(amount)
            case 1:
                return -1 - self._definite_amount(amount)
            case 2:
                return self._read_string(amount, major)
            case 3:
                return self._read_string(amount, major).decode()
            case 4:
                return self._read_list(amount, depth)
            case 5:
                return self._read_map(amount, depth)
            case _:
                return self._tagged_value(self._definite_amount(amount), depth)

    def _read_amount(self, info: int) -> int | None:
        if info < 24:
            return info
        if info == 31:
            return None
        if info > 27:
            raise ValueError(f"reserved length {info}")
        size = 1 << (info - 24)
        return int.from_bytes(self._take_bytes(size), "big")

    def _definite_amount(self, amount: int | None) -> int:
        if amount is None:
            raise ValueError("indefinite length where a number must be")
        return amount

    def _take_bytes(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ValueError("it is cut short")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def _read_string(self, amount: int | None, major: int) -> bytes:
        if amount is not None:
            return self._take_bytes(amount)
        pieces = []
        while self.data[self.at] != 0xFF:
            first = self.data[self.at]
            if first >> 5 != major:
                raise ValueError("a chunk of another type in a string")
            self._count_value()
            self.at += 1
            pieces.append(self._take_bytes(self._definite_amount(self._read_amount(first & 31))))
        self.at += 1
        return b"".join(pieces)

    def _read_list(self, amount: int | None, depth: int) -> list[Any]:
        if amount is not None:
            return [self._read_value(depth) for _ in range(amount)]
        items = []
        while (item := self.read_item(depth + 1)) is not _BREAK:
            items.append(item)
        return items

    def _read_map(self, amount: int | None, depth: int) -> dict[Any, Any]:
        found = {}
        left = amount
        while left is None or left > 0:
            key = self.read_item(depth + 1)
            if key is _BREAK:
                if amount is None:
                    break
                raise ValueError("a break in a map of known length")
            if not isinstance(key, str):
                raise TypeError("a key that is not text")
            found[key] = self._read_value(depth)
            if left is not None:
                left -= 1
        return found

    def _read_value(self, depth: int) -> Any:
        item = self.read_item(depth + 1)
        if item is _BREAK:
            raise ValueError("a break where a value must be")
        return item

    def _tagged_value(self, tag: int, depth: int) -> Any:
        value = self._read_value(depth)
        if tag != 1:
            return value
        if isinstance(value, int):
            return Timestamp(value * self.tick_ms)
        return Timestamp(round(float(value) * 1000))

    def _simple_value(self, info: int) -> Any:
        if info in _SIMPLE:
            return _SIMPLE[info]
        if info in _FLOATS:
            form, size = _FLOATS[info]
            return struct.unpack(form, self._take_bytes(size))[0]
        if info == 31:
            return _BREAK
        raise ValueError(f"simple value {info}")
