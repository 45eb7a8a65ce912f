"""Bounds on the cost of an Avro payload, checked before it is converted: a few bytes may declare more than memory holds.

fastavro converts whole payloads, and while it does, no other thread of the process runs. So decimals are converted here, and a
payload that may hold too many values is counted first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, Final

import fastavro
from fastavro.read import LOGICAL_READERS

DECIMAL_DIGITS_MAX: Final = 10_000
"""The most digits of a decimal, also if its schema permits more. The time to convert it grows with the square of this number."""
VALUE_COUNT_MAX: Final = 4_000_000
"""The most values of one payload. Every record, array and map counts, and so does each of their members."""
_MARKS_OF_FASTAVRO: Final = frozenset({"__fastavro_parsed", "__named_schemas"})
_DECIMAL: Final = "penstock-decimal"
_DIGITS_SHOWN_MAX: Final = 100
_VARINT_BYTES_MAX: Final = 10
_RATIOS: Final = (1, 2, 4, 8, 16, 32)
_EXACT_CONTEXT: Final = Context(prec=DECIMAL_DIGITS_MAX)
_SIZES: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LENGTH_PREFIXED: Final = frozenset({"bytes", "string"})
_NUMBERS: Final = frozenset({"int", "long", "enum"})
_NAMED_TYPES: Final = frozenset({"record", "error", "enum", "fixed"})


class TooManyValuesError(ValueError):
    """A payload has more values than may be read."""


# --- decimals ---


def with_bounded_decimals(schema: Any) -> Any:
    """Return a schema for the same values, whose decimals are read by `read_decimal`.

    Args:
        schema: As `parse_avro` returns it.
    """
    renamed = _with_renamed_decimals(schema)
    return schema if renamed == without_marks(schema) else fastavro.parse_schema(renamed)


def _with_renamed_decimals(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_renamed_decimals(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {
        name: _with_renamed_decimals(each) if name in ("type", "items", "values", "fields") else each
        for name, each in schema.items()
        if name not in _MARKS_OF_FASTAVRO
    }
    if schema.get("logicalType") == "decimal" and schema["type"] in ("bytes", "fixed"):
        found["logicalType"] = _DECIMAL
    return found


def without_marks(schema: Any) -> Any:
    """Return a schema without the marks that fastavro's parser adds."""
    if isinstance(schema, Mapping):
        return {name: each for name, each in schema.items() if name not in _MARKS_OF_FASTAVRO}
    return [without_marks(each) for each in schema] if isinstance(schema, list | tuple) else schema


def has_decimals(schema: Any) -> bool:
    """Return whether a value of a schema may hold a decimal."""
    return bool(_with_renamed_decimals(schema) != without_marks(schema))


@functools.lru_cache(maxsize=256)
def _end_of(digits: int) -> tuple[int, int]:
    """Return 10 ** `digits`, which has too many digits, and the most bytes that a smaller number takes with its sign."""
    end = 10**digits
    return end, end.bit_length() // 8 + 1


def unscaled_decimal(data: bytes, precision: int) -> int:
    """Return the unscaled number of a decimal; the time does not depend on the length of the data.

    Raises:
        ValueError: The number has more digits than its schema's precision, or than `DECIMAL_DIGITS_MAX`.
    """
    digits = min(precision, DECIMAL_DIGITS_MAX)
    end, bytes_max = _end_of(digits)
    if len(data) > bytes_max:
        # Some writers put needless bytes of the sign in front.
        shorter = data.lstrip(b"\xff" if data[0] & 0x80 else b"\0")
        if len(shorter) > bytes_max:
            raise ValueError(f"a decimal of {len(data)} bytes has more than {digits} digits")
        data = data[-bytes_max:]
    unscaled = int.from_bytes(data, "big", signed=True)
    if not -end < unscaled < end:
        number = unscaled if digits <= _DIGITS_SHOWN_MAX else f"a decimal of {len(data)} bytes"
        raise ValueError(f"{number} has more than {digits} digits")
    return unscaled


def _read_decimal(data: Any, writer_schema: Any, _reader_schema: Any = None) -> Decimal:
    unscaled = unscaled_decimal(data, writer_schema["precision"])
    return Decimal(unscaled).scaleb(-writer_schema.get("scale", 0), _EXACT_CONTEXT)


# fastavro's way to add a logical type. The name is ours, so a program's own use of fastavro stays as it is.
LOGICAL_READERS[f"bytes-{_DECIMAL}"] = _read_decimal
LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _read_decimal


# --- the number of values ---


