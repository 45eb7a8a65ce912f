"""The schedule of one worker's scans: when the next one begins, and whether it reads a part or the whole table."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.fleet_view import FleetLease
from penstock.core.leases.lease_view import OwnerState
from penstock.core.leases.scan_plan import ScanPlan, estimate_workers, plan_first_scans, plan_scans
from penstock.core.leases.table_part import TablePart

_JITTER: Final = 0.2  # of the interval, to both sides
_EXTRA_SCAN_ROUNDS: Final = 0.2  # the shortest time between extra scans, in rounds
_GATHERING_ROUNDS: Final = 0.5  # by then, workers that started at the same time own a lease


class ScanSchedule:
    """Schedules one worker's scans of the lease table. Not thread-safe.

    Args:
        context: Shared by the parts of the coordinator.
    """

    def __init__(self, context: CoordinatorContext) -> None:
        self.me = context.me
        self.options = context.options
        self.view = context.view
        self.has_seen_whole = False
        self.plan = plan_first_scans(context.options, context.me, 0)
        self._turn = context.turn
        self._scans = context.scans
        self._owners: set[str] | None = None  # other owners in the first scan of a part
        self._is_visiting = False  # the last scan was of a part that others watch
        self._is_needed = False  # the last scan of the whole table showed free leases in the part
        self._next: ScanPlan | None = None  # the next plan, until no lease is free in the watched part

    @property
    def part(self) -> TablePart | None:
        """The part that is scanned in every round; None for the whole table."""
        return self.plan.part

    def on_table_ready(self, row_count: int) -> None:
        """Handle the table's row count, as the service estimates it."""
        if not self.has_seen_whole:
            self._follow(plan_first_scans(self.options, self.me, row_count))

    def on_whole_table(self, fleet: Sequence[FleetLease], live: Collection[str]) -> None:
        """Handle a scan of the whole table, which is in the view.

        After the loss of many workers the others get new parts. A worker stays in its earlier part until no lease is free
        there. If it moved at once, it would take free leases in neither part for a while: in the new part it must first
        watch the rows for a lease duration.

        Args:
            fleet: Every unfinished lease with its owner's state.
            live: Live workers, this one included.
        """
        plan = plan_scans(self.options, self.me, len(self.view), live)
        watched = self.view.watched or frozenset()
        self._is_needed = self.has_seen_whole and any(
            entry.is_takable and entry.lease.key in watched for entry in fleet
        )
        stays = (
            self._is_needed
            and self._next is None  # a second scan of the whole table ends the wait
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
        """Handle a scan of the watched part, and schedule the first scan of the whole table.

        A worker that stayed in its earlier part for the free leases there moves to its new part when none is left. The first
        scan of the whole table is delayed by a random time. The longest delay is proportional to the estimated size of the
        fleet, since all of its workers may be about to scan the whole table.

        Args:
            part: Every unfinished lease of the part with its owner's state.
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
            # The second scan reads another part, and this worker takes no lease in it. The owners that the two parts have in
            # common show the size of the fleet.
            self._owners = others
            self._scans.part = TablePart((home.number + home.count // 2) % home.count, home.count)
            return
        self._scans.part = home
        within_s = self.plan.whole_s_per_worker * estimate_workers(self._owners, others, home.count)
        wait_s = within_s * self._turn.draw() if within_s > self.plan.round_s else 0.0
        self._scans.schedule_whole(now_s + wait_s)

    @property
    def share(self) -> float:
        """This worker's share of leases, as far as it is known; 0 while it scans a part that others watch."""
        return 0.0 if self._is_visiting else self.plan.share

    def scan_whole_next_round(self, now_s: float, *, are_rare: bool) -> None:
        """Request a scan of the whole table one round from now, unless every round scans it anyway.

        Args:
            now_s: Monotonic seconds.
            are_rare: Regular scans are further apart than rounds.
        """
        if self.plan.part is not None:
            self._scans.request_by(now_s + self._jittered(self.options.interval_s))
        elif are_rare:
            self._scans.request_by(now_s + self._jittered(self.plan.round_s))

    def schedule(self, now_s: float, scan_s: float, *, is_whole: bool, is_moving: bool) -> None:
        """Schedule the next scans: one has just ended.

        Args:
            now_s: Monotonic seconds.
            scan_s: When an extra scan will find leases to move; infinity for the regular time.
            is_whole: The scan was of the whole table.
            is_moving: The scan found leases to move.
        """
        plan = self.plan
        due_s = now_s + self._jittered(plan.round_s)
        suspect_s = self.view.next_expiry_s(self.me)
        if suspect_s is not None and suspect_s > now_s:
            # A worker may have stopped: scan when that is certain rather than at the next regular round.
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
