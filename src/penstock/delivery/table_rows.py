"""Rows of a table, made from rows of the source: the table's columns, and its partition columns."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from penstock.core.delivering.definition import METADATA, Delivery
from penstock.core.delivering.lake_table import is_wider
from penstock.core.delivering.new_names import ColumnNameRule
from penstock.core.delivering.sql_names import quote_name
from penstock.delivery import json_rows
from penstock.delivery.record_texts import RecordTexts
from penstock.errors import OptionError
from penstock.spark.schema import COLUMNS

_log: Final = logging.getLogger("penstock.delivery")
_ARRIVAL: Final = "approximateArrivalTimestamp"
_KEPT_PREFIX: Final = "_penstock_row_"
_FOLDER_BYTES_MAX: Final = 255
"""Longest name of a folder on most file systems. A longer one would end the delivery."""
_ESCAPED_CHARACTERS: Final = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
"""Characters that Spark writes as `%` and two digits in the names of partition folders."""
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"


def table_rows(rows: DataFrame, delivery: Delivery, schema: StructType | None) -> DataFrame:
    """Return the rows to write for source rows whose verdict is `FITS`: the schema's columns, then the partition columns."""
    for columns in _table_columns(delivery, schema):
        rows = rows.select(*columns)
    return rows


@functools.lru_cache(maxsize=json_rows.KEPT_SCHEMAS_MAX)
def _table_columns(delivery: Delivery, schema: StructType | None) -> tuple[tuple[Column, ...], ...]:
    """Return the columns that `table_rows` selects, in two steps."""
    if schema is None:
        fields: list[Column] = []
        names = [*COLUMNS]
    else:
        metadata = [F.col(METADATA[name]).alias(f"_{name}") for name in delivery.metadata]
        fields = [*metadata, *json_rows.fields_of(schema)]
        names = [*schema.names, *(f"_{name}" for name in delivery.metadata)]
    known = {name.lower() for name in names}
    parts = [
        F.expr(each.expression).alias(each.name)
        for each in delivery.partitions
        if each.name.lower() not in known  # else the table is partitioned by this column itself
    ]
    return (*_source_columns(schema), *fields), (*(F.col(quote_name(name)) for name in names), *parts)


def _source_columns(schema: StructType | None) -> list[Column]:
    """Return the source's columns and `arrived` for partition expressions, without those whose name a field of the schema has."""
    hidden = {name.lower() for name in ([] if schema is None else schema.names)}
    columns = {**{name: F.col(name) for name in COLUMNS}, "arrived": F.col(_ARRIVAL).alias("arrived")}
    return [column for name, column in columns.items() if name.lower() not in hidden]


def with_verdict(
    batch: DataFrame, delivery: Delivery, schema: StructType | None, texts: RecordTexts | None
) -> DataFrame:
    """Return the source's rows with the parsed record and a verdict: whether the record fits the schema and the partitions.

    A record does not fit if a partition column is null although every field in its expression has a value. In Iceberg tables an empty
    text fits. In other tables it does not: readers of partition folders would take it for null.
    """
    if schema is not None:
        batch = json_rows.with_verdict(batch, schema, texts)
        if not delivery.partitions or not schema.fields or delivery.format == "stream":
            return batch
    for columns in _judged_columns(delivery, schema):
        batch = batch.select(*columns)
    return batch


