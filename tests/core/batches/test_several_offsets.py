"""The offset of a query of several streams, and the split of its limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batches.offsets import SHARE_BYTES_MIN, Limits, StreamOffset, parse_offset
from penstock.core.batches.several_offsets import (
    INITIAL_MULTI_STREAM_OFFSET,
    MultiStreamOffset,
    parse_multi_stream_offset,
    serving_order,
    split_limits,
    split_total,
)
from penstock.core.position import TRIM_HORIZON
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import PositionError


def identity(name, created_ms=1_767_225_600_000):
    return StreamIdentity(f"arn:aws:kinesis:eu-west-1:123456789012:stream/{name}", created_ms)


def offset(name, batch=1, worker="spark-1"):
    stream = identity(name)
    return StreamOffset(
        batch=batch,
        worker=worker,
        stream_arn=stream.arn,
        stream_created_ms=stream.created_ms,
        shards={"shardId-000000000000": TRIM_HORIZON},
    )


ORDERS, RETURNS = identity("orders").stream_id, identity("returns").stream_id


def test_the_same_offset_is_always_the_same_text():
    one = MultiStreamOffset({ORDERS: offset("orders"), RETURNS: offset("returns")})
    other = MultiStreamOffset({RETURNS: offset("returns"), ORDERS: offset("orders")})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert parse_multi_stream_offset(json.loads(json.dumps(one.to_json()))) == one
    assert parse_multi_stream_offset(INITIAL_MULTI_STREAM_OFFSET.to_json()) == INITIAL_MULTI_STREAM_OFFSET


def test_a_batch_reads_the_streams_whose_offsets_it_changes():
    start = MultiStreamOffset({ORDERS: offset("orders", 3), RETURNS: offset("returns", 7)})
    end = start.with_plans({RETURNS: offset("returns", 8)})
    assert end.streams_read_since(start) == (RETURNS,)
    assert end.streams_read_since(end) == ()
    assert end.streams_read_since(INITIAL_MULTI_STREAM_OFFSET) == (ORDERS, RETURNS)


def test_the_offset_of_a_query_of_one_stream_is_that_of_its_stream():
    alone = offset("orders", 5)
    assert parse_multi_stream_offset(alone.to_json()).by_stream == {ORDERS: alone}
    assert parse_multi_stream_offset(StreamOffset().to_json()) == INITIAL_MULTI_STREAM_OFFSET


def test_an_earlier_stream_of_the_same_name_is_found():
    start = MultiStreamOffset({ORDERS: offset("orders")})
    assert start.earlier_id_of(identity("orders", 1_767_225_700_000)) == ORDERS
    assert start.earlier_id_of(identity("orders")) is None
    assert start.earlier_id_of(identity("returns")) is None
    assert start.without_streams([ORDERS]) == INITIAL_MULTI_STREAM_OFFSET


def test_a_query_of_one_stream_refuses_the_offset_of_several_with_the_way_out():
    document = MultiStreamOffset({ORDERS: offset("orders")}).to_json()
    with pytest.raises(PositionError, match=r"several streams.*streamName=orders,"):
        parse_offset(document)


@pytest.mark.parametrize("document", [None, {"v": 2}, {"v": 2, "streams": []}, {"v": 3, "streams": {}}])
def test_anything_else_is_refused(document):
    with pytest.raises(PositionError):
        parse_multi_stream_offset(document)


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "total", "waiting", "least", "parts"),
    [
        ("no limit: none for any", None, {"a": 1, "b": 2}, 1, {"a": None, "b": None}),
        ("in proportion to the shards, after one for each", 100, {"a": 1, "b": 3}, 1, {"a": 25, "b": 75}),
        ("too small for all: the first ones", 1, {"a": 9, "b": 1}, 1, {"a": 1}),
        ("the smallest part is kept for each", 30, {"a": 98, "b": 1}, 10, {"a": 19, "b": 11}),
        ("smaller than a part: the first one has it all", 5, {"a": 1, "b": 1}, 10, {"a": 5}),
    ],
)
def test_a_limit_is_split(why, total, waiting, least, parts):
    assert split_total(total, waiting, least=least) == parts, why


WAITING = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2), st.integers(1, 500), min_size=1, max_size=8
)


@given(total=st.integers(1, 10**9), waiting=WAITING, least=st.integers(1, 10**6))
def test_the_parts_sum_up_to_the_limit_and_none_is_empty(total, waiting, least):
    parts = split_total(total, waiting, least=least)
    assert sum(parts.values()) == total
    assert all(part >= min(least, total) for part in parts.values())
    assert list(parts) == list(waiting)[: len(parts)]


@given(
    records=st.none() | st.integers(1, 20),
    size=st.none() | st.integers(1, 8 * SHARE_BYTES_MIN),
    waiting=WAITING,
)
def test_both_limits_hold_for_the_same_streams(records, size, waiting):
    parts = split_limits(Limits(records, size), waiting)
    assert parts
    assert records is None or sum(part for part, _ in parts.values()) == records
    assert size is None or sum(part for _, part in parts.values()) == size


@given(count=st.integers(1, 8), served=st.integers(1, 8), waiting=st.data())
def test_no_stream_starves(count, served, waiting):
    streams = [str(number) for number in range(count)]
    has_news = waiting.draw(st.sets(st.sampled_from(streams), min_size=1))
    batch_count, seen = 0, set()
    for _ in range(2 * count):
        read = [stream for stream in serving_order(streams, batch_count) if stream in has_news][:served]
        seen.update(read)
        batch_count += len(read)
    assert seen == has_news
