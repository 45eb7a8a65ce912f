"""Records and their schemas: what a decoder returns, and what it says of records that it cannot read."""

import threading
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from moved_clock import MovedClock
from penstock.errors import (
    AccessDenied,
    NoSchemaHeader,
    OptionError,
    SchemaError,
    SchemaMismatch,
    Throttled,
    UnknownSchema,
    UnsupportedSchema,
    UsageError,
)
from penstock.schemas import SchemaDecoder, SchemaEncoder
from penstock.schemas.header import add_header
from schema_registries import ORDER, ORDER_JSON, ORDER_WITH_COUNT, CountingRegistry
from waiting import DEADLINE_S


@pytest.fixture
def registry():
    return CountingRegistry()


def written(registry, value, schema=ORDER, **options):
    return SchemaEncoder("orders", schema, registry=registry, register=True, **options).encode(value)


@pytest.mark.parametrize("compression", ["none", "zlib"])
@pytest.mark.parametrize(("schema", "data_format"), [(ORDER, "AVRO"), (ORDER_JSON, "JSON")])
def test_a_value_comes_back_with_its_schema(registry, schema, data_format, compression):
    value = {"id": 7, "item": "kettle"}
    data = written(registry, value, schema, data_format=data_format, compression=compression)
    decoded = SchemaDecoder(registry=registry).decode(data)
    assert decoded.data == value
    assert (decoded.schema_name, decoded.data_format) == ("orders", data_format)
    assert decoded.schema_version_id == uuid.UUID(bytes=data[2:18])
    assert data[1] == {"none": 0, "zlib": 5}[compression]


def test_avro_is_what_the_specification_says(registry):
    version_id = registry.add("orders", ORDER)
    data = b"\x03\x00" + version_id.bytes + b"\x0e" + b"\x0ckettle"  # zigzag 7; length 6, zigzag 12
    assert SchemaDecoder(registry=registry).decode(data).data == {"id": 7, "item": "kettle"}
    assert SchemaEncoder("orders", ORDER, registry=registry).encode({"id": 7, "item": "kettle"}) == data


