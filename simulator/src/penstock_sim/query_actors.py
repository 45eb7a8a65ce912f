"""The Spark queries of a world that read: lost and second drivers, robbers, copies, and queries that must be refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from penstock.core.leases.lease_writes import Applied, Release, Take
from penstock.core.stream_identity import StreamIdentity
from penstock_sim.events import queries
from penstock_sim.executor import SimExecutor
from penstock_sim.plan import EPOCH_MS
from penstock_sim.process import SimProcess
from penstock_sim.query import QueryLog, SimQuery
from penstock_sim.query_checkers import NAMESAKE, STRANGER, TWINS
from penstock_sim.spark_processes import SparkActors
from penstock_sim.stream import SimStream
from penstock_sim.worker import SimWorker
from penstock_sim.world import World

ROBBER: Final = "z/robber"
"""A worker that takes leases and ends before it reads."""


class QueryActors(SparkActors[SimQuery, SimExecutor]):
    """The queries of a world that read, and the extra drivers and workers that disturb them."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        super().__init__(world, scenario.queries, scenario.query_plan.executor_count, SimQuery)
        self._logs: dict[str, QueryLog] = {}
        self._other = SimStream(
            random.Random(world.scenario.seed),
            2,
            EPOCH_MS,
            identity=StreamIdentity("other", 2),
            retention_s=scenario.retention_s,
        )

    def make_driver(self, name: str) -> SimQuery:
        return self._driver(name, self._log_of(name))

    def make_executor(self, name: str) -> SimExecutor:
        return SimExecutor(self.world, name)

    def _log_of(self, name: str) -> QueryLog:
        return self._logs.setdefault(name, QueryLog())

    def _driver(self, name: str, log: QueryLog, **more: Any) -> SimQuery:
        executors, on_batch = self.executors_now, self._rob_briefly
        return SimQuery(self.world, name, log=log, executors=executors, on_batch=on_batch, **more)

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        plan = self.world.faults
        return [
            *super().recurring(),
            (plan.lost_drivers_per_min, self._lose_driver),
            (plan.robberies_per_min, self._rob),
            (plan.restores_per_min, self._restore),
            (plan.copies_per_min, self._start_copy),
            (plan.strangers_per_min, self._start_stranger),
            (plan.twins_per_min, self._start_twins),
            (plan.namesakes_per_min, self._start_namesake),
            (plan.moves_per_min, self._move),
        ]

    def is_done(self) -> bool:
        """Whether each query has begun: it may set leases back before, or end soon and be started again."""
        return all(query.has_begun for query in self.drivers())

    def _lose_driver(self) -> None:
        """Pause a driver, and start another in its place; the paused one resumes later."""
        query = self.some_driver()
        if query is None:
            return
        self.world.met["fault: lost_drivers_per_min"] += 1
        self.world.record(queries.SecondDriverStarted(query.name))
        query.pause(self.world.chance.uniform(5.0, 60.0))
        del self.world.workers[query.name]
        query.on_gone = self.on_extra_gone
        self.extra.append(query)
        self.world.schedule(
            self.world.now + self.world.chance.uniform(0.0, 10.0), self.world.start_worker, query.name
        )

    def _rob(self) -> None:
        """Make a plain worker take a lease from a query whose batch is under way; it finds itself the owner and reads."""
        robbers = [worker for worker in self.world.workers.values() if isinstance(worker, SimWorker)]
        drivers = self.drivers()
        read = {(driver.name, key) for driver in drivers for key in driver.read_now}
        rows = [
            row
            for key, row in self.world.table.rows.items()
            if (row.reader, key) in read and not row.is_ended
        ]
        if not robbers or not rows:
            return
        robber, row = self.world.chance.choice(robbers), self.world.chance.choice(rows)
        if row.key not in robber.read_keys() | robber.coordinator.lease_phases().keys():
            if self.world.chance.random() < 0.5:  # it releases the lease while the batch still runs
                robber.later(self.world.chance.uniform(1.0, 6.0), self._stop_robber, robber)
            self.world.met["fault: robberies_per_min"] += 1
            self.world.table.write(robber.who, Take(row.key, row.counter, robber.name))

    def _stop_robber(self, robber: SimProcess) -> None:
        if not self.world.is_healed:
            robber.request_stop()

    def _rob_briefly(self, driver: SimQuery) -> None:
        """Make a worker that is about to end take a lease of a batch that begins, and release it unread."""
        if not self.world.luck("brief_robbery"):
            return
        rows = [self.world.table.rows[key] for key in driver.read_now if key in self.world.table.rows]
        own = [row for row in rows if row.reader == driver.name and row.checkpoint_owner is None]
        if not own:
            return
        row = self.world.chance.choice(own)
        outcome = self.world.table.write(f"{ROBBER}#1", Take(row.key, row.counter, ROBBER))
        if isinstance(outcome, Applied) and outcome.lease is not None:
            back = Release(row.key, outcome.lease.counter, ROBBER)
            back_s = self.world.now + self.world.chance.uniform(0.2, 2.0)
            self.world.schedule(back_s, self.world.table.write, f"{ROBBER}#1", back)

    def _restore(self) -> None:
        query = self.some_driver()
        if query is None:
            return
        for extra in [each for each in self.extra if each.log is query.log]:
            self.on_extra_gone(extra, "ended before a restore")
        self.world.on_worker_gone(query, "ended before a restore")
        if query.log.restore(self.world.chance.random()):
            count = len(query.log.offsets)
            batch, is_committed = query.log.offset(count - 1).batch, query.log.committed_count == count
            self.world.record(queries.LocationRestored(query.name, batch, is_committed))

    def _move(self) -> None:
        """End all executors and drivers, and go on under another application name, with an empty lease table."""
        logs = [self._log_of(name) for name in sorted(self.world.scenario.queries)]
        if any(log.offset(len(log.offsets) - 1).lease_table != self.world.application for log in logs):
            return  # a query has logged no batch under this name: its offsets have an earlier name, or none
        for executor in self.executors_now():
            self.end_executor(executor)
        for extra in list(self.extra):
            self.on_extra_gone(extra, "ended before a move")
        for query in list(self.world.workers.values()):
            self.world.on_worker_gone(query, "ended before a move")
        self.world.rename_application()
        self.world.record(queries.ApplicationRenamed(self.world.application))

    def _start_copy(self) -> None:
        query = self.some_driver()
        if query is not None and query.log.offsets:
            copy = self._driver(query.name, query.log.copy())
            self.world.record(queries.LocationCopied(query.name, copy.who))
            self.start_extra(copy)

    def _start_twins(self) -> None:
        """Start a query with two loads under one application's name; one of the two must refuse to go on."""
        if self.world.met["fault: twins_per_min"]:  # a second one would go on from the claims of the first
            return
        self.world.met["fault: twins_per_min"] += 1
        for name in TWINS:
            self.start_extra(self._driver(name, QueryLog(), query=TWINS[0]), self._on_twin_gone)

    def _on_twin_gone(self, query: SimProcess, how: str) -> None:
        self.on_extra_gone(query, how)
        for other in [extra for extra in self.extra if extra.name in TWINS]:
            self.on_extra_gone(other, "ended with its query")

    def _start_namesake(self) -> None:
        """Start a query whose user has chosen no name; if others live, it must be refused and change nothing."""
        if not self.world.met["fault: namesakes_per_min"]:
            self.world.met["fault: namesakes_per_min"] += 1
            self.start_extra(self._driver(NAMESAKE, QueryLog(), names_application=False))

    def _start_stranger(self) -> None:
        """Start a query of another stream under the same name; it must be refused and change nothing."""
        is_marked = any(row.stream is not None for row in self.world.table.rows.values())
        if is_marked and not self.world.faults.table_drops_per_min:
            self.world.met["fault: strangers_per_min"] += 1
            self.start_extra(self._driver(STRANGER, QueryLog(), stream=self._other))
