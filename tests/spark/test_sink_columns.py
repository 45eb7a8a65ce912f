"""Which columns the sink takes, ignores and refuses, before anything runs."""

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.errors import OptionError
from penstock.spark.options.spark_options import parse_sink
from penstock.spark.schema import SCHEMA_DDL
from penstock.spark.sink.columns import check_columns

KINDS = {"STRING": StringType, "BIGINT": IntegerType, "TIMESTAMP_LTZ": TimestampType, "BINARY": BinaryType}


def source_schema():
    """Return the schema of rows that the source gives."""
    fields = [column.split() for column in SCHEMA_DDL.split(", ")]
    return StructType([StructField(name, KINDS[kind]()) for name, kind in fields])


def schema_of(**kinds):
    return StructType([StructField(name, kind()) for name, kind in kinds.items()])


def check(schema, stream="orders"):
    options, _ = parse_sink({} if stream is None else {"streamName": stream})
    return check_columns(schema, options, overwrite=False)


GOOD = {"data": StringType, "partitionKey": StringType}


def test_rows_of_the_source_are_taken_as_they_are():
    assert check(source_schema()) == ("data", "partitionKey", "explicitHashKey", "streamName")


def test_rows_of_the_source_need_the_name_of_the_target():
    with pytest.raises(OptionError, match="Set option streamName: these rows were read from a stream"):
        check(source_schema(), stream=None)


def test_a_column_routes_the_rows_if_it_is_not_the_source_s_own():
    assert check(schema_of(**GOOD, STREAMNAME=StringType, shardId=StringType), stream=None)[3] == "STREAMNAME"


def test_columns_are_found_and_ignored_in_any_case():
    schema = schema_of(
        DATA=BinaryType, partitionkey=StringType, SHARDID=IntegerType, Sequencenumber=BinaryType
    )
    assert check(schema) == ("DATA", "partitionkey", "", "")


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"extra": IntegerType}, "the sink has no column extra: it takes data, partitionKey and"),
        ({"a": IntegerType, "z": IntegerType}, "the sink has no column a, z: it takes"),
        ({"explicitHashkeyy": StringType}, "explicitHashkeyy: did you mean explicitHashKey?"),
        ({"key": StringType}, "the column key is called partitionKey here"),
        ({"VALUE": StringType}, "the column VALUE is called data here"),
        ({"topic": StringType}, "the column topic is called streamName here"),
        ({"stream": StringType}, "the column stream is called streamName here"),
        ({"DATA": StringType}, "the rows have 2 columns data (data, DATA); keep one"),
        ({"streamname": StringType, "streamName": StringType}, "the rows have 2 columns streamName"),
        (
            {"explicitHashKey": IntegerType},
            "explicitHashKey is int; the sink takes string: convert it, for instance with cast(explicitHashKey as string)",
        ),
        ({"explicitHashKey": BinaryType}, "the column explicitHashKey is binary; the sink takes string"),
        (
            {"streamName": VariantType},
            "streamName is variant; the sink takes string: convert it, for instance with to_json(",
        ),
        (
            {f"c{n}": IntegerType for n in range(99)},
            "no column c0, c1, c10, c11, c12, c13, c14, c15, c16, c17 and 89 more: it",
        ),
    ],
)
def test_a_wrong_column_says_the_way_out(others, message):
    with pytest.raises(OptionError) as caught:
        check(schema_of(**GOOD, **others))
    assert message in str(caught.value)


def test_an_unknown_column_lists_all_that_are_known():
    with pytest.raises(OptionError) as caught:
        check(schema_of(**GOOD, extra=IntegerType))
    assert all(column.split()[0] in str(caught.value) for column in SCHEMA_DDL.split(", "))


def test_a_text_with_a_collation_is_a_text():
    schema = StructType([StructField(name, StringType("UNICODE_CI")) for name in GOOD])
    assert check(schema) == ("data", "partitionKey", "", "")


@pytest.mark.parametrize("missing", GOOD)
def test_a_missing_column_says_how_to_make_it(missing):
    with pytest.raises(
        OptionError, match=rf"the column {missing} is missing; add it, for instance with .*{missing}"
    ):
        check(schema_of(**{name: kind for name, kind in GOOD.items() if name != missing}))
