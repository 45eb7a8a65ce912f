"""The simulated world: workers that start and end, the actors of its scenario, and faults.

A run has two phases: in the safety phase faults happen as the seed's plan says; then they end, every worker starts
again, and in the liveness phase the fleet must settle, read everything and stay still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.lease_writes import RequestHandover
from penstock_sim.actors import Actors, CannotStart, ProcessEnvironment
from penstock_sim.events import leases, processes
from penstock_sim.events.base import Event, HistoryEntry, name_of
from penstock_sim.plan import FaultPlan, Scenario
from penstock_sim.process import SimProcess
from penstock_sim.stream_set import StreamSet
from penstock_sim.worker import SimWorker

_UNDER_WAY_S: Final = 2.0


class World(ProcessEnvironment):
    """One run of one scenario."""

    def __init__(self, scenario: Scenario, listener: Callable[[HistoryEntry], None]) -> None:
        self.streams: StreamSet = StreamSet(self, scenario)
        self.actors: list[Actors] = [self.streams]
        """The kinds of processes beside plain workers, and the streams, each with its own faults."""
        super().__init__(scenario, listener)
        self.workers = {}
        self._earlier: list[SimProcess] = []  # processes whose name a second process got while they ran
        self._left: set[str] = set()
        self.table.foreign = set(scenario.foreign)
        if scenario.options.policy is not BalancePolicy.KCL2:
            self.table.without_handover = set(scenario.foreign)

    # --- the course of things -------------------------------------------------------------------------

    def begin(self) -> None:
        """Schedule the recurring events and faults."""
        chance = self.chance
        for _ in range(chance.randint(0, 3)):
            self.streams.reshard()
        self.streams.leave_rows()
        for name in self.scenario.workers:
            # After the moment of AT_TIMESTAMP scenarios, which a worker would refuse while it is in the future.
            start_s = 4.0 + chance.uniform(0.0, self.scenario.start_spread_s)
            if self.table.without_handover and name in self.scenario.leavers:
                start_s = self.scenario.safety_s - chance.uniform(1.0, 30.0)
            self.schedule(start_s, self.start_worker, name)
        for rate, action in (
            *self._recurring(),
            *(fault for each in self.actors for fault in each.recurring()),
        ):
            self._recur(rate, action)
        if self.scenario.records_per_s:
            self._recur_puts()
        for actors in self.actors:
            actors.begin()
        self.streams.trim()

    def _recurring(self) -> list[tuple[float, Callable[[], None]]]:
        faults = self.faults
        return [
            (faults.crashes_per_min, self._crash),
            (faults.stops_per_min, self._stop),
            (faults.pauses_per_min, self._pause),
            (faults.throttle_bursts_per_min, self._throttle),
            (faults.reshards_per_min, self.streams.reshard),
            (faults.row_deletions_per_min, self._delete_row),
            (faults.table_drops_per_min, self._drop_table),
            (6.0 if faults.wall_jumps else 0.0, self._jump_wall),
            (faults.quiet_streams_per_min, self.streams.silence),
            (faults.denials_per_min, self._deny),
            (faults.second_processes_per_min, self._start_second_process),
        ]

    def _recur(self, per_min: float, action: Callable[[], None]) -> None:
        if per_min <= 0:
            return

        def again() -> None:
            if not self.is_healed:
                action()
                self.schedule(self.now + self.chance.expovariate(per_min / 60), again)

        self.schedule(self.chance.expovariate(per_min / 60), again)

    def _recur_puts(self) -> None:
        if not self.streams.is_quiet:
            for _ in range(self.chance.randint(1, 5)):
                self.streams.put()
        if not self.is_healed:
            self.schedule(
                self.now + self.chance.expovariate(self.scenario.records_per_s / 3), self._recur_puts
            )

    def record(self, event: Event) -> None:
        """Write an event to the history. A leaver leaves soon after it requests a lease from a worker that ignores requests."""
        super().record(event)
        for actors in self.actors:
            actors.handle(event)
        if not isinstance(event, leases.LeaseWritten) or not isinstance(event.write, RequestHandover):
            return
        name = name_of(event.who)
        if event.write.owner in self.table.without_handover and name in self.scenario.leavers:
            self.schedule(self.now + self.chance.uniform(0.1, 2.0), self._leave, name)

    def _leave(self, name: str) -> None:
        self._left.add(name)
        worker = self.workers.get(name)
        if worker is not None:
            self.on_worker_gone(worker, "crashed")

    def _deny(self) -> None:
        self.denial = self.chance.choice(("AccessDeniedException", "ExpiredTokenException"))
        for service in self.chance.choice((("table",), ("stream",), ("table", "stream"))):
            self.denied_until[service] = self.now + self.chance.uniform(1.0, 25.0)

    def heal(self) -> None:
        """End all faults, bring every worker back, and write a last few records."""
        for actors in self.actors:
            actors.heal()
        self.faults = FaultPlan(latency_max_s=0.05)
        self.throttled_until = 0.0
        self.denied_until = dict.fromkeys(self.denied_until, 0.0)
        for earlier in self._earlier:  # a user who started two processes with one name corrects that, too
            if earlier.is_alive:
                self.on_worker_gone(earlier, "crashed")
        for worker in self.workers.values():
            worker.end_pause()
        for name in sorted(self.scenario.leavers):
            self._leave(name)
        for name in self.scenario.workers:
            if name not in self.workers:
                self.start_worker(name)
        if self.scenario.records_per_s:
            self._recur_puts()
        self.is_healed = True
        self.record(processes.FaultsEnded())
        self._restart(worker for worker in self.workers.values() if self._wants_restart(worker))
        # A call that was under way may still bring a fault's answer.
        self.schedule(self.now + _UNDER_WAY_S, self._restart_stopped)

    def _wants_restart(self, worker: SimProcess) -> bool:
        is_stopped = worker.has_stopped_shard or self.scenario.on_data_loss == "fail"
        return is_stopped or any(actors.wants_restart(worker) for actors in self.actors)

    def _restart_stopped(self) -> None:
        self._restart(worker for worker in self.workers.values() if worker.has_stopped_shard)

    def _restart(self, workers: Iterable[SimProcess]) -> None:
        """Restart workers: a stopped shard waits for people, who mend the handler and restart."""
        for worker in list(workers):
            self.record(processes.ProcessStopping(worker.who))
            worker.request_stop()

    def start_worker(self, name: str) -> None:
        if name in self.workers or name in self._left:
            return
        try:  # the streams, which are the first, make the workers of all other names
            worker = next(filter(None, (actors.make(name) for actors in reversed(self.actors))))
        except CannotStart:
            return
        self.workers[name] = worker
        self.record(processes.ProcessStarted(worker.who))
        worker.start()

    def is_done(self) -> bool:
        return all(actors.is_done() for actors in self.actors)

    def close(self) -> None:
        self.fibers.close()

    def on_worker_gone(self, worker: SimProcess, how: str) -> None:
        """Record that a process has ended; another of the same name may start."""
        worker.end()
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
        if self.is_healed:
            self.schedule(self.now + 0.1, self.start_worker, worker.name)
        elif self.chance.random() < 0.85:
            self.schedule(
                self.now + self.chance.choice((0.05, 1.0, 5.0, 30.0)), self.start_worker, worker.name
            )
        self.record(processes.ProcessExited(worker.who, how))

    def _some_worker(self) -> SimProcess | None:
        return self.chance.choice(list(self.workers.values())) if self.workers else None

    def _crash(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.on_worker_gone(worker, "crashed")

    def _start_second_process(self) -> None:
        """Start a second process under the name of a running one, which goes on."""
        worker = self._some_worker()
        if isinstance(worker, SimWorker) and worker.writes_its_run:
            self.met["fault: second_processes_per_min"] += 1
            self.record(processes.SecondProcessStarted(worker.name))
            self._earlier.append(self.workers.pop(worker.name))
            self.start_worker(worker.name)

    def _stop(self) -> None:
        worker = self._some_worker()
        if worker is not None and self.now >= worker.paused_until:
            self.record(processes.ProcessStopping(worker.who))
            worker.request_stop()

    def _pause(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.pause(self.chance.uniform(0.5, self.faults.pause_max_s))

    def _throttle(self) -> None:
        self.throttled_until = self.now + self.chance.uniform(1.0, 12.0)

    def _jump_wall(self) -> None:
        self.wall_offset_ms = self.chance.randint(-3_600_000, 3_600_000)
        self.record(processes.WallClockJumped(self.wall_offset_ms))

    def _delete_row(self) -> None:
        # An application that started at LATEST and loses its last row is a new one to later workers.
        # Finished rows are kept: without the rows of both parents, a merged shard looks like one that the application
        # began with.
        unfinished = [
            key for key, row in self.table.rows.items() if not row.is_ended and self.streams.may_delete(key)
        ]
        if unfinished:
            key = self.chance.choice(unfinished)
            row = self.table.rows.pop(key)
            self.record(leases.LeaseDeleted(key, row.reader))

    def _drop_table(self) -> None:
        if self.table.exists:
            self.table.drop()
            self.record(leases.TableDropped())
