"""Redaction of a record's key and of fields of its data, by expressions.

========================  =========================================================================
``key=hash``              the partition key becomes a hash; equal keys stay equal
``data=drop``             the data becomes empty
``json:$.customer.name``  this field of JSON data becomes "redacted"; ``[2]`` is an element, ``[*]`` all elements
``json:$.customer.id=hash``  this field becomes a hash; equal values stay equal
========================  =========================================================================
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.core.aggregation import AggregateBuilder, deaggregate
from penstock.errors import OptionError

REDACTED: Final = "redacted"
_HASH_BYTES: Final = 16
_STEP: Final = re.compile(r"\.([^.\[\]=]+)|\[(\d+|\*)\]")
_ALL: Final = "*"
_EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


class JsonField(Struct, frozen=True):
    """A field of JSON data: the steps to it, and whether it is hashed."""

    steps: tuple[str | int, ...]
    is_hashed: bool


class Redaction(Struct, frozen=True):
    """The changes to each record."""

    hashes_keys: bool = False
    drops_data: bool = False
    fields: tuple[JsonField, ...] = ()


class RedactedRecord(Struct, frozen=True):
    """A record after redaction.

    Args:
        dropped_count: Payloads that were dropped because they are not JSON and fields of JSON were to be redacted.
    """

    partition_key: str | None
    data: bytes
    dropped_count: int = 0


def parse_redaction(expressions: Sequence[str]) -> Redaction:
    """Parse expressions.

    Raises:
        OptionError: An expression cannot be parsed.
    """
    hashes_keys = drops_data = False
    fields: list[JsonField] = []
    for text in expressions:
        if text == "key=hash":
            hashes_keys = True
        elif text == "data=drop":
            drops_data = True
        elif text.startswith("json:"):
            fields.append(_parse_field(text))
        else:
            raise OptionError(
                f"--redact {text!r}: expected key=hash, data=drop, json:$.name.of.field or json:$.name.of.field=hash"
            )
    return Redaction(hashes_keys, drops_data, tuple(fields))


def _parse_field(text: str) -> JsonField:
    path, equals, how = text.removeprefix("json:").partition("=")
    if (equals and how != "hash") or not path.startswith("$"):
        raise OptionError(f"--redact {text!r}: expected json:$.name.of.field, and =hash behind it or nothing")
    steps: list[str | int] = []
    place = 1
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise OptionError(
                f"--redact {text!r}: {path[place:]!r} is not a step of a path: expected .name, [number] or [*]"
            )
        name, index = step.groups()
        steps.append(name if name is not None else index if index == _ALL else int(index))
        place = step.end()
    if not steps:
        raise OptionError(f"--redact {text!r}: names no field; data=drop drops the data")
    return JsonField(tuple(steps), is_hashed=bool(how))


def redact(redaction: Redaction, secret: bytes, partition_key: str | None, data: bytes) -> RedactedRecord:
    """Return a record after its redaction; in an aggregate every user record is redacted.

    An aggregate is built again, without explicit hash keys if keys are hashed.

    Args:
        secret: The recording's secret: equal values have equal hashes in one recording, and hashes cannot be guessed without the secret.
    """
    parts = deaggregate(data)
    if parts is None:
        new_data, is_dropped = _redact_data(redaction, secret, data)
        return RedactedRecord(_redact_key(redaction, secret, partition_key), new_data, int(is_dropped))
    builder, dropped = AggregateBuilder(), 0
    for part in parts:
        new_data, is_dropped = _redact_data(redaction, secret, part.data)
        key = _redact_key(redaction, secret, part.partition_key)
        assert key is not None, "each record of an aggregate has a key"
        builder.add(new_data, key, None if redaction.hashes_keys else part.explicit_hash_key)
        dropped += is_dropped
    return RedactedRecord(_redact_key(redaction, secret, partition_key), builder.build().data, dropped)


def _redact_key(redaction: Redaction, secret: bytes, key: str | None) -> str | None:
    return key if key is None or not redaction.hashes_keys else hash_text(secret, key)


def _redact_data(redaction: Redaction, secret: bytes, data: bytes) -> tuple[bytes, bool]:
    """Return the new data, and whether it was dropped because it is not JSON."""
    if redaction.drops_data:
        return b"", False
    if not redaction.fields:
        return data, False
    try:
        document = json.loads(
            data,
            parse_int=_number_as_written,
            parse_float=_number_as_written,
            parse_constant=_number_as_written,
        )
        for field in redaction.fields:
            document = _replaced_value(document, field.steps, field.is_hashed, secret)
        return msgspec.json.encode(document), False
    except (ValueError, RecursionError):  # a text with half a surrogate pair is a ValueError too
        return b"", bool(data)


def _number_as_written(text: str) -> msgspec.Raw:
    # Python's float would lose digits, and become infinite; its int refuses more than 4,300 digits.
    return msgspec.Raw(text.encode())


def _replaced_value(value: Any, steps: tuple[str | int, ...], is_hashed: bool, secret: bytes) -> Any:
    """Return a JSON value with the field at the end of a path redacted; unchanged if the path leads nowhere."""
    if not steps:
        return hash_text(secret, _comparable_text(value)) if is_hashed else REDACTED
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and step in value:
        return {**value, step: _replaced_value(value[step], rest, is_hashed, secret)}
    if isinstance(value, list) and (step == _ALL or isinstance(step, int)):
        return [
            _replaced_value(each, rest, is_hashed, secret) if step in (_ALL, index) else each
            for index, each in enumerate(value)
        ]
    return value


def _comparable_text(value: Any) -> str:
    """Return a JSON value as text, the same for equal values: 7, 7.0 and 70e-1 are equal."""
    parsed = json.loads(
        msgspec.json.encode(value),
        parse_int=_shortest_number,
        parse_float=_shortest_number,
        parse_constant=_number_as_written,
    )
    return msgspec.json.encode(parsed, order="deterministic").decode()


def _shortest_number(text: str) -> msgspec.Raw:
    return _number_as_written(str(_EXACT.normalize(_EXACT.create_decimal(text))))


def hash_text(secret: bytes, text: str) -> str:
    """Return the hash that replaces a partition key, or the value of a field."""
    return (
        hmac.new(secret, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()[:_HASH_BYTES].hex()
    )
