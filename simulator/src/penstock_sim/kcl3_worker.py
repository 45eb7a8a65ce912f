"""A simulated KCL 3 worker: in a native fleet it follows the leader as Penstock's own members do, and may be the leader.

Reading, renewing and handing over are the production's coordinator, whose input says that there always is a leader: so it takes
nothing by itself. The parts that only KCL 3 has are here: the report, the leader's lock, and the leader's rounds. While the fleet
is not native, its coordinator's input says so, and it takes its share by the rule of KCL 2.x. Their fleet may migrate from
KCL 2.x, and its leader may crash or resign.

Source:
    KCL 3.5.1: DynamoDBLockBasedLeaderDecider, LeaseAssignmentManager with LeaseCountBasedLeaseAssignmentDecider, and
    WorkerMetricStatsReporter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_effects import FetchFleet, LeaveFleet, ReportWorker
from penstock.core.leases.coordinator_events import (
    CallFailed,
    FleetFetched,
    FleetLeft,
    LeaseCall,
    Problem,
    WorkerReported,
    WriteOutcome,
)
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_view import tie_break
from penstock.core.leases.kcl3_fleet import (
    CPU,
    FAILED_SAMPLE,
    REPORT_INTERVAL_S,
    Kcl3Rows,
    LeaderLock,
    WorkerStats,
)
from penstock.core.leases.lease import Lease, StopNote
from penstock.core.leases.lease_writes import Applied
from penstock_sim.actors import Actors
from penstock_sim.environment import Environment
from penstock_sim.events import kcl3
from penstock_sim.plan import UPGRADING, WITH_LEADER, WITH_REPORTS, Kcl3Plan
from penstock_sim.worker import UTILISATION, SimWorker
from penstock_sim.world import World

_BALANCED_EVERY: Final = 3
"""`varianceBalancingFrequency`: so many rounds of the leader from one balancing to the next."""
_HANDOVER_S: Final = 30.0
"""`gracefulLeaseHandoffTimeoutMillis`."""
_LOCK_RENEWALS: Final = 4.0
"""Renewals of the lock in the time of its lease."""
_CHECK_S: Final = 5.0
"""The KCL checks every minute whether its fleet is ready, and waits until it has been so for ten."""


class Kcl3Worker(SimWorker):
    """One process of the Java KCL, version 3, native."""

    def __init__(self, world: Environment, name: str, plan: Kcl3Plan) -> None:
        self._plan = plan
        super().__init__(world, name)
        self.leadership = Leadership(self, plan.lock_s, is_native=not plan.migrates)
        self.version: str | None = None if plan.migrates else plan.begins
        """The state in the row `Migration3.0` when this worker read it."""
        self._fetch_count = 0

    def coordinator_options(self) -> CoordinatorOptions:
        """Return the coordinator's options: without a check of the stream that rows name, and perhaps with KCL 2.x balancing."""
        options = replace(super().coordinator_options(), stream=None)
        return replace(options, policy=BalancePolicy.KCL2) if self._plan.migrates else options

    def start(self) -> None:
        super().start()
        self.later(2.0, self._report_itself)
        self.leadership.begin()

    def request_stop(self) -> None:
        """Begin a graceful stop: the lock is released at once, and the worker's report stays in its table."""
        self.leadership.resign()
        super().request_stop()

    def _report_itself(self) -> None:
        wall_s = int(self.world.wall_ms() / 1000)
        stats = WorkerStats(self.name, wall_s, {CPU: (UTILISATION,)}, {CPU: 100.0})
        if self.version in WITH_REPORTS:
            self.call("report", lambda: self.world.kcl3.serve_report(stats), lambda _answer: None)
        self.later(REPORT_INTERVAL_S / self.clock_rate, self._report_itself)

    # --- the input of its coordinator ---------------------------------------------------------------------

    def fetch_fleet(self, effect: FetchFleet) -> None:
        """Answer with the fleet's state, and with a leader if the fleet is native."""
        if self._plan.migrates:
            self.call("fetch fleet", lambda: self.world.kcl3.serve_fetch(()), self._on_version)
        else:
            self.later(0.01, self._report_fleet)

    def _on_version(self, seen: Kcl3Rows | Problem) -> None:
        if isinstance(seen, Problem):
            self.feed(
                CallFailed(LeaseCall.FETCH_FLEET, Problem.UNAVAILABLE)
            )  # after any error the KCL fetches again
            return
        self.version = seen.version
        self.leadership.follow(is_native=self.version in WITH_LEADER)
        self._report_fleet()

    def _report_fleet(self) -> None:
        self._fetch_count += 1
        wall_s = self.world.wall_ms() / 1000
        rows = Kcl3Rows(self.version)
        if self.version in WITH_LEADER:
            stats = WorkerStats(self.name, int(wall_s))
            rows = Kcl3Rows(
                self.version, LeaderLock(self.name, str(self._fetch_count), 1e9), (stats,), has_index=True
            )
        self.feed(FleetFetched(rows, wall_s))

    def report_worker(self, effect: ReportWorker) -> None:
        """Answer at once: this worker reports by itself."""
        self.later(0.01, self.feed, WorkerReported())

    def leave_fleet(self, effect: LeaveFleet) -> None:
        """Answer at once: the report of a KCL worker stays until it is old."""
        self.later(0.01, self.feed, FleetLeft())

    def as_seen(self, outcome: WriteOutcome) -> WriteOutcome:
        """Return the answer to a write with the worker's own stop note, which a KCL worker does not write to the row."""
        if not isinstance(outcome, Applied) or outcome.lease is None:
            return outcome
        lease = outcome.lease
        reasons = (held.stopped_reason for held in self.coordinator.held_leases if held.key == lease.key)
        reason = next(reasons, None)
        note = None if reason is None else StopNote(self.name, reason)
        return Applied(replace(lease, stop_note=note))


