"""What Avro's types are in Spark, and what becomes of their values: no session is needed for either."""

import datetime as dt
import json
from decimal import Decimal

import pytest
from pyspark.sql import types as t

from penstock.errors import SchemaError, SchemaMismatch, UnsupportedSchema
from penstock.schemas import MemorySchemaRegistry, SchemaEncoder
from penstock.schemas.header import add_header
from penstock.spark.schemas.avro_types import spark_avro
from penstock.spark.schemas.glue_columns import ColumnReader, reader_of
from schema_registries import ORDER, ORDER_JSON, ORDER_WITH_COUNT, CountingRegistry


def record(**fields):
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": n, "type": kind} for n, kind in fields.items()],
    }


def logical(kind, meaning, **more):
    return {"type": kind, "logicalType": meaning, **more}


INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
LETTER = {"type": "enum", "name": "Letter", "symbols": ["A", "B"]}
PAIR = {"type": "fixed", "name": "Pair", "size": 2}
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)  # noqa: DTZ001 - a local timestamp has no zone


@pytest.mark.parametrize(
    ("kind", "expected", "written", "read"),
    [
        ("boolean", t.BooleanType(), True, True),
        ("int", t.IntegerType(), -5, -5),
        ("long", t.LongType(), 2**40, 2**40),
        ("float", t.FloatType(), 0.5, 0.5),
        ("double", t.DoubleType(), 0.1, 0.1),
        ("bytes", t.BinaryType(), b"\x00\xff", b"\x00\xff"),
        (PAIR, t.BinaryType(), b"ab", b"ab"),
        ("string", t.StringType(), "☕", "☕"),
        (LETTER, t.StringType(), "B", "B"),
        (logical("string", "uuid"), t.StringType(), "0" * 32, "0" * 32),
        (logical("int", "date"), t.DateType(), dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
        (logical("int", "time-millis"), t.IntegerType(), dt.time(0, 0, 1), 1000),
        (logical("long", "time-micros"), t.LongType(), dt.time(0, 0, 1), 1_000_000),
        *[
            (
                logical("long", f"timestamp-{unit}"),
                t.TimestampType(),
                MOMENT.replace(tzinfo=dt.UTC),
                MOMENT.replace(tzinfo=dt.UTC),
            )
            for unit in ("millis", "micros")
        ],
        *[
            (logical("long", f"local-timestamp-{unit}"), t.TimestampNTZType(), MOMENT, MOMENT)
            for unit in ("millis", "micros")
        ],
        (
            logical("bytes", "decimal", precision=38, scale=4),
            t.DecimalType(38, 4),
            Decimal("-" + "9" * 34 + ".1234"),
            Decimal("-" + "9" * 34 + ".1234"),
        ),
        (
            logical("fixed", "decimal", name="D", size=4, precision=5),
            t.DecimalType(5, 0),
            Decimal(-12345),
            Decimal(-12345),
        ),
        (
            {"type": "array", "items": ["null", "int"]},
            t.ArrayType(t.IntegerType(), True),
            [1, None],
            [1, None],
        ),
        (
            {"type": "map", "values": "long"},
            t.MapType(t.StringType(), t.LongType(), False),
            {"a": 1},
            {"a": 1},
        ),
        (INNER, t.StructType([t.StructField("x", t.IntegerType(), False)]), {"x": 1}, (1,)),
        (["null", INNER], t.StructType([t.StructField("x", t.IntegerType(), False)]), {"x": 1}, (1,)),
        (["null", "string"], t.StringType(), None, None),
        (["string"], t.StringType(), "a", "a"),
        (["int", "long"], t.LongType(), 2**40, 2**40),
        (["null", "float", "double"], t.DoubleType(), 0.5, 0.5),
    ],
)
def test_a_type_and_its_value(kind, expected, written, read):
    schema = record(a=kind)
    found = spark_avro(schema)
    is_nullable = isinstance(kind, list) and "null" in kind
    assert found.type == t.StructType([t.StructField("a", expected, is_nullable)])
    registry = MemorySchemaRegistry()
    data = SchemaEncoder("r", schema, registry=registry, register=True).encode({"a": written})
    assert _reader(registry, schema).read(data) == (read,)


def _reader(registry, schema):
    return ColumnReader(registry, json.dumps(schema))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, None),
        ("text", ("text", None, None, None, None)),
        (7, (None, 7, None, None, None)),
        (("Inner", {"x": 1}), (None, None, (1,), None, None)),
        (("Letter", "A"), (None, None, None, "A", None)),
        ({"k": "v"}, (None, None, None, None, {"k": "v"})),
    ],
)
def test_a_union_of_several_types_has_a_member_for_each(written, read):
    schema = record(a=["null", "string", "int", INNER, LETTER, {"type": "map", "values": "string"}])
    members = spark_avro(schema).type["a"].dataType
    assert [field.name for field in members] == [f"member{place}" for place in range(5)]
    registry = MemorySchemaRegistry()
    data = SchemaEncoder("r", schema, registry=registry, register=True).encode({"a": written})
    assert _reader(registry, schema).read(data) == (read,)


