"""Workers whose machines' clocks are hours apart share leases as others do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from virtual_world import HeldPool, World

from moved_clock import MovedClock
from penstock.core.leases.coordinator_effects import FetchFleet, ReportWorker
from penstock.core.leases.kcl3_fleet import FleetMode, FleetModeDetector, Kcl3Rows, LeaderLock, WorkerStats
from penstock.runtime.lease_calls import Kcl3Calls
from penstock.runtime.memory_lease_table import MemoryLeaseTable

HOURS_S = 5 * 3600.0


@dataclass
class WrongClock:
    """A machine's clock beside the world's: its time of day is wrong, and its monotonic clock has another beginning."""

    clock: MovedClock
    ahead_s: float

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def wall_ms(self) -> int:
        return self.clock.wall_ms() + int(1000 * self.ahead_s)

    def sleep(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)


@pytest.mark.parametrize("start", ["LATEST", "TRIM_HORIZON"])
def test_workers_whose_clocks_are_hours_apart_hand_over_and_take_over(start):
    world = World(shard_count=4)
    fast, slow = (
        world.worker(
            name, clock=WrongClock(world.clock, ahead_s), starting_position=start, handover_timeout_s=20.0
        )
        for name, ahead_s in (("fast", HOURS_S), ("slow", -HOURS_S))
    )
    slow.is_paused = True
    world.run(5.0, until=lambda: len(world.held_by(fast)) == 4)
    sent = world.put(100, "first")
    world.run(30.0, until=lambda: len(fast.delivered) == 100)
    slow.is_paused = False
    world.run(60.0, until=lambda: len(world.held_by(slow)) == len(world.held_by(fast)) == 2)
    sent += world.put(100, "second")
    world.run(30.0)
    assert sorted(fast.data() + slow.data()) == sorted(sent)  # a hand-over repeats nothing

    fast.is_paused = True
    paused_s = world.clock.now_s
    sent += world.put(100, "third")
    world.run(60.0, until=lambda: len(world.held_by(slow)) == 4)
    assert 6.0 <= world.clock.now_s - paused_s <= 25.0
    world.run(30.0)
    fast.is_paused = False
    sent += world.put(100, "fourth")
    world.run(60.0)
    assert len(world.held_by(fast)) == 2
    delivered = fast.data() + slow.data()
    assert set(delivered) == set(sent)
    assert len(delivered) == len(sent)


@pytest.mark.parametrize("ahead_s", [-HOURS_S, HOURS_S])
def test_the_lag_of_an_unfinished_record_is_counted_by_the_services_clock(ahead_s):
    world = World(shard_count=1)
    pool = HeldPool()
    world.worker("a", clock=WrongClock(world.clock, ahead_s), handler_pool=pool)
    world.run(5.0)
    pool.is_open = False
    world.put(1)
    world.run(20.0)
    gauges = world.metrics.snapshot().gauges
    (lag_ms,) = [value for (name, _), value in gauges.items() if name == "millis_behind_latest"]
    assert 15_000 <= lag_ms <= 25_000


@pytest.mark.parametrize("ahead_s", [-HOURS_S, 0.0, HOURS_S])
def test_the_metrics_of_java_workers_are_fresh_by_the_services_clock(ahead_s):
    clock, reports = MovedClock(1_800_000_000.0), []

    class Tables:
        def fetch(self, _):
            java = WorkerStats("java", int(clock.now_s) - 20, {"C": (3.0,)}, {"C": 100})
            rows = Kcl3Rows("CLIENT_VERSION_3X", LeaderLock("java", "r1", 120.0), (java,))
            return replace(rows, server_ms=int(1000 * clock.now_s))

        def report(self, stats):
            reports.append(stats.reported_s)

    calls = Kcl3Calls("me", MemoryLeaseTable("app"), Tables(), WrongClock(clock, ahead_s))
    fetched = calls.answer(FetchFleet())
    assert FleetModeDetector("me").detect(fetched.rows, 0.0, fetched.wall_s) is FleetMode.LED
    calls.answer(ReportWorker(measures_cpu=False, is_full=False))
    assert reports == [int(clock.now_s)]
