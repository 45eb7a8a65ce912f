"""The rows of KCL 3 beside the leases of a simulated fleet: the leader's lock, reports, and an index of owners."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from msgspec.structs import replace

from penstock.core.leases.coordinator_events import Problem, WriteOutcome
from penstock.core.leases.kcl3_fleet import Kcl3Rows, LeaderLock, WorkerStats
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import LeaseWrite, RequestHandover, Take
from penstock_sim.table import SimTable

_Answer = TypeVar("_Answer")


class _Environment(Protocol):
    """The part of `Environment` that the rows use."""

    now: float
    chance: random.Random
    table: SimTable

    def luck(self, fault: str) -> bool: ...
    def table_problem(self) -> Problem | None: ...
    def serve_write(self, who: str, write: LeaseWrite) -> WriteOutcome: ...


class SimKcl3Rows:
    """The rows of one application. Calls fail as those for leases do.

    Args:
        version: The state of the fleet's migration, or None if there never was a KCL 3 worker.
    """

    def __init__(self, world: _Environment, version: str | None) -> None:
        self._world = world
        self.version = version
        self.lock: LeaderLock | None = None
        self.stats: dict[str, WorkerStats] = {}

    def _serve(self, act: Callable[[], _Answer]) -> _Answer | Problem:
        problem = self._world.table_problem()
        if problem not in (None, Problem.TABLE_MISSING):
            return problem
        answer = act()
        return Problem.UNAVAILABLE if self._world.luck("unknown_applied") else answer

    def serve_fetch(self, workers: Collection[str] | None) -> Kcl3Rows | Problem:
        """Read all but the leases; of the reports those of these workers and of the leader, or all."""
        return self._serve(lambda: self._read(workers))

    def _read(self, workers: Collection[str] | None) -> Kcl3Rows:
        leader = () if self.lock is None else (self.lock.owner,)
        wanted = self.stats.keys() if workers is None else {*workers, *leader}
        found = tuple(self.stats[name] for name in sorted(wanted) if name in self.stats)
        return Kcl3Rows(self.version, self.lock, found, has_index=self.version is not None)

    def is_ready(self, wall_s: float) -> bool:
        """Whether every lease has an owner that reports: then an upgrade goes on to the native state."""
        owners = {row.owner for row in self._world.table.rows.values() if not row.is_ended}
        return all(
            owner is not None and owner in self.stats and self.stats[owner].is_fresh(wall_s)
            for owner in owners
        )

    def serve_report(self, stats: WorkerStats) -> Problem | None:
        return self._serve(lambda: self.stats.update({stats.worker: stats}))

    def serve_withdrawal(self, worker: str) -> Problem | None:
        def withdraw() -> None:
            self.stats.pop(worker, None)

        return self._serve(withdraw)

    def serve_leases_of(self, worker: str, known: Collection[str]) -> tuple[Lease, ...] | Problem:
        """Find a worker's leases by the index, which may lag behind, and read those that are not known."""
        problem = self._world.table_problem()
        if problem is not None:
            return problem
        table = self._world.table
        rows = tuple(table.rows.values())
        if self._world.luck("stale_scan"):
            rows = table.stale_rows(self._world.now, self._world.chance.random())
        table.remember(self._world.now)
        keys = [row.key for row in rows if row.owner == worker and row.key not in known]
        return tuple(table.rows[key] for key in keys if key in table.rows)

    # --- the lock -----------------------------------------------------------------------------------------

    def serve_lock(self, seen: LeaderLock | None, wanted: LeaderLock) -> bool | Problem:
        """Write the lock if it is unchanged, or still missing: its holder renews it, or another one takes it."""

        def write() -> bool:
            stands = self.lock == seen
            if stands:
                self.lock = wanted
            return stands

        return self._serve(write)

    def release_lock(self, seen: LeaderLock) -> None:
        if self.lock == seen:
            self.lock = replace(seen, is_released=True)

    # --- the leader's writes ------------------------------------------------------------------------------

    def serve_assignment(self, who: str, seen: Lease, worker: str) -> None:
        """Assign a lease whose owners are as they were seen, whatever its counter is by now."""
        row = self._world.table.rows.get(seen.key)
        if row is not None and (row.owner, row.checkpoint_owner) == (seen.owner, seen.checkpoint_owner):
            self._world.serve_write(who, Take(row.key, row.counter, worker))

    def serve_handover(self, who: str, seen: Lease, worker: str) -> None:
        if seen.owner is not None:
            self._world.serve_write(who, RequestHandover(seen.key, seen.owner, worker))
