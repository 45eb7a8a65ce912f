import pickle

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
    parse_checkpoint,
    parse_position,
    parse_sequence_number,
)
from penstock.errors import PositionError

SERVICE_NUMBER = "49590338271490256608559692538361571095921575989136588898"
PINNED = Position(sentinel=Sentinel.LATEST, timestamp_ms=5)

ASCENDING = [
    Position(sentinel=Sentinel.AT_TIMESTAMP),
    at_timestamp(0),
    at_timestamp(5),
    at_timestamp(1_700_000_000_000),
    TRIM_HORIZON,
    LATEST,
    PINNED,
    at_record("0"),
    at_record("9"),
    at_record("9", 1),
    at_record("10"),
    at_record("10", 2),
    at_record(SERVICE_NUMBER),
    at_record("9" * 129),
    SHARD_END,
]


def test_positions_stand_in_one_order():
    for place, one in enumerate(ASCENDING):
        for other_place, other in enumerate(ASCENDING):
            assert (one < other) is (place < other_place)
            assert (one <= other) is (place <= other_place)
            assert (one == other) is (place == other_place)


def test_nine_comes_before_ten():
    assert at_record("9") < at_record("10")


def test_padded_numbers_of_emulators_are_the_same_place():
    assert at_record("007") == at_record("7")
    assert hash(at_record("007")) == hash(at_record("7"))
    assert at_record("007").sequence_number == "007"


POSITIONS = st.one_of(
    st.builds(at_record, st.integers(min_value=0, max_value=10**57).map(str), st.integers(0, 3)),
    st.builds(at_record, st.integers(min_value=0, max_value=12).map(str), st.integers(0, 3)),
    st.builds(at_timestamp, st.integers(min_value=0, max_value=10)),
    st.sampled_from([TRIM_HORIZON, LATEST, PINNED, SHARD_END]),
)


@given(POSITIONS, POSITIONS, POSITIONS)
def test_the_order_is_total(one, other, third):
    assert (one < other) + (one == other) + (other < one) == 1
    assert not (one < other < third) or one < third
    assert one != other or hash(one) == hash(other)


@given(POSITIONS, POSITIONS)
def test_every_comparison_agrees_with_the_order(one, other):
    assert (one != other) is not (one == other)
    assert (one <= other) is (one < other or one == other)
    assert (one > other) is (other < one)
    assert (one >= other) is (other <= one)


@given(POSITIONS)
def test_positions_travel_between_processes(position):
    assert pickle.loads(pickle.dumps(position)) == position


def test_a_position_is_equal_to_nothing_else():
    assert at_record("9") != "9"
    with pytest.raises(TypeError):
        assert at_record("9") < "9"


# --- what is not one --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "9", SERVICE_NUMBER, "9" * 129, "007"])
def test_a_sequence_number_comes_back_unchanged(text):
    assert parse_sequence_number(text) == text


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "1_0", "9" * 130, "٣", "²", "TRIM", "0x10"])
def test_what_is_no_sequence_number_is_refused(text):
    with pytest.raises(PositionError, match="is not a sequence number: expected 1 to 129 digits"):
        parse_sequence_number(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a sequence number or a sentinel"),
        ({"sequence_number": "1", "sentinel": Sentinel.LATEST}, "either a sequence number or a sentinel"),
        ({"sequence_number": "x"}, "'x' is not a sequence number"),
        ({"sequence_number": "1", "timestamp_ms": 5}, "a sequence number carries no timestamp"),
        ({"sequence_number": "1", "sub_sequence_number": -1}, "sub-sequence number -1 is negative"),
        ({"sentinel": Sentinel.LATEST, "sub_sequence_number": 1}, "LATEST has no sub-sequence number"),
        ({"sentinel": Sentinel.SHARD_END, "timestamp_ms": 5}, "only AT_TIMESTAMP and a pinned LATEST"),
        ({"sentinel": Sentinel.TRIM_HORIZON, "timestamp_ms": 5}, "only AT_TIMESTAMP and a pinned LATEST"),
        ({"sentinel": Sentinel.AT_TIMESTAMP, "timestamp_ms": -1}, "timestamp -1 ms is before 1970"),
    ],
)
def test_a_position_that_is_none_is_refused(arguments, message):
    with pytest.raises(PositionError, match=message):
        Position(**arguments)


# --- as a lease table spells it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sub", "timestamp_ms", "position"),
    [
        ("TRIM_HORIZON", 0, None, TRIM_HORIZON),
        ("LATEST", 0, None, LATEST),
        ("LATEST", 0, 5, PINNED),
        ("SHARD_END", 0, None, SHARD_END),
        ("AT_TIMESTAMP", 0, 5, at_timestamp(5)),
        ("TRIM_HORIZON", 3, 5, TRIM_HORIZON),
        ("SHARD_END", 3, 5, SHARD_END),
        ("12", 3, None, at_record("12", 3)),
        ("12", 3, 5, at_record("12", 3)),
    ],
)
def test_a_checkpoint_is_read_as_the_table_spells_it(text, sub, timestamp_ms, position):
    assert parse_checkpoint(text, sub, timestamp_ms) == position


def test_a_checkpoint_that_is_none_is_refused():
    with pytest.raises(PositionError, match="'trim_horizon' is not a sequence number"):
        parse_checkpoint("trim_horizon")


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (at_record("12", 3), "12.3"),
        (at_record("12"), "12.0"),
        (TRIM_HORIZON, "TRIM_HORIZON"),
        (PINNED, "LATEST:5"),
        (at_timestamp(7), "AT_TIMESTAMP:7"),
    ],
)
def test_a_position_shows_itself(position, text):
    assert str(position) == text
    assert parse_position(text) == position


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AT_TIMESTAMP:soon", "expected a moment in milliseconds after the colon"),
        ("AT_TIMESTAMP:", "expected a moment in milliseconds after the colon"),
        ("12.x", "expected a sub-sequence number after the dot"),
        ("12.-1", "expected a sub-sequence number after the dot"),
        ("NEWEST", "is not a sequence number"),
    ],
)
def test_what_no_position_shows_as_is_refused(text, message):
    with pytest.raises(PositionError, match=message):
        parse_position(text)


def test_positions_say_what_they_are():
    assert SHARD_END.is_shard_end
    assert not SHARD_END.is_record
    assert not LATEST.is_shard_end
    assert not LATEST.is_record
    assert at_record("1").is_record
    assert not at_record("1").is_shard_end
