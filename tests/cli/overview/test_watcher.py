"""The watcher: its calls, and its conclusions from two snapshots."""

import logging
import threading
from types import SimpleNamespace

import pytest

from moved_clock import MovedClock
from penstock.cli.overview.snapshot import Trouble
from penstock.cli.overview.watcher import APPLICATIONS_MAX, ApplicationWatcher, FleetWatcher, WatchOptions
from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import Lease
from penstock.core.position import SHARD_END, parse_position
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, NotFound, Throttled
from penstock.ports.kinesis import RecordPage, ShardListing
from penstock.ports.lease_table import LeaseScan, SkippedRow

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


class Table:
    name = "billing"

    def __init__(self, *leases):
        self.leases = {lease.key: lease for lease in leases}
        self.skipped = ()
        self.error = None

    def scan(self, part=None):
        if self.error is not None:
            raise self.error
        return LeaseScan(tuple(self.leases.values()), self.skipped)

    def change(self, key, **fields):
        before = self.leases[key]
        given = {name: getattr(before, name) for name in Lease.__slots__}
        self.leases[key] = Lease(**{**given, "counter": before.counter + 1, **fields})


class Kinesis:
    """Every shard's oldest unread record arrived at `arrival_s`."""

    def __init__(self, clock):
        self.clock = clock
        self.arrival_s = {}
        self.asked = []
        self.listings = 0
        self.error = None
        self.listing_error = None

    def fetch_shards(self, stream, shard_filter=None):
        self.listings += 1
        assert stream == ARN
        if self.listing_error is not None:
            raise self.listing_error
        return ShardListing(tuple(Shard(f"s{n}", HashRange(n, n)) for n in range(2)))

    def fetch_iterator(self, stream, shard_id, start):
        self.asked.append(shard_id)
        return shard_id

    def fetch_records(self, stream, iterator, record_count_max=10_000):
        if self.error is not None:
            raise self.error
        arrival_s = self.arrival_s.get(iterator)
        records = (
            []
            if arrival_s is None
            else [SimpleNamespace(sequence_number="9" * 20, data=b"", arrival_s=arrival_s)]
        )
        return RecordPage(records, "next", 0)


def lease(key, owner="w", **fields):
    return Lease(key, owner=owner, stream=StreamIdentity(ARN, 1), **fields)


@pytest.fixture
def clock():
    return MovedClock(1000.0)


@pytest.fixture
def kinesis(clock):
    return Kinesis(clock)


def watcher_of(table, kinesis, clock, **options):
    return ApplicationWatcher(table, kinesis, clock, WatchOptions(**options))


def rows_of(snapshot):
    return {row.shard: row for row in snapshot.shards}


def test_the_stream_is_taken_from_the_leases_and_listed_twice_a_minute(kinesis, clock):
    watcher = watcher_of(Table(lease("s0"), lease("s1")), kinesis, clock)
    snapshot = watcher.take_snapshot()
    assert snapshot.stream == ARN
    assert [shard.shard_id for shard in snapshot.lineage] == ["s0", "s1"]
    clock.sleep(20)
    watcher.take_snapshot()
    assert kinesis.listings == 1
    clock.sleep(20)
    watcher.take_snapshot()
    assert kinesis.listings == 2


def test_a_lease_of_a_new_shard_lets_the_shards_be_listed_at_once_and_only_once(kinesis, clock):
    table = Table(lease("s0"), lease("s1"))
    watcher = watcher_of(table, kinesis, clock)
    watcher.take_snapshot()
    table.leases["s9"] = lease("s9")
    for _ in range(3):
        clock.sleep(1)
        watcher.take_snapshot()
    assert kinesis.listings == 2


def test_a_failed_listing_is_not_repeated_sooner_and_is_in_every_snapshot(kinesis, clock):
    kinesis.listing_error = NotFound("ListShards on stream orders: no such stream")
    watcher = watcher_of(Table(lease("s0"), lease("s1")), kinesis, clock)
    for _ in range(3):
        assert watcher.take_snapshot().problems == ("ListShards on stream orders: no such stream",)
        clock.sleep(1)
    assert kinesis.listings == 1
    kinesis.listing_error = None
    clock.sleep(30)
    snapshot = watcher.take_snapshot()
    assert (kinesis.listings, snapshot.problems) == (2, ())
    assert [shard.shard_id for shard in snapshot.lineage] == ["s0", "s1"]