@functools.lru_cache(maxsize=json_rows.KEPT_SCHEMAS_MAX)
def _judged_columns(delivery: Delivery, schema: StructType | None) -> tuple[tuple[Column, ...], ...]:
    """Return the columns that `with_verdict` selects, in two steps, to judge the partitions of rows."""
    if schema is None:  # here a partition may be null
        verdict = F.lit(json_rows.FITS)
        for part in delivery.partitions:
            for is_unfit, reason in _unfit_folders(F.expr(part.expression), part.name, delivery.format):
                verdict = F.when(is_unfit, F.lit(f"partition column {part.name}: {reason}")).otherwise(
                    verdict
                )
        source = tuple(F.col(name) for name in COLUMNS)
        return tuple(_source_columns(schema)), (*source, verdict.alias(json_rows.VERDICT))
    # In expressions a field hides the source's column with the same name. The returned rows still have that column.
    names = (*COLUMNS, *json_rows.ADDED_COLUMNS)
    kept = [F.col(name).alias(f"{_KEPT_PREFIX}{name}") for name in (*names, json_rows.VERDICT)]
    columns = {name.lower(): F.col(quote_name(name)) for name in (*COLUMNS, "arrived", *schema.names)}
    verdict = F.col(f"{_KEPT_PREFIX}{json_rows.VERDICT}")
    for part in delivery.partitions:
        value = F.expr(part.expression)
        used_fields = [
            _field_of(columns[first.lower()], rest, schema[first].dataType if first in schema.names else None)
            for first, _, rest in (each.partition(".") for each in part.column_names)
            if first.lower() in columns
        ]
        is_lost = value.isNull()
        for each in used_fields:
            is_lost = is_lost & each.isNotNull()
        refusal = f"partition column {part.name}: "
        verdict = F.when(verdict != json_rows.FITS, verdict).when(
            is_lost, F.lit(f"{refusal}{part.expression} has no value for this record")
        )
        for is_unfit, reason in _unfit_folders(value, part.name, delivery.format):
            verdict = verdict.when(is_unfit, F.lit(f"{refusal}{reason}"))
        verdict = verdict.otherwise(F.lit(json_rows.FITS))
    return (
        (*kept, *_source_columns(schema), *json_rows.fields_of(schema)),
        (*(F.col(f"{_KEPT_PREFIX}{name}").alias(name) for name in names), verdict.alias(json_rows.VERDICT)),
    )


def _unfit_folders(value: Column, name: str, table_format: str) -> list[tuple[Column, str]]:
    """Return the conditions under which no folder can be made for a partition, each with its reason.

    Args:
        value: The partition's value.
        name: Name of the partition column.
        table_format: Format of the table. Iceberg's folders are only names; elsewhere readers take the value from the folder.
    """
    text = value.cast("string")
    room = _FOLDER_BYTES_MAX - len(f"{name}=".encode())
    is_iceberg = table_format == "iceberg"
    written = F.url_encode(text) if is_iceberg else F.regexp_replace(text, _ESCAPED_CHARACTERS, "%00")
    # Most values are short enough even if each byte becomes three.
    is_long = (F.octet_length(text) * 3 > room) & (F.octet_length(written) > room)
    found = [(is_long, f"the name of its folder would have more than {_FOLDER_BYTES_MAX} bytes")]
    if not is_iceberg:
        found += [
            (text == "", "an empty text cannot be the name of a folder"),
            (text == _NULL_FOLDER, "this text is the name of the folder of null"),
            (F.contains(text, F.lit("\0")), "a text with a NUL cannot be the name of a folder"),
        ]
    return found


def _field_of(column: Column, path: str, kind: Any) -> Column:
    """Return the field at a path such as `a.b` in a column of type `kind`. The path ends early at a field that is no struct."""
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.names:
            break
        column, kind = column.getField(name), kind[name].dataType
    return column


def check_columns(delivery: Delivery, schema: StructType | None) -> None:
    """Refuse a schema in which two columns have the same name, or whose structs Spark cannot read.

    Raises:
        OptionError: Two columns of the schema, the metadata and the partitions have the same name; or a struct has a name with an
            apostrophe or a question mark.
    """
    _check_struct_names(schema)
    names = [*COLUMNS] if schema is None else [*schema.names]
    names += [f"_{name}" for name in delivery.metadata] if schema is not None else []
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            raise OptionError(f"schema: columns {seen[name.lower()]} and {name} have the same name for Spark")
        seen[name.lower()] = name
    for each in delivery.partitions:
        if each.name.lower() in seen and not each.is_plain:
            raise OptionError(
                f"partition-by={each.expression}: the table has a column {seen[each.name.lower()]} already; name the partition "
                f"column otherwise, for instance `{each.expression} AS {each.name}_part`"
            )


