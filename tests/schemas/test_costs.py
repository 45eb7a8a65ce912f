"""A payload costs what its bytes are worth: a few of them may declare more than memory and time hold."""

import json
import zlib
from decimal import Decimal

import pytest

from penstock.errors import SchemaMismatch
from penstock.schemas import MemorySchemaRegistry, SchemaDecoder, SchemaEncoder
from penstock.schemas.avro import contains_itself, parse_avro
from penstock.schemas.avro_cost import DECIMAL_DIGITS_MAX, TooManyValuesError, ValueBound
from penstock.schemas.header import add_header

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "none", "type": "null"}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "id", "type": "long"}, {"name": "kids", "type": {"type": "array", "items": "Tree"}}],
}


def number(value):
    value = (value << 1) ^ (value >> 63)
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def decoder_and_data(schema, payload, data_format="AVRO", compress=False, **options):
    registry = MemorySchemaRegistry()
    version_id = registry.add("s", schema, data_format)
    data = add_header(version_id.bytes, payload, compress=compress)
    return SchemaDecoder(registry=registry, **options), data


def read(schema, payload, **options):
    decoder, data = decoder_and_data(schema, payload, **options)
    return decoder.decode(data).data


# --- decimals ---


def of_bytes(data):
    return number(len(data)) + data


@pytest.mark.parametrize("size", [5, 6, 1_000, 1_000_000])
@pytest.mark.parametrize("first", [b"\x7f", b"\x80"])
def test_a_decimal_has_the_digits_of_its_schema_and_no_more(size, first):
    with pytest.raises(SchemaMismatch, match="has more than 10 digits"):
        read(PRICE, of_bytes(first + b"\x11" * (size - 1)))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", "0.00"),
        (b"\x00", "0.00"),
        (b"\x04\xe2", "12.50"),
        (b"\xfb\x1e", "-12.50"),
        (b"\x00" * 1_000_000 + b"\x04\xe2", "12.50"),
        (b"\xff" * 1_000_000 + b"\xfb\x1e", "-12.50"),
        ((9_999_999_999).to_bytes(5, "big"), "99999999.99"),
        ((-9_999_999_999).to_bytes(5, "big", signed=True), "-99999999.99"),
    ],
)
def test_a_decimal_that_fits_is_read_whatever_its_sign_and_length(data, value):
    found = read(PRICE, of_bytes(data))
    assert (found, str(found)) == (Decimal(value), value)


def test_a_number_that_the_precision_does_not_hold_is_not_rounded():
    with pytest.raises(SchemaMismatch, match="has more than 3 digits"):
        read({**PRICE, "precision": 3}, of_bytes((1_234_567).to_bytes(3, "big")))


def test_a_precision_without_bounds_has_one():
    schema = {**PRICE, "precision": 100_000_000, "scale": 0}
    assert read(schema, of_bytes((10**4_000).to_bytes(1_700, "big"))) == 10**4_000
    with pytest.raises(SchemaMismatch, match=f"has more than {DECIMAL_DIGITS_MAX} digits"):
        read(schema, of_bytes(b"\x7f" * 10_000))