def test_an_application_that_is_done_may_outlive_its_stream(kinesis, clock):
    kinesis.listing_error = NotFound("ListShards on stream orders: no such stream")
    snapshot = watcher_of(
        Table(lease("s0", checkpoint=SHARD_END), lease("s1", None)), kinesis, clock
    ).take_snapshot()
    assert (snapshot.problems, snapshot.state) == ((), "no worker runs")


def test_a_lag_that_grows_and_one_that_shrinks(kinesis, clock):
    kinesis.arrival_s = {"s0": 990.0, "s1": 900.0}
    watcher = watcher_of(Table(lease("s0"), lease("s1")), kinesis, clock)
    first = rows_of(watcher.take_snapshot())
    assert (first["s0"].lag_ms, first["s0"].lag_change) == (10_000, None)
    assert first["s1"].trouble is Trouble.BEHIND
    clock.sleep(10)
    kinesis.arrival_s["s1"] = 950.0
    second = rows_of(watcher.take_snapshot())
    assert (second["s0"].lag_ms, second["s0"].lag_change) == (20_000, 1.0)
    assert (second["s1"].lag_ms, second["s1"].lag_change) == (60_000, -4.0)


def test_an_owner_is_silent_while_its_lease_does_not_move(kinesis, clock):
    table = Table(lease("s0"), lease("s1"))
    watcher = watcher_of(table, kinesis, clock, silent_after_s=30.0)
    watcher.take_snapshot()
    for _ in range(3):
        clock.sleep(10)
        table.change("s1")
        rows = rows_of(watcher.take_snapshot())
    assert rows["s0"].trouble is Trouble.SILENT
    assert rows["s1"].trouble is Trouble.NONE
    clock.sleep(40)
    assert rows_of(watcher.take_snapshot())["s1"].trouble is Trouble.SILENT, "it moved once, long ago"
    table.change("s0")
    assert rows_of(watcher.take_snapshot())["s0"].trouble is Trouble.NONE


def test_a_checkpoint_that_stands_while_its_owner_lives_is_told(kinesis, clock):
    kinesis.arrival_s = {"s0": 900.0, "s1": 900.0}
    table = Table(lease("s0"), lease("s1"))
    watcher = watcher_of(table, kinesis, clock)
    for step in range(13):
        table.change("s0")
        table.change("s1", checkpoint=parse_position(str(10 + step)))
        rows = rows_of(watcher.take_snapshot())
        clock.sleep(10)
    assert rows["s0"].trouble is Trouble.CHECKPOINT_UNMOVED
    assert rows["s1"].trouble is Trouble.BEHIND


def test_shards_take_turns_when_there_are_too_many_to_ask(kinesis, clock):
    kinesis.arrival_s = {f"s{n}": 999.0 for n in range(5)}
    watcher = watcher_of(Table(*(lease(f"s{n}") for n in range(5))), kinesis, clock, lag_count_max=2)
    for _ in range(3):
        snapshot = watcher.take_snapshot()
        clock.sleep(1)
    assert sorted(kinesis.asked[:5]) == [f"s{n}" for n in range(5)]
    assert len(kinesis.asked) == 6
    assert all(row.lag_ms is not None for row in snapshot.shards)


def test_without_lags_nothing_is_read_from_the_stream(kinesis, clock):
    snapshot = watcher_of(Table(lease("s0")), kinesis, clock, lag_count_max=0).take_snapshot()
    assert kinesis.asked == []
    assert (rows_of(snapshot)["s0"].lag_ms, snapshot.problems) == (None, ())


def test_refused_reads_leave_the_lag_that_was_known(kinesis, clock):
    kinesis.arrival_s = {"s0": 990.0}
    watcher = watcher_of(Table(lease("s0")), kinesis, clock)
    watcher.take_snapshot()
    kinesis.error = Throttled("Rate exceeded")
    clock.sleep(5)
    row = rows_of(watcher.take_snapshot())["s0"]
    assert (row.lag_ms, row.trouble) == (10_000, Trouble.THROTTLED)
    kinesis.error = None
    assert rows_of(watcher.take_snapshot())["s0"].trouble is Trouble.NONE


