"""JSON records as rows: parsed by Spark, each with a verdict that shows whether anything of the record would be lost."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.core.delivering.json_fields import (
    HALF_PAIR,
    SECONDS_MAX,
    SECONDS_MIN,
    TableColumns,
    explain_misfit,
    infer_columns,
    infer_fields,
)
from penstock.core.delivering.new_names import ColumnNameRule
from penstock.delivery.record_texts import RecordTexts, text_and_reason

SAMPLE_COUNT: Final = 1000
"""Number of records that are examined for new fields at once; a batch may need several rounds of this."""
KEPT_SCHEMAS_MAX: Final = 128
"""Number of schemas whose columns are cached. To make a column takes 0.1 ms or more, and a batch needs a thousand of them."""
_PLAIN_FIELDS_MAX: Final = 100
"""Most columns of a schema for which the text of the parsed fields is made. The code that Spark compiles grows with them."""
_CORRUPT: Final = "_penstock_corrupt"
_END: Final = "_penstock_end"
_OPTIONS: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}
_STRICT_OPTIONS: Final = {"allowNonNumericNumbers": "false"}  # JSON has no NaN
_EMPTY_OBJECT: Final = r"\A[ \t\n\r]*\{[ \t\n\r]*\}"
_READ: Final = "_penstock_read"
_IS_PLAIN: Final = "_penstock_is_plain"
_KEYS: Final = "_penstock_keys"
_BARRIER: Final = "_penstock_barrier"
_FIELDS: Final = "_penstock_fields"
TEXT: Final = "_penstock_text"
"""Name of the column with the JSON of each record, as bytes."""
VERDICT: Final = "_penstock_verdict"
"""Name of the column with the verdict of each row."""
ADDED_COLUMNS: Final = (TEXT, _KEYS, _FIELDS)
"""Names of the other columns that rows with a verdict have beside the source's."""
FITS: Final = "fits"
UNKNOWN: Final = "unknown field"
_CONFLICT: Final = "conflict"
_REPEATED_FIELD: Final = "field twice"
_VERDICTS: Final = (UNKNOWN, _CONFLICT, _REPEATED_FIELD)
"""Verdicts for which `explain_misfit` finds the reason in the record. Every other verdict except `FITS` is itself the reason."""
_UNCHANGED_COLUMNS: Final = (
    "streamName",
    "shardId",
    "sequenceNumber",
    "subSequenceNumber",
    "partitionKey",
    "explicitHashKey",
)
"""Columns of the source that stand unchanged in a dead letter."""


def with_verdict(batch: DataFrame, schema: StructType, texts: RecordTexts | None = None) -> DataFrame:
    """Return the source's rows with the parsed record in `_penstock_fields` and its verdict in `_penstock_verdict`.

    The verdict is `FITS`, one of `_VERDICTS`, or the reason why `texts` has no JSON text for the record.
    """
    allows_non_finite = texts is not None and texts.allows_non_finite
    for name, column in _added_columns(schema, texts, allows_non_finite=allows_non_finite):
        batch = batch.withColumn(name, column)
    return batch


def rows_where(verdicts: DataFrame, condition: Column) -> DataFrame:
    """Return the rows whose verdict meets a condition.

    Before 4.2, Spark would move the filter below the columns of `with_verdict` and copy the parse for each use of a field: to plan that
    takes minutes. It moves no filter below an observation.
    """
    return verdicts.observe(_BARRIER, F.count(F.lit(1))).where(condition)


