"""Blocking code in virtual time: waits, wakes, and the end of a process."""

from __future__ import annotations

import pytest

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.errors import Throttled
from penstock_sim.blocking_ports import SimClock, SimKinesis, SimLeaseTable
from penstock_sim.events.processes import CallMade, CallRetried
from penstock_sim.fibers import ProcessEnded
from penstock_sim.plan import FaultPlan
from penstock_sim.process import SimProcess
from penstock_sim.virtual_threads import VirtualThreads
from penstock_sim.world import World
from sim.calm import calm


@pytest.fixture
def world():
    made = World(calm((), 2, BalancePolicy.EVEN), lambda entry: None)
    made.table.exists = True
    yield made
    made.fibers.close()


@pytest.fixture
def process(world):
    return SimProcess(world, "p")


def test_a_pause_takes_virtual_time_and_others_run_meanwhile(world, process):
    seen = []

    def body(name, duration_s):
        SimClock(process).sleep(duration_s)
        seen.append((name, round(world.now, 3)))

    process.spawn(lambda: body("long", 5.0))
    process.spawn(lambda: body("short", 2.0))
    world.run_until(10.0)
    assert seen == [("short", 2.0), ("long", 5.0)]


def test_a_condition_wakes_who_waits_or_lets_the_time_pass(world, process):
    condition = VirtualThreads(process).condition()
    ready, seen = [], []

    def waiting(timeout_s):
        with condition:
            is_met = condition.wait_for(lambda: bool(ready), timeout_s)
        seen.append((is_met, round(world.now, 3)))

    def telling():
        SimClock(process).sleep(3.0)
        with condition:
            ready.append(1)
            condition.notify_all()

    for body in (lambda: waiting(1.0), lambda: waiting(60.0), lambda: waiting(None), telling):
        process.spawn(body)
    world.run_until(10.0)
    assert seen == [(False, 1.0), (True, 3.0), (True, 3.0)]


def test_a_pool_runs_as_many_at_once_as_it_has_threads(world, process):
    pool = VirtualThreads(process).pool("pool", 2)
    ended = []

    def task():
        SimClock(process).sleep(1.0)
        ended.append(round(world.now, 3))

    for _ in range(3):
        pool.submit(task)
    world.run_until(10.0)
    assert ended == [1.0, 1.0, 2.0]


def test_a_process_that_ends_within_a_call_leaves_its_code_and_the_server_still_acts(world, process):
    ended = []

    def body():
        try:
            SimLeaseTable(process).ensure_exists()
        except ProcessEnded:
            ended.append(world.now)
            raise

    world.table.exists = False
    process.spawn(body)
    world.schedule(0.0, process.end)
    world.run_until(10.0)
    assert ended == [0.0]
    assert world.table.exists


def test_a_paused_process_gets_its_answer_when_it_goes_on(world, process):
    answered_s = []
    process.spawn(lambda: answered_s.append((SimLeaseTable(process).fetch("a"), world.now)))
    world.run_until(0.0)
    process.paused_until = 20.0
    world.schedule(20.0, process.resume)
    world.run_until(30.0)
    assert answered_s == [(None, 20.0)]


def test_an_interruption_is_raised_where_the_code_waits(world, process):
    seen = []

    def body():
        try:
            SimClock(process).sleep(100.0)
        except SystemExit:
            seen.append(world.now)

    fiber = process.spawn(body)
    world.schedule(4.0, fiber.interrupt, SystemExit(0))
    world.run_until(10.0)
    assert seen == [4.0]


def test_what_nobody_catches_comes_out_of_the_world(world, process):
    def body():
        SimClock(process).sleep(1.0)
        raise KeyError("defect")

    process.spawn(body)
    with pytest.raises(KeyError, match="defect"):
        world.run_until(10.0)


def test_a_call_is_tried_again_until_it_may_no_more(world, process):
    world.faults = FaultPlan(stream_throttle=1.0)
    raised = []

    def body():
        try:
            SimKinesis(process, "", world.stream).fetch_shards("stream")
        except Throttled:
            raised.append(world.now)

    process.spawn(body)
    world.run_until(60.0)
    calls = [entry for entry in world.history if isinstance(entry.event, CallMade | CallRetried)]
    assert len(raised) == 1
    assert 1 < len(calls) <= 20


def test_a_closed_world_leaves_no_fiber_behind(world, process):
    fibers = [process.spawn(lambda: SimClock(process).sleep(1000.0)) for _ in range(5)]
    world.run_until(1.0)
    assert not any(fiber.is_finished for fiber in fibers)
    world.fibers.close()
    assert all(fiber.is_finished for fiber in fibers)
