"""Columns of records that were written with the AWS Glue Schema Registry, and the block of docs/schemas.md."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from pyspark.errors import PythonException

from docs_blocks import blocks
from penstock import wiring
from penstock.errors import OptionError, UnknownSchema, UnsupportedSchema
from penstock.schemas import MemorySchemaRegistry, SchemaEncoder
from penstock.spark import from_glue_avro, from_glue_json
from schema_registries import ORDER, ORDER_JSON, ORDER_WITH_COUNT

PAYMENT = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "shares", "type": {"type": "map", "values": "double"}},
        {
            "name": "by",
            "type": [
                "null",
                "string",
                {"type": "record", "name": "Card", "fields": [{"name": "pan", "type": "bytes"}]},
            ],
        },
    ],
}
PAID = {
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - a local timestamp has no zone
    "day": dt.date(2026, 1, 2),
    "sum": Decimal("123456789012345678901234567890123456.78"),
    "tags": ["a", None],
    "shares": {"x": 0.5},
    "by": {"pan": b"\x00\xff"},
}


@pytest.fixture
def registry():
    return MemorySchemaRegistry()


def written(registry, name, schema, value, **options):
    return SchemaEncoder(name, schema, registry=registry, register=True, **options).encode(value)


def frame(spark, *records):
    return spark.createDataFrame(
        [(None if data is None else bytearray(data),) for data in records], "data binary"
    )


def test_records_of_all_versions_become_one_struct(spark, registry):
    old = written(registry, "orders", ORDER, {"id": 1, "item": "a"}, compression="zlib")
    new = written(registry, "orders", ORDER_WITH_COUNT, {"id": 2, "item": "b", "count": 5})
    column = from_glue_avro("data", schema_name="orders", registry=registry).alias("order")
    rows = frame(spark, old, new, None).select(column)
    assert rows.schema["order"].dataType.simpleString() == "struct<id:bigint,item:string,count:int>"
    assert [row.order and tuple(row.order) for row in rows.collect()] == [(1, "a", 1), (2, "b", 5), None]
    moments = frame(spark, written(registry, "payments", PAYMENT, PAID))
    (row,) = (
        moments.select(from_glue_avro("data", PAYMENT, registry=registry).alias("p"))
        .select("p.*", "p.by.member1.pan")
        .collect()
    )
    assert (row.local, row.day, row.sum, row.tags, row.shares) == (
        PAID["local"],
        PAID["day"],
        PAID["sum"],
        ["a", None],
        {"x": 0.5},
    )
    assert row.at.astimezone(dt.UTC) == PAID["at"]
    assert (row.by.member0, bytes(row.pan)) == (None, b"\x00\xff")


def test_a_record_that_cannot_be_read_fails_the_query_or_is_null(spark, registry):
    good = written(registry, "documents", ORDER_JSON, {"id": 1}, data_format="JSON")
    records = frame(spark, good, b"without a header at all", good[:2] + bytes(16))
    permissive = from_glue_json("data", registry=registry, mode="PERMISSIVE").alias("text")
    assert [row.text for row in records.select(permissive).collect()] == ['{"id":1}', None, None]
    with pytest.raises(PythonException, match="NoSchemaHeader: the data does not begin with the header"):
        records.select(from_glue_json("data", registry=registry)).collect()


def test_a_mistake_is_named_when_the_column_is_made(spark, registry):
    with pytest.raises(OptionError, match="give the schema of the column, or schema_name"):
        from_glue_avro("data", registry=registry)
    with pytest.raises(OptionError, match="mode is 'permissive'; expected FAILFAST or PERMISSIVE"):
        from_glue_avro("data", ORDER, registry=registry, mode="permissive")
    with pytest.raises(UnknownSchema, match="schema orders is not in registry in memory"):
        from_glue_avro("data", schema_name="orders", registry=registry)
    registry.add("orders", ORDER_JSON, "JSON")
    with pytest.raises(UnsupportedSchema, match="is JSON, not AVRO; from_glue_json reads its records"):
        from_glue_avro("data", schema_name="orders", registry=registry)


def test_the_block_of_the_page(spark, registry, monkeypatch):
    monkeypatch.setattr(wiring, "open_schema_registry", lambda name, options: registry)
    texts = [block.text for block in blocks("docs/schemas.md") if "penstock.spark" in block.text]
    data = written(registry, "orders", ORDER, {"id": 7, "item": "kettle"})
    names = {"ORDER": ORDER, "orders": frame(spark, data).selectExpr("'7' as partitionKey", "data")}
    for text in texts:
        exec(text, names)
    ((key, order),) = names["billed"].collect()
    assert (key, tuple(order)) == ("7", (7, "kettle"))