class _Sighting(Struct):
    """The moments at which a lease's counter and its owners were first seen with their current values."""

    counter: int
    changed_s: float  # when it was first seen
    owners: tuple[str | None, str | None]
    owners_s: float  # when these were first seen


class Leadership:
    """One KCL 3 worker's part in leading its fleet.

    Args:
        lock_s: The lease of the lock.
        is_native: Whether the fleet has a leader from the beginning.
    """

    def __init__(self, worker: SimWorker, lock_s: float, *, is_native: bool) -> None:
        self._worker = worker
        self._world = worker.world
        self._lock_s = lock_s
        self._lease_s = worker.coordinator_options().lease_duration_s
        self._held: LeaderLock | None = None
        self._held_s = 0.0
        self._seen: LeaderLock | None = None
        self._seen_s = 0.0
        self._writes = 0
        self._rounds = 0
        self._sightings: dict[str, _Sighting] = {}
        self._is_native = is_native

    @property
    def is_leader(self) -> bool:
        """Whether this worker has the lock, judged by its own clock."""
        return self._held is not None and self._worker.local_s() < self._held_s + self._lock_s

    def begin(self) -> None:
        """Try for the lock, and run the leader's rounds while this worker has it."""
        self._later(self._world.chance.uniform(0.1, 2.0), self._renew_lock)
        self._later(self._round_s, self._run)

    def follow(self, *, is_native: bool) -> None:
        """Check whether the fleet has a leader at all: in another state the lock is released."""
        self._is_native = is_native
        if not is_native:
            self.resign()

    def resign(self) -> None:
        if self._held is not None:
            self._world.kcl3.release_lock(self._held)
            self._lose("resigned")

    @property
    def _round_s(self) -> float:
        return 2 * self._lease_s

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._worker.later(delay_s / self._worker.clock_rate, action)

    # --- the lock -----------------------------------------------------------------------------------------

    def _renew_lock(self) -> None:
        self._later(self._lock_s / _LOCK_RENEWALS, self._renew_lock)
        if self._held is not None and not self.is_leader:
            self._lose("too late")
        if not self._is_native:
            return
        if self._held is not None:
            self._write_lock(self._held)
        else:
            answer = self._on_looked
            self._worker.call("leader lock", lambda: self._world.kcl3.serve_fetch(()), answer)

    def _on_looked(self, rows: Kcl3Rows | Problem) -> None:
        if isinstance(rows, Problem) or self._held is not None or not self._is_native:
            return
        lock, now_s = rows.leader, self._worker.local_s()
        if lock != self._seen:
            self._seen, self._seen_s = lock, now_s
        if lock is None or lock.is_released or now_s - self._seen_s >= lock.lease_s:
            self._write_lock(lock)

    def _write_lock(self, seen: LeaderLock | None) -> None:
        self._writes += 1
        began_s = self._worker.local_s()
        wanted = LeaderLock(self._worker.name, f"{self._worker.who}/{self._writes}", self._lock_s)

        def answer(is_written: bool | Problem) -> None:
            if is_written is True and self._is_native:
                self._on_lock(wanted, began_s)
            elif is_written is False and self._held is not None:
                self._lose("the lock was taken")

        self._worker.call("leader lock", lambda: self._world.kcl3.serve_lock(seen, wanted), answer)

    def _on_lock(self, lock: LeaderLock, began_s: float) -> None:
        if self._held is None:
            self._world.record(kcl3.LeaderElected(self._worker.who))
            self._sightings, self._rounds = {}, 0
        self._held, self._held_s = lock, began_s

    def _lose(self, why: str) -> None:
        self._held = None
        self._world.record(kcl3.LeaderLost(self._worker.who, why))

    # --- the leader's rounds ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._later(self._round_s, self._run)
        if self.is_leader:
            began_s = self._worker.local_s()
            self._worker.call("leader scan", self._scan, lambda seen: self._on_scan(seen, began_s))

    def _scan(self) -> tuple[tuple[Lease, ...], Kcl3Rows] | Problem:
        rows = self._world.serve_scan(None)
        if isinstance(rows, Problem):
            return rows
        beside = self._world.kcl3.serve_fetch(None)
        return beside if isinstance(beside, Problem) else (rows[0], beside)

    def _on_scan(self, seen: Any, began_s: float) -> None:
        now_s = self._worker.local_s()
        if isinstance(seen, Problem) or not self.is_leader or now_s - began_s > 1.0:
            return
        leases, beside = seen
        wall_s = self._world.wall_ms() / 1000
        able = [stats.worker for stats in beside.workers if stats.is_fresh(wall_s) and _wants_more(stats)]
        self._rounds += 1
        self._assign([lease for lease in leases if not lease.is_ended], able, now_s)

    def _assign(self, leases: list[Lease], able: list[str], now_s: float) -> None:
        before, self._sightings = self._sightings, {}
        for lease in leases:
            self._sightings[lease.key] = _see(before.get(lease.key), lease, now_s)
        free = [lease for lease in leases if self._is_free(lease, now_s)]
        loads = dict.fromkeys(able, 0)
        for lease in leases:
            if lease not in free and lease.owner in loads:
                loads[lease.owner] += 1
        if not loads:
            return
        for lease in sorted(free, key=lambda lease: (self._sightings[lease.key].changed_s, lease.key)):
            worker = min(loads, key=lambda name: (loads[name], tie_break(name, lease.key)))
            loads[worker] += 1
            self._send("leader assigns", lease, worker, self._world.kcl3.serve_assignment)
        for lease in leases:
            if lease not in free and self._is_overdue(lease, now_s) and lease.owner in loads:
                self._send("leader forces", lease, lease.owner, self._world.kcl3.serve_assignment)
        if self._rounds % _BALANCED_EVERY == 0:
            self._balance([lease for lease in leases if lease not in free], loads)

    def _balance(self, leases: list[Lease], loads: dict[str, int]) -> None:
        movable = sorted(
            (lease for lease in leases if lease.checkpoint_owner is None), key=lambda each: each.key
        )
        while movable:
            giver = max(loads, key=lambda name: (loads[name], tie_break(name)))
            gainer = min(loads, key=lambda name: (loads[name], tie_break(name)))
            lease = next((each for each in movable if each.owner == giver), None)
            if lease is None or loads[giver] - loads[gainer] <= 1:
                return
            movable.remove(lease)
            loads[giver] -= 1
            loads[gainer] += 1
            self._send("leader asks", lease, gainer, self._world.kcl3.serve_handover)

    def _send(self, what: str, lease: Lease, worker: str, serve: Callable[[str, Lease, str], None]) -> None:
        self._world.record(kcl3.LeaderActed(self._worker.who, what, lease.key, lease.reader, worker))
        self._worker.call(
            what, lambda: serve(self._worker.who, lease, worker), lambda _answer: None, lease.key
        )

    def _is_free(self, lease: Lease, now_s: float) -> bool:
        unchanged_s = now_s - self._sightings[lease.key].changed_s
        return lease.reader is None or unchanged_s > self._lease_s

    def _is_overdue(self, lease: Lease, now_s: float) -> bool:
        asked_s = now_s - self._sightings[lease.key].owners_s
        return lease.checkpoint_owner is not None and asked_s > _HANDOVER_S + self._lease_s


