"""Planted bugs of a member of a native KCL 3 fleet."""

from __future__ import annotations

from penstock.core.leases import kcl3_membership
from penstock.core.leases.kcl3_fleet import FleetJudge
from penstock.core.leases.kcl3_membership import Kcl3Membership
from sim.mutants import Mutant


def moves_what_it_likes(self, plan):
    """A member that balances by its own rule beside the leader."""
    return plan


def reports_nothing(version):
    """A member that the leader does not know."""
    return False


def believes_every_lock(self, rows, now_s, wall_s):
    """A member that takes a lock for a leader, however long it has stood."""
    return self._lock is not None


def sees_no_lock(self, rows, now_s, wall_s):
    """A member that knows no leader."""
    return False


KCL3 = "a member of a native KCL 3 fleet"

KCL3_MUTANTS = (
    Mutant(
        "own moves beside the leader", "KCL 2.x workers", 0, Kcl3Membership, "restrain", moves_what_it_likes
    ),
    Mutant("no report", "KCL 2.x workers", 3, kcl3_membership, "wants_reports", reports_nothing),
    Mutant("a lock of the dead is believed", KCL3, 6, FleetJudge, "_is_led", believes_every_lock),
    Mutant("no leader is seen", KCL3, 4, FleetJudge, "_is_led", sees_no_lock),
)
