"""Spark's types for Avro schemas, and the conversion of values that fastavro has read.

The types are those of Spark's own `from_avro`. Values are read without logical types, by Avro's rules of resolution, and
get their meaning from the reader's schema.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from fastavro.schema import expand_schema
from pyspark.sql import types as t

from penstock.errors import SchemaMismatch, UnsupportedSchema
from penstock.schemas.avro_check import INTEGER_ENDS
from penstock.schemas.avro_cost import unscaled_decimal

Convert: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_WITHOUT_ZONE: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a local timestamp has no zone
_DECIMAL_DIGITS_MAX: Final = 38


class SparkAvro(NamedTuple):
    """The type in Spark of an Avro schema, and the conversion of its values.

    Args:
        is_nullable: Whether a value may be null.
        convert: Returns Spark's value of one that fastavro has read without logical types.
    """

    type: t.DataType
    is_nullable: bool
    convert: Convert


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are read as they are written: a timestamp as a number."""
    if isinstance(schema, Mapping):
        return {
            name: without_logical_types(value) if name in ("type", "items", "values", "fields") else value
            for name, value in schema.items()
            if name not in ("logicalType", "precision", "scale")
        }
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [without_logical_types(each) for each in schema]
    return schema


def spark_avro(schema: Any) -> SparkAvro:
    """Return the type in Spark of an Avro schema.

    Args:
        schema: The schema as JSON values, with its logical types.

    Raises:
        UnsupportedSchema: Spark has no such type; the message has the path of the field.
    """
    return spark_avro_of_expanded(expand_schema(schema))


def spark_avro_of_expanded(schema: Any) -> SparkAvro:
    """Return the type in Spark of a schema in which each name is replaced by its definition."""
    return _type_of(schema, "")


def _type_of(schema: Any, path: str) -> SparkAvro:
    if isinstance(schema, list):
        return _type_of_union(schema, path)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if not isinstance(kind, str):
        return _type_of(kind, path)
    if kind == "record":
        return _type_of_record(schema, path)
    if kind in ("array", "map"):
        return _type_of_container(schema, kind, path)
    return _type_of_logical(schema, path) or _type_of_primitive(kind, path)


def _type_of_container(schema: Mapping[str, Any], kind: str, path: str) -> SparkAvro:
    if kind == "array":
        element = _type_of(schema["items"], f"{path}[]")
        return SparkAvro(
            t.ArrayType(element.type, element.is_nullable),
            False,
            lambda value: [element.convert(each) for each in value],
        )
    item = _type_of(schema["values"], f"{path}{{}}")
    return SparkAvro(
        t.MapType(t.StringType(), item.type, item.is_nullable),
        False,
        lambda value: {key: item.convert(each) for key, each in value.items()},
    )


def _type_of_primitive(kind: str, path: str) -> SparkAvro:
    if kind not in _SPARK_TYPES:
        why = "Spark has no type for null alone" if kind == "null" else f"{kind} contains itself"
        raise UnsupportedSchema(f"{_describe_place(path)} cannot be a column of Spark: {why}")
    if kind in INTEGER_ENDS:
        return SparkAvro(_SPARK_TYPES[kind], False, _integer(kind, path))
    return SparkAvro(_SPARK_TYPES[kind], False, _bytes if kind in ("bytes", "fixed") else _unchanged)


def _type_of_record(schema: Mapping[str, Any], path: str) -> SparkAvro:
    names = [field["name"] for field in schema["fields"]]
    if len({name.lower() for name in names}) < len(names):
        raise UnsupportedSchema(
            f"{_describe_place(path)} cannot be a column of Spark: it has fields that differ in case only ({', '.join(names)})"
        )
    members = [_type_of(field["type"], f"{path}.{field['name']}") for field in schema["fields"]]
    fields = [
        t.StructField(name, member.type, member.is_nullable)
        for name, member in zip(names, members, strict=True)
    ]
    converts = [
        (field["name"], field.get("default"), member.convert)
        for field, member in zip(schema["fields"], members, strict=True)
    ]

    def convert(value: Mapping[str, Any]) -> tuple[Any, ...]:
        # A default of a record may leave out fields that have one of their own.
        return tuple(each(value.get(name, default)) for name, default, each in converts)

    return SparkAvro(t.StructType(fields), False, convert)


def _type_of_union(branches: list[Any], path: str) -> SparkAvro:
    """Return the type of a union: that of its only branch but null, the wider of two numbers, or a struct of its branches."""
    others = [branch for branch in branches if _kind(branch) != "null"]
    is_nullable = len(others) < len(branches)
    kinds = {_kind(branch) for branch in others}
    if not others:
        return _type_of("null", path)
    if kinds == {"int", "long"} and not any(map(_logical, others)):
        member = _type_of_primitive("long", path)
    elif kinds == {"float", "double"}:
        member = SparkAvro(t.DoubleType(), False, _unchanged)
    elif len(others) == 1:
        member = _type_of(others[0], path)
    else:
        return _type_of_mixed_union(others, path, is_nullable=is_nullable)
    convert = member.convert
    return SparkAvro(
        member.type, is_nullable, lambda value: None if value is None else convert(_without_name(value))
    )


