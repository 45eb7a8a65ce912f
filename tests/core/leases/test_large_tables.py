"""Workers of a large fleet: each watches a part of the lease table, and reads what lies elsewhere by its key."""

from collections import Counter

import pytest
from msgspec.structs import replace

from core.leases.coordinator_bench import WHOLE, Bench
from penstock.core.leases.coordinator_effects import FetchLease, ListShards, ScanTable, Turn, WriteLease
from penstock.core.leases.coordinator_events import (
    UNKNOWN,
    CallFailed,
    LeaseCall,
    Problem,
    TableReady,
    Tick,
    WriteDone,
)
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_view import zone_of
from penstock.core.leases.held_lease_phases import LeasePhase
from penstock.core.leases.lease import WHOLE_TABLE, Lease, TablePart
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import Take
from penstock.core.leases.table_scans import TableScans, estimate_workers, plan_scans
from penstock.core.position import SHARD_END

OPTIONS = CoordinatorOptions()


def names(count):
    return [f"w{number}" for number in range(count)]


# --- who looks at what ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "leases"), [(1, 10_000), (10, 100), (20, 500), (40, 400)])
def test_a_fleet_of_ordinary_size_looks_at_the_whole_table_in_every_round(workers, leases):
    plan = plan_scans(OPTIONS, "w0", leases, names(workers))
    assert (plan.part, plan.round_s, plan.whole_scan_s) == (None, OPTIONS.interval_s, OPTIONS.interval_s)


def test_the_rule_of_kcl2_always_looks_at_the_whole_table():
    options = CoordinatorOptions(policy=BalancePolicy.KCL2)
    assert plan_scans(options, "w0", 10_000, names(1000)).part is None


@pytest.mark.parametrize(("workers", "leases"), [(60, 600), (100, 1000), (300, 3000), (1000, 10_000)])
def test_each_part_of_the_table_has_as_many_watchers_as_any_other(workers, leases):
    fleet = names(workers)
    watchers = {}
    for worker in fleet:
        part = plan_scans(OPTIONS, worker, leases, fleet).part
        watchers[part] = watchers.get(part, 0) + 1
    (count,) = {part.count for part in watchers}
    assert len(watchers) == count
    assert max(watchers.values()) - min(watchers.values()) <= 1
    assert min(watchers.values()) >= OPTIONS.part_watchers_min


@pytest.mark.parametrize(("workers", "leases"), [(60, 600), (100, 1000), (1000, 10_000)])
def test_a_zone_that_is_lost_leaves_every_part_most_of_its_watchers(workers, leases):
    fleet = [f"{'abc'[number % 3]}/w{number}" for number in range(workers)]
    watchers = {}
    for worker in fleet:
        part = plan_scans(OPTIONS, worker, leases, fleet).part
        watchers.setdefault(part, []).append(zone_of(worker))
    for zones in watchers.values():
        assert all(zones.count(zone) <= len(zones) / 2 for zone in "abc")


@pytest.mark.parametrize("zones", [2, 3, 12, 48, 96])
def test_every_part_is_watched_however_many_zones_the_workers_name(zones):
    fleet = [f"zone{number % zones}/w{number}" for number in range(96)]
    plans = [plan_scans(OPTIONS, worker, 2000, fleet) for worker in fleet]
    watchers = Counter(plan.part for plan in plans)
    assert len(watchers) == plans[0].part.count == 16
    assert set(watchers.values()) == {6}


@pytest.mark.parametrize(("workers", "leases"), [(100, 1000), (700, 10_000), (1000, 10_000), (500, 20_000)])
def test_the_rows_that_a_fleet_reads_stay_within_its_budget(workers, leases):
    plan = plan_scans(OPTIONS, "w0", leases, names(workers))
    rows_per_s = workers * leases * (1 / plan.part.count / plan.round_s + 1 / plan.whole_scan_s)
    assert rows_per_s <= OPTIONS.scanned_rows_per_s_max


def test_who_starts_on_a_large_table_looks_at_a_part_first():
    assert plan_scans(OPTIONS, "w0", 500).part is None
    assert plan_scans(OPTIONS, "w0", 10_000).part.count >= 64