class ValueBound:
    """Finds payloads with too many values. Most schemas permit few values for each byte, so their payloads are not counted.

    Args:
        schema: The writer's schema, as `parse_avro` returns it.
        contains_itself: Whether a datum may be nested without a bound. If so, the values of every payload are counted.
        count_max: Values that a payload may have.
    """

    def __init__(self, schema: Any, *, contains_itself: bool, count_max: int = VALUE_COUNT_MAX) -> None:
        self._named_schemas: Final[dict[str, Any]] = {}
        self._schema: Final = fastavro.parse_schema(schema, self._named_schemas)
        self._count_max: Final = count_max
        self._uncounted_bytes_max: Final = -1 if contains_itself else _uncounted_bytes_max(schema, count_max)

    def check(self, payload: bytes) -> None:
        """Count the values of a payload, if it may have too many.

        Raises:
            TooManyValuesError: The payload has too many values.
            EOFError, ValueError, IndexError, RecursionError: The payload does not fit the schema.
        """
        if len(payload) > self._uncounted_bytes_max:
            _ValueCounter(payload, self._named_schemas, self._count_max).walk(self._schema)


def _uncounted_bytes_max(schema: Any, count_max: int) -> int:
    """Return the largest size of a payload that cannot have more than `count_max` values; -1 if every payload must be counted."""
    for ratio in _RATIOS:
        excess = _ValueExcess(ratio)
        first = excess.of(schema)
        if all(each <= 0 for each in excess.of_items):
            return max(-1, (count_max - max(0, first)) // ratio)
    return -1


class _ValueExcess:
    """Computes by how many values a datum may exceed `ratio` values per byte. Items of arrays and maps are counted separately.

    Args:
        ratio: Values for each byte.
    """

    def __init__(self, ratio: int) -> None:
        self._ratio = ratio
        self._of_named: dict[str, int] = {}
        self.of_items: list[int] = []

    def of(self, schema: Any) -> int:
        """Return the largest excess of a datum: its number of values, minus `ratio` times the fewest bytes that it can have."""
        if isinstance(schema, list):
            return max(map(self.of, schema), default=0) - self._ratio
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self.of(kind)
        if kind in self._of_named:
            return self._of_named[kind]
        if kind == "array":
            self.of_items.append(self.of(schema["items"]))
        elif kind == "map":
            self.of_items.append(self.of(schema["values"]) - self._ratio)
        found = 1 - self._ratio * _SIZES.get(kind, 1)
        if kind in ("record", "error"):
            found = 1 + sum(self.of(each["type"]) for each in schema["fields"])
        elif kind == "fixed":
            found = 1 - self._ratio * int(schema["size"])
        if kind in _NAMED_TYPES:
            self._of_named[schema["name"]] = found
        return found


class _ValueCounter:
    """Walks over one datum of a payload and counts its values.

    Args:
        named_schemas: Schemas by their full names.
        count_max: Values that the datum may have.
    """

    def __init__(self, payload: bytes, named_schemas: Mapping[str, Any], count_max: int) -> None:
        self._payload = payload
        self._named_schemas = named_schemas
        self._count_max = self._values_left = count_max
        self._position = 0

    def walk(self, schema: Any) -> None:
        """Count the values of the next datum, which has this schema, and move behind it."""
        if isinstance(schema, list):
            self.walk(schema[self._number()])
            return
        if isinstance(schema, str) and schema in self._named_schemas:
            schema = self._named_schemas[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            self.walk(kind)
            return
        self._add(1)
        if kind in ("record", "error"):
            for field in schema["fields"]:
                self.walk(field["type"])
        elif kind in ("array", "map"):
            self._walk_blocks(schema)
        elif kind in _NUMBERS:
            self._number()
        elif kind in _LENGTH_PREFIXED:
            self._skip(self._number())
        else:
            self._skip(int(schema["size"]) if kind == "fixed" else _SIZES[kind])

    def _walk_blocks(self, schema: Mapping[str, Any]) -> None:
        is_map = schema["type"] == "map"
        item = schema["values" if is_map else "items"]
        while (number := self._number()) != 0:
            if number < 0:
                number = -number
                self._number()  # bytes of the block
            for _ in range(number):
                at, left = self._position, self._values_left
                if is_map:
                    self._skip(self._number())
                self.walk(item)
                if self._position == at:  # items without bytes are all alike: count the others at once
                    self._add((number - 1) * (left - self._values_left))
                    break

    def _add(self, count: int) -> None:
        self._values_left -= count
        if self._values_left < 0:
            raise TooManyValuesError(f"it has more than {self._count_max} values")

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._payload) - self._position:
            raise EOFError(f"Expected {size} bytes, {len(self._payload) - self._position} are left")
        self._position += size

    def _number(self) -> int:
        """Read an int or long: base 128, low groups first, zigzag."""
        found = shift = 0
        for byte in self._payload[self._position : self._position + _VARINT_BYTES_MAX]:
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self._position += shift // 7
                return (found >> 1) ^ -(found & 1)
        if len(self._payload) - self._position < _VARINT_BYTES_MAX:
            raise EOFError("the payload ends in a number")
        raise ValueError(f"a number has more than {_VARINT_BYTES_MAX} bytes")