@functools.lru_cache(maxsize=KEPT_SCHEMAS_MAX)
def _added_columns(
    schema: StructType, texts: RecordTexts | None, *, allows_non_finite: bool
) -> tuple[tuple[str, Column], ...]:
    """Return the columns that `with_verdict` adds, in order.

    `from_json` ignores any text after the first JSON value. So a further field is appended to each record before its last brace. The
    parsed object has that field only if the first value is the whole text.
    """
    added = [(TEXT, F.col("data"))]
    if texts is not None:
        read = F.col(f"{_READ}.text").cast("binary")
        added = [(_READ, text_and_reason(texts)), (TEXT, read)]
    text = F.col(TEXT).cast("string")
    keys = F.col(_KEYS)
    end, corrupt = (_unused_name(name, schema) for name in (_END, _CORRUPT))
    # These two fields also serve a schema without columns: Spark refuses a struct without fields.
    outer = StructType([*schema.fields, StructField(end, IntegerType()), StructField(corrupt, StringType())])
    options = {
        **_OPTIONS,
        **({} if allows_non_finite else _STRICT_OPTIONS),
        "columnNameOfCorruptRecord": corrupt,
    }
    parsed = F.col(_FIELDS)
    is_whole = (
        parsed.getField(corrupt).isNull()
        & (parsed.getField(end) == 1)
        & F.is_valid_utf8(text)
        & ~(F.contains(F.col(TEXT), F.lit(b"\\u")) & F.rlike(text, F.lit(HALF_PAIR)))
    )
    is_equal = None if allows_non_finite else _equals_json(parsed, schema)
    if is_equal is not None:
        is_whole = is_whole & is_equal
    # A record that has no more names than known ones, each counted once, has no unknown name and none twice. Many records have all
    # names in the order of the schema: that is compared first.
    known_names = _name_array(schema.names)
    has_known = (keys == known_names) | (F.size(F.array_intersect(known_names, keys)) == F.size(keys))
    is_twice = F.size(F.array_distinct(keys)) != F.size(keys)
    for path, names in _structs(schema):
        inner = _keys_at(path)
        known = F.size(F.array_intersect(_name_array(names), inner)) == F.size(inner)
        has_known = has_known & F.coalesce(known, F.lit(True))
        twice = F.size(F.array_distinct(inner)) != F.size(inner)
        is_twice = is_twice | F.coalesce(twice, F.lit(False))
    is_plain = F.col(_IS_PLAIN)
    verdict = (
        F.when(is_plain, F.lit(FITS))
        .when(keys.isNull() | ~F.coalesce(is_whole, F.lit(False)), F.lit(_CONFLICT))
        .when(has_known, F.lit(FITS))
        .when(is_twice, F.lit(_REPEATED_FIELD))
        .otherwise(F.lit(UNKNOWN))
    )
    if texts is not None:
        verdict = F.coalesce(f"{_READ}.reason", verdict)
    return (
        *added,
        (_FIELDS, F.from_json(_with_end_field(F.col(TEXT), end), outer, options)),
        (_IS_PLAIN, _is_plain(F.col(TEXT), parsed, schema)),
        (_KEYS, F.when(~is_plain, F.json_object_keys(text))),
        (VERDICT, verdict),
    )


def _is_plain(record: Column, parsed: Column, schema: StructType) -> Column:
    """Return a column that is true if a record is the text of its parsed fields, so that nothing of it is lost.

    This takes much less time than the names of the fields and the check for UTF-8, which all other records need. A record is plain if its
    fields are in the order of the schema, and texts, numbers and booleans only, as `json.dumps` or a compact encoder writes them. Without
    a backslash in the record, a parsed text has a quotation mark only if its value was an object or array, which is written without the
    quotation marks of a text. So the record has these fields and no others.
    """
    if len(schema.fields) > _PLAIN_FIELDS_MAX:
        return F.lit(False)

    def text_with(comma: str, colon: str) -> Column:
        fields = []
        for each in schema.fields:
            value = parsed.getField(each.name).cast("string")
            if isinstance(each.dataType, StringType):
                fields.append(F.concat(F.lit(f'"{each.name}"{colon}"'), value, F.lit('"')))
            elif isinstance(each.dataType, IntegralType | DoubleType | FloatType | BooleanType):
                fields.append(F.concat(F.lit(f'"{each.name}"{colon}'), value))
        return F.concat_ws(comma, *fields)  # which leaves out nulls

    has_blanks = F.contains(record, F.lit(b'": '))
    is_line = F.endswith(record, F.lit(b"\n"))
    text = F.concat(
        F.lit("{"),
        F.when(has_blanks, text_with(", ", ": ")).otherwise(text_with(",", ":")),
        F.when(is_line, F.lit("}\n")).otherwise(F.lit("}")),
    )
    is_plain = ~F.contains(record, F.lit(b"\\")) & (text.cast("binary") == record)
    return F.coalesce(is_plain, F.lit(False))


