"""Types to which a column of Parquet files may change when a user mends the schema."""

from __future__ import annotations

import pytest
from msgspec import structs

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.new_names import ColumnNameRule
from penstock.core.delivering.record import record_of
from penstock.errors import OptionError


@pytest.fixture
def kinds():
    from pyspark.sql import types

    return types


def test_a_column_becomes_wider_and_its_structs_get_fields(kinds):
    from penstock.delivery.table_rows import may_retype

    number, long, text = kinds.IntegerType(), kinds.LongType(), kinds.StringType()

    def struct(**fields):
        return kinds.StructType([kinds.StructField(name, kind) for name, kind in fields.items()])

    before, after = struct(a=number, b=struct(c=text)), struct(d=text, b=struct(e=long, c=text), a=long)
    pairs = [
        (number, long),
        (before, after),
        (kinds.ArrayType(before), kinds.ArrayType(after)),
        (kinds.MapType(text, before), kinds.MapType(text, after)),
    ]
    assert [may_retype(*pair) for pair in pairs] == [True] * 4
    assert [may_retype(second, first) for first, second in pairs] == [False] * 4
    assert not may_retype(number, text)
    assert not may_retype(kinds.MapType(number, text), kinds.MapType(long, text))


def test_a_mended_schema_and_a_newer_version_may_have_a_further_field_in_a_struct(kinds):
    from penstock.delivery.opening import _merged_schema
    from penstock.delivery.table_rows import with_newer_columns

    delivery = parse_delivery({"stream": "orders", "to": "/lake/orders"})

    def schema(*names):
        place = kinds.StructType([kinds.StructField(name, kinds.DoubleType()) for name in names])
        return kinds.StructType([kinds.StructField("place", place)])

    assert _merged_schema(schema("lat", "lon"), schema("lat"), delivery) == schema("lat", "lon")
    names = ColumnNameRule({})
    grown = with_newer_columns(schema("lat"), schema("lat", "lon"), names, in_structs=True)
    assert grown == schema("lat", "lon")
    assert with_newer_columns(grown, schema("lat"), names, in_structs=True) == grown
    assert with_newer_columns(schema("lat"), grown, names) == schema("lat")
    assert _merged_schema(schema("lat"), schema("lat", "lon"), delivery) == schema("lat", "lon")
    text = kinds.StructType([kinds.StructField("lat", kinds.StringType())])
    with pytest.raises(OptionError, match="cannot become STRUCT<LAT:STRING,LON:DOUBLE>"):
        _merged_schema(kinds.StructType([kinds.StructField("place", text)]), schema("lat", "lon"), delivery)
    other = kinds.StructType([kinds.StructField("Place", kinds.DoubleType())])
    with pytest.raises(OptionError, match=r"column Place is place in the table, .*: write place"):
        _merged_schema(other, schema("lat"), delivery)
    lake = parse_delivery({"stream": "orders", "to": "/lake/orders", "format": "delta"})
    assert _merged_schema(schema("lat"), schema("lat", "lon"), lake) == schema("lat")


def test_a_struct_whose_fields_spark_cannot_find_is_refused(kinds):
    from penstock.delivery.table_rows import check_columns

    delivery = parse_delivery({"stream": "orders", "to": "/lake/orders"})
    inner = kinds.StructType([kinds.StructField("a", kinds.IntegerType())])
    check_columns(delivery, kinds.StructType([kinds.StructField("what?", kinds.StringType())]))
    for name in ("what?", "it's"):
        with pytest.raises(OptionError, match="make it a STRING"):
            check_columns(delivery, kinds.StructType([kinds.StructField(name, inner)]))


def test_a_struct_of_a_lake_table_in_which_spark_finds_no_fields_is_left_out(kinds):
    from penstock.delivery.targets.lake import LakeTarget

    def struct(**fields):
        return kinds.StructType([kinds.StructField(name, kind) for name, kind in fields.items()])

    class Table:
        def exists(self):
            return True

        def schema(self):
            inner = struct(a=kinds.LongType())
            return struct(
                **{
                    "it's": inner,
                    "outer": struct(**{"what?": inner}),
                    "place": inner,
                    "ok?": kinds.LongType(),
                    "day": kinds.DateType(),
                }
            )

        def computed(self):
            return ["day"]

    delivery = parse_delivery({"stream": "orders", "to": "/l", "format": "delta"})
    target = LakeTarget(None, delivery, "", Table())
    assert target.known_columns().names == ["place", "ok?"]
    assert target.unreadable_columns() == {
        "it's": "struct<a:bigint>",
        "outer": "struct<what?:struct<a:bigint>>",
        "day": "generated",
    }


@pytest.mark.parametrize("kind", ["long", "string"])
def test_a_redelivery_keeps_a_column_that_the_delivery_has_added_since_the_checks(kinds, tmp_path, kind):
    from penstock.delivery.files import LocalFiles
    from penstock.delivery.opening import OpenDelivery, save_record
    from penstock.delivery.table_writer import save_schema, saved_schema

    given = {"stream": "orders", "to": f"{tmp_path}/orders"}
    delivery, files = parse_delivery(given), LocalFiles()
    schema = kinds.StructType().add("id", "long")
    redelivery = OpenDelivery(
        delivery=delivery,
        files=files,
        schema=kinds.StructType().add("id", "long").add("price", kind),
        texts=None,
        target=None,
        record=None,
        old_record=record_of(delivery, "penstock", "id"),
        backfill_range=None,
        opened_ms=0,
    )
    redelivery = structs.replace(redelivery, record=redelivery.old_record)
    newest = schema.add("price", "long").add("country", "string")
    save_schema(files, delivery, newest)
    if kind == "string":
        with pytest.raises(OptionError, match="price is BIGINT in the table's files"):
            save_record(redelivery)
    else:
        save_record(redelivery)
    assert saved_schema(files, delivery) == newest