def _see(before: _Sighting | None, lease: Lease, now_s: float) -> _Sighting:
    owners = (lease.owner, lease.checkpoint_owner)
    if before is None:
        return _Sighting(lease.counter, now_s, owners, now_s)
    return _Sighting(
        lease.counter,
        before.changed_s if before.counter == lease.counter else now_s,
        owners,
        before.owners_s if before.owners == owners else now_s,
    )


def _wants_more(stats: WorkerStats) -> bool:
    return all(values[-1] != FAILED_SAMPLE for values in stats.samples.values() if values)


class Kcl3Fleet(Actors):
    """The KCL 3 workers of a world."""

    def __init__(self, world: World, plan: Kcl3Plan) -> None:
        super().__init__(world)
        self._plan = plan
        self._versions = list(plan.changes)
        world.table.foreign |= plan.workers

    def make(self, name: str) -> Kcl3Worker | None:
        return Kcl3Worker(self.world, name, self._plan) if name in self._plan.workers else None

    def begin(self) -> None:
        if self._plan.migrates:
            self.world.record(kcl3.VersionChanged(self._plan.begins))
            self._migrate()

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        return [
            (self.world.faults.leader_deaths_per_min, self._kill_leader),
            (self.world.faults.leader_moves_per_min, self._depose_leader),
        ]

    def is_done(self) -> bool:
        return not self._versions

    def _leader(self) -> Kcl3Worker | None:
        workers = (worker for worker in self.world.workers.values() if isinstance(worker, Kcl3Worker))
        return next((worker for worker in workers if worker.leadership.is_leader), None)

    def _kill_leader(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.world.met["fault: leader_deaths_per_min"] += 1
            self.world.on_worker_gone(leader, "crashed")

    def _depose_leader(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.world.met["fault: leader_moves_per_min"] += 1
            leader.leadership.resign()

    def _migrate(self) -> None:
        """Move the row `Migration3.0` to its next state, once it is due and the fleet is ready for it."""
        if not self._versions:
            return
        world, (at_s, version) = self.world, self._versions[0]
        is_upgrade = version in WITH_LEADER and world.kcl3.version == UPGRADING
        is_ready = not is_upgrade or world.kcl3.is_ready(world.wall_ms() / 1000)
        if world.now >= at_s and is_ready:
            world.kcl3.version = version
            world.record(kcl3.VersionChanged(version))
            del self._versions[0]
        elif world.now >= at_s:
            world.record(kcl3.FleetUnready(version))
        world.schedule(world.now + _CHECK_S, self._migrate)
