"""A driver that is paused beside a driver on an older copy of its checkpoint location."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.lease_writes import Reset, Take
from penstock_sim.events.base import Event
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.queries import QueryFailed
from penstock_sim.events.reading import RecordsHandled
from penstock_sim.events.streams import RecordPut
from penstock_sim.process import SimProcess
from penstock_sim.query_actors import QueryActors
from penstock_sim.run import open_world
from sim.calm import calm

STEP_S = 0.01
WITHIN_S = 60.0


class TwoDrivers:
    """A query that has read everything and is paused, and a driver on an older copy that has just reset its lease."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        scenario = calm(("q",), 1, BalancePolicy.EVEN, queries=frozenset({"q"}))
        self.world = open_world(scenario, lambda entry: self.events.append(entry.event))
        (self.actors,) = (each for each in self.world.actors if isinstance(each, QueryActors))
        self.world.start_worker("q")
        (self.query,) = self.actors.drivers()
        self.query.on_gone = self.actors.on_extra_gone  # it is not started again
        self.world.run_until(1.0)
        self.read_more()
        log = self.query.log.copy()
        self.read_before = self.passed_on_by(self.query)
        self.read_more()
        self.world.run_until(self.world.now + 1.0)
        self.query.pause(1000.0)
        self.copy = self.actors._driver("q", log)
        self.actors.start_extra(self.copy)
        self.run_until(lambda: bool(self.writes(Reset)), "the reset of the lease")

    def read_more(self) -> None:
        """Put records, and run the query until it has read them all."""
        for _ in range(20):
            self.world.streams.put()
        self.run_until(lambda: self.passed_on_by(self.query) == self.put, "every record")

    def run_until(self, is_there: Callable[[], bool], what: str) -> None:
        deadline_s = self.world.now + WITHIN_S
        while not is_there():
            assert self.world.now < deadline_s, what
            self.world.run_until(self.world.now + STEP_S)

    @property
    def put(self) -> set[int]:
        return {event.number for event in self.events if isinstance(event, RecordPut)}

    def passed_on_by(self, driver: SimProcess) -> set[int]:
        found = (
            event for event in self.events if isinstance(event, RecordsHandled) and event.who == driver.who
        )
        return {number for event in found for number in event.numbers}

    def writes(self, kind: type) -> list[LeaseWritten]:
        return [
            event
            for event in self.events
            if isinstance(event, LeaseWritten) and isinstance(event.write, kind)
        ]

    def failed(self) -> dict[str, str]:
        return {event.who: event.error for event in self.events if isinstance(event, QueryFailed)}


@pytest.fixture
def drivers() -> Iterator[TwoDrivers]:
    both = TwoDrivers()
    with closing(both.world):
        yield both


def test_the_copys_driver_skips_nothing_when_the_paused_one_goes_on(drivers):
    drivers.query.end_pause()
    drivers.run_until(
        lambda: drivers.read_before | drivers.passed_on_by(drivers.copy) == drivers.put,
        "every record in the copy's line of history",
    )


def test_the_paused_driver_ends_if_it_gets_the_lease_before_the_copys_driver(drivers):
    drivers.copy.pause(1000.0)
    takes = len(drivers.writes(Take))
    drivers.query.end_pause()
    drivers.run_until(lambda: len(drivers.writes(Take)) > takes, "the lease")
    drivers.world.run_until(drivers.world.now + 1.0)
    drivers.query.request_stop()
    drivers.world.run_until(drivers.world.now + 1.0)
    drivers.copy.end_pause()
    drivers.run_until(
        lambda: drivers.read_before | drivers.passed_on_by(drivers.copy) == drivers.put,
        "every record in the copy's line of history",
    )
    assert drivers.failed() == {drivers.query.who: "AnotherDriver"}