def test_a_kcls_leases_name_no_stream_and_the_look_says_how_to_name_it(kinesis, clock):
    snapshot = watcher_of(Table(Lease("s0", owner="java")), kinesis, clock).take_snapshot()
    assert (snapshot.stream, snapshot.shards[0].lag_ms) == (None, None)
    assert "--stream" in snapshot.problems[0]
    named = watcher_of(Table(Lease("s0", owner="java")), kinesis, clock, stream=ARN).take_snapshot()
    assert (rows_of(named)["s0"].lag_ms, named.problems) == (0, ())


def test_leases_that_name_their_stream_keep_it_beside_those_that_do_not(kinesis, clock):
    watcher = watcher_of(Table(Lease("s0", owner="java"), lease("s1")), kinesis, clock, stream="another")
    assert watcher.take_snapshot().stream == ARN


def test_what_cannot_be_read_is_told_and_the_rest_is_shown(kinesis, clock):
    table = Table(lease("s0"))
    table.skipped = (SkippedRow("odd", "it lacks 'leaseCounter'"),)
    watcher = watcher_of(table, kinesis, clock)
    kinesis.error = AccessDenied("GetRecords on stream orders: no")
    snapshot = watcher.take_snapshot()
    assert snapshot.problems == ("row odd is left out: it lacks 'leaseCounter'",)
    assert rows_of(snapshot)["s0"].trouble is Trouble.UNKNOWN
    assert rows_of(snapshot)["s0"].why == "GetRecords on stream orders: no"
    table.skipped = tuple(SkippedRow(f"r{n}", "it lacks leaseCounter") for n in range(12))
    told = watcher.take_snapshot().problems
    assert (len(told), told[-1]) == (6, "and 7 more rows, which are not leases either")
    table.error = NotFound("lease table billing: no")
    assert watcher.take_snapshot().problems == ("lease table billing: no",)
    table.error = None
    assert watcher.take_snapshot().events == (), "a table that could not be read for a while was not emptied"


def test_events_come_newest_first_and_stay(kinesis, clock):
    table = Table(lease("s0"), lease("s1"))
    watcher = watcher_of(table, kinesis, clock)
    assert watcher.take_snapshot().events == ()
    table.change("s0", owner="x")
    clock.sleep(5)
    watcher.take_snapshot()
    table.change("s1", owner=None)
    clock.sleep(5)
    texts = [(event.shard, event.text) for event in watcher.take_snapshot().events]
    assert set(texts[:2]) == {("s1", "w gave it back"), (None, "worker w has no lease any more")}
    assert set(texts[2:]) == {("s0", "went from w to x"), (None, "worker x has leases")}


def test_one_look_watches_until_the_owners_are_told_apart(kinesis, clock):
    table = Table(lease("s0"), lease("s1"))
    scan = table.scan

    def renewing(part=None):
        table.change("s1")
        return scan(part)

    table.scan = renewing
    watcher = watcher_of(table, kinesis, clock, silent_after_s=4.0)
    rows = rows_of(watcher.take_single_snapshot(watcher.watch_once()))
    assert (rows["s0"].trouble, rows["s1"].trouble) == (Trouble.SILENT, Trouble.NONE)
    assert clock.now_s <= 1005


# --- all applications -------------------------------------------------------------------------------------


class Finder:
    def __init__(self, *names, refused_count=0):
        self.found = SimpleNamespace(names=names, refused_count=refused_count)
        self.error = None
        self.calls = 0

    def find(self):
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.found


def fleet(names, finder, kinesis, clock):
    def open_watcher(name):
        table = Table(lease("s0"))
        table.name = name
        return watcher_of(table, kinesis, clock)

    return FleetWatcher(names, open_watcher, finder, clock)


def names_of(snapshot):
    return [each.application for each in snapshot.applications]


def test_applications_that_are_named_are_not_looked_for(kinesis, clock):
    finder = Finder("other")
    assert names_of(fleet(["b", "a", "b"], finder, kinesis, clock).take_snapshot()) == ["a", "b"]
    assert finder.calls == 0