def test_a_decimal_is_bounded_wherever_it_is():
    fixed = {"type": "fixed", "name": "Cents", "size": 400, "logicalType": "decimal", "precision": 10}
    fields = [
        {"name": "list", "type": {"type": "array", "items": ["null", PRICE]}},
        {"name": "first", "type": fixed},
        {"name": "second", "type": "Cents"},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    good = (125).to_bytes(400, "big", signed=True)
    array = number(1) + number(1) + of_bytes(b"\x01") + number(0)
    assert read(schema, array + good + good) == {"list": [Decimal("0.01")], "first": 125, "second": 125}
    with pytest.raises(SchemaMismatch, match="a decimal of 400 bytes has more than 10 digits"):
        read(schema, array + good + b"\x01" * 400)
    with pytest.raises(SchemaMismatch, match="has more than 10 digits"):
        read(
            schema,
            array.replace(of_bytes(b"\x01"), of_bytes(b"\x01" * 9)) + good * 2,
        )


def test_fastavro_of_the_program_itself_stays_as_it_is():
    import io

    import fastavro

    ten = of_bytes(b"\x7f" * 10)
    assert fastavro.schemaless_reader(io.BytesIO(ten), fastavro.parse_schema(PRICE)).adjusted() > 10


# --- the number of values ---


@pytest.mark.parametrize("items", ["null", NOTHING, {"type": "fixed", "name": "F", "size": 0}])
@pytest.mark.parametrize("count", [10**9, 2**62, -(2**62)])
def test_items_that_take_no_bytes_are_counted_before_they_are_made(items, count):
    payload = number(count) + (number(0) if count < 0 else b"") + number(0)
    with pytest.raises(SchemaMismatch, match="more than 4000000 values; raise value_count_max"):
        read({"type": "array", "items": items}, payload)


def test_a_few_items_without_bytes_are_read():
    assert read({"type": "array", "items": "null"}, number(1_000) + number(0)) == [None] * 1_000
    assert read({"type": "array", "items": NOTHING}, number(3) + number(0)) == [{"none": None}] * 3


def test_a_compressed_payload_of_many_small_values_is_refused():
    schema = {
        "type": "array",
        "items": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
    }
    payload = number(50_000) + b"\x02" * 50_000 + number(0)
    assert len(zlib.compress(payload)) < 200
    with pytest.raises(SchemaMismatch, match="more than 40000 values"):
        read(schema, payload, compress=True, value_count_max=40_000)
    small = number(400) + b"\x02" * 400 + number(0)
    with pytest.raises(SchemaMismatch, match="more than 800 values"):
        read(schema, small, value_count_max=800)
    assert len(read(schema, small, value_count_max=801)) == 400


@pytest.mark.parametrize(
    ("schema", "is_counted"),
    [
        ({"type": "array", "items": "boolean"}, False),
        ({"type": "map", "values": "null"}, False),
        ({"type": "array", "items": ["null", {"type": "array", "items": "string"}]}, False),
        ({"type": "array", "items": NOTHING}, True),
        (TREE, True),
    ],
)
def test_only_payloads_that_may_hold_too_many_values_are_counted(schema, is_counted):
    parsed = parse_avro(schema, "s")
    bound = ValueBound(parsed, contains_itself=contains_itself(parsed))
    damaged = b"\x80" * 1_000_000
    if is_counted:
        with pytest.raises(ValueError, match="a number has more than 10 bytes"):
            bound.check(damaged)
    else:
        bound.check(damaged)


def test_the_count_of_values_is_that_of_the_datum():
    kinds = ["null", "boolean", "long", "double", "string", {"type": "enum", "name": "E", "symbols": ["A"]}]
    fields = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(kinds)]
    fields += [
        {"name": "union", "type": ["null", {"type": "fixed", "name": "Two", "size": 2}]},
        {"name": "map", "type": {"type": "map", "values": "Two"}},
        {"name": "again", "type": {"type": "array", "items": ["null", "R"]}},
    ]
    schema = parse_avro({"type": "record", "name": "R", "fields": fields}, "s")
    leaf = {"f0": None, "f1": True, "f2": -5, "f3": 1.5, "f4": "text", "f5": "A"}
    leaf |= {"union": b"ab", "map": {"k": b"cd", "l": b"ef"}, "again": []}
    value = {**leaf, "again": [leaf, None]}
    from penstock.schemas.avro import AvroCodec

    payload = AvroCodec(schema, "s").encode(value)
    values = 12 + 12 + 1
    ValueBound(schema, contains_itself=True, count_max=values).check(payload)
    with pytest.raises(TooManyValuesError):
        ValueBound(schema, contains_itself=True, count_max=values - 1).check(payload)
    with pytest.raises(EOFError):
        ValueBound(schema, contains_itself=True).check(payload[:-5])


@pytest.mark.parametrize("name", ["record", "map", "array"])
def test_a_type_may_have_the_name_of_a_kind_of_types(name):
    kinds = [
        {"type": "map", "values": "int"},
        {"type": "enum", "name": "enum", "symbols": ["a"]},
        {"type": "array", "items": {"type": "fixed", "name": "fixed", "size": 1}},
        ["null", name],
    ]
    fields = [{"name": f"f{place}", "type": kind} for place, kind in enumerate(kinds)]
    found = read({"type": "record", "name": name, "fields": fields}, b"\0" * 4)
    assert found == {"f0": {}, "f1": "a", "f2": [], "f3": None}