def test_logical_types_are_pythons(registry):
    schema = {
        "type": "record",
        "name": "Payment",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
    value = {"at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "sum": Decimal("12.50")}
    decoded = SchemaDecoder(registry=registry).decode(written(registry, value, schema)).data
    assert decoded == {**value, "note": None}


def test_a_version_is_fetched_once(registry):
    data = written(registry, {"id": 1, "item": "a"})
    decoder = SchemaDecoder(registry=registry)
    registry.calls.clear()
    for _ in range(5):
        decoder.decode(data)
    assert registry.calls == ["fetch_version"]


def test_threads_share_one_fetch(registry):
    data = written(registry, {"id": 1, "item": "a"})
    decoder = SchemaDecoder(registry=registry)
    registry.calls.clear()
    registry.gate.clear()
    got = []
    threads = [threading.Thread(target=lambda: got.append(decoder.decode(data).data)) for _ in range(4)]
    for thread in threads:
        thread.start()
    registry.gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == [{"id": 1, "item": "a"}] * 4
    assert registry.calls == ["fetch_version"]


def test_all_versions_are_read_into_the_readers_schema(registry):
    old = written(registry, {"id": 1, "item": "a"})
    new = written(registry, {"id": 2, "item": "b", "count": 5}, ORDER_WITH_COUNT)
    decoder = SchemaDecoder(registry=registry, reader_schema=ORDER_WITH_COUNT)
    assert [decoder.decode(data).data["count"] for data in (old, new)] == [1, 5]
    decoder = SchemaDecoder(registry=registry, reader_schema=ORDER)
    assert decoder.decode(new).data == {"id": 2, "item": "b"}


def test_a_readers_schema_that_cannot_be_reached_is_a_mismatch(registry):
    data = written(registry, {"id": 1, "item": "a"})
    other = {**ORDER, "fields": [*ORDER["fields"], {"name": "zone", "type": "string"}]}
    with pytest.raises(SchemaMismatch, match=r"does not fit version .* of schema orders.*zone"):
        SchemaDecoder(registry=registry, reader_schema=other).decode(data)


def test_a_record_without_a_header_is_an_error_or_passes(registry):
    with pytest.raises(NoSchemaHeader, match=r"12 bytes that begin with 0x7b22.*without_header"):
        SchemaDecoder(registry=registry).decode(b'{"id": 1234}')
    decoded = SchemaDecoder(registry=registry, without_header="pass").decode(b'{"id": 1234}')
    assert decoded == (b'{"id": 1234}', None)
    assert (decoded.schema_name, decoded.schema_version_id, decoded.data_format) == (None, None, None)
    assert registry.calls == []


def test_an_unknown_or_deleted_version_is_named_and_not_asked_for_again_and_again(registry):
    data = written(registry, {"id": 1, "item": "a"})
    version_id = uuid.UUID(bytes=data[2:18])
    definition = registry.fetch_version(version_id).definition
    registry.delete(version_id)
    registry.calls.clear()
    clock = MovedClock(100.0)
    decoder = SchemaDecoder(registry=registry, clock=clock, unknown_kept_s=5)
    for _ in range(3):
        with pytest.raises(
            UnknownSchema, match=f"{version_id} is not in registry in memory.*another region or account"
        ):
            decoder.decode(data)
    assert registry.calls == ["fetch_version"]
    registry.add("orders", definition, version_id=version_id)
    clock.now_s += 5
    assert decoder.decode(data).data == {"id": 1, "item": "a"}


@pytest.mark.parametrize("failure", [Throttled("slow"), AccessDenied("no")])
def test_a_registry_that_does_not_answer_says_nothing_of_the_record(registry, failure):
    data = written(registry, {"id": 1, "item": "a"})
    decoder = SchemaDecoder(registry=registry)
    registry.failure = failure
    with pytest.raises(type(failure)) as raised:
        decoder.decode(data)
    assert not isinstance(raised.value, SchemaError)
    registry.failure = None
    assert decoder.decode(data).data == {"id": 1, "item": "a"}


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\x00"])
def test_damaged_avro_is_a_mismatch(registry, damage):
    data = damage(written(registry, {"id": 1, "item": "kettle"}))
    with pytest.raises(SchemaMismatch, match=r"does not fit version .* of schema orders"):
        SchemaDecoder(registry=registry).decode(data)


def test_json_is_checked_only_on_demand(registry):
    version_id = registry.add("orders", ORDER_JSON, "JSON")
    data = add_header(version_id.bytes, b'{"id": "seven"}', compress=False)
    assert SchemaDecoder(registry=registry).decode(data).data == {"id": "seven"}
    with pytest.raises(SchemaMismatch, match=r"\$\.id: 'seven' is not of type 'integer'"):
        SchemaDecoder(registry=registry, validate_json=True).decode(data)
    with pytest.raises(SchemaMismatch, match="is not JSON"):
        SchemaDecoder(registry=registry).decode(add_header(version_id.bytes, b'{"id"', compress=False))


@pytest.mark.parametrize(
    ("definition", "data_format", "message"),
    [
        ('syntax = "proto3";', "PROTOBUF", "is PROTOBUF; AVRO and JSON are supported"),
        ({"type": "record", "fields": []}, "AVRO", "is not an Avro schema"),
        ('{"type": "rec', "AVRO", "is not an Avro schema"),
        ("shop.Order", "AVRO", "is not an Avro schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(registry, definition, data_format, message):
    version_id = registry.add("orders", definition, data_format)
    with pytest.raises(UnsupportedSchema, match=f"version {version_id} of schema orders {message}"):
        SchemaDecoder(registry=registry).decode(add_header(version_id.bytes, b"\x00", compress=False))


def test_a_schema_never_reads_another_document(registry):
    schema = {"$ref": "https://example.com/order.json"}
    with pytest.raises(UnsupportedSchema, match=r"refers to https://example.com/order.json.*not followed"):
        SchemaEncoder("orders", schema, data_format="JSON", registry=registry).encode({"id": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without_header": "ignore"}, "without_header is 'ignore'; expected 'error' or 'pass'"),
        ({"payload_bytes_max": 0}, "payload_bytes_max is 0"),
        ({"version_count_max": 0}, "version_count_max is 0"),
        ({"unknown_kept_s": -1}, "unknown_kept_s is -1"),
        ({"payload_bytes_max": "10"}, "payload_bytes_max is '10'; expected a whole number"),
        ({"version_count_max": 1.5}, "version_count_max is 1.5; expected a whole number"),
        ({"unknown_kept_s": None}, "unknown_kept_s is None"),
        ({"connection": {"regoin": "eu-west-1"}}, "unknown connection option regoin: did you mean region"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(OptionError, match=message):
        SchemaDecoder(**options)


def test_a_registry_and_a_connection_exclude_each_other(registry):
    with pytest.raises(UsageError, match="a registry is given, and region would have no effect"):
        SchemaDecoder(registry=registry, region="eu-west-1")


@pytest.mark.parametrize(("data", "kind"), [("text", "str"), (None, "NoneType"), (18, "int")])
def test_data_is_bytes(registry, data, kind):
    with pytest.raises(UsageError, match=f"not a {kind}"):
        SchemaDecoder(registry=registry).decode(data)
