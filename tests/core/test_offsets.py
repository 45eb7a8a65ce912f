"""Offsets of a streaming query are canonical, and refuse what is not theirs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.offsets import (
    INITIAL_OFFSET,
    Limit,
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
    | st.builds(Limit, st.none() | st.integers(1, 99), st.none() | st.integers(1, 99), st.just(("a", "b"))),
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
    )
    text = json.dumps(offset.to_json())
    assert json.dumps(turned.to_json()) == text
    assert json.dumps(json.loads(text)) == text


def test_the_initial_offset_is_a_constant():
    assert json.dumps(INITIAL_OFFSET.to_json()) == '{"batch": 0, "shards": {}, "v": 1}'


def test_the_text_of_a_whole_offset():
    offset = StreamOffset(
        7, "w", "arn", 5, {"b": at_record("49", 2), "a": TRIM_HORIZON}, 9, Limit(10, None, ("b", "a"))
    )
    assert json.dumps(offset.to_json()) == (
        '{"batch": 7, "limit": {"bytes": null, "records": 10, "shards": ["b", "a"]}, '
        '"shards": {"a": ["TRIM_HORIZON", 0], "b": ["49", 2]}, "stream": {"arn": "arn", "created": 5}, '
        '"until": 9, "v": 1, "worker": "w"}'
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
    limit = Limit(total, total * 2, tuple(str(place) for place in range(count)))
    parts = [limit.share_of(str(place)) for place in range(count)]
    assert sum(records or 0 for records, _ in parts) == total
    assert sum(size or 0 for _, size in parts) == total * 2


def test_a_shard_outside_the_limit_is_not_read():
    assert Limit(10, None, ("a",)).share_of("b") == (0, 0)
    assert Limit(10, None, ("a",)).share_of("a") == (10, None)
