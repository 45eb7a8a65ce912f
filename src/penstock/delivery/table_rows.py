"""Rows of a table from rows of the source: its columns, and those of its partitions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from penstock.core.delivering.definition import METADATA, Delivery
from penstock.delivery import json_rows
from penstock.errors import OptionError
from penstock.spark.schema import COLUMNS


def table_rows(rows: DataFrame, delivery: Delivery, schema: StructType | None) -> DataFrame:
    """Return the rows of the table for source rows that fit: its columns, then the partition columns."""
    arrived = rows.withColumn("arrived", F.col("approximateArrivalTimestamp"))
    if schema is None:
        names = [*COLUMNS]
    else:
        metadata = [F.col(METADATA[name]).alias(f"_{name}") for name in delivery.metadata]
        names = [*schema.names, *(f"_{name}" for name in delivery.metadata)]
        # Partition expressions may also use the source's columns; a field hides the source's column of the same name.
        hidden = {name.lower() for name in schema.names}
        beside = [F.col(name) for name in arrived.columns if name.lower() not in hidden]
        arrived = arrived.select(*beside, *metadata, *json_rows.fields_of(schema))
    parts = [
        F.expr(each.expression).alias(each.name) for each in delivery.partitions if each.name not in names
    ]
    return arrived.select(*(F.col(quoted(name)) for name in names), *parts)


def check_columns(delivery: Delivery, schema: StructType | None) -> None:
    """Refuse a table in which two columns have one name.

    Raises:
        OptionError: A partition column, or one of `metadata`, has the name of another column.
    """
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


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return "`" + name.replace("`", "``") + "`"
