from __future__ import annotations

import json

import pytest

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.recording.lineage import Arrivals, created_ms_hint, describe_shards
from penstock.core.recording.redaction import parse_redaction, redact
from penstock.core.shard import Shard
from penstock.errors import OptionError

SECRET = b"secret"


def number(created_s, low=0):
    return str(2 << 184 | created_s << 148 | low)


def shard(name, created_s, *parents, is_open=True, starting=None):
    start = number(created_s) if starting is None else starting
    return Shard(name, HashRange(0, HASH_KEY_MAX), parents, start, None if is_open else number(created_s, 9))


def moments(shards, arrivals, from_ms):
    return {each.id: (each.opened_ms, each.closed_ms) for each in describe_shards(shards, arrivals, from_ms)}


def test_a_reshard_is_at_the_second_in_the_childs_number_if_it_lies_between_the_records():
    shards = [shard("a", 10, is_open=False), shard("b", 60, "a"), shard("c", 60, "a")]
    arrivals = {"a": Arrivals(20_000, 50_000), "b": Arrivals(70_000, 90_000)}
    assert moments(shards, arrivals, 15_000) == {
        "a": (None, 59_999),
        "b": (60_000, None),
        "c": (60_000, None),
    }


@pytest.mark.parametrize("starting", ["7", number(40), number(99)])
def test_a_number_that_does_not_fit_the_records_is_no_moment(starting):
    shards = [shard("a", 10, is_open=False, starting="1"), shard("b", 0, "a", starting=starting)]
    arrivals = {"a": Arrivals(20_000, 50_000), "b": Arrivals(70_000, 90_000)}
    assert moments(shards, arrivals, 15_000) == {"a": (None, 69_999), "b": (70_000, None)}


def test_a_reshard_before_the_slice_has_no_moment():
    shards = [shard("a", 10, is_open=False), shard("b", 60, "a")]
    assert moments(shards, {"b": Arrivals(130_000, 140_000)}, 120_000) == {
        "a": (None, 119_999),
        "b": (None, None),
    }


def test_a_number_of_another_layout_has_no_hint():
    assert created_ms_hint("5") is None
    assert created_ms_hint(number(77, 5)) == 77_000


def test_parents_are_before_their_children():
    shards = [shard("c", 30, "b"), shard("b", 20, "a", is_open=False), shard("a", 10, is_open=False)]
    assert [each.id for each in describe_shards(shards, {}, 0)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("expression", "document", "expected"),
    [
        ("json:$.a.b", {"a": {"b": 1, "c": 2}}, {"a": {"b": "redacted", "c": 2}}),
        ("json:$.a", {"a": {"b": 1}}, {"a": "redacted"}),
        ("json:$.list[1].x", {"list": [{"x": 1}, {"x": 2}]}, {"list": [{"x": 1}, {"x": "redacted"}]}),
        ("json:$.list[*].x", {"list": [{"x": 1}, 5]}, {"list": [{"x": "redacted"}, 5]}),
        ("json:$[*]", [1, 2], ["redacted", "redacted"]),
        ("json:$.missing", {"a": 1}, {"a": 1}),
        ("json:$.näme", {"näme": "ü"}, {"näme": "redacted"}),
    ],
)
def test_a_field_is_redacted(expression, document, expected):
    found = redact(parse_redaction([expression]), SECRET, "k", json.dumps(document).encode())
    assert json.loads(found.data) == expected


@pytest.mark.parametrize(
    "number", ["1.10", "0.10000000000000000001", "1E+1000000", "-0.0", "9" * 5_000, "NaN"]
)
def test_redaction_leaves_numbers_as_they_are_written(number):
    data = f'{{"a":1,"list":[{number},{{"b":{number}}}]}}'.encode()
    found = redact(parse_redaction(["json:$.a"]), SECRET, "k", data)
    assert found.data == data.replace(b'"a":1', b'"a":"redacted"')


def test_hashes_are_equal_for_equal_values_and_need_the_secret():
    redaction = parse_redaction(["key=hash", "json:$.id=hash"])
    one, two = (redact(redaction, SECRET, "k", b'{"id":7}') for _ in range(2))
    other = redact(redaction, b"another", "k", b'{"id":7}')
    assert one == two
    assert one.partition_key != other.partition_key
    assert one.data != other.data
    assert b"7}" not in one.data


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        (b"7.0", b"7.00", True),
        (b"7", b"70e-1", True),
        (b'{"a":[1.10],"b":2}', b'{"b":2, "a":[1.1]}', True),
        (b"0.1", b"0.10000000000000000001", False),
        (b"9" * 5_000, b"9" * 5_001, False),
        (b"7", b'"7"', False),
        (b"1e999999999999999999999", b"1", False),
        (b"NaN", b"null", False),
    ],
)
def test_hashes_of_numbers_are_equal_if_the_numbers_are(one, other, are_equal):
    redaction = parse_redaction(["json:$.id=hash"])
    first, second = (redact(redaction, SECRET, "k", b'{"id":%s}' % value) for value in (one, other))
    assert first.dropped_count == second.dropped_count == 0
    assert (first.data == second.data) is are_equal


@pytest.mark.parametrize("data", [b"\xff", rb'{"b":"\ud83d"}', b"[" * 100_000])
def test_data_that_is_no_json_is_dropped_if_fields_are_redacted(data):
    found = redact(parse_redaction(["json:$.a"]), SECRET, "k", data)
    assert (found.partition_key, found.data, found.dropped_count) == ("k", b"", 1)


def test_data_is_dropped():
    found = redact(parse_redaction(["data=drop"]), SECRET, None, b"abc")
    assert (found.partition_key, found.data, found.dropped_count) == (None, b"", 0)


@pytest.mark.parametrize("text", ["key", "json:a", "json:$", "json:$.a=mask", "json:$.a[", "json:$..a", ""])
def test_an_expression_that_cannot_be_parsed_is_refused(text):
    with pytest.raises(OptionError):
        parse_redaction([text])