def _type_of_mixed_union(branches: list[Any], path: str, *, is_nullable: bool) -> SparkAvro:
    """Return the type of a union of several types: a struct with a field for each. A value fills its own field; the others are null."""
    kinds = [_kind(branch) for branch in branches]
    for first, second in (("int", "long"), ("float", "double")):
        if first in kinds and second in kinds:
            raise UnsupportedSchema(
                f"{_describe_place(path)} cannot be a column of Spark: a value of its union may be {first} or {second}, which cannot be "
                "told apart when it was read"
            )
    members = [_type_of(branch, f"{path}.member{place}") for place, branch in enumerate(branches)]
    fields = [t.StructField(f"member{place}", member.type, True) for place, member in enumerate(members)]
    names = [branch.get("name") if isinstance(branch, Mapping) else None for branch in branches]
    fits = [_branch_test(branch) for branch in branches]

    def convert(value: Any) -> tuple[Any, ...] | None:
        if value is None:
            return None
        if isinstance(value, tuple):
            place = names.index(value[0])
            value = value[1]
        else:
            place = next((place for place, fit in enumerate(fits) if fit(value)), -1)
            if place < 0:
                raise SchemaMismatch(
                    f"{_describe_place(path)}: a {type(value).__name__} is none of the union's branches"
                )
        return tuple(member.convert(value) if each == place else None for each, member in enumerate(members))

    return SparkAvro(t.StructType(fields), is_nullable, convert)


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    return kind if isinstance(kind, str) else _kind(kind)


def _logical(schema: Any) -> Any:
    return schema.get("logicalType") if isinstance(schema, Mapping) else None


def _branch_test(branch: Any) -> Callable[[Any], bool]:
    """Return the check whether a value belongs to a branch, for values that were read without the branch's name."""
    kind = _kind(branch)
    if kind == "record":
        names = {field["name"] for field in branch["fields"]}
        return lambda value: isinstance(value, Mapping) and set(value) == names
    if kind == "enum":
        return lambda value: value in branch["symbols"]
    if kind == "fixed":
        return lambda value: isinstance(value, bytes) and len(value) == branch["size"]
    expected = _PYTHON_TYPES[kind]
    return lambda value: type(value) is expected


def _without_name(value: Any) -> Any:
    # A value of a named type in a union is read as the pair of name and value.
    return value[1] if isinstance(value, tuple) else value


def _type_of_logical(schema: Mapping[str, Any], path: str) -> SparkAvro | None:
    logical, kind = _logical(schema), schema["type"]
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > _DECIMAL_DIGITS_MAX:
            raise UnsupportedSchema(
                f"{_describe_place(path)} cannot be a column of Spark: a decimal of {precision} digits, and Spark's end at "
                f"{_DECIMAL_DIGITS_MAX}"
            )
        return SparkAvro(t.DecimalType(precision, scale), False, _decimal(precision, scale, path))
    if (kind, logical) == ("int", "date"):
        return SparkAvro(t.DateType(), False, _since(_EPOCH.date(), dt.timedelta(days=1), path))
    for name, unit in (("millis", dt.timedelta(milliseconds=1)), ("micros", dt.timedelta(microseconds=1))):
        if (kind, logical) == ("long", f"timestamp-{name}"):
            return SparkAvro(t.TimestampType(), False, _since(_EPOCH, unit, path))
        if (kind, logical) == ("long", f"local-timestamp-{name}"):
            return SparkAvro(t.TimestampNTZType(), False, _since(_EPOCH_WITHOUT_ZONE, unit, path))
    return None


def _since(epoch: dt.date, unit: dt.timedelta, path: str) -> Convert:
    """Return the conversion of a number of units since the epoch to a date or a moment."""

    def convert(value: int) -> dt.date:
        try:
            return epoch + value * unit
        except OverflowError as error:
            raise SchemaMismatch(
                f"{_describe_place(path)}: {value} is not between the years 1 and 9999"
            ) from error

    return convert


def _decimal(precision: int, scale: int, path: str) -> Convert:
    def convert(value: bytes | str) -> Decimal:
        try:
            unscaled = unscaled_decimal(_bytes(value), precision)
        except ValueError as error:
            raise SchemaMismatch(f"{_describe_place(path)}: {error}") from error
        # From its digits: arithmetic would round to the context's precision.
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    return convert


def _integer(kind: str, path: str) -> Convert:
    end = INTEGER_ENDS[kind]

    def convert(value: int) -> int:
        # Avro writes int and long alike, so a careless writer's int may have more than 32 bits.
        if not -end <= value < end:
            raise SchemaMismatch(f"{_describe_place(path)}: {value} is not a valid {kind}")
        return value

    return convert


def _bytes(value: bytes | str) -> bytes:
    # The default of a field of bytes is a text in the schema, of which each character is a byte.
    return value.encode("iso-8859-1") if isinstance(value, str) else value


def _unchanged(value: Any) -> Any:
    return value


def _describe_place(path: str) -> str:
    return f"field {path.removeprefix('.')}" if path else "the schema"


_SPARK_TYPES: Final[Mapping[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "fixed": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
}
_PYTHON_TYPES: Final[Mapping[str, type]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "array": list,
    "map": dict,
}
