"""Payloads that are binary Avro: one datum, without a container, a schema or a fingerprint."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import fastavro
from fastavro._read_py import schemaless_reader as read_in_python
from fastavro._write_py import schemaless_writer as write_in_python
from fastavro.schema import SchemaParseException, UnknownType

from penstock.core.safe_text import describe_error
from penstock.errors import SchemaMismatch, UnsupportedSchema
from penstock.schemas.avro_check import Check, check_exponents, check_of
from penstock.schemas.avro_cost import (
    VALUE_COUNT_MAX,
    TooManyValuesError,
    ValueBound,
    has_decimals,
    with_bounded_decimals,
)

_FLOAT_INFINITIES: Final = (struct.pack("<f", math.inf), struct.pack("<f", -math.inf))
NESTING_MAX: Final = 100
"""The most levels of nesting in a value to be written, if its schema contains itself."""


def parse_avro(definition: str | Mapping[str, Any] | Sequence[Any], schema_name: str) -> Any:
    """Return a schema that is ready to read and write with.

    Args:
        definition: The schema as JSON text, or parsed.
        schema_name: The schema's name in the message.

    Raises:
        UnsupportedSchema: It is not an Avro schema.
    """
    try:
        schema = fastavro.parse_schema(load_avro(definition))
        contains_itself(schema)  # a schema that is nested too deeply fails here first
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnsupportedSchema(f"{schema_name} is not an Avro schema: {describe_error(error)}") from error
    return schema


def load_avro(definition: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """Return a schema as JSON values; the name of a primitive type may be without quotes."""
    if not isinstance(definition, str):
        return definition
    return definition.strip() if is_bare_name(definition) else json.loads(definition)


def is_bare_name(definition: str) -> bool:
    """Return whether a schema is the name of a primitive type without the quotes of JSON."""
    return definition.strip()[:1] not in ("{", "[", '"')


def contains_itself(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Return whether a datum of a schema may be nested without a bound.

    Args:
        schema: As `parse_avro` returns it. A full name refers to a definition around it or before it.
        within: Full names of the definitions around it.
    """
    if isinstance(schema, str):
        return schema in within
    if isinstance(schema, list):
        return any(contains_itself(branch, within) for branch in schema)
    if "fields" in schema:
        around = within | {schema["name"]}
        return any(contains_itself(field["type"], around) for field in schema["fields"])
    return contains_itself(schema.get("items") or schema.get("values") or schema["type"], within)


class AvroCodec:
    """Reads and writes payloads of one schema.

    Args:
        schema: The writer's schema, as `parse_avro` returns it.
        schema_name: The schema's name in messages.
        reader_schema: The schema that a payload is read into, by Avro's rules of resolution; None: the writer's.
        names_branches: Whether a union's value is read as the pair (name, value) if its branch is a named type.
        value_count_max: A payload with more values is refused.
    """

    def __init__(
        self,
        schema: Any,
        schema_name: str,
        *,
        reader_schema: Any = None,
        names_branches: bool = False,
        value_count_max: int = VALUE_COUNT_MAX,
    ) -> None:
        self._schema: Final = schema
        self._schema_name: Final = schema_name
        self._reader_schema: Final = reader_schema
        self._names_branches: Final = names_branches
        self._has_bounded_nesting: Final = not (
            contains_itself(schema) or contains_itself(reader_schema or "null")
        )
        self._read_schema: Final = with_bounded_decimals(schema)
        self._has_decimals: Final = has_decimals(schema)
        self._bound: Final = ValueBound(
            schema, contains_itself=not self._has_bounded_nesting, count_max=value_count_max
        )
        self._check: Check | None = None  # made by the first value that is written
        # The compiled reader overflows the C stack on a deep datum and ends the process; this one raises RecursionError.
        self._read: Final = fastavro.schemaless_reader if self._has_bounded_nesting else read_in_python

    def decode(self, payload: bytes) -> Any:
        """Return the datum of a payload.

        Raises:
            SchemaMismatch: The payload does not fit the schema, the payload has too many values, or the two schemas do not
                fit each other.
        """
        source = io.BytesIO(payload)
        try:
            self._bound.check(payload)
            value = self._read(
                source, self._read_schema, self._reader_schema, return_named_type=self._names_branches
            )
        except TooManyValuesError as error:
            raise SchemaMismatch(
                f"the payload of {len(payload)} bytes of {self._schema_name} is not read: {error}; raise value_count_max if it is "
                "to be read"
            ) from error
        except Exception as error:
            raise SchemaMismatch(
                f"the payload of {len(payload)} bytes does not fit {self._schema_name}: {describe_error(error)}"
            ) from error
        if source.tell() != len(payload):
            raise SchemaMismatch(
                f"the payload of {len(payload)} bytes does not fit {self._schema_name}: its datum ends after {source.tell()}"
            )
        return value

    def encode(self, value: Any) -> bytes:
        """Return the payload of a datum.

        Raises:
            SchemaMismatch: The value does not fit the schema. It must have every field without a default, and no field that
                the schema does not have.
        """
        if not self._has_bounded_nesting and _is_nested_deeper(value, NESTING_MAX):
            raise SchemaMismatch(
                f"the value does not fit {self._schema_name}: it is nested more than {NESTING_MAX} levels deep"
            )
        try:
            if self._has_decimals:
                check_exponents(value)
            self._check = self._check or check_of(self._schema)
            self._check(value)
            payload = self._write(fastavro.schemaless_writer, value)
            if any(infinity in payload for infinity in _FLOAT_INFINITIES):
                # The compiled writer makes infinity of a float that is too large; this one raises OverflowError.
                payload = self._write(write_in_python, value)
        except Exception as error:
            raise SchemaMismatch(
                f"the value does not fit {self._schema_name}: {describe_error(error)}"
            ) from error
        return payload

    def _write(self, write: Callable[..., None], value: Any) -> bytes:
        target = io.BytesIO()
        write(target, self._schema, value, strict_allow_default=True)
        return target.getvalue()


def _is_nested_deeper(value: Any, depth: int) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return depth == 0 or any(_is_nested_deeper(each, depth - 1) for each in value)
