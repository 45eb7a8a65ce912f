import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checkpoint import (
    IteratorStart,
    IteratorType,
    ResumeCheck,
    check_resume,
    count_done,
    is_record_done,
    plan_iterator,
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
from penstock.ports import kinesis

PINNED = Position(sentinel=Sentinel.LATEST, timestamp_ms=5)


@pytest.mark.parametrize(
    ("position", "start"),
    [
        (TRIM_HORIZON, IteratorStart(IteratorType.TRIM_HORIZON)),
        (LATEST, IteratorStart(IteratorType.LATEST)),
        (PINNED, IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=5)),
        (at_timestamp(0), IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=0)),
        (at_record("12", 3), IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, sequence_number="12")),
        (at_record("12"), IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, sequence_number="12")),
    ],
)
def test_reading_begins_here(position, start):
    assert plan_iterator(position) == start


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (SHARD_END, "there is nothing to read behind its end"),
        (Position(sentinel=Sentinel.AT_TIMESTAMP), "give the moment as the starting position"),
    ],
)
def test_reading_begins_nowhere(position, message):
    with pytest.raises(PositionError, match=message):
        plan_iterator(position)


def test_the_ports_use_the_same_words():
    assert kinesis.IteratorStart is IteratorStart
    assert kinesis.IteratorType is IteratorType


@pytest.mark.parametrize(
    ("position", "sequence_number", "count", "done"),
    [
        (TRIM_HORIZON, "12", 5, 0),
        (LATEST, "12", 5, 0),
        (at_timestamp(5), "12", 5, 0),
        (SHARD_END, "12", 5, 5),
        (at_record("12", 0), "12", 1, 1),
        (at_record("12", 0), "12", 5, 1),
        (at_record("12", 3), "12", 5, 4),
        (at_record("12", 4), "12", 5, 5),
        (at_record("12", 9), "12", 5, 5),
        (at_record("12", 9), "13", 5, 0),
        (at_record("12", 0), "11", 5, 5),
        (at_record("12", 0), "9", 5, 5),
        (at_record("9", 0), "12", 5, 0),
    ],
)
def test_so_many_user_records_are_done(position, sequence_number, count, done):
    assert count_done(position, sequence_number, count) == done
    assert is_record_done(position, sequence_number, count) is (done == count)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(min_value=1, max_value=5))
def test_what_is_done_is_what_is_not_ahead_of_the_position(at, sub, number, count):
    position = at_record(str(at), sub)
    places = [at_record(str(number), place) for place in range(count)]
    assert count_done(position, str(number), count) == sum(place <= position for place in places)


@pytest.mark.parametrize(
    ("position", "first", "at_end", "answer"),
    [
        (TRIM_HORIZON, "12", True, ResumeCheck.NOT_NEEDED),
        (at_timestamp(5), None, True, ResumeCheck.NOT_NEEDED),
        (at_record("12", 3), "12", False, ResumeCheck.STILL_THERE),
        (at_record("12", 3), "012", True, ResumeCheck.STILL_THERE),
        (at_record("12", 3), "9", False, ResumeCheck.STILL_THERE),
        (at_record("12", 3), "13", False, ResumeCheck.TRIMMED),
        (at_record("9", 3), "12", True, ResumeCheck.TRIMMED),
        (at_record("12", 3), None, False, ResumeCheck.UNDECIDED),
        (at_record("12", 3), None, True, ResumeCheck.TRIMMED),
    ],
)
def test_the_first_page_says_whether_the_record_is_still_there(position, first, at_end, answer):
    assert check_resume(position, first, at_end=at_end) is answer
