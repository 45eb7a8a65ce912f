"""Payloads that are JSON in UTF-8, and are checked against a JSON Schema before they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.core.safe_text import text_of
from penstock.errors import SchemaMismatch, UnsupportedSchema
from penstock.schemas.avro_cost import VALUE_COUNT_MAX

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_EMPTY: Final = re.compile(rb"\[\s*\]|\{\s*\}")
_SHOWN_MAX: Final = 1_000


class JsonCodec:
    """Reads and writes payloads of one schema.

    Args:
        definition: The JSON Schema as text, or parsed. Draft 7, unless its `$schema` names another.
        schema_name: The schema's name in messages.
        value_count_max: A payload with more values is refused.
        checks: Whether values are checked against the schema. Writers must check; readers need not, and those of the Java
            reference do not.

    Raises:
        UnsupportedSchema: The definition is not a JSON Schema.
    """

    def __init__(
        self,
        definition: str | Mapping[str, Any] | Sequence[Any],
        schema_name: str,
        *,
        checks: bool,
        value_count_max: int = VALUE_COUNT_MAX,
    ) -> None:
        self._schema_name: Final = schema_name
        self._value_count_max: Final = value_count_max
        self._check: Final = _schema_check(definition, schema_name) if checks else None

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises:
            SchemaMismatch: The payload is not JSON, or does not fit the schema.
        """
        if len(payload) > self._value_count_max and _count_values(payload) > self._value_count_max:
            raise SchemaMismatch(
                f"the payload of {len(payload)} bytes of {self._schema_name} is not read: it has more than {self._value_count_max} "
                "values; raise value_count_max if it is to be read"
            )
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SchemaMismatch(
                f"the payload of {len(payload)} bytes of {self._schema_name} is not JSON: {error}"
            ) from error
        if self._check is not None:
            self._check(value)
        return value

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value.

        Raises:
            SchemaMismatch: The value cannot be JSON, or does not fit the schema.
        """
        try:
            payload = msgspec.json.encode(value)
            if b"null" in payload:
                # msgspec writes null for numbers that JSON does not have; json refuses them.
                json.dumps(msgspec.to_builtins(value, str_keys=True), allow_nan=False)
        except (msgspec.EncodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SchemaMismatch(
                f"the value for {self._schema_name} cannot be written as JSON: {error}"
            ) from error
        if self._check is not None:
            self._check(msgspec.json.decode(payload))  # the value as written: a tuple has become an array
        return payload


def _count_values(payload: bytes) -> int:
    """Return how many values a text of JSON has, without the keys of objects."""
    outside = _STRING.sub(b"", payload)
    return 1 + sum(map(outside.count, (b",", b"[", b"{"))) - sum(1 for _ in _EMPTY.finditer(outside))


def _schema_check(
    definition: str | Mapping[str, Any] | Sequence[Any], schema_name: str
) -> Callable[[Any], None]:
    """Return a function that raises SchemaMismatch for a value that does not fit a JSON Schema."""
    try:
        import jsonschema
        import referencing
        from jsonschema.exceptions import best_match

        from penstock.schemas.json_keywords import with_bounded_keywords
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"checking JSON needs the package {error.name}, which is not installed: pip install 'penstock[schemas]'",
            name=error.name,
        ) from error

    try:
        schema = json.loads(definition) if isinstance(definition, str) else definition
        if not isinstance(schema, Mapping | bool):
            raise TypeError(f"a {type(schema).__name__}, expected an object")  # noqa: TRY301 - one sentence for all
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
        kind.check_schema(schema)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # a $schema that is not text
        raise UnsupportedSchema(f"{schema_name} is not a JSON Schema: {error}") from error
    except jsonschema.SchemaError as error:
        raise UnsupportedSchema(
            f"{schema_name} is not a JSON Schema: {error.json_path}: {error.message}"
        ) from error
    kind = with_bounded_keywords(kind)
    # An empty registry: a reference to another document is refused and never fetched, as in the Java reference.
    validator = kind(schema, registry=referencing.Registry())

    def check(value: Any) -> None:
        try:
            first_error = best_match(validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as error:
            raise UnsupportedSchema(
                f"{schema_name} refers to {error.ref}, which is not in it: references to other documents are not followed; put "
                "the definition into the schema"
            ) from error
        except RecursionError as error:
            raise SchemaMismatch(
                f"the value cannot be checked by {schema_name}: it is nested too deep"
            ) from error
        except OverflowError as error:  # of `multipleOf`
            raise SchemaMismatch(
                f"the value cannot be checked by {schema_name}: a number is too large: {error}"
            ) from error
        if first_error is not None:
            raise SchemaMismatch(
                f"the value does not fit {schema_name}: {first_error.json_path:.{_SHOWN_MAX}}: {text_of(first_error.message, _SHOWN_MAX)}"
            )

    return check