def test_the_owners_of_two_parts_tell_how_large_a_fleet_is():
    assert estimate_workers(set(), set(), 64) == 0
    assert estimate_workers({"a", "b", "c"}, {"a", "b", "c"}, 64) == 3
    assert estimate_workers(set(names(20)), set(names(30)[10:]), 64) == 40
    assert estimate_workers({"a"}, {"b", "c"}, 64) == 128  # they have just started, each in its own part


# --- when it looks ----------------------------------------------------------------------------------------


def scans_at_a_part():
    turn = Turn()
    scans = TableScans("w0", OPTIONS, LeaseView(OPTIONS.lease_duration_s), turn)
    scans.on_table_ready(0.0)
    scans.part = TablePart(1, 4)
    return turn, scans


def begun(turn, scans, now_s):
    turn.begin(0.5)
    scans.advance(now_s)
    return turn.effects


@pytest.mark.parametrize("part", [None, TablePart(1, 4)])
def test_a_look_that_is_asked_for_while_one_is_under_way_is_not_forgotten(part):
    turn, scans = scans_at_a_part()
    scans.part = part
    assert begun(turn, scans, 0.0) == [ScanTable(part)] or part is None
    begun(turn, scans, 0.0)
    scans.request_whole_scan_by(1.0)
    scans.on_scan_done()
    scans.schedule_regular_scan_in(8.0, 0.0)
    assert scans.next_wake_s == 1.0
    assert begun(turn, scans, 1.0) == [ScanTable(None if part is None else WHOLE_TABLE)]


def test_a_look_at_a_part_that_fails_is_not_followed_by_one_at_the_whole_table():
    turn, scans = scans_at_a_part()
    assert begun(turn, scans, 0.0) == [ScanTable(TablePart(1, 4))]
    scans.on_scan_failed(Problem.THROTTLED, 0.1)
    assert 0.1 < scans.next_wake_s <= 9.0
    assert begun(turn, scans, scans.next_wake_s) == [ScanTable(TablePart(1, 4))]


def test_a_doubt_asks_for_a_look_within_a_round():
    turn, scans = scans_at_a_part()
    scans.part = None
    begun(turn, scans, 0.0)
    scans.on_scan_done()
    scans.schedule_regular_scan_in(100.0, 0.0)
    scans.on_owner_unknown("s", 1.0)
    assert not scans.is_quiet
    assert scans.next_wake_s == 1.0 + OPTIONS.interval_s
    begun(turn, scans, scans.next_wake_s)
    scans.on_scan_done()
    assert scans.is_quiet


# --- the scans of a coordinator ---------------------------------------------------------------------------

PART = TablePart(0, 2)


def in_part(number, part):
    """Names of leases in a part, or not in it."""
    return [key for key in (f"s{index}" for index in range(200)) if PART.holds(key) is part][:number]


def watching(*rows):
    """A bench whose worker has seen the whole table and watches the first of two parts."""
    others = [Lease(f"x{number}", counter=1, owner=f"w{number}", hash_range=WHOLE) for number in range(30)]
    bench = Bench(*others, *rows, worker=_worker_of(PART), scanned_rows_per_s_max=150.0, part_watchers_min=12)
    bench.start()
    assert bench.machine._scans.part == PART
    return bench


def _worker_of(part):
    """A worker whose place on the ring is in this part."""
    options = CoordinatorOptions(scanned_rows_per_s_max=150.0, part_watchers_min=12)
    mine = (f"me{number}" for number in range(50))
    return next(me for me in mine if plan_scans(options, me, 31, [*names(30), me]).part == part)


def renew_others(bench):
    bench.table.rows = {
        key: replace(row, counter=row.counter + 1) if (row.owner or "me").startswith("w") else row
        for key, row in bench.table.rows.items()
    }


def let_pass(bench, until_s):
    """Advance the time while the other workers renew."""
    while bench.now < until_s:
        renew_others(bench)
        bench.at(min(until_s, bench.now + 1.0))


