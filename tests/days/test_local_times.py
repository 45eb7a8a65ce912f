"""Times are typed as the clock on the wall shows them, in New York, also in the nights in which the clocks change."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from waiting import wait_until

NEW_YORK = {"TZ": "America/New_York"}


def put_each_quarter_of_an_hour(server, first, count):
    """Put ten records each quarter of an hour; each says when it was put."""
    kinesis, clock = server.client(), server.clock
    for n in range(count):
        moment = first + n * timedelta(minutes=15)
        clock.advance(moment.timestamp() - clock.now_s())
        records = [
            {"Data": b"%s %d" % (f"{moment:%H:%MZ}".encode(), m), "PartitionKey": f"c{m}"} for m in range(10)
        ]
        assert kinesis.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0
    clock.advance(600)


def quarters(lines):
    """Return the moments of records, each with how many there are."""
    found = [line.split(" ")[0] for line in lines]
    return {moment: found.count(moment) for moment in dict.fromkeys(sorted(found))}


def test_an_hour_is_looked_at_in_the_night_in_which_the_clocks_go_forward(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    put_each_quarter_of_an_hour(local_kinesis, datetime(2027, 3, 14, 6, tzinfo=UTC), 9)

    # From half past one to a quarter past three are three quarters of an hour: two o'clock is three o'clock.
    arguments = ("tail", "orders", "--since", "2027-03-14 01:30", "--until", "2027-03-14 03:15", "--data")
    night = programs.penstock(*arguments, name="night", **NEW_YORK)
    assert night.wait() == 0
    assert quarters(night.lines()) == {"06:30Z": 10, "06:45Z": 10, "07:00Z": 10}
    assert "from 2027-03-14T01:30:00-05:00 (2027-03-14T06:30:00Z)" in night.log()
    assert "until 2027-03-14T03:15:00-04:00 (2027-03-14T07:15:00Z)" in night.log()

    missing = programs.penstock(
        "tail", "orders", "-e", "--since", "2027-03-14 02:30", name="missing", **NEW_YORK
    )
    assert missing.wait() == 2
    assert "does not exist in the time zone of this machine (America/New_York)" in missing.log()


def test_an_hour_is_looked_at_in_the_night_in_which_it_comes_twice(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    put_each_quarter_of_an_hour(local_kinesis, datetime(2027, 11, 7, 5, tzinfo=UTC), 9)
    twice = programs.penstock("tail", "orders", "-e", "--since", "2027-11-07 01:30", name="twice", **NEW_YORK)
    assert twice.wait() == 2
    offered = re.findall(r"2027-11-07T01:30:00-0\d:00", twice.log())
    assert offered == ["2027-11-07T01:30:00-04:00", "2027-11-07T01:30:00-05:00"]

    # The message is copied from: the first half past one, and the second.
    arguments = ("--since", offered[0], "--until", offered[1], "--data")
    between = programs.penstock("tail", "orders", *arguments, name="between", **NEW_YORK)
    assert between.wait() == 0
    assert quarters(between.lines()) == {"05:30Z": 10, "05:45Z": 10, "06:00Z": 10, "06:15Z": 10}


def test_somebody_in_new_york_looks_at_the_last_hours(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    clock = local_kinesis.clock
    noon = datetime.fromtimestamp(clock.now_s(), UTC).replace(hour=17, minute=0, second=0, microsecond=0)
    put_each_quarter_of_an_hour(local_kinesis, noon + timedelta(days=1), 40)
    typed = (noon + timedelta(days=1, hours=9)).astimezone(ZoneInfo("America/New_York"))
    seen = programs.penstock(
        "tail",
        "orders",
        "--until-end",
        "--since",
        f"{typed:%Y-%m-%dT%H:%M}",
        "--data",
        name="seen",
        **NEW_YORK,
    )
    assert seen.wait() == 0
    assert len(seen.lines()) == 40  # the last four quarters of an hour

    # Seconds, as many programs count, are not taken for milliseconds.
    seconds = str(int(typed.timestamp()))
    refused = programs.penstock("tail", "orders", "-e", "--since", seconds, name="refused", **NEW_YORK)
    assert refused.wait() == 2
    assert (
        f"seconds? milliseconds are expected; in seconds it would be {typed.astimezone(UTC):%Y-%m-%dT%H:%M}"
        in refused.log()
    )

    # A worker begins at the same moment, and its table keeps it.
    arguments = ("--application", "audit", "--from", f"{typed:%Y-%m-%dT%H:%M}", "--data")
    worker = programs.penstock("consume", "orders", *arguments, name="worker", **NEW_YORK)
    wait_until(lambda: len(worker.lines()) >= 40, "the records of the last hour")
    assert worker.terminate() == 0
    assert sorted(worker.lines()) == sorted(seen.lines())
