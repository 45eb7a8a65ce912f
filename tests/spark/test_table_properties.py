"""The user's options among Spark's properties, and the error of a read without options."""

import pytest

from penstock.errors import OptionError
from penstock.spark.options.several_streams import check_read
from penstock.spark.options.spark_options import parse_batch, parse_source
from penstock.spark.options.table_properties import user_options
from penstock.spark.schema import check_schema


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"streamName": "s", "checkpointLocation": "/c", "queryName": "q"}, {"streamName": "s"}),
        ({"streamName": "s", "path": "/p"}, {"streamName": "s", "path": "/p"}),
        (
            {
                "provider": "kinesis",
                "owner": "root",
                "streamname": "s",
                "option.streamname": "s",
                "option.region": "r",
            },
            {"streamname": "s", "region": "r"},
        ),
        (
            {"owner": "root", "location": "file:/w/s", "path": "file:/w/s", "streamname": "s"},
            {"streamname": "s"},
        ),
    ],
)
def test_what_spark_adds_is_left_out_and_a_path_only_of_a_table(given, kept):
    assert user_options(given) == kept


def test_a_tables_properties_are_no_unknown_options():
    check_read({"provider": "kinesis", "owner": "root", "streamname": "s", "option.streamname": "s"})


@pytest.mark.parametrize("parse", [parse_source, parse_batch])
def test_a_read_without_any_option_says_how_spark_wants_them(parse):
    with pytest.raises(OptionError, match=r"SELECT \.\.\. FROM orders WITH \(streamName = 'orders'\)"):
        parse({})


def test_an_option_is_spelled_as_documented_and_an_alias_as_given():
    with pytest.raises(OptionError, match="option leaseDuration='x'"):
        parse_source({"streamname": "s", "leaseduration": "x"})
    with pytest.raises(OptionError, match="option failovertimemillis='x'"):
        parse_source({"streamname": "s", "failovertimemillis": "x"})


def test_another_schema_is_refused_with_the_way_out():
    with pytest.raises(OptionError, match=r"schema struct<a:int>: .* leave out \.schema"):
        check_schema("struct<a:int>")
    check_schema(
        "struct<streamName:string,shardId:string,sequenceNumber:string,subSequenceNumber:bigint,partitionKey:string,"
        "explicitHashKey:string,approximateArrivalTimestamp:timestamp,data:binary>"
    )
