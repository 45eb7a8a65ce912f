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
from penstock.core.reading.resume import (
    IteratorStart,
    IteratorType,
    MissingRecord,
    count_done_records,
    is_record_done,
    is_record_missing,
    judge_missing_record,
    plan_iterator,
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
        (SHARD_END, "there is nothing to read after its end"),
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
    assert count_done_records(position, sequence_number, count) == done
    assert is_record_done(position, sequence_number, count) is (done == count)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(min_value=1, max_value=5))
def test_what_is_done_is_what_is_not_ahead_of_the_position(at, sub, number, count):
    position = at_record(str(at), sub)
    places = [at_record(str(number), place) for place in range(count)]
    assert count_done_records(position, str(number), count) == sum(place <= position for place in places)


@pytest.mark.parametrize(
    ("position", "first", "at_end", "answer"),
    [
        (TRIM_HORIZON, "12", True, False),
        (at_timestamp(5), None, True, False),
        (at_record("12", 3), "12", False, False),
        (at_record("12", 3), "012", True, False),
        (at_record("12", 3), "9", False, False),
        (at_record("12", 3), "13", False, True),
        (at_record("9", 3), "12", True, True),
        (at_record("12", 3), None, False, False),
        (at_record("12", 3), None, True, True),
    ],
)
def test_the_first_page_says_whether_the_record_is_still_there(position, first, at_end, answer):
    assert is_record_missing(position, first, at_end=at_end) is answer


HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
SLACK_MS = 5_000


@pytest.mark.parametrize(
    ("why", "position", "tip_ms", "is_foreign", "is_open_and_empty", "answer"),
    [
        ("the tip was seen just now", at_record("9"), NOW_MS, False, False, MissingRecord.HARMLESS),
        ("a quiet shard", at_record("9"), NOW_MS - 23 * HOUR_MS, False, True, MissingRecord.HARMLESS),
        (
            "the last moment that the retention reaches for sure",
            at_record("9"),
            NOW_MS - 24 * HOUR_MS + SLACK_MS,
            False,
            False,
            MissingRecord.HARMLESS,
        ),
        (
            "clocks may differ by that much",
            at_record("9"),
            NOW_MS - 24 * HOUR_MS + SLACK_MS - 1,
            False,
            False,
            MissingRecord.LOSS,
        ),
        (
            "nobody looked for longer than the retention, and the shard is empty now",
            at_record("9"),
            NOW_MS - 25 * HOUR_MS,
            False,
            True,
            MissingRecord.LOSS,
        ),
        ("records were left unread", at_record("9", 4), None, False, True, MissingRecord.LOSS),
        (
            "a Java worker's checkpoint on a quiet shard",
            at_record("9"),
            None,
            True,
            True,
            MissingRecord.UNSURE,
        ),
        (
            "a Java worker's, and later records are there",
            at_record("9"),
            None,
            True,
            False,
            MissingRecord.LOSS,
        ),
        (
            "a Java worker's, checked at the tip since",
            at_record("9"),
            NOW_MS,
            True,
            False,
            MissingRecord.HARMLESS,
        ),
        (
            "a Java worker's, checked at the tip too long ago",
            at_record("9"),
            NOW_MS - 25 * HOUR_MS,
            True,
            True,
            MissingRecord.UNSURE,
        ),
        ("no record was named", TRIM_HORIZON, None, False, False, MissingRecord.HARMLESS),
        ("a moment was named", at_timestamp(5), None, True, False, MissingRecord.HARMLESS),
    ],
)
def test_a_missing_record_is_a_loss_only_when_it_can_have_been_one(
    why, position, tip_ms, is_foreign, is_open_and_empty, answer
):
    judged = judge_missing_record(
        position,
        unread_since_ms=tip_ms,
        is_foreign=is_foreign,
        now_ms=NOW_MS,
        retention_ms=24 * HOUR_MS,
        is_open_and_empty=is_open_and_empty,
    )
    assert judged is answer, why


@given(
    st.integers(0, 100 * HOUR_MS),
    st.integers(0, 100 * HOUR_MS),
    st.integers(1, 100 * HOUR_MS),
    st.booleans(),
    st.booleans(),
)
def test_no_record_that_was_trimmed_is_called_harmless(tip_ms, later_ms, retention_ms, is_foreign, is_empty):
    """A record that came right after the tip was seen, and is older than the retention now."""
    arrival_ms, now_ms = tip_ms + 1, tip_ms + later_ms
    is_trimmed = arrival_ms < now_ms - retention_ms
    judged = judge_missing_record(
        at_record("9"),
        unread_since_ms=tip_ms,
        is_foreign=is_foreign,
        now_ms=now_ms,
        retention_ms=retention_ms,
        is_open_and_empty=is_empty,
    )
    assert not (is_trimmed and judged is MissingRecord.HARMLESS)