def _check_struct_names(schema: StructType | None) -> None:
    name = None if schema is None else unfindable_struct(schema)
    if name is not None:
        raise OptionError(
            f"schema: {name} is a STRUCT, and Spark finds no fields of one with an apostrophe or a question mark in its name: "
            "make it a STRING, which gets its JSON text"
        )


def unfindable_struct(schema: StructType) -> str | None:
    """Return the name of a struct whose fields Spark cannot find in a JSON text; None if there is none."""
    for each in schema.fields:
        if isinstance(each.dataType, StructType):
            name = each.name if set("'?") & set(each.name) else unfindable_struct(each.dataType)
            if name is not None:
                return name
    return None


def with_newer_columns(
    schema: StructType, newest: StructType, names: ColumnNameRule, *, in_structs: bool = False
) -> StructType:
    """Return a schema with the columns that its newest version adds or widens; with `in_structs`, also inside structs."""
    there = {each.name.lower() for each in schema.fields}
    added = [
        each for each in newest.fields if each.name.lower() not in there and names.refusal(each.name) is None
    ]
    return StructType([*with_wider_types(schema, newest, in_structs=in_structs).fields, *added])


def with_wider_types(schema: StructType, other: StructType, *, in_structs: bool = False) -> StructType:
    """Return a schema with the other schema's types where those are wider; with `in_structs`, also where their structs have more fields."""
    kinds = {each.name: each.dataType for each in other.fields}

    def is_better(kind: DataType, known_kind: DataType) -> bool:
        return (
            may_retype(known_kind, kind)
            if in_structs
            else is_wider(kind.simpleString(), known_kind.simpleString())
        )

    return StructType(
        [
            StructField(each.name, kinds[each.name])
            if each.name in kinds and is_better(kinds[each.name], each.dataType)
            else each
            for each in schema.fields
        ]
    )


def with_inner_fields(schema: StructType, other: StructType) -> StructType:
    """Return a schema whose structs also get the fields that only the other schema's structs have."""
    kinds = {each.name: each.dataType for each in other.fields}

    def joined(kind: DataType, known_kind: DataType | None) -> DataType:
        if not isinstance(kind, StructType) or not isinstance(known_kind, StructType):
            return kind
        names = {each.name.lower() for each in kind.fields}
        further = [each for each in known_kind.fields if each.name.lower() not in names]
        return StructType([*with_inner_fields(kind, known_kind).fields, *further])

    return StructType(
        [
            StructField(each.name, joined(each.dataType, kinds.get(each.name)), each.nullable)
            for each in schema.fields
        ]
    )


def may_retype(kind: DataType, other: DataType) -> bool:
    """Return whether a column of Parquet files may change from `kind` to `other`: the same type, a wider one, or one with further fields.

    Readers then read old and new files by the other type.
    """
    if isinstance(kind, StructType) and isinstance(other, StructType):
        kinds = {each.name: each.dataType for each in other.fields}
        return all(each.name in kinds and may_retype(each.dataType, kinds[each.name]) for each in kind.fields)
    if isinstance(kind, ArrayType) and isinstance(other, ArrayType):
        return may_retype(kind.elementType, other.elementType)
    if isinstance(kind, MapType) and isinstance(other, MapType):
        return kind.keyType == other.keyType and may_retype(kind.valueType, other.valueType)
    return kind == other or is_wider(other.simpleString(), kind.simpleString())


def columns_for_unsampled_fields(delivery: Delivery, columns: Collection[str]) -> dict[str, str]:
    """Warn of fields that partition expressions use and no record of the sample has; return a STRING column for each."""
    known_names = {name.lower() for name in (*columns, *COLUMNS, "arrived")}
    fields = {each.field for each in delivery.partitions if each.field is not None}
    unsampled_fields = sorted(name for name in fields if name.lower() not in known_names)
    if unsampled_fields:
        _log.warning(
            "%s: no record so far has the field %s, by which the table is partitioned; it becomes a STRING column. If the name is wrong, "
            "stop, correct partition-by and start over with a new table",
            delivery.name,
            ", ".join(unsampled_fields),
        )
    return dict.fromkeys(unsampled_fields, "STRING")
