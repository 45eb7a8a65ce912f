"""A world with Spark queries: their drivers and executors, and their faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from penstock.core.leases.lease_writes import Applied, Release, Take
from penstock.core.stream_identity import StreamIdentity
from penstock_sim.events.base import HistoryEntry
from penstock_sim.events.processes import ProcessExited, ProcessPaused, ProcessStarted
from penstock_sim.events.queries import (
    ApplicationRenamed,
    ExecutorKilled,
    LocationCopied,
    LocationRestored,
    SecondDriverStarted,
)
from penstock_sim.executor import SimExecutor
from penstock_sim.faults import EPOCH_MS, Scenario
from penstock_sim.journal import Journal
from penstock_sim.process import SimProcess
from penstock_sim.query import QueryLog, SimQuery
from penstock_sim.query_checkers import NAMESAKE, STRANGER, TWINS
from penstock_sim.stream import SimStream
from penstock_sim.worker import SimWorker
from penstock_sim.world import World

ROBBER: Final = "z/robber"
"""A worker that takes leases and ends before it reads."""
_OTHER_STREAM: Final = StreamIdentity("other", 2)


class QueryWorld(World):
    """One run of one scenario that has queries."""

    def __init__(self, scenario: Scenario, listener: Callable[[HistoryEntry], None]) -> None:
        super().__init__(scenario, listener)
        self._logs: dict[str, QueryLog] = {}
        self._extra: list[SimQuery] = []
        self._executors: dict[str, SimExecutor] = {}
        self._journal = Journal(self)
        self._other = SimStream(random.Random(scenario.seed), 2, EPOCH_MS)

    def begin(self) -> None:
        """Schedule the recurring events and faults."""
        self._journal.open()
        for place in range(self.scenario.query_plan.executor_count):
            self._start_executor(f"executor{place}")
        super().begin()

    def close(self) -> None:
        """Leave nothing behind."""
        super().close()
        self._journal.shut()

    def make_worker(self, name: str) -> SimProcess:
        """Return a new process of this name: a query's driver, or a plain worker."""
        if name not in self.scenario.queries:
            return super().make_worker(name)
        return self._driver(name, self._log_of(name), self.on_worker_gone)

    def _log_of(self, name: str) -> QueryLog:
        return self._logs.setdefault(name, QueryLog())

    def _driver(self, name: str, log: QueryLog, on_gone: Any, **more: Any) -> SimQuery:
        return SimQuery(
            self,
            name,
            self.next_incarnation(name),
            on_gone=on_gone,
            log=log,
            executors=lambda: list(self._executors.values()),
            on_batch=self._rob_briefly,
            **more,
        )

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the repeated events, and how often a minute each happens."""
        plan = self.scenario.query_plan
        return [
            *super().recurring(),
            (plan.executor_kills_per_min, self._kill_executor),
            (plan.executor_pauses_per_min, self._pause_executor),
            (plan.second_drivers_per_min, self._start_second_driver),
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
        queries = [worker for worker in self.workers.values() if isinstance(worker, SimQuery)]
        return super().is_done() and all(query.has_begun for query in queries)

    def heal(self) -> None:
        """End all faults, and every driver but one of each query."""
        for extra in list(self._extra):
            self._on_extra_gone(extra, "ended")
        for executor in self._executors.values():
            executor.paused_until = min(executor.paused_until, self.now)
            executor.resume()
        super().heal()

    # --- executors ----------------------------------------------------------------------------------------

    def _start_executor(self, name: str) -> None:
        self._executors[name] = SimExecutor(self, name, self.next_incarnation(name))

    def _some_executor(self) -> SimExecutor:
        return self.chance.choice(list(self._executors.values()))

    def _kill_executor(self) -> None:
        self._end_executor(self._some_executor())

    def _end_executor(self, executor: SimExecutor) -> None:
        self.record(ExecutorKilled(executor.who))
        for attempt in executor.fail():
            attempt.driver.later(self.chance.uniform(0.5, 10.0), attempt.lose)
        self._start_executor(executor.name)

    def _pause_executor(self) -> None:
        executor = self._some_executor()
        executor.paused_until = self.now + self.chance.uniform(
            0.5, self.scenario.query_plan.executor_pause_max_s
        )
        self.schedule(executor.paused_until, executor.resume)
        self.record(ProcessPaused(executor.who, round(executor.paused_until, 3)))

    # --- drivers ------------------------------------------------------------------------------------------

    def _some_query(self) -> SimQuery | None:
        found = [worker for worker in self.workers.values() if isinstance(worker, SimQuery)]
        return self.chance.choice(found) if found else None

    def _start_extra(self, query: SimQuery) -> None:
        self._extra.append(query)
        self.record(ProcessStarted(query.who))
        query.start()

    def _on_extra_gone(self, query: SimProcess, how: str) -> None:
        query.end()
        self._extra = [each for each in self._extra if each is not query]
        self.record(ProcessExited(query.who, how))

    def _start_second_driver(self) -> None:
        query = self._some_query()
        if query is not None:
            self.met["fault: second_drivers_per_min"] += 1
            self.record(SecondDriverStarted(query.name))
            self._start_extra(self._driver(query.name, query.log, self._on_extra_gone))

    def _lose_driver(self) -> None:
        """Pause a driver, and start another in its place; the paused one resumes later."""
        query = self._some_query()
        if query is None:
            return
        self.met["fault: lost_drivers_per_min"] += 1
        self.record(SecondDriverStarted(query.name))
        query.paused_until = self.now + self.chance.uniform(5.0, 60.0)
        self.schedule(query.paused_until, query.resume)
        self.record(ProcessPaused(query.who, round(query.paused_until, 3)))
        del self.workers[query.name]
        query.on_gone = self._on_extra_gone
        self._extra.append(query)
        self.schedule(self.now + self.chance.uniform(0.0, 10.0), self.start_worker, query.name)

    def _rob(self) -> None:
        """Make a plain worker take a lease from a query whose batch is under way; it finds itself the owner and reads."""
        robbers = [worker for worker in self.workers.values() if isinstance(worker, SimWorker)]
        drivers = [worker for worker in self.workers.values() if isinstance(worker, SimQuery)]
        read = {(driver.name, key) for driver in drivers for key in driver.read_now}
        rows = [row for key, row in self.table.rows.items() if (row.reader, key) in read and not row.is_ended]
        if not robbers or not rows:
            return
        robber, row = self.chance.choice(robbers), self.chance.choice(rows)
        if row.key not in robber.read_keys() | robber.coordinator.held().keys():
            if self.chance.random() < 0.5:  # it releases the lease while the batch still runs
                robber.later(self.chance.uniform(1.0, 6.0), self._stop_robber, robber)
            self.met["fault: robberies_per_min"] += 1
            self.table.write(robber.who, Take(row.key, row.counter, robber.name))

    def _stop_robber(self, robber: SimProcess) -> None:
        if not self.is_healed:
            robber.request_stop()

    def _rob_briefly(self, driver: SimQuery) -> None:
        """Make a worker that is about to end take a lease of a batch that begins, and release it unread."""
        if not self.scenario.query_plan.brief_robbery or not self.has_fault("brief_robbery"):
            return
        rows = [self.table.rows[key] for key in driver.read_now if key in self.table.rows]
        own = [row for row in rows if row.reader == driver.name and row.checkpoint_owner is None]
        if not own:
            return
        row = self.chance.choice(own)
        outcome = self.table.write(f"{ROBBER}#1", Take(row.key, row.counter, ROBBER))
        if isinstance(outcome, Applied) and outcome.lease is not None:
            back = Release(row.key, outcome.lease.counter, ROBBER)
            self.schedule(self.now + self.chance.uniform(0.2, 2.0), self._give_back, back)

    def _give_back(self, write: Release) -> None:
        self.table.write(f"{ROBBER}#1", write)

    def _restore(self) -> None:
        query = self._some_query()
        if query is None:
            return
        for extra in [each for each in self._extra if each.log is query.log]:
            self._on_extra_gone(extra, "ended before a restore")
        self.on_worker_gone(query, "ended before a restore")
        if query.log.restore(self.chance.random()):
            self.record(LocationRestored(query.name))

    def _move(self) -> None:
        """End all executors and drivers, and go on under another application name, with an empty lease table."""
        logs = [self._log_of(name) for name in self.scenario.queries]
        if any(log.offset(len(log.offsets) - 1).lease_table != self.application for log in logs):
            return  # a query has logged no batch under this name: its offsets have an earlier name, or none
        for executor in list(self._executors.values()):
            self._end_executor(executor)
        for extra in list(self._extra):
            self._on_extra_gone(extra, "ended before a move")
        for query in list(self.workers.values()):
            self.on_worker_gone(query, "ended before a move")
        self.rename_application()
        self.record(ApplicationRenamed(self.application))

    def _start_copy(self) -> None:
        query = self._some_query()
        if query is not None and query.log.offsets:
            copy = self._driver(query.name, query.log.copy(), self._on_extra_gone)
            self.record(LocationCopied(query.name, copy.who))
            self._start_extra(copy)

    def _start_twins(self) -> None:
        """Start a query with two loads under one application's name; one of the two must refuse to go on."""
        if self.met[
            "fault: twins_per_min"
        ]:  # another one of these names would go on from the claims of the first
            return
        self.met["fault: twins_per_min"] += 1
        for name in TWINS:
            self._start_extra(self._driver(name, QueryLog(), self._on_twin_gone, query=TWINS[0]))

    def _on_twin_gone(self, query: SimProcess, how: str) -> None:
        self._on_extra_gone(query, how)
        for other in [extra for extra in self._extra if extra.name in TWINS]:
            self._on_extra_gone(other, "ended with its query")

    def _start_namesake(self) -> None:
        """Start a query whose user has chosen no name; if others live, it must be refused and change nothing."""
        if not self.met["fault: namesakes_per_min"]:
            self.met["fault: namesakes_per_min"] += 1
            self._start_extra(
                self._driver(NAMESAKE, QueryLog(), self._on_extra_gone, names_application=False)
            )

    def _start_stranger(self) -> None:
        """Start a query of another stream under the same name; it must be refused and change nothing."""
        is_marked = any(row.stream is not None for row in self.table.rows.values())
        if is_marked and not self.faults.table_drops_per_min:
            self.met["fault: strangers_per_min"] += 1
            other = (self._other, _OTHER_STREAM)
            self._start_extra(self._driver(STRANGER, QueryLog(), self._on_extra_gone, stream=other))
