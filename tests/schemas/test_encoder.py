"""What an encoder writes, and how it finds the id of its schema's version, or registers it."""

import datetime as dt
import json
import sys
import threading
from dataclasses import dataclass

import fastavro
import pytest

from moved_clock import MovedClock
from penstock.errors import (
    AccessDenied,
    OptionError,
    Rejected,
    ResourceBusy,
    SchemaMismatch,
    SchemaRefused,
    Throttled,
    UnknownSchema,
    UnsupportedSchema,
)
from penstock.ports.schema_registry import VersionStatus
from penstock.schemas import SchemaDecoder, SchemaEncoder
from schema_registries import ORDER, ORDER_JSON, ORDER_WITH_COUNT, CountingRegistry, Half
from waiting import DEADLINE_S

ONE = {"id": 1, "item": "a"}


@pytest.fixture
def registry():
    return CountingRegistry()


def test_the_version_is_looked_up_once_by_its_definition(registry):
    version_id = registry.add("orders", ORDER)
    encoder = SchemaEncoder("orders", ORDER, registry=registry)
    assert {encoder.encode(ONE)[2:18] for _ in range(3)} == {version_id.bytes}
    assert encoder.schema_version_id == version_id
    assert registry.calls == ["find_version"]


def test_a_definition_is_registered_only_when_that_is_asked_for(registry):
    clock = MovedClock(100.0)
    encoder = SchemaEncoder("orders", ORDER, registry=registry, clock=clock)
    for _ in range(2):
        with pytest.raises(UnknownSchema, match=r"schema orders of registry in memory.*register=True"):
            encoder.encode(ONE)
    assert registry.calls == ["find_version"]
    registry.add("orders", ORDER)
    clock.now_s += 10
    assert SchemaDecoder(registry=registry).decode(encoder.encode(ONE)).data == ONE


def test_a_new_schema_is_created_and_an_old_one_has_a_new_version(registry):
    first = SchemaEncoder("orders", ORDER, registry=registry, register=True)
    second = SchemaEncoder("orders", ORDER_WITH_COUNT, registry=registry, register=True)
    assert first.encode(ONE)[2:18] != second.encode(ONE)[2:18]
    created = ["find_version", "register_version", "create_schema"]
    assert registry.calls == [*created, "find_version", "register_version"]
    assert registry.fetch_latest("orders").version_id == second.schema_version_id


def test_two_producers_that_create_the_schema_at_once_use_one_version(registry):
    class Raced(CountingRegistry):
        def create_schema(self, schema_name, data_format, definition, compatibility):
            self.add(schema_name, definition, data_format.value)
            return super().create_schema(schema_name, data_format, definition, compatibility)

    raced = Raced()
    encoder = SchemaEncoder("orders", ORDER, registry=raced, register=True)
    assert encoder.schema_version_id == raced.fetch_latest("orders").version_id
    assert raced.calls == ["find_version", "register_version", "create_schema", "register_version"]


