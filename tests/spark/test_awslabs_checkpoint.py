"""Positions from the checkpoint of a query of awslabs' connector, in files as it writes them."""

from __future__ import annotations

import json

import pytest

from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.starting import parse_starting
from penstock.errors import UsageError
from penstock.spark.awslabs_checkpoint import join_positions, parse_batch

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
PLACE = "s3://old/offsets/7"


def position(kind, place="", sub=-1, *, is_last=True):
    fields = {
        "iteratorType": kind,
        "iteratorPosition": place,
        "subSequenceNumber": str(sub),
        "isLast": str(is_last),
    }
    return {name: value.lower() if name == "isLast" else value for name, value in fields.items()}


def source(stream, number, **shards):
    return json.dumps({"metadata": {"batchId": str(number), "streamName": stream}, **shards})


def offsets(*sources):
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *sources])


START = {FIRST: position("AFTER_SEQUENCE_NUMBER", "10"), SECOND: position("TRIM_HORIZON")}


def test_a_shard_goes_on_behind_its_last_record_and_one_without_news_where_it_was():
    batch = parse_batch(offsets(source("orders", 5, **START)), None, PLACE)
    end = {"shardId": FIRST, "iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "20"}
    end |= {"subSequenceNumber": 3, "isLast": False}
    start = parse_starting(join_positions(batch, {FIRST: end}))
    assert (batch.source, batch.number) == (0, 5)
    assert start.by_shard == {FIRST: at_record("20", 3), SECOND: TRIM_HORIZON}


def test_a_shard_that_has_ended_stays_ended():
    batch = parse_batch(offsets(source("orders", 5, **START)), "orders", PLACE)
    end = {"shardId": FIRST, "iteratorType": "SHARD_END", "iteratorPosition": "", "subSequenceNumber": -1}
    assert parse_starting(join_positions(batch, {FIRST: end})).position_of(FIRST) == SHARD_END


def test_a_stream_is_found_among_other_sources():
    batch = parse_batch(offsets("0", "-", source("clicks", 1), source("orders", 2, **START)), "orders", PLACE)
    assert (batch.source, batch.number, batch.starts) == (3, 2, START)


@pytest.mark.parametrize(
    ("sources", "stream", "told"),
    [
        (
            (),
            None,
            "no positions of a stream; name one with stream (streams that awslabs' connector read there: none)",
        ),
        ((source("a", 1), source("b", 1)), None, "name one with stream .* there: a, b"),
        ((source("a", 1),), "b", "no positions of stream b .* there: a"),
        (('{"orders":{"0":12}}', "[]", '{"metadata": 7}', '{"metadata": {}}'), None, "there: none"),
    ],
)
def test_positions_that_are_not_there_are_refused(sources, stream, told):
    with pytest.raises(UsageError, match=told.replace("(", r"\(").replace(")", r"\)")):
        parse_batch(offsets(*sources), stream, PLACE)
