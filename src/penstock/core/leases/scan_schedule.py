"""When one worker looks at the lease table next, and at what of it: round after round, from the first look on."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import FleetLease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.scan_plan import ScanPlan, estimate_workers, plan_first_scans, plan_scans
from penstock.core.leases.table_part import TablePart
from penstock.core.leases.table_scans import TableScans
from penstock.core.leases.turn import Turn

_JITTER: Final = 0.2  # of the interval, to both sides
_EXTRA_SCAN_ROUNDS: Final = 0.2  # looks between regular rounds are no closer to each other
_GATHERING_ROUNDS: Final = 0.5  # who starts together with a worker has a lease when it looks again


class ScanSchedule:
    """One worker's looks at the lease table. Not thread-safe.

    Args:
        me: The worker's id.
        options: As for the coordinator.
        view: The coordinator's.
        turn: Where chance comes from.
        scans: Begins the looks.
    """

    def __init__(
        self, me: str, options: CoordinatorOptions, view: LeaseView, turn: Turn, scans: TableScans
    ) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.has_seen_whole = False
        self.plan = plan_first_scans(options, me, 0)
        self._turn = turn
        self._scans = scans
        self._owners: set[str] | None = None  # others that the first look at a part showed
        self._is_visiting = False  # the last look was at a part that others watch
        self._is_needed = False  # the last look at the whole table showed free leases in the part
        self._next: ScanPlan | None = None  # followed as soon as nothing is free in the part that is watched

    @property
    def part(self) -> TablePart | None:
        """What is looked at in every round; None for the whole table."""
        return self.plan.part

    def on_table_ready(self, row_count: int) -> None:
        """Observe how many rows the table has, as far as is known without reading it."""
        if not self.has_seen_whole:
            self._follow(plan_first_scans(self.options, self.me, row_count))

    def on_whole_table(self, fleet: Sequence[FleetLease], live: Collection[str]) -> None:
        """Observe the whole fleet: the whole table is in the view.

        After a loss of many workers the others divide the table anew. Whoever then left a part with free leases for a part
        that it did not watch would find the free leases of neither: it has to see its new rows for a lease duration first.

        Args:
            fleet: Every unfinished lease as judged from here.
            live: Live workers, this one included.
        """
        plan = plan_scans(self.options, self.me, len(self.view), live)
        watched = self.view.watched or frozenset()
        self._is_needed = self.has_seen_whole and any(
            entry.is_takable and entry.lease.key in watched for entry in fleet
        )
        stays = (
            self._is_needed
            and self._next is None  # a second look at the whole table ends the wait
            and None not in (plan.part, self.plan.part)
            and plan.part != self.plan.part
        )
        self.has_seen_whole = True
        self._is_visiting = False
        if stays:
            self._next = plan
        else:
            self._follow(plan)

    def _follow(self, plan: ScanPlan) -> None:
        self.plan = plan
        self._next = None
        self._scans.part = plan.part
        if plan.part is None:
            self.view.watch_whole_table()

    def on_part(self, part: Sequence[FleetLease], now_s: float) -> None:
        """Observe the part that is watched, and schedule the first look at the whole table by how many may do the same.

        Whoever waited for the free leases of the part to be taken watches its new part from now on.

        Args:
            part: Every unfinished lease of the part as judged from here.
            now_s: Monotonic seconds.
        """
        if self._next is not None and not any(entry.is_takable for entry in part):
            self._follow(self._next)
        home = self.plan.part
        if self.has_seen_whole or home is None:
            return
        self._is_visiting = self._scans.part != home
        if self._scans.is_whole_scheduled:
            return
        owners = {entry.lease.owner for entry in part if entry.owner_state is OwnerState.ALIVE}
        others = {owner for owner in owners if owner not in (None, self.me)}
        if self._owners is None:
            # The second look is at another part, where nothing is taken: what the two have in common tells how large the
            # fleet is.
            self._owners = others
            self._scans.part = TablePart((home.number + home.count // 2) % home.count, home.count)
            return
        self._scans.part = home
        within_s = self.plan.whole_s_per_worker * estimate_workers(self._owners, others, home.count)
        wait_s = within_s * self._turn.draw() if within_s > self.plan.round_s else 0.0
        self._scans.schedule_whole(now_s + wait_s)

    @property
    def share(self) -> float:
        """How many leases are this worker's share, as far as it knows; 0 while it looks at a part that others watch."""
        return 0.0 if self._is_visiting else self.plan.share

    def scan_whole_next_round(self, now_s: float, *, are_rare: bool) -> None:
        """Look at the whole table one round from now, where that is not what happens in every round anyway.

        Args:
            now_s: Monotonic seconds.
            are_rare: Regular looks are further apart than rounds.
        """
        if self.plan.part is not None:
            self._scans.request_by(now_s + self._jittered(self.options.interval_s))
        elif are_rare:
            self._scans.request_by(now_s + self._jittered(self.plan.round_s))

    def schedule(self, now_s: float, scan_s: float, *, is_whole: bool, is_moving: bool) -> None:
        """Schedule the next looks: one has just ended.

        Args:
            now_s: Monotonic seconds.
            scan_s: When there will be something to find; infinity for the regular time.
            is_whole: The look was at the whole table.
            is_moving: It found something to move.
        """
        plan = self.plan
        due_s = now_s + self._jittered(plan.round_s)
        suspect_s = self.view.next_expiry_s(self.me)
        if suspect_s is not None and suspect_s > now_s:
            # A worker may have stopped: look when that is certain rather than at the next regular round.
            due_s = min(due_s, suspect_s + 0.02 * plan.round_s * self._turn.draw())
        if plan.part is not None and is_whole:
            whole_s = now_s + self._jittered(plan.moving_s if is_moving else plan.whole_s)
            self._scans.schedule_whole(min(whole_s, max(scan_s, now_s + plan.settling_s)))
            scan_s = now_s if self._is_needed else math.inf
        if plan.part is not None and not self._scans.is_whole_scheduled:
            scan_s = min(scan_s, now_s + _GATHERING_ROUNDS * plan.round_s)
        due_s = min(due_s, max(scan_s, now_s + _EXTRA_SCAN_ROUNDS * plan.round_s))
        self._scans.schedule(max(due_s, now_s + 0.01 * plan.round_s))

    def _jittered(self, mean_s: float) -> float:
        return mean_s * (1 - _JITTER + 2 * _JITTER * self._turn.draw())