def test_a_lease_that_expires_in_the_part_is_taken_within_two_lease_times():
    (key,) = in_part(1, part=True)
    bench = watching(Lease(key, counter=5, owner="dead", hash_range=WHOLE))
    let_pass(bench, 20.0)
    assert bench.table.rows[key].owner == bench.machine.worker
    looks = bench.of(ScanTable)
    assert {look.part for look in looks[1:]} <= {PART, WHOLE_TABLE}
    assert sum(look.part == PART for look in looks) >= 2


def test_a_free_child_waits_for_a_parent_that_is_in_another_part():
    (parent,), (child,) = in_part(1, part=False), in_part(1, part=True)
    bench = watching()
    bench.table.rows[parent] = Lease(parent, counter=1, owner="w1", hash_range=WHOLE)
    bench.table.rows[child] = Lease(child, parents=frozenset({parent}), hash_range=WHOLE)
    let_pass(bench, 20.0)
    assert bench.table.rows[child].owner is None
    assert FetchLease(parent) in bench.seen
    bench.table.rows[parent] = Lease(parent, counter=9, checkpoint=SHARD_END, hash_range=WHOLE)
    let_pass(bench, 40.0)
    assert bench.machine.lease_phases() == {child: LeasePhase.READING}


def test_a_parent_that_has_no_row_any_more_is_looked_for_once():
    (child,) = in_part(1, part=True)
    bench = watching()
    bench.table.rows[child] = Lease(child, parents=frozenset({"gone"}), hash_range=WHOLE)
    let_pass(bench, 20.0)
    assert bench.machine.lease_phases() == {child: LeasePhase.READING}
    assert bench.of(FetchLease).count(FetchLease("gone")) == 1


def test_who_does_not_know_whether_a_lease_is_its_own_reads_the_row():
    (key,) = in_part(1, part=True)
    bench = watching()
    bench.slow = (Take,)
    bench.table.rows[key] = Lease(key, hash_range=WHOLE)
    let_pass(bench, 10.0)
    (take,) = [effect for effect in bench.of(WriteLease) if isinstance(effect.write, Take)]
    bench.table.write(take.write)
    bench.run(WriteDone(take.write_id, take.write, UNKNOWN))
    assert FetchLease(key) in bench.seen
    assert bench.machine.lease_phases() == {key: LeasePhase.READING}


def test_a_part_that_is_empty_of_a_sudden_is_followed_by_a_look_at_the_whole_table():
    (key,) = in_part(1, part=True)
    bench = watching(Lease(key, counter=5, owner="w1", hash_range=WHOLE))
    let_pass(bench, 8.0)
    before = len(bench.of(ScanTable))
    bench.table.rows.clear()
    bench.at(20.0)
    assert WHOLE_TABLE in {look.part for look in bench.of(ScanTable)[before:]}


def test_a_watcher_of_a_part_without_leases_starts_no_new_application():
    bench = watching()
    bench.table.rows = {key: row for key, row in bench.table.rows.items() if not PART.holds(key)}
    remembered = set(bench.table.rows)
    let_pass(bench, 12.0)
    bench.table.rows.clear()
    let_pass(bench, 60.0)
    assert not bench.of(ListShards)
    assert remembered <= set(bench.table.rows)


def test_a_worker_that_starts_on_a_large_table_alone_has_all_of_it_soon():
    bench = Bench(*[Lease(f"s{number}", hash_range=WHOLE) for number in range(900)])
    bench.feed(Tick())
    (scan,) = bench.feed(TableReady(900))
    assert scan.part.count > 1
    bench.run(bench.answer(scan))
    bench.at(15.0)
    assert len(bench.machine.lease_phases()) == 900


def test_a_scan_that_fails_at_the_start_is_tried_again():
    bench = Bench()
    bench.feed(Tick())
    (scan,) = bench.feed(TableReady(5000))
    bench.feed(CallFailed(LeaseCall.SCAN, Problem.THROTTLED))
    assert bench.machine.next_wake_s < 10.0
    bench.now = bench.machine.next_wake_s
    assert bench.feed(Tick()) == [scan]