def test_what_was_written_as_one_type_of_a_union_finds_its_member():
    registry = MemorySchemaRegistry()
    schema = record(a=["string", LETTER, INNER, PAIR])
    for kind, value, place in ((INNER, {"x": 3}, 2), ("string", "z", 0), (PAIR, b"ab", 3)):
        data = SchemaEncoder(f"r{place}", record(a=kind), registry=registry, register=True).encode(
            {"a": value}
        )
        (members,) = _reader(registry, schema).read(data)
        assert [each is not None for each in members].index(True) == place


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("null", "field a cannot be a column of Spark: Spark has no type for null alone"),
        (["null"], "field a cannot be a column of Spark: Spark has no type for null alone"),
        (["int", "long", "string"], "field a .*: a value of its union may be int or long"),
        (
            logical("bytes", "decimal", precision=39),
            "field a .*: a decimal of 39 digits, and Spark's end at 38",
        ),
        (
            {
                "type": "array",
                "items": {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]},
            },
            r"field a\[\]\.n .*: N contains itself",
        ),
        (
            {
                "type": "record",
                "name": "N",
                "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}],
            },
            r"field a .*: it has fields that differ in case only \(a, A\)",
        ),
    ],
)
def test_a_type_that_spark_does_not_have_is_named(kind, message):
    with pytest.raises(UnsupportedSchema, match=message):
        spark_avro(record(a=kind))


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (logical("long", "timestamp-micros"), 2**62),
        (logical("long", "local-timestamp-millis"), -(2**62)),
        (logical("int", "date"), 2**31 - 1),
    ],
)
def test_a_moment_that_python_does_not_have_is_a_mismatch(kind, number):
    registry = MemorySchemaRegistry()
    registry.add("r", record(a=kind))
    plain = SchemaEncoder("p", record(a=kind["type"]), registry=registry, register=True).encode({"a": number})
    with pytest.raises(SchemaMismatch, match=f"field a: {number} is not"):
        _reader(registry, record(a=kind)).read(plain)


def test_a_decimal_with_too_many_digits_is_a_mismatch():
    registry = MemorySchemaRegistry()
    data = SchemaEncoder("r", record(a="bytes"), registry=registry, register=True).encode({"a": b"\x03\xe8"})
    kind = logical("bytes", "decimal", precision=3)
    with pytest.raises(SchemaMismatch, match="field a: 1000 has more than 3 digits"):
        _reader(registry, record(a=kind)).read(data)


def test_a_default_of_bytes_is_bytes():
    registry = MemorySchemaRegistry()
    data = SchemaEncoder("r", record(b="int"), registry=registry, register=True).encode({"b": 1})
    schema = {**record(), "fields": [{"name": "a", "type": "bytes", "default": "\u00ff"}]}
    assert _reader(registry, schema).read(data) == (b"\xff",)


def test_all_versions_are_read_into_the_columns_schema():
    registry = CountingRegistry()
    old = SchemaEncoder("orders", ORDER, registry=registry, register=True).encode({"id": 1, "item": "a"})
    new = SchemaEncoder("orders", ORDER_WITH_COUNT, registry=registry, register=True).encode(
        {"id": 2, "item": "b", "count": 5}
    )
    registry.calls.clear()
    reader = _reader(registry, ORDER_WITH_COUNT)
    assert [reader.read(bytearray(data)) for data in (old, new, old)] == [
        (1, "a", 1),
        (2, "b", 5),
        (1, "a", 1),
    ]
    assert registry.calls == ["fetch_version"] * 2


def test_a_column_of_json_is_its_text_and_formats_are_not_mixed_up():
    registry = MemorySchemaRegistry()
    avro = SchemaEncoder("orders", ORDER, registry=registry, register=True).encode({"id": 1, "item": "a"})
    document = SchemaEncoder(
        "documents", ORDER_JSON, data_format="JSON", registry=registry, register=True
    ).encode({"id": 1})
    reader = ColumnReader(registry, None)
    assert reader.read(document) == '{"id":1}'
    with pytest.raises(SchemaMismatch, match="of schema orders is AVRO: from_glue_avro reads such records"):
        reader.read(avro)
    with pytest.raises(
        SchemaMismatch, match="of schema documents is JSON: from_glue_json reads such records"
    ):
        _reader(registry, ORDER).read(document)
    with pytest.raises(SchemaError, match="is not JSON"):
        reader.read(add_header(document[2:18], b"\xff", compress=False))