def test_tables_are_looked_for_once_a_minute_and_those_that_have_gone_are_dropped(kinesis, clock):
    finder = Finder("a", "b")
    watched = fleet([], finder, kinesis, clock)
    assert names_of(watched.take_snapshot()) == ["a", "b"]
    finder.found = SimpleNamespace(names=("b", "c"), refused_count=2)
    clock.sleep(30)
    assert names_of(watched.take_snapshot()) == ["a", "b"]
    clock.sleep(31)
    snapshot = watched.take_snapshot()
    assert names_of(snapshot) == ["b", "c"]
    assert snapshot.problems[0].startswith("2 tables may not be described")
    finder.error = AccessDenied("ListTables: no")
    clock.sleep(61)
    snapshot = watched.take_snapshot()
    assert (names_of(snapshot), snapshot.problems) == (["b", "c"], ("ListTables: no",))


def test_leases_of_autoscalers_are_no_application_unless_their_table_is_named(kinesis, clock):
    def open_watcher(name):
        return watcher_of(
            Table(Lease("autoscale-orders") if name == "turns" else lease("s0")), kinesis, clock
        )

    found = FleetWatcher([], open_watcher, Finder("turns", "billing"), clock)
    assert len(found.take_snapshot().applications) == len(found.take_single_snapshot().applications) == 1
    named = FleetWatcher(["turns"], open_watcher, Finder(), clock)
    assert len(named.take_snapshot().applications) == 1


def test_a_first_listing_that_fails_is_an_error(kinesis, clock):
    finder = Finder()
    finder.error = AccessDenied("ListTables: no")
    with pytest.raises(AccessDenied):
        fleet([], finder, kinesis, clock).take_snapshot()


def test_more_tables_than_can_be_watched_are_said_to_be_left_out(kinesis, clock):
    finder = Finder(*(f"t{n:03d}" for n in range(APPLICATIONS_MAX + 1)))
    snapshot = fleet([], finder, kinesis, clock).take_snapshot()
    assert len(snapshot.applications) == APPLICATIONS_MAX
    assert snapshot.problems[0].startswith(f"{APPLICATIONS_MAX + 1} lease tables were found")


class BrokenTable(Table):
    def scan(self, part=None):
        raise ValueError("no such shape")


@pytest.mark.parametrize("kind", ["take_snapshot", "take_single_snapshot"])
def test_an_application_that_fails_for_whatever_reason_is_told_and_hides_no_other(
    kinesis, clock, kind, caplog
):
    def open_watcher(name):
        table = BrokenTable() if name == "broken" else Table(lease("s0"))
        table.name = name
        return watcher_of(table, kinesis, clock, silent_after_s=0.0)

    watched = FleetWatcher(["broken", "sound"], open_watcher, Finder(), clock)
    for _ in range(2):
        snapshots = {each.application: each for each in getattr(watched, kind)().applications}
        assert snapshots["broken"].problems == ("ValueError: no such shape",)
        assert rows_of(snapshots["sound"])["s0"].owner == "w"
    (logged,) = caplog.records  # once, not with every snapshot
    assert logged.levelno == logging.ERROR
    assert logged.exc_info[0] is ValueError


def test_all_tables_are_watched_within_the_same_seconds(kinesis, clock):
    count = 12
    together = threading.Barrier(count, timeout=60)

    class MeetingTable(Table):
        def scan(self, part=None):
            together.wait()
            return super().scan(part)

    def open_watcher(name):
        table = MeetingTable(lease("s0"))
        table.name = name
        return watcher_of(table, kinesis, clock, silent_after_s=0.0)

    names = [f"t{n:02d}" for n in range(count)]
    snapshot = FleetWatcher(names, open_watcher, Finder(), clock).take_single_snapshot()
    assert names_of(snapshot) == names
    assert [each.problems for each in snapshot.applications] == [()] * count


def test_nothing_that_waits_for_the_service_keeps_the_process_from_ending(kinesis, clock):
    waiting = []
    fetch_iterator = kinesis.fetch_iterator

    def note(*arguments):
        waiting.append(threading.current_thread())
        return fetch_iterator(*arguments)

    class NotedTable(Table):
        def scan(self, part=None):
            waiting.append(threading.current_thread())
            return super().scan(part)

    kinesis.fetch_iterator = note
    watched = FleetWatcher(
        ["a"], lambda _: watcher_of(NotedTable(lease("s0")), kinesis, clock), Finder(), clock
    )
    watched.take_snapshot()
    watched.take_single_snapshot()
    assert len(waiting) >= 4
    # A single application is read by the caller, whose thread Ctrl-C interrupts.
    assert all(thread.daemon or thread is threading.current_thread() for thread in waiting)
