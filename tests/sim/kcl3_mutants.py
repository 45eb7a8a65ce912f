"""Planted bugs of a member of a native KCL 3 fleet."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.leases import kcl3_membership
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.fleet_view import fleet_of
from penstock.core.leases.kcl3_fleet import FleetMode, FleetModeDetector
from penstock.core.leases.kcl3_membership import Kcl3Membership
from penstock.core.leases.table_scans import TableScans
from penstock_sim.plan import NATIVE, UPGRADING, WITH_LEADER
from sim.mutants import Mutants, scans_for_free_leases

KCL3_MUTANTS = Mutants()
planted = KCL3_MUTANTS.planted
KCL3 = "a member of a native KCL 3 fleet"

JUDGE = FleetModeDetector.detect
SCHEDULE_SCANS = TableScans.schedule_scans


@planted("own moves beside the leader", "KCL 2.x workers", 0, Kcl3Membership, "limit_to_mode")
def moves_what_it_likes(self, plan):
    return plan


@planted("no report", "KCL 2.x workers", 3, kcl3_membership, "wants_reports")
def reports_nothing(version):
    return False


@planted("a lock of the dead is believed", KCL3, 6, FleetModeDetector, "_has_leader")
def believes_every_lock(self, rows, now_s, wall_s):
    return self._lock is not None


@planted("no leader is seen", KCL3, 1, FleetModeDetector, "_has_leader")
def sees_no_lock(self, rows, now_s, wall_s):
    return False


@planted("an upgrade is taken for a native fleet", KCL3, 29, FleetModeDetector, "detect")
def takes_an_upgrade_for_native(self, rows, now_s, wall_s):
    return JUDGE(self, replace(rows, version=NATIVE) if rows.version == UPGRADING else rows, now_s, wall_s)


@planted("a fleet never goes back", KCL3, 32, FleetModeDetector, "detect")
def never_goes_back(self, rows, now_s, wall_s):
    stays = self._has_changed and rows.version not in WITH_LEADER
    return FleetMode.LEADERLESS if stays else JUDGE(self, rows, now_s, wall_s)


@planted("no report before there is a leader", KCL3, 2, kcl3_membership, "wants_reports")
def reports_only_to_a_leader(version):
    """A member that holds the others' upgrade up."""
    return version in WITH_LEADER


def watches_beside_a_leader(self, now_s, scan_s, **known):
    """The table is watched for free leases, although a leader assigns them."""
    SCHEDULE_SCANS(self, now_s, scan_s, **known)
    self.schedule_free_lease_scan(now_s)


@planted(
    "free leases are taken between the rounds beside a leader",
    KCL3,
    21,
    Coordinator,
    "_take_free_leases",
    also=((TableScans, "schedule_scans", watches_beside_a_leader),),
    needs=scans_for_free_leases,
)
def takes_free_leases_between_rounds(self, now_s):
    if not self._stop.is_begun:
        self._acquisitions.on_rows(self.view, now_s)
        fleet = fleet_of(self.view, now_s, self.worker)
        self._begin_moves(self._planner.plan_free_takes(fleet, self._scans.plan), now_s)