def test_threads_register_once(registry):
    encoder = SchemaEncoder("orders", ORDER, registry=registry, register=True)
    got = []
    threads = [threading.Thread(target=lambda: got.append(encoder.encode(ONE))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == got[:1] * 6
    assert registry.calls == ["find_version", "register_version", "create_schema"]


def test_a_new_version_is_used_when_the_registry_has_checked_it():
    registry, clock = CountingRegistry(pending_fetch_count=2), MovedClock(100.0)
    registry.add("orders", ORDER)
    encoder = SchemaEncoder(
        "orders", ORDER_WITH_COUNT, registry=registry, register=True, clock=clock, chance=Half()
    )
    assert registry.fetch_version(encoder.schema_version_id).status is VersionStatus.AVAILABLE
    assert clock.now_s == 100 + 0.25 + 0.5 + 1.0, "half of bounds that double"


def test_a_version_that_is_never_checked_is_given_up_at_the_deadline():
    registry, clock = CountingRegistry(pending_fetch_count=10**6), MovedClock(100.0)
    registry.add("orders", ORDER)
    encoder = SchemaEncoder(
        "orders",
        ORDER_WITH_COUNT,
        registry=registry,
        register=True,
        available_within_s=20,
        clock=clock,
        chance=Half(),
    )
    with pytest.raises(ResourceBusy, match=r"has not checked version .* within 20 s.*available_within_s"):
        encoder.encode(ONE)
    assert clock.now_s == 120


def test_an_incompatible_version_is_refused_with_the_reason():
    registry = CountingRegistry(pending_fetch_count=1, checked=VersionStatus.FAILURE)
    registry.add("orders", ORDER)
    encoder = SchemaEncoder(
        "orders", ORDER_WITH_COUNT, registry=registry, register=True, clock=MovedClock(100.0)
    )
    with pytest.raises(SchemaRefused, match="is FAILURE: the definition is not compatible"):
        encoder.encode(ONE)


def test_a_definition_that_the_registry_rejects_is_refused(registry):
    registry.failure = Rejected("InvalidInputException: bad")
    with pytest.raises(SchemaRefused, match=r"does not take the definition of schema orders.*bad"):
        SchemaEncoder("orders", ORDER, registry=registry, register=True).encode(ONE)


def test_a_schema_of_another_format_is_refused(registry):
    registry.add("orders", ORDER, "JSON")
    with pytest.raises(SchemaRefused, match="is JSON, not AVRO: set data_format"):
        SchemaEncoder("orders", ORDER, registry=registry).encode(ONE)


@pytest.mark.parametrize("failure", [Throttled("slow"), AccessDenied("no")])
def test_a_registry_without_an_answer_is_asked_again_with_the_next_value(registry, failure):
    registry.add("orders", ORDER)
    encoder = SchemaEncoder("orders", ORDER, registry=registry)
    registry.failure = failure
    with pytest.raises(type(failure)):
        encoder.encode(ONE)
    registry.failure = None
    assert SchemaDecoder(registry=registry).decode(encoder.encode(ONE)).data == ONE


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"id": "one", "item": "a"}, "id"),
        ({"id": 1}, "item"),
        ({"id": 1, "item": "a", "itme": "b"}, "itme"),
        ([1, "a"], "does not fit schema orders"),
        (None, "does not fit schema orders"),
    ],
)
def test_a_value_that_does_not_fit_is_named_before_the_registry_is_asked(registry, value, message):
    with pytest.raises(SchemaMismatch, match=message):
        SchemaEncoder("orders", ORDER, registry=registry).encode(value)
    assert registry.calls == []


def of_field(kind):
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


INNER = {**of_field("int"), "name": "Inner"}


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", 2**31, "a: 2147483648 is not a valid int"),
        ("int", -(2**31) - 1, "is not a valid int"),
        ("int", 1.5, "a: 1.5 is not a valid int"),
        ("int", True, "a: True is not a valid int"),
        ("long", 2**63, "is not a valid long"),
        ("long", 1.0, "a: 1.0 is not a valid long"),
        ({"type": "int", "logicalType": "date"}, 2**31, "is not a valid int"),
        ("boolean", "yes", "a: 'yes' is not a valid boolean"),
        ("double", True, "a: True is not a valid double"),
        ("float", 1e300, "float too large"),
        (["null", "float"], -1e300, "float too large"),
        ({"type": "array", "items": "int"}, [1, 2**40], r"a\[\]: 1099511627776 is not a valid int"),
        ({"type": "map", "values": "int"}, {"x": 2**40}, r"a\{\}: 1099511627776 is not a valid int"),
        (INNER, {"a": 2**40}, "a.a: 1099511627776 is not a valid int"),
        (["null", "int"], 2**40, "a"),
        (["null", "int"], ("int", 2**40), "a: 1099511627776 is not a valid int"),
        ([INNER, "string"], ("Inner", {"a": 2**40}), "a.a: 1099511627776 is not a valid int"),
    ],
)
def test_a_number_that_avro_would_change_is_named_and_not_written(registry, kind, value, message):
    encoder = SchemaEncoder("r", of_field(kind), registry=registry, register=True)
    with pytest.raises(SchemaMismatch, match=f"does not fit schema r: .*{message}"):
        encoder.encode({"a": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", -(2**31)),
        ("long", 2**63 - 1),
        ("float", 7),
        ("float", float("inf")),
        ("double", 1e300),
        ({"type": "array", "items": "double"}, [float("-inf"), 1e300]),
        ([{"type": "enum", "name": "Letter", "symbols": ["A"]}, "string"], ("Letter", "A")),
        ({"type": "int", "logicalType": "date"}, dt.date(2026, 1, 2)),
    ],
)
def test_a_value_that_fits_is_written_as_it_is(registry, kind, value):
    data = SchemaEncoder("r", of_field(kind), registry=registry, register=True).encode({"a": value})
    plain = value[1] if isinstance(value, tuple) else value
    assert SchemaDecoder(registry=registry).decode(data).data == {"a": plain}


