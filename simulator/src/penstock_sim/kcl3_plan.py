"""The KCL 3 workers of one seed's fleet."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

NATIVE: Final = "CLIENT_VERSION_3X"
"""The state of a fleet whose leader assigns every lease."""
UPGRADING: Final = "CLIENT_VERSION_UPGRADE_FROM_2X"
"""KCL 3 workers that take their shares as KCL 2.x does, and report, until every owner of a lease does."""
NATIVE_FOR_NOW: Final = "CLIENT_VERSION_3X_WITH_ROLLBACK"
"""As native, and the way back is open."""
ROLLED_BACK: Final = "CLIENT_VERSION_2X"
"""KCL 3 workers that do as KCL 2.x does, and report nothing."""
WITH_LEADER: Final = frozenset({NATIVE, NATIVE_FOR_NOW})
WITH_REPORTS: Final = WITH_LEADER | {UPGRADING}


class Kcl3Plan(Struct, frozen=True):
    """One seed's native KCL 3 fleet.

    Args:
        workers: The workers that are the KCL's.
        lock_s: The lease of the leader's lock.
        leader_deaths_per_min: The leader crashes.
        leader_moves_per_min: The leader gives its lock up, and goes on as a follower.
        begins: The first state of the row `Migration3.0`.
        changes: Its next states, each with its earliest moment.
    """

    workers: frozenset[str]
    lock_s: float = 30.0
    leader_deaths_per_min: float = 0.0
    leader_moves_per_min: float = 0.0
    begins: str = NATIVE
    changes: tuple[tuple[float, str], ...] = ()

    @property
    def migrates(self) -> bool:
        """Whether the fleet is not native all the time."""
        return self.begins != NATIVE or bool(self.changes)
