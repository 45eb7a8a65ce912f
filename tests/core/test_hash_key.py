import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hash_key import (
    FULL_RANGE,
    HASH_KEY_MAX,
    HASH_KEYS,
    HashRange,
    effective_hash_key,
    hash_partition_key,
    parse_hash_key,
)
from penstock.errors import RecordError


@pytest.mark.parametrize(
    ("key", "hash_key"),
    [
        ("pk", 38317986088707300215492326132921849533),
        ("alpha", 58606826522850340945736240254012750329),
        ("a", 16955237001963240173058271559858726497),
    ],
)
def test_a_partition_key_hashes_as_the_reference_producer_says(key, hash_key):
    assert hash_partition_key(key) == hash_key


@given(st.text())
def test_a_partition_key_hashes_to_its_md5(key):
    assert hash_partition_key(key) == int(hashlib.md5(key.encode()).hexdigest(), 16)


@given(st.integers(min_value=0, max_value=HASH_KEY_MAX))
def test_every_hash_key_is_read_back(value):
    assert parse_hash_key(str(value)) == value
    assert effective_hash_key("ignored", str(value)) == value


@pytest.mark.parametrize("text", ["", "-1", "00", "01", "1.5", "٣", "1e3", " 1", "1" * 40])
def test_what_is_no_hash_key_is_refused(text):
    with pytest.raises(RecordError, match="is not a decimal number from 0 to 2\\^128-1, given as a str"):
        parse_hash_key(text)


def test_the_largest_hash_key_is_the_last_one():
    assert parse_hash_key("340282366920938463463374607431768211455") == HASH_KEY_MAX
    with pytest.raises(RecordError, match="340282366920938463463374607431768211456 is over the largest one"):
        parse_hash_key("340282366920938463463374607431768211456")


def test_without_an_explicit_hash_key_the_partition_key_places_a_record():
    assert effective_hash_key("pk", None) == hash_partition_key("pk")


def test_half_a_surrogate_pair_is_no_partition_key():
    with pytest.raises(RecordError, match="is not Unicode text"):
        hash_partition_key("\ud800")


def test_both_ends_belong_to_a_range():
    span = HashRange(5, 7)
    assert [key for key in range(10) if key in span] == [5, 6, 7]
    assert "6" not in span
    assert 0 in FULL_RANGE
    assert HASH_KEY_MAX in FULL_RANGE
    assert (span.size, FULL_RANGE.size) == (3, HASH_KEYS)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5), (0, HASH_KEY_MAX + 1)])
def test_what_is_no_range_is_refused(start, end):
    with pytest.raises(ValueError, match=f"not a hash-key range: {start}..{end}"):
        HashRange(start, end)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((0, 9), False),
        ((0, 10), True),
        ((12, 15), True),
        ((0, 99), True),
        ((20, 30), True),
        ((21, 30), False),
    ],
)
def test_ranges_overlap_if_a_hash_key_is_in_both(other, expected):
    one = HashRange(10, 20)
    assert one.overlaps(HashRange(*other)) is HashRange(*other).overlaps(one) is expected


def test_ranges_sort_by_where_they_start():
    assert sorted([HashRange(5, 6), HashRange(0, 9), HashRange(0, 4)]) == [
        HashRange(0, 4),
        HashRange(0, 9),
        HashRange(5, 6),
    ]
