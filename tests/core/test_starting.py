"""Starting positions as users and other connectors write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    Sentinel,
    at_record,
    at_timestamp,
)
from penstock.core.reading.resume import plan_iterator
from penstock.core.starting import StartingPosition, check_not_in_future, parse_starting, pin_latest
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
        ("2026-01-31T12:00:00Z", at_timestamp(NOON_MS)),
        ("2026-01-31 13:00+01:00", at_timestamp(NOON_MS)),
        ('{"at_timestamp": "2026-01-31T12:00:00Z"}', at_timestamp(NOON_MS)),
        ('{"at_timestamp": 1769860800000}', at_timestamp(NOON_MS)),
    ],
)
def test_one_position_for_every_shard(text, expected):
    assert parse_starting(text) == StartingPosition(default=expected)


def test_positions_shard_by_shard():
    start = parse_starting(
        '{"a": "123", "b": "LATEST", "c": ["77", 5], "d": "AT_TIMESTAMP 2026-01-31T12:00:00Z", "*": "LATEST"}'
    )
    assert [start.position_of(shard) for shard in "abcde"] == [
        at_record("123"),
        LATEST,
        at_record("77", 5),
        at_timestamp(NOON_MS),
        LATEST,
    ]


def test_checkpoints_as_they_are_shown_are_positions_shard_by_shard():
    shown = [
        at_record("123"),
        at_record("123", 7),
        SHARD_END,
        TRIM_HORIZON,
        LATEST,
        at_timestamp(NOON_MS),
        Position(sentinel=Sentinel.LATEST, timestamp_ms=NOON_MS),
    ]
    start = parse_starting(json.dumps(dict(zip("abcdefg", map(str, shown), strict=True))))
    assert [start.position_of(shard) for shard in "abcdefg"] == shown


@pytest.mark.parametrize("text", ['{"*": "123"}', '{"a": "1", "*": {"iteratorType": "SHARD_END"}}'])
def test_a_place_in_one_shard_is_no_position_for_all_the_others(text):
    with pytest.raises(PositionError, match=r'option startingPosition: "\*" stands for every shard'):
        parse_starting(text)


def test_shards_that_are_not_named_start_at_the_oldest_record():
    assert parse_starting('{"a": "123"}').position_of("b") == TRIM_HORIZON


def test_the_saved_positions_of_another_connector():
    start = parse_starting(
        '{"metadata": {"streamName": "s", "batchId": "3"},'
        ' "a": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "55", "subSequenceNumber": 2, "isLast": true},'
        ' "b": {"iteratorType": "SHARD_END", "iteratorPosition": ""},'
        ' "c": {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": "1769860800000"},'
        ' "d": {"iteratorType": "TRIM_HORIZON", "iteratorPosition": ""},'
        ' "e": {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": "2026-01-31T12:00:00Z"},'
        ' "f": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "56", "subSequenceNumber": -1},'
        ' "g": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "57", "subSequenceNumber": "-1"}}'
    )
    assert [start.position_of(shard) for shard in "abcdefg"] == [
        at_record("55", 2),
        SHARD_END,
        at_timestamp(NOON_MS),
        TRIM_HORIZON,
        at_timestamp(NOON_MS),
        at_record("56"),
        at_record("57"),
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


def test_a_shard_that_is_named_twice_is_refused():
    with pytest.raises(
        PositionError, match=r"begins like JSON and cannot be read as it \(\* is there twice\)"
    ):
        parse_starting('{"*": "LATEST", "*": "TRIM_HORIZON"}')


def test_latest_is_pinned_once():
    pinned = pin_latest(LATEST, 5)
    assert pinned.sentinel is Sentinel.LATEST
    assert pinned.timestamp_ms == 5
    assert pin_latest(pinned, 9).timestamp_ms == 5
    assert pin_latest(Position(sentinel=Sentinel.TRIM_HORIZON), 9) == TRIM_HORIZON


_json_keys = st.sampled_from(
    ["*", "metadata", "s", "at_timestamp", "format", "iteratorType", "iteratorPosition", "subSequenceNumber"]
)
_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "LATEST",
            "AT_TIMESTAMP",
            "AFTER_SEQUENCE_NUMBER",
            "SHARD_END",
            "12",
            "9" * 5000,
            "\u0663",
            "0001-01-01",
        ]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_json_keys, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(_json_keys, _json_values, max_size=4))
def test_any_json_is_a_position_or_refused_with_a_sentence(document):
    expect_position_or_refusal(json.dumps(document))


@given(
    st.text()
    | st.text().map(lambda text: "AT_TIMESTAMP " + text)
    | st.from_regex(r"\A[{\d][\d:T+.-]{0,40}\Z")
)
def test_any_text_is_a_position_or_refused_with_a_sentence(text):
    expect_position_or_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 20_000,
        '{"*": 1e400}',
        '{"at_timestamp": Infinity}',
        '{"at_timestamp": NaN}',
        '{"at_timestamp": 1e300}',
        '{"at_timestamp": -1}',
        '{"at_timestamp": true}',
        '{"at_timestamp": []}',
        "AT_TIMESTAMP " + "9" * 5000,
        "AT_TIMESTAMP 0001-01-01T00:00:00+23:59",
        "AT_TIMESTAMP 1969-12-31T23:59:59Z",
        '{"s": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "1", "subSequenceNumber": []}}',
        '{"s": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "1", "subSequenceNumber": "x"}}',
        '{"s": ["1", true]}',
    ],
    ids=lambda text: text[:50],
)
def test_what_cannot_be_a_position_is_refused(text):
    with pytest.raises(PositionError, match="option startingPosition"):
        parse_starting(text)


def expect_position_or_refusal(text):
    try:
        starting = parse_starting(text)
    except PositionError:
        return
    for position in (starting.default, *starting.by_shard.values()):
        if not position.is_shard_end:
            start = plan_iterator(position)
            if start.timestamp_ms is not None:
                datetime.fromtimestamp(start.timestamp_ms / 1000, UTC)


@pytest.mark.parametrize(
    "text",
    [
        "AT_TIMESTAMP 2026-02-01T00:00:31Z",
        '{"shardId-0": "AT_TIMESTAMP 2026-02-01T01:00:00Z", "*": "LATEST"}',
    ],
)
def test_a_moment_to_come_is_refused(text):
    now_ms = 1_769_904_000_000  # 2026-02-01T00:00:00Z
    with pytest.raises(PositionError, match=r"--from x: this moment is in the future; .* LATEST"):
        check_not_in_future(parse_starting(text), now_ms, "--from x")


@pytest.mark.parametrize("text", ["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP 2026-02-01T00:00:30Z"])
def test_a_moment_that_another_clock_may_show_already_is_not_refused(text):
    check_not_in_future(parse_starting(text), 1_769_904_000_000, "--from x")


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T07:00:00",
        "AT_TIMESTAMP 2026-01-31 07:00",
        '{"at_timestamp": "2026-01-31T07:00:00"}',
        '{"*": "AT_TIMESTAMP 2026-01-31T07:00:00"}',
        '{"*": {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": "2026-01-31T07:00:00"}}',
    ],
)
def test_every_form_of_a_moment_takes_the_zone_that_it_does_not_name(text):
    assert parse_starting(text, zone=ZoneInfo("America/New_York")).default == at_timestamp(NOON_MS)
    with pytest.raises(PositionError, match=r"option startingPosition: .* has no time zone"):
        parse_starting(text)


@pytest.mark.parametrize(
    "text",
    [
        "AT_TIMESTAMP 1769860800",
        '{"at_timestamp": 1769860800}',
        '{"*": "AT_TIMESTAMP 1769860800"}',
        '{"*": {"iteratorType": "AT_TIMESTAMP", "iteratorPosition": 1769860800}}',
    ],
)
def test_no_form_of_a_moment_takes_seconds(text):
    with pytest.raises(
        PositionError, match=r"option startingPosition: .* seconds\? milliseconds are expected"
    ):
        parse_starting(text)
