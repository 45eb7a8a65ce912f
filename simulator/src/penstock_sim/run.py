"""Running seeds: the safety phase, the liveness phase, the verdict."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.lease_writes import Renew
from penstock_sim.checker import Checker, Violation
from penstock_sim.checkers import NothingLost, Suite
from penstock_sim.events import leases, processes
from penstock_sim.events.base import HistoryEntry, shards_in
from penstock_sim.fibers import ProcessEnded
from penstock_sim.kcl3_checkers import LeftToTheLeader
from penstock_sim.kcl3_worker import Kcl3Fleet
from penstock_sim.kinds import SeedKind
from penstock_sim.loss_checkers import LossesReported, OnlyFailuresAreGivenUp
from penstock_sim.plan import Scenario
from penstock_sim.producer import ProducerActors
from penstock_sim.producer_checkers import PRODUCERS, AcknowledgedIsThere, ArrivesInOrder, RarelyTwice
from penstock_sim.query_checkers import QUERIES, OnceEach
from penstock_sim.query_loss_checkers import QueryLossesReported
from penstock_sim.queue_checkers import QUEUES, DeliveredOnce
from penstock_sim.queue_worker import QueueActors
from penstock_sim.seed_kinds import DRAW
from penstock_sim.situations import finders_of
from penstock_sim.streams_checkers import STREAMS, OthersGoOn, OwnStreamOnly
from penstock_sim.table import TableCall
from penstock_sim.world import World

_READ_WITHIN_S: Final = 25.0
"""So long after a record was put on a fleet at rest it must be handled."""
_STEP_S: Final = 5.0


class SeedResult(Struct, frozen=True):
    """The outcome of one seed."""

    seed: int
    violation: Violation | None
    digest: str  # hash of the whole history; the same for the same seed
    settled_s: float  # seconds from the end of the faults until everything was read and balanced
    virtual_s: float  # seconds that passed in the simulated world
    history: tuple[HistoryEntry, ...]  # all events, line by line
    met: Counter[str]  # how often each fault, decision and situation happened
    # The writes at the lease table; `model_trace` compares them with the model of the protocol.
    calls: tuple[TableCall, ...] = ()

    def story(self, line_count: int) -> list[str]:
        """Return the last events before the violation, without calls and renewals.

        If the violation names shards, the events that name only others are left out.
        """
        assert self.violation is not None
        wanted, lines = shards_in(self.violation.what), list[str]()
        for entry in self.history:
            line, event = str(entry), entry.event
            named = shards_in(line)
            is_detail = isinstance(event, processes.CallMade | processes.CallRetried)
            is_detail |= isinstance(event, leases.LeaseWritten) and isinstance(event.write, Renew)
            if not is_detail and (not wanted or not named or wanted & named):
                lines.append(line)
        return lines[max(0, len(lines) - line_count) :]


def run_scenario(scenario: Scenario) -> SeedResult:
    """Run one scenario to its verdict; stops at the first violation."""
    writers = scenario.producers or scenario.sinks or scenario.queues
    suite = Suite(
        scenario.options,
        _checkers_of(scenario),
        () if scenario.streams is None else (OwnStreamOnly,),
        retention_ms=None if scenario.retention_s is None else int(scenario.retention_s * 1000),
        limits=dict(scenario.limits),
        foreign=scenario.foreign,
        kcl_workers=scenario.foreign if scenario.kcl3 is None else scenario.foreign | scenario.kcl3.workers,
        producers=frozenset() if writers is None else writers.workers,
        queues=scenario.queues,
    )
    world = open_world(scenario, suite.see)
    suite.finders += finders_of(scenario, suite.history, world.met)
    with _journal(world), closing(world):
        return _judge(world, suite, reads=writers is None or scenario.with_readers)


def _checkers_of(scenario: Scenario) -> tuple[type[Checker], ...]:
    """Return the checkers beside those of every fleet."""
    found: list[type[Checker]] = []
    if scenario.producers is not None:
        keeps_order = scenario.producers.settings.keeps_key_order
        found += PRODUCERS if keeps_order else (AcknowledgedIsThere, RarelyTwice)
    if scenario.sinks is not None:
        from penstock_sim.sink_checkers import IN_ORDER, SINKS  # needs pyarrow, as only queries do

        found += SINKS if scenario.sinks.options["ordering"] == "none" else (*SINKS, *IN_ORDER)
    if scenario.queues is not None:
        found += (*QUEUES, DeliveredOnce) if scenario.queues.is_calm else QUEUES
    if found and scenario.with_readers:
        found.append(ArrivesInOrder)
    if scenario.queries:
        found += (*QUERIES, QueryLossesReported)
    elif scenario.with_readers:
        found += (LossesReported, OnlyFailuresAreGivenUp, OnceEach)
    if scenario.streams is not None:
        found += (*STREAMS, OthersGoOn) if scenario.streams.is_calm else STREAMS
    if scenario.kcl3 is not None:
        found.append(LeftToTheLeader)
    return tuple(found)


def open_world(scenario: Scenario, listener: Callable[[HistoryEntry], None]) -> World:
    """Return the world of a scenario with its actors."""
    world = World(scenario, listener)
    if scenario.kcl3 is not None:
        world.actors.append(Kcl3Fleet(world, scenario.kcl3))
    if scenario.producers is not None:
        world.actors.append(ProducerActors(world, scenario.producers))
    if scenario.sinks is not None:
        from penstock_sim.sink_query import SinkActors

        world.actors.append(SinkActors(world, scenario.sinks))
    if scenario.queues is not None:
        world.actors.append(QueueActors(world, scenario.queues))
    if scenario.queries:
        from penstock_sim.query_actors import QueryActors  # needs pyarrow, too

        world.actors.append(QueryActors(world))
    return world


class _Journal(logging.Handler):
    """Writes warnings and errors of the production code to the history, except for those of consumers: they are planned faults."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; lines of an ended process are dropped."""
        error = None if not record.exc_info else record.exc_info[1]
        fiber = self._world.fibers.current
        is_planned = record.name.startswith(("penstock.consumer", "penstock.queues"))
        if fiber is None or not fiber.process.is_alive or is_planned or isinstance(error, ProcessEnded):
            return
        name = "" if error is None else repr(error)
        self._world.record(
            processes.MessageLogged(fiber.process.who, record.levelname, record.getMessage(), name)
        )


