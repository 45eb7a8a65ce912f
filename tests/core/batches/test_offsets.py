"""Offsets of a streaming query are canonical, and foreign ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batches.offsets import (
    INITIAL_OFFSET,
    Share,
    SharedLimits,
    StreamOffset,
    decode_position,
    encode_position,
    parse_offset,
)
from penstock.core.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    Sentinel,
    at_record,
    at_timestamp,
)
from penstock.errors import PositionError

positions = st.one_of(
    st.just(TRIM_HORIZON),
    st.just(LATEST),
    st.just(SHARD_END),
    st.integers(1, 2**45).map(at_timestamp),
    st.integers(1, 2**45).map(lambda ms: Position(sentinel=Sentinel.LATEST, timestamp_ms=ms)),
    st.builds(at_record, st.integers(0, 10**55).map(str), st.integers(0, 10_000)),
)
offsets = st.builds(
    StreamOffset,
    batch=st.integers(0, 10**9),
    worker=st.text(max_size=8),
    stream_arn=st.sampled_from(["", "arn:aws:kinesis:eu-west-1:1:stream/s"]),
    stream_created_ms=st.just(0),
    shards=st.dictionaries(st.text(min_size=1, max_size=8), positions, max_size=5),
    until_ms=st.none() | st.integers(1, 2**45),
    limit=st.none()
    | st.builds(
        SharedLimits, st.none() | st.integers(1, 99), st.none() | st.integers(1, 99), st.just(("a", "b"))
    ),
)


@given(offsets)
def test_an_offset_comes_back_as_it_was_logged(offset):
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


@given(offsets)
def test_the_same_offset_is_the_same_text_whatever_order_its_shards_came_in(offset):
    turned = StreamOffset(
        offset.batch,
        offset.worker,
        offset.stream_arn,
        offset.stream_created_ms,
        dict(reversed(list(offset.shards.items()))),
        offset.until_ms,
        offset.limit,
        dict(reversed(list(offset.tips.items()))),
        offset.deaggregates,
    )
    text = json.dumps(offset.to_json())
    assert json.dumps(turned.to_json()) == text
    assert json.dumps(json.loads(text)) == text


def test_the_initial_offset_is_a_constant():
    assert json.dumps(INITIAL_OFFSET.to_json()) == '{"batch": 0, "shards": {}, "v": 1}'


def test_the_text_of_a_whole_offset():
    offset = StreamOffset(
        7,
        "w",
        "arn",
        5,
        {"b": at_record("49", 2), "a": TRIM_HORIZON},
        9,
        SharedLimits(10, None, ("b", "a")),
        {"b": 8, "a": 4},
        deaggregates=False,
    )
    assert json.dumps(offset.to_json()) == (
        '{"batch": 7, "limit": {"bytes": null, "records": 10, "shards": ["b", "a"]}, '
        '"shards": {"a": ["TRIM_HORIZON", 0], "b": ["49", 2]}, "stream": {"arn": "arn", "created": 5}, '
        '"tips": {"a": 4, "b": 8}, "until": 9, "v": 1, "whole": true, "worker": "w"}'
    )


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({}, "format None"),
        ({"v": 2, "batch": 1, "shards": {}}, "format 2"),
        ({"v": 1}, "cannot be read"),
        ({"v": 1, "batch": "x", "shards": {}}, "cannot be read"),
        ({"v": 1, "batch": 1, "shards": []}, "cannot be read"),
        ({"v": 1, "batch": 1, "shards": {"s": ["abc", 0]}}, "cannot be read"),
        ({"v": 1, "batch": 1, "shards": {"s": "5"}}, "cannot be read"),
        ({"v": 1, "batch": 1, "shards": {}, "limit": {}}, "cannot be read"),
    ],
)
def test_what_is_no_offset_is_refused_with_a_reason(document, word):
    with pytest.raises(PositionError, match=word):
        parse_offset(document)


@given(positions)
def test_a_position_comes_back_as_it_was_encoded(position):
    decoded = decode_position(encode_position(position))
    assert (decoded, str(decoded)) == (position, str(position))


@given(st.integers(1, 1000), st.integers(1, 20))
def test_the_parts_of_a_limit_sum_up_to_it(total, count):
    shares = SharedLimits(total, total * 2**20, tuple(str(place) for place in range(count))).shares().values()
    assert sum(share.record_count_max for share in shares) == total
    assert sum(share.bytes_max for share in shares) == total * 2**20


def test_where_a_limit_is_too_small_for_all_the_first_ones_are_read():
    assert SharedLimits(2, None, ("c", "a", "b")).shares() == {
        "c": Share(1, None, may_exceed=True),
        "a": Share(1, None, may_exceed=False),
    }
    assert SharedLimits(None, 3 * 2**20, ("c", "a", "b", "d")).shares() == {
        "c": Share(None, 2**20, may_exceed=True),
        "a": Share(None, 2**20, may_exceed=False),
        "b": Share(None, 2**20, may_exceed=False),
    }
    assert SharedLimits(None, 5, ("c", "a")).shares() == {"c": Share(None, 5, may_exceed=True)}


def test_a_batch_reads_the_shards_that_its_limit_names():
    offset = StreamOffset(
        shards={"a": TRIM_HORIZON, "b": TRIM_HORIZON}, limit=SharedLimits(None, None, ("b", "gone"))
    )
    assert offset.shares() == {"b": Share(may_exceed=True)}


def test_an_offset_without_a_limit_reads_every_shard():
    assert StreamOffset(shards={"a": TRIM_HORIZON}).shares() == {"a": Share()}


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("TRIM_HORIZON"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_OFFSET = StreamOffset(
    batch=3,
    worker="w",
    stream_arn="arn",
    stream_created_ms=5,
    shards={"a": TRIM_HORIZON, "b": at_record("12", 3)},
    until_ms=9,
    limit=SharedLimits(10, None, ("a",)),
    tips={"a": 7},
    runs=((1, "first"), (3, "second")),
).to_json()


@given(_json_values)
def test_any_json_is_an_offset_or_refused_with_a_sentence(document):
    expect_offset_or_refusal(document)


@given(st.sampled_from(sorted(_OFFSET)), _json_values)
def test_an_offset_with_one_wrong_part_is_refused_with_a_sentence(key, value):
    expect_offset_or_refusal({**_OFFSET, key: value})


@given(
    st.sampled_from([("stream", "arn"), ("stream", "created"), ("shards", "a"), ("tips", "a")])
    | st.sampled_from([("limit", key) for key in ("records", "bytes", "shards")]),
    _json_values,
)
def test_an_offset_with_one_wrong_detail_is_refused_with_a_sentence(path, value):
    expect_offset_or_refusal({**_OFFSET, path[0]: {**_OFFSET[path[0]], path[1]: value}})


def expect_offset_or_refusal(document):
    try:
        offset = parse_offset(document)
    except PositionError:
        return
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset
    assert offset.shares().keys() <= offset.shards.keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch", -1),
        ("batch", float("inf")),
        ("batch", True),
        ("until", "soon"),
        ("worker", 5),
        ("shards", []),
        ("stream", {"arn": "", "created": 5}),
        ("runs", [[3, "later"], [1, "first"]]),
        ("runs", [[1, "one"], [1, "other"]]),
    ],
)
def test_a_part_that_cannot_be_is_refused(key, value):
    with pytest.raises(PositionError, match="cannot be read"):
        parse_offset({**_OFFSET, key: value})