def _with_end_field(record: Column, name: str) -> Column:
    """Append a field to a JSON object. If the parser finds the field, it has read the whole object. Text that is no object becomes invalid."""
    # Bytes are cut in one step. In a text, Spark would count characters.
    last_brace, blanks = F.lit(b"}"), F.lit(" \t\n\r")
    is_closed = F.substr(record, F.lit(-1), F.lit(1)) == last_brace
    # `rtrim` reads beyond the end of a text that is not UTF-8.
    text = F.try_validate_utf8(record.cast("string"))
    body = F.when(is_closed, record).otherwise(F.rtrim(text, blanks).cast("binary"))
    opened = F.substr(body, F.lit(1), F.octet_length(body) - 1)
    field = f'"{name}":1}}'
    has_fields = F.startswith(record, F.lit(b'{"')) | ~F.rlike(record.cast("string"), F.lit(_EMPTY_OBJECT))
    return F.concat(
        opened, F.when(has_fields, F.lit(f",{field}".encode())).otherwise(F.lit(field.encode()))
    ).cast("string")


def _unused_name(name: str, schema: StructType) -> str:
    """Return a name that differs from every column's name by more than case."""
    there = {each.lower() for each in schema.names}
    while name in there:
        name += "_"
    return name


def _name_array(names: list[str]) -> Column:
    return F.array(*(F.lit(name) for name in names)).cast("array<string>")


def columns_of(ddl: str) -> StructType:
    """Parse a schema that is written as columns in SQL."""
    found = StructType.fromDDL(ddl)
    if not isinstance(found, StructType):
        raise ValueError(f"{ddl} is one type instead of columns")  # noqa: TRY004 - a user's text
    return found


def fields_of(schema: StructType) -> list[Column]:
    """Return the schema's columns, taken from the parsed record."""
    return [F.col(_FIELDS).getField(name).alias(name) for name in schema.names]


def new_columns(verdicts: DataFrame, schema: StructType, names: ColumnNameRule) -> dict[str, str]:
    """Return the columns to add for records with unknown fields: type by name."""
    refused = [*(name.lower() for name in schema.names), *names.taken_names, ""]
    # A record is sampled only if one of its unknown fields may become a column.
    may_grow = F.exists(_KEYS, lambda key: ~F.lower(key).isin(refused))
    unknown = rows_where(verdicts, (F.col(VERDICT) == UNKNOWN) & may_grow)
    rows = unknown.select(TEXT).limit(SAMPLE_COUNT).collect()
    return infer_columns((bytes(row[0]).decode() for row in rows), schema.names, names.refusal)


def with_new_fields(verdicts: DataFrame, schema: StructType, names: ColumnNameRule) -> StructType:
    """Return a schema whose structs also have the new fields that records with unknown fields have in them."""
    structs = dict(_structs(schema))
    if not structs:
        return schema
    has_new = functools.reduce(operator.or_, (_has_new_field(path, known) for path, known in structs.items()))
    unknown = rows_where(verdicts, (F.col(VERDICT) == UNKNOWN) & has_new)
    rows = unknown.select(TEXT).limit(SAMPLE_COUNT).collect()
    found = infer_fields((bytes(row[0]).decode() for row in rows), structs, names.inner_refusal)
    for path, fields in found.items():
        schema = _with_fields(schema, path, fields)
    return schema


def _has_new_field(path: tuple[str, ...], known_names: list[str]) -> Column:
    names = [*(each.lower() for each in known_names), ""]
    return F.coalesce(F.exists(_keys_at(path), lambda key: ~F.lower(key).isin(names)), F.lit(False))


def _with_fields(schema: StructType, path: tuple[str, ...], fields: Mapping[str, str]) -> StructType:
    if not path:
        return with_added_columns(schema, fields)
    first, rest = path[0], path[1:]
    return StructType(
        [
            StructField(each.name, _with_fields(each.dataType, rest, fields), each.nullable)
            if each.name == first and isinstance(each.dataType, StructType)
            else each
            for each in schema.fields
        ]
    )


def with_added_columns(schema: StructType, columns: Mapping[str, str]) -> StructType:
    """Return a schema with further columns, given as type by name."""
    added = [StructField(name, columns_of(f"c {kind}").fields[0].dataType) for name, kind in columns.items()]
    return StructType([*schema.fields, *added])


def reason_of(schema: StructType | None, names: ColumnNameRule) -> Column:
    """Return a column with the reason why a record becomes a dead letter."""
    verdict = F.col(VERDICT)
    if schema is None:
        return verdict
    columns = TableColumns(
        {field.name: field.dataType.simpleString() for field in schema.fields},
        _names_inside(schema),
        names.refusal,
        names.inner_refusal,
    )

    def read(data, is_unknown):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - Spark would read the hints
        return explain_misfit(bytes(data or b""), columns, is_unknown=is_unknown)

    found = F.udf(read, "string")(TEXT, verdict == UNKNOWN)
    return F.when(verdict.isin(*_VERDICTS), found).otherwise(verdict)