@contextmanager
def _journal(world: World) -> Iterator[None]:
    """Keep the production code's log from being shown; the history has it."""
    log, journal = logging.getLogger("penstock"), _Journal(world)
    before = log.level, log.propagate
    log.addHandler(journal)
    log.setLevel(logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(journal)
        log.setLevel(before[0])
        log.propagate = before[1]


def _judge(world: World, suite: Suite, *, reads: bool) -> SeedResult:
    """Run both phases of a world, and judge it.

    Args:
        reads: Whether workers read a stream. Otherwise the run ends when all is written or handled.
    """
    scenario = world.scenario
    world.begin()
    _run_until(world, suite, scenario.safety_s)
    healed_s = world.now
    if suite.violation is None:
        world.heal()
        is_done = not reads and world.is_done()
        while suite.violation is None and not is_done and _may_go_on(world, suite, healed_s):
            _run_until(world, suite, world.now + _STEP_S)
            is_done = world.is_done() and (not reads or suite.is_settled())
    settled_s = world.now - healed_s
    if reads:
        suite.finish()
        suite.history.is_quiet = True
        _run_until(world, suite, world.now + scenario.quiet_rounds * scenario.options.interval_s)
        suite.finish()
    suite.finish(suite.more)
    if suite.violation is None and scenario.with_readers and scenario.records_per_s:
        world.streams.put_everywhere()
        _run_until(world, suite, world.now + _READ_WITHIN_S)
        while suite.violation is None and _is_catching_up(world, suite):
            _run_until(world, suite, world.now + _STEP_S)
        suite.finish((NothingLost,))
    return SeedResult(
        scenario.seed,
        suite.violation,
        world.digest(),
        settled_s,
        world.now,
        tuple(world.history),
        world.met,
        tuple(world.calls),
    )


def _may_go_on(world: World, suite: Suite, healed_s: float) -> bool:
    """Whether a fleet has time left to settle: no records are put any more, and a worker with a backlog gets as long again."""
    settle_max_s = world.scenario.settle_max_s
    is_busy = world.now < suite.history.handled_s + _READ_WITHIN_S
    return world.now < healed_s + (2 * settle_max_s if is_busy else settle_max_s)


def _is_catching_up(world: World, suite: Suite) -> bool:
    """Whether readers go on with the rest: a handler that gets one record at a time works on a backlog for minutes."""
    return not suite.is_settled((NothingLost,)) and world.now < suite.history.handled_s + _READ_WITHIN_S


def _run_until(world: World, suite: Suite, until_s: float) -> None:
    while world.now < until_s and suite.violation is None:
        # A broken invariant may make later steps fail: the run ends at the event that breaks it.
        world.run_until(min(until_s, world.now + _STEP_S), lambda: suite.violation is not None)


def run_seed(
    seed: int, kind: SeedKind = SeedKind.CONSUMERS, options: Mapping[str, str] | None = None
) -> SeedResult:
    """Run the scenario that a seed draws.

    Args:
        options: Further options of the sources of Spark queries.
    """
    scenario = DRAW[kind](seed)
    plan = replace(scenario.query_plan, options={**scenario.query_plan.options, **(options or {})})
    return run_scenario(replace(scenario, query_plan=plan))
