"""Scans of a small table between two rounds, for leases that other workers have released or left behind."""

import math

import pytest
from msgspec.structs import replace

from core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench
from penstock.core.leases.coordinator_effects import ScanTable
from penstock.core.leases.coordinator_events import (
    CallFailed,
    LeaseCall,
    Problem,
    StopRequested,
    Tick,
)
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.lease import WHOLE_TABLE, Lease
from penstock.core.leases.lease_writes import RequestHandover, Take
from penstock.core.leases.table_scans import plan_scans
from penstock.core.position import SHARD_END

OPTIONS = CoordinatorOptions(scans_for_free_leases=True)


@pytest.mark.parametrize(
    ("options", "workers", "rows", "free_lease_scan_s"),
    [
        pytest.param(OPTIONS, 2, 8, 0.6, id="a small fleet"),
        pytest.param(OPTIONS, 10, 100, 1.0, id="as often as the budget allows"),
        pytest.param(OPTIONS, 60, 2, 0.6, id="a few rows cost a whole read unit"),
        pytest.param(OPTIONS, 1, 8, math.inf, id="no other worker holds a lease"),
        pytest.param(OPTIONS, 50, 100, math.inf, id="more than the budget allows"),
        pytest.param(OPTIONS, 2, 500, math.inf, id="a large table"),
        pytest.param(replace(OPTIONS, scans_for_free_leases=False), 2, 8, math.inf, id="not wanted"),
        pytest.param(replace(OPTIONS, policy=BalancePolicy.KCL2), 2, 8, math.inf, id="the rule of KCL 2.x"),
        pytest.param(replace(OPTIONS, leases_to_acquire=1), 2, 8, math.inf, id="a limit for each round"),
    ],
)
def test_how_often_a_table_is_scanned_for_free_leases(options, workers, rows, free_lease_scan_s):
    assert (
        plan_scans(options, "w0", rows, [f"w{number}" for number in range(workers)]).free_lease_scan_s
        == free_lease_scan_s
    )


def two_workers(**options):
    """Return a coordinator with one lease of two, and the other worker's."""
    bench = Bench(
        Lease("mine", owner="me", counter=3, hash_range=LEFT),
        Lease("theirs", owner="other", counter=3, hash_range=RIGHT),
        scans_for_free_leases=True,
        **options,
    )
    bench.start()
    assert set(bench.machine.lease_phases()) == {"mine"}
    return bench


def renew_theirs(bench):
    row = bench.table.rows["theirs"]
    bench.table.rows["theirs"] = replace(row, counter=row.counter + 1)


def test_a_released_lease_is_taken_within_a_second():
    bench = two_workers()
    bench.at(3.0)
    row = bench.table.rows["theirs"]
    bench.table.rows["theirs"] = replace(row, owner=None, counter=row.counter + 1)
    bench.at(4.0)
    assert set(bench.machine.lease_phases()) == {"mine", "theirs"}


def test_a_lease_is_taken_when_its_duration_is_over_after_the_renewal_that_was_the_last():
    bench = two_workers()
    for second in (3.0, 6.0, 9.0):
        bench.at(second)
        renew_theirs(bench)
    bench.at(18.9)
    assert set(bench.machine.lease_phases()) == {"mine"}
    bench.at(20.0)
    assert set(bench.machine.lease_phases()) == {"mine", "theirs"}


def test_rounds_are_as_far_apart_as_without_them():
    bench = two_workers()
    for second in range(1, 42):
        bench.at(float(second))
        renew_theirs(bench)
    parts = [scan.part for scan in bench.of(ScanTable)]
    assert parts.count(None) in (5, 6)
    assert 41 / 0.72 - 6 <= parts.count(WHOLE_TABLE) <= 41 / 0.48
    assert bench.writes(Take) == bench.writes(RequestHandover) == []


def test_a_child_is_left_to_the_worker_that_has_just_ended_its_parent():
    bench = two_workers()
    bench.at(3.0)
    row = bench.table.rows["theirs"]
    bench.table.rows["theirs"] = replace(row, owner=None, checkpoint=SHARD_END, counter=4)
    bench.table.rows["child"] = Lease("child", hash_range=RIGHT, parents=frozenset({"theirs"}))
    bench.at(5.0)
    assert set(bench.machine.lease_phases()) == {"mine"}
    bench.at(9.0)  # the next round
    assert set(bench.machine.lease_phases()) == {"mine", "child"}


def test_a_scan_that_failed_is_repeated_later():
    bench = two_workers()
    bench.at(0.5)
    bench.now = bench.machine.next_wake_s
    assert bench.feed(Tick()) == [ScanTable(WHOLE_TABLE)]
    bench.feed(CallFailed(LeaseCall.SCAN, Problem.THROTTLED))
    begun = len(bench.of(ScanTable))
    bench.at(bench.now + 2.0)
    assert WHOLE_TABLE in [scan.part for scan in bench.of(ScanTable)[begun:]]


def test_a_worker_that_stops_watches_no_more():
    bench = two_workers()
    bench.at(1.0)
    bench.run(StopRequested())
    begun = len(bench.of(ScanTable))
    bench.at(5.0)
    assert len(bench.of(ScanTable)) <= begun + 1


def test_a_table_that_seems_empty_is_scanned_in_full():
    bench = two_workers()
    bench.at(1.0)
    bench.table.rows.clear()
    begun = len(bench.of(ScanTable))
    bench.at(3.5)
    assert None in [scan.part for scan in bench.of(ScanTable)[begun:]]


def test_a_lone_worker_makes_no_such_scans():
    bench = Bench(Lease("mine", owner="me", counter=3, hash_range=WHOLE), scans_for_free_leases=True)
    bench.start()
    bench.at(7.0)
    assert {scan.part for scan in bench.of(ScanTable)} == {None}
