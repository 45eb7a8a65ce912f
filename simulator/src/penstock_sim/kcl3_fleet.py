"""The KCL 3 workers of a world: their leader may crash or resign, and their fleet may migrate from KCL 2.x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_sim.actors import Actors
from penstock_sim.events.kcl3 import FleetUnready, VersionChanged
from penstock_sim.kcl3_worker import Kcl3Worker
from penstock_sim.plan import UPGRADING, WITH_LEADER, Kcl3Plan
from penstock_sim.world import World

_CHECK_S: Final = 5.0
"""The KCL checks every minute whether its fleet is ready, and waits until it has been so for ten."""


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
            self.world.record(VersionChanged(self._plan.begins))
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
            world.record(VersionChanged(version))
            del self._versions[0]
        elif world.now >= at_s:
            world.record(FleetUnready(version))
        world.schedule(world.now + _CHECK_S, self._migrate)
