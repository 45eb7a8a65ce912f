"""The age of the oldest record that is not done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.aggregation import AggregateBuilder
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.core.reading.lag import ArrivalMarks, age_ms, find_oldest_unread
from raw_record import Raw


def aggregate(count: int) -> bytes:
    builder = AggregateBuilder()
    for _ in range(count):
        builder.add(b"", "k")
    return builder.build().data


@pytest.mark.parametrize(
    ("position", "numbers", "found"),
    [
        (TRIM_HORIZON, ["5", "6"], "5"),
        (at_record("5"), ["5", "6"], "6"),
        (at_record("5"), ["6", "7"], "6"),  # the record at the checkpoint has passed the retention
        (at_record("9"), ["8", "9", "10"], "10"),  # numbers, not texts
        (at_record("5"), ["5"], None),
        (at_record("5"), [], None),
    ],
)
def test_the_oldest_unread_record_is_the_first_behind_the_position(position, numbers, found):
    oldest = find_oldest_unread([Raw(number) for number in numbers], position)
    assert (oldest and oldest.sequence_number) == found


@pytest.mark.parametrize(("sub", "found"), [(0, "5"), (1, "5"), (2, "6")])
def test_an_aggregate_is_unread_until_its_last_record_is_done(sub, found):
    records = [Raw("5", aggregate(3)), Raw("6")]
    assert find_oldest_unread(records, at_record("5", sub)).sequence_number == found


def test_an_unread_record_is_never_of_age_zero():
    assert age_ms(100.0, 120_500) == 20_500
    assert age_ms(100.0, 100_000) == 1
    assert age_ms(100.0, 99_000) == 1


def test_the_oldest_record_that_is_not_done_is_known_to_the_second():
    marks = ArrivalMarks()
    assert marks.oldest_arrival_s(0) is None
    for count, arrival_s in [(2, 10.0), (1, 10.9), (0, 11.0), (3, 12.0), (1, 5.0)]:
        marks.add(count, arrival_s)
    assert [marks.oldest_arrival_s(done) for done in range(8)] == [
        10.0,
        10.0,
        10.0,
        12.0,
        12.0,
        12.0,
        5.0,
        None,
    ]
    marks.add(1, 20.0)
    assert marks.oldest_arrival_s(7) == 20.0


RECORDS = st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 5.0)), max_size=12)


@given(st.lists(RECORDS, max_size=3), st.integers(0, 8))
def test_records_added_at_once_are_marked_as_if_they_came_one_after_the_other(pages, skipped):
    at_once, one_by_one = ArrivalMarks(), ArrivalMarks()
    for page in pages:
        at_once.add_all([count for count, _ in page], [arrival_s for _, arrival_s in page], skipped)
        left_out = skipped
        for count, arrival_s in page:
            now = min(count, left_out)
            left_out -= now
            one_by_one.add(count - now, arrival_s)
    total = sum(count for page in pages for count, _ in page)
    assert [at_once.oldest_arrival_s(done) for done in range(total + 1)] == [
        one_by_one.oldest_arrival_s(done) for done in range(total + 1)
    ]
