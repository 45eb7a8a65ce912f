"""The options of a read of several streams."""

from __future__ import annotations

import pytest

from penstock.core.position import LATEST, TRIM_HORIZON
from penstock.errors import OptionError
from penstock.spark.options.several_streams import (
    check_read,
    names_several,
    parse_names,
    parse_several_batch,
    parse_several_source,
    split_starting,
)
from penstock.spark.options.spark_options import parse_sink

ARN = "arn:aws:kinesis:{region}:{account}:stream/{name}"


def arn(name, region="eu-west-1", account="123456789012"):
    return ARN.format(name=name, region=region, account=account)


def source(**given):
    return parse_several_source({"applicationName": "ledger", **given})[0]


def test_a_comma_makes_a_list_whatever_the_case_and_spelling():
    assert names_several({"STREAMNAME": "orders,returns"})
    assert names_several({"kinesis.streamName": "orders,"})
    assert not names_several({"streamName": "orders", "startingPosition": '{"a": 1, "b": 2}'})


def test_each_stream_has_its_own_options():
    several = source(streamName=" orders , returns ", maxRecordsPerTrigger="10")
    assert [each.stream for each in several.streams] == ["orders", "returns"]
    assert {each.application for each in several.streams} == {"ledger"}
    assert several.shared.stream == "orders,returns"


def test_arns_give_the_region_and_may_be_of_several_accounts():
    several = source(streamARN=f"{arn('orders')},{arn('returns', account='210987654321')}")
    assert {each.connection.region for each in several.streams} == {"eu-west-1"}
    assert [each.stream.rpartition("/")[2] for each in several.streams] == ["orders", "returns"]


@pytest.mark.parametrize("parse", [parse_several_source, parse_several_batch])
def test_names_beside_an_arn_are_of_its_region_unless_one_is_given(parse):
    given = {"streamName": f"orders,{arn('returns')}"}
    if parse is parse_several_source:
        given["applicationName"] = "ledger"
    for own, region in (({}, "eu-west-1"), ({"REGIONNAME": "us-west-2"}, "us-west-2")):
        found, _ = parse({**given, **own})
        streams = found.streams if parse is parse_several_source else found
        assert [each.connection.region for each in streams] == [region] * 2


def test_a_position_may_be_given_for_each_stream():
    several = source(
        streamName="orders,returns",
        startingPosition='{"orders": "TRIM_HORIZON", "returns": {"shardId-000000000000": "TRIM_HORIZON", "*": "LATEST"}}',
    )
    orders, returns = (each.starting for each in several.streams)
    assert orders.default == TRIM_HORIZON
    assert (returns.default, returns.position_of("shardId-000000000000")) == (LATEST, TRIM_HORIZON)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("LATEST", {"a": "LATEST", "b": "LATEST"}),
        ('{"a": "LATEST"}', {"a": "LATEST"}),
        ('{"*": "LATEST", "b": {"x": "1"}}', {"a": "LATEST", "b": '{"x": "1"}'}),
        (
            '{"at_timestamp": "2026-01-31T12:00:00Z"}',
            dict.fromkeys("ab", '{"at_timestamp": "2026-01-31T12:00:00Z"}'),
        ),
    ],
)
def test_positions_are_split_by_stream(text, texts):
    assert split_starting(text, "ab", "startingPosition") == texts


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"streamName": "orders,,returns"}, "is empty; write orders,returns"),
        ({"streamName": ",orders"}, "is empty"),
        ({"streamName": ","}, "is empty"),
        ({"streamName": "orders, orders"}, "names orders twice"),
        ({"streamName": "orders,returns", "stream": "orders,returns"}, "streamName is set twice"),
        ({"streamName": str(["orders", "returns"])}, r"streamName=\['orders' is not a stream's name"),
        ({"streamName": "123456789012:orders:1,returns"}, "id of Java workers"),
        ({"streamName": ",".join(f"s{n}" for n in range(51))}, "at most 50"),
        ({"streamARN": f"{arn('a')},{arn('b', region='us-east-1')}"}, "eu-west-1, us-east-1.*one region"),
        ({"streamARN": f"{arn('a')},{arn('a', account='2')}"}, "could not tell them apart"),
        ({"streamARN": f"{arn('a')},b"}, "not a stream's ARN"),
        ({"streamName": "b,a", "streamARN": f"{arn('a')},{arn('b')}"}, "keep one"),
        ({"streamName": "a,b", "maxLeases": "3"}, "maxLeases=3.*query of its own"),
        ({"streamName": "a,b", "maxPartitions": "1"}, "maxPartitions=2 or more"),
        ({"streamName": "a,b", "registeredConsumerId": "arn:aws:kinesis:x"}, "registeredConsumerId"),
        ({"streamName": "a,b", "startingPosition": '{"shardId-000000000000": "1"}'}, "positions by stream"),
        ({"streamName": "a,b", "startingPosition": '{"c": "LATEST"}'}, "has a position for c"),
        ({"streamName": "a,b", "startingPosition": "{"}, "begins like JSON"),
        ({"streamName": "a,b", "startingPositon": "LATEST"}, "Did you mean startingPosition"),
        ({"streamName": "a,b", "endingPosition": "LATEST"}, "for the batch"),
    ],
)
def test_a_mistake_is_refused_with_the_way_out(given, why):
    with pytest.raises(OptionError, match=why):
        source(**given)


def test_several_streams_need_an_application_of_their_own_name():
    with pytest.raises(OptionError, match="applicationName is missing"):
        parse_several_source({"streamName": "orders,returns"})
    assert parse_several_source({"streamName": "orders,returns", "leaseTable": "ledger"})
    check_read({"streamName": "orders,returns"})  # it may become a batch read


def test_a_batch_read_has_the_range_of_each_stream():
    streams, _ = parse_several_batch(
        {"streamName": "orders,returns", "endingPosition": '{"orders": "AT_TIMESTAMP 2026-01-31T12:00:00Z"}'}
    )
    orders, returns = streams
    assert orders.ending.default.timestamp_ms is not None
    assert returns.ending.default == LATEST


def test_a_name_that_is_a_list_of_one():
    assert parse_names("streamName", "orders,") == ("orders",)


def test_a_sink_writes_to_one_stream():
    with pytest.raises(OptionError, match="orders,returns"):
        parse_sink({"streamName": "orders,returns"})