def _names_inside(schema: StructType) -> dict[str, Any]:
    """Return the fields of each column that is a struct, by name: None, or again the fields of a struct."""
    return {
        column.name: {
            **dict.fromkeys(column.dataType.names),
            **_names_inside(column.dataType),
        }
        for column in schema.fields
        if isinstance(column.dataType, StructType)
    }


def dead_letters(
    rows: DataFrame, schema: StructType | None, names: ColumnNameRule, delivery: str, label: str
) -> DataFrame:
    """Return the dead letters, as they are written, for rows with another verdict than `FITS`."""
    return rows.select(
        F.lit(delivery).alias("delivery"),
        F.lit(label).alias("batch"),
        reason_of(schema, names).alias("reason"),
        *_UNCHANGED_COLUMNS,
        F.unix_micros("approximateArrivalTimestamp").alias("arrivedMicros"),
        F.date_format(
            F.to_utc_timestamp("approximateArrivalTimestamp", F.current_timezone()),
            "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'",
        ).alias("arrived"),
        F.regexp_replace(F.base64("data"), r"\s", "").alias("data"),  # Spark breaks it into lines
    )


DEAD_LETTER_DDL: Final = (
    "delivery STRING, batch STRING, reason STRING, streamName STRING, shardId STRING, sequenceNumber STRING, "
    "subSequenceNumber BIGINT, partitionKey STRING, explicitHashKey STRING, arrivedMicros BIGINT, arrived STRING, data STRING"
)


def source_rows(letters: DataFrame) -> DataFrame:
    """Return the source's rows from which dead letters were made."""
    return letters.select(
        *_UNCHANGED_COLUMNS,
        F.timestamp_micros("arrivedMicros").alias("approximateArrivalTimestamp"),
        F.unbase64("data").alias("data"),
    )


def _equals_json(value: Column, kind: Any) -> Column | None:
    """Return a column that is true if a parsed value equals its JSON; None if values of this type always equal it.

    Spark turns a number that is too large for a DOUBLE into infinity, and reads a moment in milliseconds as one in seconds. It makes
    maps that have a key twice, which readers refuse, and dates outside the years 1 to 9999, at which Python's readers fail.
    """
    if isinstance(kind, DoubleType | FloatType):
        is_equal = F.abs(value) != float("inf")
    elif isinstance(kind, TimestampType):
        is_equal = F.unix_seconds(value).between(SECONDS_MIN, SECONDS_MAX - 1)
    elif isinstance(kind, DateType | TimestampNTZType):
        is_equal = F.year(value).between(1, 9999)
    elif isinstance(kind, ArrayType):
        if _equals_json(F.lit(None), kind.elementType) is None:
            return None
        is_equal = F.forall(value, lambda each: _element_equals_json(each, kind.elementType))
    elif isinstance(kind, MapType):
        keys = F.map_keys(value)
        is_equal = F.size(keys) == F.size(F.array_distinct(keys))
        if _equals_json(F.lit(None), kind.valueType) is not None:
            is_equal = is_equal & F.forall(
                F.map_values(value), lambda each: _element_equals_json(each, kind.valueType)
            )
    elif isinstance(kind, StructType):
        parts = [_equals_json(value.getField(each.name), each.dataType) for each in kind.fields]
        found = [each for each in parts if each is not None]
        if not found:
            return None
        is_equal = functools.reduce(operator.and_, found)
    else:
        return None
    return F.coalesce(is_equal, F.lit(True))


def _element_equals_json(value: Column, kind: Any) -> Column:
    is_equal = _equals_json(value, kind)
    assert is_equal is not None
    return is_equal


def _keys_at(path: tuple[str, ...]) -> Column:
    """Return the names in the object at a path of names; null if there is no object."""
    at = "".join(f"['{name}']" for name in path)
    return F.json_object_keys(F.get_json_object(F.col(TEXT).cast("string"), f"${at}"))


def _structs(schema: StructType, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return the path of each struct in the schema, with the names of the struct's fields."""
    found: list[tuple[tuple[str, ...], list[str]]] = []
    for field in schema.fields:
        kind: Any = field.dataType
        if isinstance(kind, StructType) and "'" not in field.name:
            inner = (*path, field.name)
            found += [(inner, kind.names), *_structs(kind, inner)]
    return found
