"""A checker of the duties of a native KCL 3 fleet's member to its leader."""

from __future__ import annotations

from typing import Final

from penstock.core.leases.lease_writes import End, RequestHandover, Take
from penstock_sim.checker import CLOCK_TOLERANCE, Broken, Checker
from penstock_sim.events import kcl3, leases, processes
from penstock_sim.events.base import name_of
from penstock_sim.plan import NATIVE, WITH_LEADER

_UNDER_WAY_S: Final = 10.0
"""A write that was begun before its worker saw a leader has arrived by then, even if it was late."""

_KNOWN_WITHIN_S: Final = 60.0
"""Two reads of the KCL workers' rows beside the leases."""
_LED_MODES: Final = frozenset({"led", "leaderless"})


class LeftToTheLeader(Checker):
    """K1: a Penstock worker that has seen a leader, or expects one, moves no lease that has a reader.

    Free leases are the leader's too while there is one; but the worker that ends a shard takes its children, and so does one that finds
    its end written: of two processes under one worker id, the second one takes it for its own.
    """

    invariant = "K1"

    def _begin(self) -> None:
        self._ended: set[tuple[str, str]] = set()
        self._leader: tuple[str, float] | None = None
        self._version: tuple[str, float] = (NATIVE, 0.0)
        self._awaited: str | None = None

    def _on_version_changed(self, event: kcl3.VersionChanged) -> None:
        self._version = (event.version, self.history.now)
        self._awaited = None

    def _on_fleet_unready(self, event: kcl3.FleetUnready) -> None:
        self._awaited = event.version

    def _on_leader_elected(self, event: kcl3.LeaderElected) -> None:
        self._leader = (event.who, self.history.now)

    def _on_leader_lost(self, event: kcl3.LeaderLost) -> None:
        self._leader = None

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        if self._leader is not None and self._leader[0] == event.who:
            self._leader = None

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        if event.topic == "ENDED" and event.key is not None:
            self._ended.add((event.who, event.key))

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write, before = event.who, event.write, event.before
        name = name_of(who)
        if isinstance(write, End):
            self._ended.add((who, write.key))
        if before is None or not isinstance(write, Take | RequestHandover) or name in self.history.leaders:
            return
        mode, since_s = self.history.fleet_modes.get(who, ("", 0.0))
        parents = self.history.shards[write.key].parents
        is_own = name in (before.owner, before.checkpoint_owner)
        is_own |= any((who, parent) in self._ended for parent in parents)
        unchanged_s = self.history.now_s_since(self.history.changed_s.get(write.key))
        is_read = before.reader is not None and unchanged_s < self.options.lease_duration_s * (
            1 - CLOCK_TOLERANCE
        )
        is_left = mode == "led" or (mode == "leaderless" and is_read)
        if is_left and not is_own and self.history.now_s_since(since_s) > _UNDER_WAY_S:
            what = type(write).__name__
            raise Broken(f"{who} moves {write.key} ({what}), which is the leader's to assign")

    def at_end(self) -> None:
        """Check that no upgrade is held up, and that every worker that had time for it follows the leader.

        An upgrade goes on as soon as every owner of a lease reports.
        """
        if self._awaited is not None:
            raise Broken(f"the fleet is {self._version[0]}, and never ready for {self._awaited}")
        self._judge_version()
        if self._leader is None or self.history.now_s_since(self._leader[1]) < _KNOWN_WITHIN_S:
            return
        for who, mode, since_s in self._living_members():
            is_new = self.history.now_s_since(since_s) < _KNOWN_WITHIN_S
            if name_of(who) not in self.history.leaders and mode != "led" and not is_new:
                raise Broken(f"{self._leader[0]} leads, and {who} knows no leader: {mode}")

    def _judge_version(self) -> None:
        version, since_s = self._version
        if version in WITH_LEADER or self.history.now_s_since(since_s) < _KNOWN_WITHIN_S:
            return
        for who, mode, _ in self._living_members():
            if name_of(who) not in self.history.kcl_workers and mode in _LED_MODES:
                raise Broken(f"the fleet is {version}, and {who} waits for a leader: {mode}")

    def _living_members(self) -> list[tuple[str, str, float]]:
        """Return each member that has reported a mode and lives: its name, the mode, and since when."""
        modes = self.history.fleet_modes.items()
        return [(who, mode, since_s) for who, (mode, since_s) in modes if who in self.history.alive]