def test_a_number_of_a_million_bytes_is_damage():
    with pytest.raises(SchemaMismatch, match="a number has more than 10 bytes"):
        read(TREE, b"\x80" * 1_000_000 + b"\x01")


# --- JSON ---


def read_json(payload, schema=None, **options):
    return read(schema or {}, payload, data_format="JSON", **options)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"1" * 1_000_000, "out of range"),
        (b"-" + b"1" * 1_000_000, "out of range"),
        (b"[" * 1_000_000, "recursion"),
        (b'{"a":' * 1_000_000, "recursion"),
        (b"[" + b"[]," * 4_000_000 + b"1]", "more than 4000000 values"),
    ],
)
def test_json_beyond_the_bounds_is_a_mismatch(payload, message):
    with pytest.raises(SchemaMismatch, match=message):
        read_json(payload)


def test_commas_in_texts_are_no_values():
    assert len(read_json(json.dumps(["," * 5_000_000, '\\",[' * 10]).encode())[0]) == 5_000_000


def test_equal_items_are_found_without_comparing_each_with_each():
    schema = {"type": "array", "uniqueItems": True}
    many = [{"id": place, "tags": [True, 1.5]} for place in range(30_000)]
    assert read_json(json.dumps(many).encode(), schema, validate_json=True) == many
    for equal in ([1, 1.0], [{"a": [1], "b": 2}, {"b": 2, "a": [1]}], [True, True], [[], []]):
        with pytest.raises(SchemaMismatch, match="non-unique"):
            read_json(json.dumps(equal).encode(), schema, validate_json=True)
    different = [1, True, "1", [1], {"a": 1}, 0, False, None, "", [], {}]
    assert read_json(json.dumps(different).encode(), schema, validate_json=True) == different


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "\\s+$"}, " " * 500_000 + "x"),
        ({"patternProperties": {"\\s+$": {}}}, {" " * 500_000 + "x": 1}),
    ],
)
def test_a_pattern_is_not_tried_on_a_long_text(schema, value):
    with pytest.raises(SchemaMismatch, match="500001 characters is too long for a pattern"):
        read_json(json.dumps(value).encode(), schema, validate_json=True)


def test_a_message_shows_a_part_of_the_value():
    with pytest.raises(SchemaMismatch) as raised:
        read_json(json.dumps("x" * 1_000_000).encode(), {"type": "integer"}, validate_json=True)
    assert len(str(raised.value)) < 2_000


# --- compressed ---


def test_a_payload_is_decompressed_up_to_its_bound_only():
    bomb = zlib.compress(b"\0" * 100_000_000, 9)
    assert len(bomb) < 100_000
    decoder, data = decoder_and_data("bytes", b"")
    with pytest.raises(SchemaMismatch, match="becomes larger than 67108864 bytes"):
        decoder.decode(b"\x03\x05" + data[2:18] + bomb)


# --- writing ---


@pytest.mark.parametrize(
    "value", ["1E+1000000000", "0E+1000000000", "-1E+1000000000", "1E+9", "123456789.01"]
)
@pytest.mark.parametrize(
    ("schema", "wrap"),
    [
        (PRICE, lambda value: value),
        (["null", PRICE], lambda value: value),
        (
            {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2},
            lambda value: value,
        ),
        (
            ["null", {"type": "record", "name": "R", "fields": [{"name": "a", "type": PRICE}]}],
            lambda value: {"a": value},
        ),
    ],
    ids=["bytes", "optional", "fixed", "in an optional record"],
)
def test_a_decimal_that_the_schema_does_not_hold_is_not_written(schema, wrap, value):
    encoder = SchemaEncoder("s", schema, registry=MemorySchemaRegistry(), register=True)
    with pytest.raises(SchemaMismatch, match=r"more than \d+ digits"):
        encoder.encode(wrap(Decimal(value)))
    assert encoder.encode(wrap(Decimal("12.50")))
    assert encoder.encode(wrap(Decimal("0E+3")))


def test_a_number_beyond_every_float_is_a_mismatch_where_it_cannot_be_checked():
    with pytest.raises(SchemaMismatch, match="a number is too large"):
        read_json(b"9" * 400, {"multipleOf": 0.01}, validate_json=True)