def test_a_worker_keeps_a_reader_for_each_column():
    registry = MemorySchemaRegistry()
    assert reader_of(registry, None) is reader_of(registry, None)
    assert reader_of(registry, None) is not reader_of(registry, '"int"')


def decimal(precision, scale, kind="bytes"):
    return logical(kind, "decimal", precision=precision, scale=scale)


def read_into(column, writer, value):
    registry = MemorySchemaRegistry()
    data = SchemaEncoder("r", writer, registry=registry, register=True).encode(value)
    return ColumnReader(registry, json.dumps(column)).read(data)


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
AT = MOMENT.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(("written", "read"), [(MILLIS, MICROS), (MICROS, MILLIS)])
@pytest.mark.parametrize(
    ("wrap", "value", "expected"),
    [
        (lambda kind: kind, AT, AT),
        (lambda kind: ["null", kind], AT, AT),
        (lambda kind: [kind, "string"], AT, (AT, None)),
        (lambda kind: {"type": "array", "items": kind}, [AT], [AT]),
        (lambda kind: {"type": "map", "values": ["null", kind]}, {"x": AT}, {"x": AT}),
        (lambda kind: {**record(at=kind), "name": "Inner"}, {"at": AT}, (AT,)),
    ],
    ids=["plain", "null", "union", "array", "map", "record"],
)
def test_a_writers_unit_of_time_becomes_the_columns(written, read, wrap, value, expected):
    assert read_into(record(a=wrap(read)), record(a=wrap(written)), {"a": value}) == (expected,)


def test_a_named_type_keeps_the_writers_unit_wherever_it_is_used():
    def twice(kind):
        return record(a={**record(at=kind), "name": "Inner"}, b=["null", "Inner"])

    assert read_into(twice(MICROS), twice(MILLIS), {"a": {"at": AT}, "b": {"at": AT}}) == ((AT,), (AT,))


def test_records_of_one_union_have_units_of_their_own():
    union = [{**record(at=kind), "name": name} for name, kind in (("A", MILLIS), ("B", MICROS))]
    assert read_into(record(a=union), record(a=union), {"a": ("B", {"at": AT})}) == ((None, (AT,)),)


def test_a_writer_that_contains_itself_is_read_into_a_column_that_does_not():
    writer = record(at=MILLIS, next=["null", "R"])
    assert read_into(record(at=MICROS), writer, {"at": AT, "next": {"at": AT, "next": None}}) == (AT,)


@pytest.mark.parametrize(
    ("written", "read", "value", "message"),
    [
        (decimal(9, 2), decimal(9, 3), Decimal("1.25"), "decimal of scale 2, .* decimal of scale 3"),
        (["null", decimal(9, 2)], ["null", decimal(9, 3)], Decimal("1.25"), "scale 2"),
        (logical("int", "time-millis"), logical("long", "time-micros"), dt.time(1), "time-millis"),
        (
            logical("int", "date"),
            MILLIS,
            dt.date(2026, 1, 2),
            "written as date, and the column has timestamp",
        ),
        (logical("long", "local-timestamp-millis"), MILLIS, MOMENT, "local-timestamp-millis"),
        (logical("long", "timestamp-nanos"), MICROS, 5, "timestamp-nanos"),
    ],
)
def test_a_writers_value_that_means_something_else_is_a_mismatch(written, read, value, message):
    with pytest.raises(SchemaMismatch, match=f"field a was .*{message}"):
        read_into(record(a=read), record(a=written), {"a": value})


@pytest.mark.parametrize(
    ("written", "read", "value", "expected"),
    [
        ("long", MILLIS, 1000, dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
        (MILLIS, "long", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), 1000),
        (decimal(5, 2), decimal(9, 2), Decimal("1.25"), Decimal("1.25")),
        (logical("string", "uuid"), "string", "0" * 32, "0" * 32),
    ],
)
def test_a_schema_without_a_meaning_takes_that_of_the_other(written, read, value, expected):
    assert read_into(record(a=read), record(a=written), {"a": value}) == (expected,)


@pytest.mark.parametrize("kind", ["int", ["null", "int"], {"type": "array", "items": "int"}])
def test_an_int_of_more_than_32_bits_is_a_mismatch(kind):
    registry = MemorySchemaRegistry()
    version_id = registry.add("r", record(a=kind))
    before, after = (b"" if kind == "int" else b"\x02"), (b"\x00" if isinstance(kind, dict) else b"")
    payload = before + b"\x80\x80\x80\x80\x80\x40" + after  # 2**40 in zigzag
    with pytest.raises(SchemaMismatch, match=r"field a.*: 1099511627776 is not a valid int"):
        ColumnReader(registry, json.dumps(record(a=kind))).read(
            add_header(version_id.bytes, payload, compress=False)
        )
