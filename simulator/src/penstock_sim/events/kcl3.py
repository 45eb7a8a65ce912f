"""Events of fleets of KCL 3 workers: their leader, and their migration."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.core.leases.lease_writes import Release, Take
from penstock_sim.events.base import Event, ProcessEvent, SituationFinder, name_of
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import CoordinatorReported, ProcessExited
from penstock_sim.events.queries import BatchStarted
from penstock_sim.kinds import SeedKind, situation
from penstock_sim.plan import UPGRADING, WITH_LEADER

KCL3: Final = SeedKind.KCL3
LEADER_GONE: Final = situation("the leader crashes", KCL3)
TO_PENSTOCK: Final = situation("a KCL 3 worker hands a lease to a Penstock worker", KCL3)
TO_KCL: Final = situation("a Penstock worker hands a lease to a KCL 3 worker", KCL3)
LEADERLESS_TAKE: Final = situation("a Penstock worker takes a free lease while there is no leader", KCL3)
UPGRADED: Final = situation("a fleet goes on from the KCL's 2.x mode to a leader", KCL3)
ROLLED_BACK: Final = situation("a fleet with a leader goes back to the KCL's 2.x mode", KCL3)
TAKEN_AS_2X: Final = situation("a KCL 3 worker in 2.x mode takes a lease from a Penstock worker", KCL3)
LED_BATCH: Final = situation("a query of a fleet with a leader runs a batch", KCL3)
ACTIONS: Final = {
    "leader assigns": situation("the leader assigns a free lease", KCL3),
    "leader asks": situation("the leader asks for a lease", KCL3),
    "leader forces": situation("the leader assigns a lease that was not handed over", KCL3),
}
"""The calls of a leader."""


class VersionChanged(Event, frozen=True):
    version: str


class FleetUnready(Event, frozen=True):
    """A state of the migration is due, and an owner of a lease does not report yet."""

    version: str


class LeaderElected(ProcessEvent, frozen=True):
    meets: ClassVar = situation("a worker becomes the leader", KCL3)


class LeaderLost(ProcessEvent, frozen=True):
    why: str
    meets: ClassVar = situation("a leader loses its lock", KCL3)


class LeaderActed(ProcessEvent, frozen=True):
    action: str  # as in `ACTIONS`
    key: str
    reader: str | None
    to: str  # the worker that it is for


class Kcl3Situations(SituationFinder):
    def _begin(self) -> None:
        plan = self.scenario.kcl3
        self._kcl3: frozenset[str] = frozenset() if plan is None else plan.workers
        self._version: str = "" if plan is None else plan.begins
        self._leaders: set[str] = set()
        self._modes: dict[str, str] = {}

    def _on_leader_elected(self, event: LeaderElected) -> None:
        self._leaders.add(event.who)

    def _on_leader_lost(self, event: LeaderLost) -> None:
        self._leaders.discard(event.who)

    def _on_process_exited(self, event: ProcessExited) -> None:
        self.met[LEADER_GONE] += event.how == "crashed" and event.who in self._leaders
        self._leaders.discard(event.who)

    def _on_leader_acted(self, event: LeaderActed) -> None:
        self.met[ACTIONS[event.action]] += 1

    def _on_version_changed(self, event: VersionChanged) -> None:
        is_led, was_led = (version in WITH_LEADER for version in (event.version, self._version))
        self.met[UPGRADED] += self._version == UPGRADING and is_led
        self.met[ROLLED_BACK] += was_led and not is_led
        self._version = event.version

    def _on_coordinator_reported(self, event: CoordinatorReported) -> None:
        if event.topic == "FLEET" and name_of(event.who) not in self._kcl3:
            self._modes[event.who] = event.reason
            self.met[f"fleet: {event.reason.upper()}"] += 1

    def _on_batch_started(self, event: BatchStarted) -> None:
        self.met[LED_BATCH] += bool(event.keys and self._leaders)

    def _on_lease_written(self, event: LeaseWritten) -> None:
        write, before, after, name = event.write, event.before, event.after, name_of(event.who)
        if before is None or after is None or not self._kcl3:
            return
        if isinstance(write, Release) and after.owner is not None:
            pair = (name in self._kcl3, after.owner in self._kcl3)
            self.met[TO_PENSTOCK] += pair == (True, False)
            self.met[TO_KCL] += pair == (False, True)
        if isinstance(write, Take) and write.worker == name:
            if before.reader is None:
                self.met[LEADERLESS_TAKE] += self._modes.get(event.who) == "leaderless"
            elif name in self._kcl3 and before.reader not in self._kcl3:
                self.met[TAKEN_AS_2X] += self._version not in WITH_LEADER
