"""A delivery before its first run: its columns, partitions and first rows, without a write."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from penstock import wiring
from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.json_fields import infer_columns
from penstock.core.delivering.new_names import ColumnNameRule, column_name_rule
from penstock.core.delivering.running_costs import RunningCosts, running_costs
from penstock.core.delivering.sql_names import quote_name
from penstock.core.position import LATEST
from penstock.core.starting import parse_starting
from penstock.delivery import json_rows
from penstock.delivery.opening import batch_options, open_delivery, time_zone_of
from penstock.delivery.table_rows import check_columns, columns_for_unsampled_fields, table_rows, with_verdict
from penstock.delivery.table_writer import set_session_options
from penstock.sizing.price_table import load_prices
from penstock.spark.options.spark_options import SourceOptions

ROW_COUNT: Final = 10
_SPAN_MIN_MS: Final = 1000


class Preview(Struct, frozen=True, kw_only=True):
    """The columns, first rows and costs that a delivery would have.

    Args:
        delivery: Name of the delivery.
        stream: Stream that it reads.
        to: Table that it fills.
        checkpoint: Spark's checkpoint location.
        columns: Name and type of each column; the partition columns last.
        partitions: Names of the partition columns.
        rows: The first rows, as texts by column.
        dead: Reasons why some of the first records become dead letters.
        note: Why there are no rows; empty if there are rows.
        costs: Calls, files and prices.
        changes: Changes of the table that the delivery will make.
    """

    delivery: str
    stream: str
    to: str
    checkpoint: str
    columns: tuple[tuple[str, str], ...]
    partitions: tuple[str, ...]
    rows: tuple[dict[str, str | None], ...]
    dead: tuple[str, ...]
    note: str
    costs: RunningCosts
    changes: tuple[str, ...] = ()


def preview(spark: SparkSession, delivery: Delivery, options: SourceOptions) -> Preview:
    """Read the first records of a delivery, and return the rows that they would become.

    Raises:
        OptionError, NotFound, DeliveryFailed: As `open_delivery`.
    """
    summary = wiring.open_kinesis(options.connection).fetch_summary(delivery.stream)
    opened = open_delivery(spark, delivery, options, lambda _delivery: None, is_dry_run=True)
    target, texts, schema = opened.target, opened.texts, opened.schema
    records, note = _first_records(spark, delivery)
    rate = _bytes_per_s(records, summary.open_shard_count)
    set_session_options(spark, delivery)
    names = column_name_rule(delivery, target.unreadable_columns())
    if schema is not None and (delivery.evolve == "add" or not schema.fields):
        schema = _grown_schema(json_rows.with_verdict(records, schema, texts), delivery, schema, names)
    rows = with_verdict(records, delivery, schema, texts)
    unfit = json_rows.rows_where(rows, F.col(json_rows.VERDICT) != json_rows.FITS)
    reason = json_rows.reason_of(schema, names).alias("reason")
    dead = [row.reason for row in unfit.select(reason).limit(ROW_COUNT).collect()]
    rows = json_rows.rows_where(rows, F.col(json_rows.VERDICT) == json_rows.FITS)
    is_empty = schema is not None and not schema.fields
    if is_empty:
        rows = rows.select(F.lit("").alias("_none")).limit(0)
        note = note or "no record has a field"
    else:
        rows = table_rows(rows, delivery, schema)
    parts = [] if is_empty else [each.name for each in delivery.partitions]
    costs = running_costs(
        delivery,
        shard_count=summary.open_shard_count,
        bytes_per_s=rate,
        partition_count=rows.select(*parts).distinct().count() if parts else 1,
        prices=load_prices(),
    )
    # Python would show moments in this machine's time zone.
    shown = rows.limit(ROW_COUNT).select([F.col(quote_name(name)).cast("string") for name in rows.columns])
    return Preview(
        delivery=delivery.name,
        stream=delivery.stream,
        to=delivery.to,
        checkpoint=delivery.checkpoint_location,
        columns=()
        if is_empty
        else tuple((field.name, field.dataType.simpleString().upper()) for field in rows.schema.fields),
        partitions=tuple(each.name for each in delivery.partitions),
        rows=tuple(row.asDict() for row in shown.collect()),
        dead=tuple(dead),
        note=note,
        costs=costs,
        changes=() if is_empty else target.needed_changes(schema),
    )


def _grown_schema(
    verdicts: DataFrame, delivery: Delivery, schema: StructType, names: ColumnNameRule
) -> StructType:
    """Return a schema with the columns that the first records would add, after `check_columns`."""
    texts = (
        bytes(row[0] or b"").decode(errors="replace") for row in verdicts.select(json_rows.TEXT).collect()
    )
    columns = infer_columns(texts, schema.names, names.refusal)
    if columns and not schema.fields:
        columns |= columns_for_unsampled_fields(delivery, columns)
    if delivery.adds_to_structs:
        schema = json_rows.with_new_fields(verdicts, schema, names)
    schema = json_rows.with_added_columns(schema, columns)
    check_columns(delivery, schema)
    return schema


def _bytes_per_s(records: DataFrame, shard_count: int) -> float | None:
    """Estimate the stream's bytes per second from the records that were read; None if these arrived within too short a time."""
    moment = F.unix_millis("approximateArrivalTimestamp")
    seen = records.agg(
        F.count(F.lit(1)).alias("count"),
        F.sum(F.octet_length("data")).alias("size"),
        (F.max(moment) - F.min(moment)).alias("span_ms"),
        F.count_distinct("shardId").alias("shards"),
    ).collect()[0]
    if not seen["count"] or seen["span_ms"] < _SPAN_MIN_MS:
        return None
    # If the sample reached its limit, its records are from the first shards only.
    part = shard_count / seen["shards"] if seen["count"] >= json_rows.SAMPLE_COUNT else 1.0
    return float(seen["size"] / seen["span_ms"] * 1000 * max(1.0, part))


def _first_records(spark: SparkSession, delivery: Delivery) -> tuple[DataFrame, str]:
    """Return the first records of a delivery, and why there are none; empty if there are some."""
    from penstock.spark.schema import SCHEMA_DDL

    starts_at_tip = parse_starting(delivery.start, "start", time_zone_of(delivery)).default == LATEST
    if starts_at_tip and delivery.since is None:
        return spark.createDataFrame(
            [], SCHEMA_DDL
        ), "the delivery starts with records that arrive from now on"
    start = delivery.start if delivery.since is None else f"AT_TIMESTAMP {delivery.since}"
    reader = spark.read.format("kinesis")
    for name, value in batch_options(delivery).items():
        reader = reader.option(name, value)
    reader = reader.option("startingPosition", start).option("timeZone", delivery.time_zone)
    if delivery.until is not None:
        reader = reader.option("endingPosition", f"AT_TIMESTAMP {delivery.until}")
    records = reader.load().limit(json_rows.SAMPLE_COUNT).cache()
    return records, "" if records.count() else "this range has no records"