def test_json_is_checked_as_it_is_written(registry):
    @dataclass
    class Order:
        id: int
        item: str

    encoder = SchemaEncoder("orders", ORDER_JSON, data_format="JSON", registry=registry, register=True)
    data = encoder.encode(Order(1, "kettle ☕"))
    assert data[18:].decode() == '{"id":1,"item":"kettle ☕"}'
    with pytest.raises(SchemaMismatch, match="'id' is a required property"):
        encoder.encode({"item": "a"})
    with pytest.raises(SchemaMismatch, match=r"\$\.item: 5 is not of type 'string'"):
        encoder.encode({"id": 1, "item": 5})
    with pytest.raises(SchemaMismatch, match="cannot be written as JSON"):
        encoder.encode({"id": 1, "item": object()})


@pytest.mark.parametrize(
    ("definition", "options", "error", "message"),
    [
        (ORDER, {"data_format": "avro"}, OptionError, "data_format is 'avro'; expected AVRO or JSON"),
        (ORDER, {"compression": "gzip"}, OptionError, "compression is 'gzip'; expected none or zlib"),
        (
            ORDER,
            {"compatibility": "SOME"},
            OptionError,
            "compatibility is 'SOME'; expected NONE, .* or FULL_ALL",
        ),
        (ORDER, {"available_within_s": 0}, OptionError, "available_within_s is 0"),
        (ORDER, {"available_within_s": "x"}, OptionError, "available_within_s is 'x'"),
        ({"type": "order"}, {}, UnsupportedSchema, "schema orders is not an Avro schema"),
        ({"type": "order"}, {"data_format": "JSON"}, UnsupportedSchema, "schema orders is not a JSON Schema"),
        ("{", {"data_format": "JSON"}, UnsupportedSchema, "schema orders is not a JSON Schema"),
        ("[" * 100_000, {"data_format": "JSON"}, UnsupportedSchema, "schema orders is not a JSON Schema"),
    ],
)
def test_a_bad_option_is_named_at_once(registry, definition, options, error, message):
    with pytest.raises(error, match=message):
        SchemaEncoder("orders", definition, registry=registry, **options)


def test_a_schema_has_a_name(registry):
    with pytest.raises(OptionError, match="schema_name is empty"):
        SchemaEncoder("", ORDER, registry=registry)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused(registry, number):
    encoder = SchemaEncoder("orders", {}, data_format="JSON", registry=registry, register=True)
    with pytest.raises(SchemaMismatch, match="cannot be written as JSON: Out of range float values"):
        encoder.encode({"a": [None, {"b": number}]})
    assert encoder.encode({"a": None})[18:] == b'{"a":null}'


def test_json_that_is_nested_too_deep_for_its_schema_is_a_mismatch(registry):
    schema = {"type": "array", "items": {"$ref": "#"}}
    value = []
    for _ in range(400):
        value = [value]
    encoder = SchemaEncoder("orders", schema, data_format="JSON", registry=registry, register=True)
    with pytest.raises(SchemaMismatch, match="cannot be checked by schema orders: it is nested too deep"):
        encoder.encode(value)


@pytest.mark.parametrize(
    ("definition", "registered"),
    [
        ("string", '"string"'),
        (' "string"', ' "string"'),
        (fastavro.parse_schema(INNER), json.dumps(fastavro.parse_schema(INNER, _write_hint=False))),
        ([fastavro.parse_schema(INNER)], json.dumps([fastavro.parse_schema(INNER, _write_hint=False)])),
        (["null", "int"], '["null", "int"]'),
    ],
)
def test_what_is_registered_is_json_without_the_marks_of_fastavro(registry, definition, registered):
    encoder = SchemaEncoder("s", definition, registry=registry, register=True)
    found = registry.fetch_version(encoder.schema_version_id)
    assert found.definition == registered
    assert "fastavro" not in registered + found.definition


@pytest.mark.parametrize("data_format", ["AVRO", "JSON"])
@pytest.mark.parametrize("definition", [b'"string"', 5, None])
def test_a_definition_that_is_neither_text_nor_json_is_named(registry, definition, data_format):
    with pytest.raises(
        UnsupportedSchema, match=r"the definition of schema s is a (bytes|int|NoneType); expected text"
    ):
        SchemaEncoder("s", definition, data_format=data_format, registry=registry)


@pytest.mark.parametrize("definition", ["5", "null", {"$schema": 5}, '"text"'])
def test_json_that_is_no_json_schema_is_named(registry, definition):
    with pytest.raises(UnsupportedSchema, match="schema s is not a JSON Schema"):
        SchemaEncoder("s", definition, data_format="JSON", registry=registry)


def test_the_extra_is_named_where_the_checker_of_json_is_missing(registry, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package jsonschema.*penstock\[schemas\]"):
        SchemaEncoder("s", {}, data_format="JSON", registry=registry)
