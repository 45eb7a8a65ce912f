"""What a later run of a delivery must agree with, and which ranges may be delivered beside it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.manifest import (
    ArrivalRange,
    Move,
    Step,
    next_step,
    parse_range,
    plan_moves,
    range_label,
)
from penstock.core.delivering.record import (
    check_other_delivery,
    check_retention,
    check_same_delivery,
    check_streams,
    has_files_of,
    plan_backfill,
    plan_start,
    record_of,
    with_layout,
)
from penstock.core.starting import parse_starting
from penstock.errors import DeliveryFailed, OptionError

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
HOUR_MS = 3_600_000


def record(**changed):
    return record_of(parse_delivery({"stream": "orders", "to": "/lake", **changed}), "app")


def test_a_run_with_another_layout_is_refused():
    delivery = parse_delivery({"stream": "orders", "to": "/lake", "format": "json"})
    with pytest.raises(OptionError, match="has run with format 'parquet', not 'json'"):
        check_same_delivery(delivery, record(), record(format="json"))


def test_other_partitions_are_refused_in_the_words_of_the_command():
    changed = {"partition-by": ["country"]}
    delivery = parse_delivery({"stream": "orders", "to": "/lake", **changed})
    with pytest.raises(
        OptionError, match=r"partition-by date\(arrived\) AS date, not country AS country: keep it"
    ):
        check_same_delivery(delivery, record(**{"partition-by": ["date(arrived)"]}), record(**changed))
    with pytest.raises(OptionError, match="partition-by none, not country AS country"):
        check_same_delivery(delivery, record(), record(**changed))


def test_other_columns_are_refused_in_the_words_of_the_command():
    delivery = parse_delivery({"stream": "orders", "to": "/lake"})
    with pytest.raises(OptionError, match="has run with schema columns, not raw: keep it"):
        check_same_delivery(delivery, record(), record(schema="raw"))


def test_another_time_zone_is_refused_if_the_table_has_partitions():
    delivery = parse_delivery({"stream": "orders", "to": "/lake"})
    layout, zone = {"partition-by": ["date(arrived)"]}, {"time-zone": "America/New_York"}
    with pytest.raises(OptionError, match="time-zone 'UTC', not 'America/New_York': keep it"):
        check_same_delivery(delivery, record(**layout), record(**layout, **zone))
    check_same_delivery(delivery, replace(record(**layout), time_zone=""), record(**layout, **zone))
    check_same_delivery(delivery, record(), record(**zone))


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ("UTC", "Etc/UTC", True),
        ("Z", "+00:00", True),
        ("UTC+1", "+01:00", True),
        ("Asia/Calcutta", "Asia/Kolkata", True),
        ("UTC", "Europe/London", False),
        ("Europe/Berlin", "Europe/Paris", False),  # their summer times began in different years
        ("a zone of Java's", "UTC", False),
    ],
)
def test_another_name_of_the_same_time_zone_is_no_change(before, now, is_same):
    delivery = parse_delivery({"stream": "orders", "to": "/lake"})
    layout = {"partition-by": ["date(arrived)"]}
    earlier = replace(record(**layout), time_zone=before)
    with nullcontext() if is_same else pytest.raises(OptionError, match="keep it"):
        check_same_delivery(delivery, earlier, record(**layout, **{"time-zone": now}))


def test_a_table_that_was_moved_with_its_state_is_refused_without_advice_that_delivers_twice():
    delivery = parse_delivery({"stream": "orders", "to": "/lake2"})
    with pytest.raises(OptionError) as refused:
        check_same_delivery(delivery, record(), record(to="/lake2"))
    assert str(refused.value) == (
        "delivery orders has delivered into /lake, and its state /lake2.penstock/orders is used with /lake2: put table and state back to "
        "their places, or deliver into a new table (under another name the delivery begins at its start, and would put the stream's "
        "records into this table again)"
    )


def test_a_table_without_files_may_get_another_layout():
    delivery = parse_delivery({"stream": "orders", "to": "/lake", "format": "json"})
    now = record(format="json")
    check_same_delivery(delivery, with_layout(record(), now), now)


@pytest.mark.parametrize(
    ("start", "planned"),
    [
        ("TRIM_HORIZON", ("TRIM_HORIZON", None)),
        ("LATEST", ("AT_TIMESTAMP 2026-01-01T00:00:00Z", NOW_MS)),
        ("AT_TIMESTAMP 2025-12-31T23:00:00Z", ("AT_TIMESTAMP 2025-12-31T23:00:00Z", NOW_MS - HOUR_MS)),
        ('{"shardId-000000000000": "5"}', ("", None)),
    ],
)
def test_a_delivery_begins_at_one_moment(start, planned):
    assert plan_start(parse_starting(start), NOW_MS, []) == planned


def test_a_delivery_does_not_begin_in_a_backfill():
    ranges = [ArrivalRange(NOW_MS - 2 * HOUR_MS, NOW_MS - HOUR_MS)]
    with pytest.raises(OptionError, match="AT_TIMESTAMP 2025-12-31T23:00:00Z"):
        plan_start(parse_starting("TRIM_HORIZON"), NOW_MS, ranges)
    assert plan_start(parse_starting("LATEST"), NOW_MS, ranges)[1] == NOW_MS


def test_a_backfill_ends_where_the_delivery_began():
    running = replace(record(), start="AT_TIMESTAMP ...", start_ms=NOW_MS - HOUR_MS)
    began = (NOW_MS - 5 * HOUR_MS, None)
    assert plan_backfill(began, NOW_MS, running, []) == ArrivalRange(NOW_MS - 5 * HOUR_MS, NOW_MS - HOUR_MS)
    assert plan_backfill(began, NOW_MS, None, []) == ArrivalRange(NOW_MS - 5 * HOUR_MS, NOW_MS)


@pytest.mark.parametrize(
    ("since", "until", "message"),
    [
        (-5, 0, "delivers later records itself"),
        (-5, 1, "is in the future"),
        (-1, -2, "is not before"),
        (-4, -2, "is in the table already"),
    ],
)
def test_a_backfill_that_would_double_records_is_refused(since, until, message):
    running = replace(record(), start="AT_TIMESTAMP ...", start_ms=NOW_MS - HOUR_MS)
    ranges = [ArrivalRange(NOW_MS - 3 * HOUR_MS, NOW_MS - 2 * HOUR_MS)]
    wanted = (NOW_MS + since * HOUR_MS, NOW_MS + until * HOUR_MS)
    with pytest.raises(OptionError, match=message):
        plan_backfill(wanted, NOW_MS, running, ranges)


def test_the_same_backfill_may_run_again():
    ranges = [ArrivalRange(NOW_MS - 3 * HOUR_MS, NOW_MS - 2 * HOUR_MS)]
    assert plan_backfill((ranges[0].since_ms, ranges[0].until_ms), NOW_MS, None, ranges) == ranges[0]
    assert parse_range(range_label(5, 7)) == ArrivalRange(5, 7)
    assert parse_range("000000001") is None


def test_a_backfill_without_an_end_that_was_killed_may_run_again():
    ranges = [ArrivalRange(NOW_MS - 3 * HOUR_MS, NOW_MS - 2 * HOUR_MS)]
    assert plan_backfill((ranges[0].since_ms, None), NOW_MS, None, ranges) == ranges[0]
    with pytest.raises(OptionError, match="is in the table already"):
        plan_backfill((ranges[0].since_ms + 1, None), NOW_MS, None, ranges)


def test_a_backfill_beside_a_delivery_from_the_oldest_record_is_refused():
    running = replace(record(), start="TRIM_HORIZON", start_ms=None)
    with pytest.raises(OptionError, match="began with the oldest record"):
        plan_backfill((NOW_MS - HOUR_MS, NOW_MS), NOW_MS, running, [])


def test_a_backfill_says_which_records_have_gone():
    day = ArrivalRange(NOW_MS - 24 * HOUR_MS, NOW_MS)
    early, late = NOW_MS - 48 * HOUR_MS, NOW_MS - HOUR_MS
    assert check_retention(day, early, early) is None
    assert check_retention(day, early, late) is None
    lost = (
        "the range has only the records from 2025-12-31T23:00:00Z on; older ones have gone by its retention"
    )
    assert check_retention(day, late, early) == lost
    for oldest_ms, created_ms, reason in (
        (NOW_MS, early, "gone by its retention"),
        (early, NOW_MS, "created"),
    ):
        with pytest.raises(OptionError, match=f"has records from 2026-01-01T00:00:00Z on; .*{reason}"):
            check_retention(day, oldest_ms, created_ms)


def named(name, since_h=None, until_h=None, start_h=None, **changed):
    """Return a delivery of a program, with its record and the range of a backfill; hours are before the present moment."""
    reach = None if since_h is None else ArrivalRange(NOW_MS - since_h * HOUR_MS, NOW_MS - until_h * HOUR_MS)
    start_ms = None if start_h is None else NOW_MS - start_h * HOUR_MS
    start = "TRIM_HORIZON" if since_h is None else None
    one = replace(record(), **{"identity": "orders@1", "start": start, "start_ms": start_ms, **changed})
    return parse_delivery({"stream": one.stream, "to": one.to, "name": name}), one, reach


@pytest.mark.parametrize("turn", [1, -1])
def test_a_program_puts_each_record_of_a_stream_into_a_table_once(turn):
    first, backfill = named("first", start_h=2), named("filled", since_h=9, until_h=2)
    for second in (
        named("second", identity="orders@2"),
        named("second", to="/lake2"),
        named("second", stream="returns", identity=""),
        backfill,
    ):
        check_streams([first, second][::turn])
    for same in ({}, {"identity": "", "stream": "arn:aws:kinesis:eu-west-1:1:stream/orders"}):
        with pytest.raises(OptionError, match=r"have the same stream .* each record twice"):
            check_streams([first, named("second", **same)][::turn])
    late = named("filled", since_h=9, until_h=1)
    with pytest.raises(
        DeliveryFailed, match=r"filled would bring .*: keep name=first, or end it at 2025-12-31T22"
    ):
        check_streams([first, late][::turn])
    with pytest.raises(DeliveryFailed, match=r"keep name=other$"):
        check_streams([backfill, named("other")][::turn])
    with pytest.raises(DeliveryFailed, match=r"keep name=\w+, in a run of its own"):
        check_streams([backfill, named("later", since_h=2, until_h=1)][::turn])


def test_a_second_delivery_of_a_stream_into_a_table_begins_at_a_moment():
    delivery, own, _ = named("renamed")
    before = ("first", named("first", start_h=2)[1])
    with pytest.raises(DeliveryFailed, match="under the name renamed it would begin anew"):
        check_other_delivery(delivery, own, before, parse_starting("LATEST", "start"))
    for begin, other in (("2026-01-01T00:00:00Z", own), ("LATEST", named("renamed", to="/lake2")[1])):
        check_other_delivery(delivery, other, before, parse_starting(begin, "start"))


def test_files_of_another_delivery_are_told_apart_by_the_whole_name():
    assert has_files_of("orders", ["part-orders-000000000-00000.parquet"])
    assert has_files_of("orders", ["part-orders-range.1.2-00000.parquet"])
    assert not has_files_of("orders", ["part-orders-eu-000000000-00000.parquet", "part-00000-uuid.parquet"])


def test_files_keep_their_folders_and_get_names_by_batch_and_number():
    staged = [("/s/rows/date=2026-01-02/b.parquet", 7), ("/s/rows/date=2026-01-01/a.parquet", 5)]
    assert plan_moves("orders", "000000003", staged, root="/s/rows", to="/lake", ending="parquet") == (
        Move(staged[1][0], "/lake/date=2026-01-01/part-orders-000000003-00000.parquet", 5),
        Move(staged[0][0], "/lake/date=2026-01-02/part-orders-000000003-00001.parquet", 7),
    )


@pytest.mark.parametrize(
    ("source", "target", "step"),
    [
        (5, None, Step.MOVE),
        (5, 5, Step.DROP_SOURCE),
        (None, 5, Step.DONE),
        (None, None, Step.LOST),
        (5, 6, Step.FOREIGN),
        (None, 6, Step.FOREIGN),
    ],
)
def test_each_file_has_one_next_step(source, target, step):
    assert next_step(Move("a", "b", 5), source, target) is step
