"""Records of the Glue Schema Registry, and records that a JSON Schema checks: their columns, their growth, their dead letters."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import duckdb

from penstock.schemas import MemorySchemaRegistry, SchemaEncoder

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": "string"}],
}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {
            "name": "at",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            "default": None,
        },
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "rate", "type": "double"},
    ],
}
DEVICE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "state": {"enum": ["on", "off"], "type": "string"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
    },
}


def read(batches, columns):
    return duckdb.sql(
        f"SELECT {columns} FROM read_parquet('{batches.table}', union_by_name=true) ORDER BY id"
    ).fetchall()


def reasons(batches):
    paths = sorted(Path(batches.letters).glob("*.jsonl"))
    return [json.loads(line)["reason"] for path in paths for line in path.read_text().splitlines()]


def test_a_delivery_follows_the_versions_of_a_registered_schema(batches):
    from penstock.delivery.record_texts import GlueTexts

    registry, moment = MemorySchemaRegistry(), dt.datetime(2026, 1, 1, 12, 30, tzinfo=dt.UTC)
    registry.add("orders", FIRST)
    delivery = batches(GlueTexts(registry, "orders"), schema="glue")
    old = SchemaEncoder("orders", FIRST, registry=registry)
    elsewhere, late_id = MemorySchemaRegistry(), uuid4()
    elsewhere.add("orders", FIRST, version_id=late_id)
    late = SchemaEncoder("orders", FIRST, registry=elsewhere).encode({"id": 9, "item": "late"})
    delivery.write([old.encode({"id": 1, "item": "kettle"}), late, b'{"id": 8, "item": "no header"}'])
    assert read(delivery, "id, item") == [(1, "kettle")]

    registry.add("orders", SECOND)
    new = SchemaEncoder("orders", SECOND, registry=registry)
    value = {
        "id": 2**40,
        "item": "cup",
        "at": moment,
        "price": Decimal("1.50"),
        "raw": b"\xff",
        "rate": float("nan"),
    }
    delivery.write([old.encode({"id": 2, "item": "pot"}), new.encode(value)])
    assert read(delivery, 'id, item, epoch("at"), price, raw, isnan(rate)') == [
        (1, "kettle", None, None, None, None),
        (2, "pot", None, None, None, None),
        (2**40, "cup", moment.timestamp(), Decimal("1.50"), b"\xff", True),
    ]
    assert delivery.reports[-1].new_columns == ("id", "at", "price", "raw", "rate")
    unknown, headless = sorted(reasons(delivery))
    assert f"schema version {late_id} is not in registry in memory" in unknown
    assert "header" in headless

    registry.add("orders", FIRST, version_id=late_id)
    delivery.redeliver()
    assert [row[0] for row in read(delivery, "id")] == [1, 2, 9, 2**40]
    assert reasons(delivery) == [headless]


def test_a_delivery_follows_a_registered_json_schema(batches):
    from penstock.delivery.record_texts import GlueTexts

    registry = MemorySchemaRegistry()
    registry.add("devices", DEVICE, "JSON")
    delivery = batches(GlueTexts(registry, "devices"), schema="glue:devices")
    old = SchemaEncoder("devices", DEVICE, data_format="JSON", registry=registry)
    good = old.encode({"id": 1, "state": "on", "at": "2026-01-01T00:00:00Z", "place": {"lat": 1.5}})
    # The registry checks no record, so a writer in another language may put these behind the header.
    header = good[: good.index(b"{")]
    bodies = (
        b'{"id": 2, "place": {"lat": 1e400}}',
        b'{"id": 3, "place": {"lat": NaN}}',
        b'{"id": 4, "place": {"lat": "Infinity"}}',
        b'{"id": 5, "at": 1767225600000}',
        b'{"id": 6, "state": "\xff"}',
        rb'{"id": 7, "state": "\ud83d"}',
        b"no JSON",
    )
    delivery.write([good, *(header + body for body in bodies), b'{"id": 8}'])
    assert read(delivery, 'id, state, epoch("at"), place.lat') == [(1, "on", 1767225600.0, 1.5)]
    assert len(reasons(delivery)) == len(bodies) + 1

    newer = json.loads(json.dumps(DEVICE))
    newer["properties"]["place"]["properties"]["lon"] = {"type": "number"}
    newer["properties"]["note"] = {"type": "string"}
    registry.add("devices", newer, "JSON")
    new = SchemaEncoder("devices", newer, data_format="JSON", registry=registry)
    value = {"id": 9, "place": {"lat": 2.5, "lon": 3.5}, "note": "new"}
    delivery.write([old.encode({"id": 10, "state": "off"}), new.encode(value)])
    assert read(delivery, "id, state, place.lat, place.lon, note") == [
        (1, "on", 1.5, None, None),
        (9, None, 2.5, 3.5, "new"),
        (10, "off", None, None, None),
    ]


def test_a_json_schema_names_the_columns_and_checks_the_records(batches, tmp_path):
    file = tmp_path / "device.json"
    file.write_text(json.dumps(DEVICE))
    delivery = batches(schema=str(file))
    good = [
        {"id": 1, "state": "on", "at": "2026-01-01T00:00:00Z", "place": {"lat": 1.5}},
        {"id": 2, "at": None, "note": "new"},
    ]
    bad = [{"id": 0}, {"state": "on"}, {"id": 3, "state": "red"}]
    delivery.write([json.dumps(each).encode() for each in (*good, *bad)])
    assert read(delivery, 'id, state, epoch("at"), place.lat, note') == [
        (1, "on", 1767225600.0, 1.5, None),
        (2, None, None, None, "new"),
    ]
    found = sorted(reasons(delivery))
    assert len(found) == len(bad)
    assert "'id' is a required property" in found[-1]

    file.write_text(json.dumps(DEVICE).replace('"off"', '"off", "red"'))
    mended = batches(schema=str(file))
    mended.redeliver()
    assert [row[0] for row in read(mended, "id")] == [1, 2, 3]
    assert len(reasons(mended)) == 2
