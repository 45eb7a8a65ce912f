"""A column's schema with the units of the writer's logical types.

Values are read without logical types. If a writer's timestamp in milliseconds were read as microseconds, it would become another
moment; a decimal read with another scale would become another number. So the writer's unit replaces that of the column's schema.
If it cannot, as with a scale, reading fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fastavro.schema import expand_schema, parse_schema

from penstock.errors import SchemaMismatch

_CONVERTED: Final = {
    f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros")
}
_BASES: Final[Mapping[str, str]] = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    **{
        f"{kind}-{unit}": "long"
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    },
}
_READABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "long": ("int", "long"),
    "float": ("int", "long", "float"),
    "double": ("int", "long", "float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("string", "bytes"),
}
"""Types that a writer's value may have for a reader's type, beside the type itself."""


class _LogicalType(NamedTuple):
    logical: str
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal of scale {self.scale}" if self.logical == "decimal" else self.logical


def column_as_written(column: Any, writer: Any, what: str) -> Any:
    """Return a column's schema, expanded and with the writer's units.

    Args:
        column: Schema of the column as JSON values; it is not recursive.
        writer: Schema of the writer as JSON values.
        what: Name of the values, for the message.

    Raises:
        SchemaMismatch: The column cannot take over a unit or scale of the writer; the message has the field.
    """
    named: dict[str, Any] = {}
    written = parse_schema(writer, named)
    return _UnitsOfWriter(named, what).apply_to(expand_schema(column), [written], "")


class _UnitsOfWriter:
    """Replaces the units in a column's schema by those of a writer's schema.

    Args:
        named: The writer's named types.
        what: Name of the values, for messages.
    """

    def __init__(self, named: Mapping[str, Any], what: str) -> None:
        self._named: Final = named
        self._what: Final = what

    def apply_to(self, column: Any, writers: list[Any], path: str) -> Any:
        """Return a part of the column's schema with the writer's units.

        Args:
            column: The part.
            writers: The parts of the writer's schema that may be read into it.
            path: The field's, for messages.
        """
        if isinstance(column, list):
            return [self.apply_to(branch, writers, path) for branch in column]
        if isinstance(column, str):
            return column
        kind = column["type"]
        found = [each for each in self._branches(writers) if _kind(each) in _READABLE.get(kind, (kind,))]
        if "name" in column:
            names = {_short_name(each) for each in (column["name"], *column.get("aliases", ()))}
            found = [each for each in found if _short_name(each["name"]) in names]
        if kind == "record":
            return {**column, "fields": [self._field(field, found, path) for field in column["fields"]]}
        for inner in ("items", "values"):
            if inner in column:
                return {**column, inner: self.apply_to(column[inner], [each[inner] for each in found], path)}
        return self._with_unit(column, found, path)

    def _field(self, field: Mapping[str, Any], records: list[Any], path: str) -> Any:
        names = {field["name"], *field.get("aliases", ())}
        written = [each["type"] for record in records for each in record["fields"] if each["name"] in names]
        return {**field, "type": self.apply_to(field["type"], written, f"{path}.{field['name']}")}

    def _with_unit(self, column: Mapping[str, Any], writers: list[Any], path: str) -> Any:
        """Return a type without parts, with the unit that all its writers have; raise an error if they have others."""
        expected = _logical_type(column)
        written = {meaning for each in writers if (meaning := _logical_type(each)) is not None}
        if expected is None or written <= {expected}:
            return column
        other = min(written - {expected})
        differ_in_unit = {expected.logical, other.logical} <= _CONVERTED and _have_same_base(expected, other)
        if len(written) == 1 and differ_in_unit:
            return {**column, "logicalType": other.logical}
        raise SchemaMismatch(
            f"{self._what} cannot be read: field {path.removeprefix('.')} was written as {other}, and the column has "
            f"{expected}"
        )

    def _branches(self, schemas: list[Any]) -> list[Any]:
        """Return schemas with each name replaced by its definition, and each union by its branches."""
        found: list[Any] = []
        for schema in schemas:
            each = self._named.get(schema, schema) if isinstance(schema, str) else schema
            found += self._branches(each) if isinstance(each, list) else [each]
        return found


def _have_same_base(first: _LogicalType, second: _LogicalType) -> bool:
    return first.logical.rpartition("-")[0] == second.logical.rpartition("-")[0]


def _short_name(name: str) -> str:
    return name.rpartition(".")[2]


def _kind(schema: Any) -> Any:
    return schema if isinstance(schema, str) else schema["type"]


def _logical_type(schema: Any) -> _LogicalType | None:
    """Return the logical type of a schema; None if it has none that matters here, or one that does not fit its type."""
    logical = "" if isinstance(schema, str) else schema.get("logicalType", "")
    if logical == "decimal" and schema["type"] in ("bytes", "fixed"):
        return _LogicalType(logical, schema.get("scale", 0))
    return _LogicalType(logical) if _BASES.get(str(logical)) == _kind(schema) else None
