"""Moments as users write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.moments import MachineZone
from penstock.core.moments import SERVICE_BEGAN_MS, NoTimeZoneError, describe_moment, parse_moment
from penstock.errors import PositionError

NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31t12:00:00z",
        "2026-01-31 12:00Z",
        "2026-01-31 12:00:00 +00:00",
        " '2026-01-31T12:00:00.000999Z' ",
        "2026-01-31T12:00:00,000Z",
        "2026-01-31T07:00:00-05:00",
        "2026-01-31T17:30:00+0530",
        "2026-01-31T13+01",
        "20260131T120000Z",
        "2026-W05-6T12:00Z",
        "1769860800000",
        "1769860800000.9",
        "1.7698608e12",
        1_769_860_800_000,
        1_769_860_800_000.0,
        datetime(2026, 1, 31, 12, tzinfo=UTC),
        datetime(2026, 1, 31, 7, tzinfo=NEW_YORK),
    ],
)
def test_a_moment_with_its_zone_is_the_same_in_every_zone(text):
    for zone in (None, UTC, NEW_YORK):
        assert parse_moment(text, "option x", zone) == NOON_MS


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-01-31T12:00:00", UTC, "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00", NEW_YORK, "2026-01-31T17:00:00Z"),
        ("2026-07-31T12:00:00", NEW_YORK, "2026-07-31T16:00:00Z"),
        ("2026-01-31", NEW_YORK, "2026-01-31T05:00:00Z"),
        ("2026-W05-6", NEW_YORK, "2026-01-31T05:00:00Z"),
        ("2026-01-31 12:00:00,5", NEW_YORK, "2026-01-31T17:00:00.500Z"),
        ("2026-01-31T12:00", timezone(timedelta(hours=5, minutes=45)), "2026-01-31T06:15:00Z"),
        (datetime(2026, 1, 31, 12), NEW_YORK, "2026-01-31T17:00:00Z"),  # noqa: DTZ001 - the point
        # the hours around both changes of the clocks
        ("2026-03-08T01:59:59", NEW_YORK, "2026-03-08T06:59:59Z"),
        ("2026-03-08T03:00:00", NEW_YORK, "2026-03-08T07:00:00Z"),
        ("2026-11-01T00:59:59", NEW_YORK, "2026-11-01T04:59:59Z"),
        ("2026-11-01T02:00:00", NEW_YORK, "2026-11-01T07:00:00Z"),
        ("2026-11-01T01:30:00-05:00", NEW_YORK, "2026-11-01T06:30:00Z"),
    ],
)
def test_a_moment_without_a_zone_is_of_the_given_zone(text, zone, expected):
    assert describe_moment(parse_moment(text, "option x", zone)) == expected


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00:00", "2026-01-31", "2026-W05-6", datetime(2026, 1, 31)],  # noqa: DTZ001 - the point
)
def test_a_moment_without_any_zone_is_refused(text):
    with pytest.raises(NoTimeZoneError, match=r"option x: '2026-.*' has no time zone: add Z or an offset"):
        parse_moment(text, "option x")


@pytest.mark.parametrize(
    ("text", "problem", "ways"),
    [
        ("2026-03-08T02:30:00", "does not exist", "2026-03-08T02:30:00-05:00 or 2026-03-08T02:30:00-04:00"),
        ("2026-11-01T01:00:00", "exists twice", "2026-11-01T01:00:00-04:00 or 2026-11-01T01:00:00-05:00"),
        ("2026-11-01T01:59:59", "exists twice", "2026-11-01T01:59:59-04:00 or 2026-11-01T01:59:59-05:00"),
    ],
)
def test_local_text_at_a_change_of_the_clocks_needs_its_offset(text, problem, ways):
    message = f"{problem} in the time zone America/New_York, where the clocks change: .* its offset, {ways}"
    with pytest.raises(PositionError, match=message):
        parse_moment(text, "option x", NEW_YORK)


def test_a_datetime_that_its_zone_leaves_out_is_refused():
    with pytest.raises(PositionError, match="does not exist in the time zone America/New_York"):
        parse_moment(datetime(2026, 3, 8, 2, 30, tzinfo=NEW_YORK), "option x")


@pytest.mark.parametrize(
    ("text", "message"), [("0001-01-01", "before Kinesis"), ("9999-12-31T23:59:59", "after the year 9998")]
)
def test_a_local_time_at_the_end_of_the_calendar_is_refused_like_others_there(text, message):
    with pytest.raises(PositionError, match=message):
        parse_moment(text, "option x", MachineZone())


@pytest.mark.parametrize(("fold", "expected"), [(0, "2026-11-01T05:30:00Z"), (1, "2026-11-01T06:30:00Z")])
def test_the_fold_of_a_datetime_chooses_between_two_moments(fold, expected):
    moment_ms = parse_moment(datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=fold), "option x")
    assert describe_moment(moment_ms) == expected


class NotATime(datetime):
    """`pandas.NaT` is a `datetime`, too."""

    def utcoffset(self):
        raise ValueError("NaTType does not support utcoffset")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "1769860800",
            r"is 1970-01-21T11:37:40.800Z, before Kinesis began: seconds\? .* 2026-01-31T12:00:00Z, 1769860800000 in milliseconds",
        ),
        (1_769_860_800, r"seconds\? milliseconds are expected; in seconds it would be 2026-01-31T12:00:00Z"),
        (1_769_860_800.5, r"seconds\? milliseconds are expected"),
        ("20260131", r"seconds\? milliseconds are expected; in seconds it would be 1970-08-23"),
        ("0", r"seconds\? milliseconds are expected"),
        ("-1", r"before Kinesis began: seconds\? milliseconds are expected"),
        (
            "1769860800000000",
            r"microseconds\? milliseconds are expected; in microseconds it would be 2026-01-31T12:00:00Z",
        ),
        ("1769860800000000000", r"nanoseconds\? .*it would be 2026-01-31T12:00:00Z"),
        (1e300, "after the year 9998: nanoseconds"),
        ("1999-12-31T00:00:00Z", r"is before Kinesis began \(November 2013\); .* TRIM_HORIZON"),
        ("9999-12-31T23:59:59Z", "after the year 9998"),
    ],
)
def test_a_moment_of_which_no_record_can_be_is_refused(given, message):
    with pytest.raises(PositionError, match=rf"option x: '.*' (is .*)?{message}"):
        parse_moment(given, "option x", UTC)
    assert parse_moment(SERVICE_BEGAN_MS, "option x") == SERVICE_BEGAN_MS


@pytest.mark.parametrize(
    "given",
    [
        "yesterday", "", "2026-01-31-05:00", "2026-01-31+05:00", "2026-02-30", "2026-01", "2026-01-31T25:00Z",
        "2026-01-31T12:00:60Z", "2026-01-31T12:00,5Z", "06/25/2020 10:23:45 PDT", "2026-01-31T12:00 America/New_York", "9" * 5000, "nan", "1e999",
        True, None, [], float("nan"), float("inf"), pytest.param(10**5000, id="huge"), NotATime(2026, 1, 31),
    ],
)  # fmt: skip
def test_anything_else_is_no_moment(given):
    with pytest.raises(PositionError, match=r"option x: .* is not a moment; expected ISO 8601"):
        parse_moment(given, "option x", UTC)


@given(
    st.datetimes(datetime(2013, 12, 1), datetime(2400, 1, 1)),  # noqa: DTZ001 - as the library asks
    st.sampled_from(["America/New_York", "Asia/Kathmandu"]),
)
def test_a_described_moment_is_read_back(local, name):
    zone = ZoneInfo(name)
    moment_ms = parse_moment(local.replace(tzinfo=zone), "option x")
    in_zone, _, in_utc = describe_moment(moment_ms, zone).partition(" ")
    assert parse_moment(in_zone, "option x") == parse_moment(in_utc.strip("()"), "option x") == moment_ms
