"""Starting positions as users and other connectors write them."""

from __future__ import annotations

import pytest

from penstock.core.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    Sentinel,
    at_record,
    at_timestamp,
)
from penstock.core.starting import StartingPosition, parse_starting, pin_latest
from penstock.errors import PositionError

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("LATEST", LATEST),
        (" latest ", LATEST),
        ("trim_horizon", TRIM_HORIZON),
        ("earliest", TRIM_HORIZON),
        ("AT_TIMESTAMP 2026-01-31T12:00:00Z", at_timestamp(NOON_MS)),
        ("at_timestamp:2026-01-31T12:00:00Z", at_timestamp(NOON_MS)),
        ("AT_TIMESTAMP=2026-01-31T13:00:00+01:00", at_timestamp(NOON_MS)),
        ("AT_TIMESTAMP 1769860800000", at_timestamp(NOON_MS)),
        ("2026-01-31T12:00:00", at_timestamp(NOON_MS)),
        ('{"at_timestamp": "2026-01-31T12:00:00Z"}', at_timestamp(NOON_MS)),
        ('{"AT_TIMESTAMP": 1769860800}', at_timestamp(NOON_MS)),
        ('{"at_timestamp": 1769860800000}', at_timestamp(NOON_MS)),
    ],
)
def test_one_position_for_every_shard(text, expected):
    assert parse_starting(text) == StartingPosition(default=expected)


def test_positions_shard_by_shard():
    start = parse_starting(
        '{"a": "123", "b": "LATEST", "c": ["77", 5], "d": "AT_TIMESTAMP 2026-01-31T12:00:00Z", "*": "LATEST"}'
    )
    assert [start.of(shard) for shard in "abcde"] == [
        at_record("123"),
        LATEST,
        at_record("77", 5),
        at_timestamp(NOON_MS),
        LATEST,
    ]


@pytest.mark.parametrize("text", ['{"*": "123"}', '{"a": "1", "*": {"iteratorType": "SHARD_END"}}'])
def test_a_place_in_one_shard_is_no_position_for_all_the_others(text):
    with pytest.raises(PositionError, match=r'option startingPosition: "\*" stands for every shard'):
        parse_starting(text)


def test_shards_that_are_not_named_start_at_the_oldest_record():
    assert parse_starting('{"a": "123"}').of("b") == TRIM_HORIZON


def test_the_saved_positions_of_another_connector():
    start = parse_starting(
        '{"metadata": {"streamName": "s", "batchId": "3"},'
        ' "a": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "55", "subSequenceNumber": 2, "isLast": true},'
        ' "b": {"iteratorType": "SHARD_END", "iteratorPosition": ""},'
        ' "c": {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": "1769860800000"},'
        ' "d": {"iteratorType": "TRIM_HORIZON", "iteratorPosition": ""},'
        ' "e": {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": "2026-01-31T12:00:00Z"},'
        ' "f": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "56", "subSequenceNumber": -1}}'
    )
    assert [start.of(shard) for shard in "abcdef"] == [
        at_record("55", 2),
        SHARD_END,
        at_timestamp(NOON_MS),
        TRIM_HORIZON,
        at_timestamp(NOON_MS),
        at_record("56"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "NEWEST",
        "",
        "{not json",
        '{"a": 5}',
        '{"a": "soon"}',
        '{"a": {"iteratorType": "WHEREVER"}}',
        "AT_TIMESTAMP yesterday",
        '{"at_timestamp": "06/25/2020 10:23:45 PDT", "format": "MM/dd/yyyy HH:mm:ss ZZZ"}',
    ],
)
def test_what_is_no_position_is_refused_and_names_the_option(text):
    with pytest.raises(PositionError, match=r"option startingPosition.*(expected|is no|not supported)"):
        parse_starting(text)


def test_latest_is_pinned_once():
    pinned = pin_latest(LATEST, 5)
    assert pinned.sentinel is Sentinel.LATEST
    assert pinned.timestamp_ms == 5
    assert pin_latest(pinned, 9).timestamp_ms == 5
    assert pin_latest(Position(sentinel=Sentinel.TRIM_HORIZON), 9) == TRIM_HORIZON
