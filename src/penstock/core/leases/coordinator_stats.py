"""Figures of the fleet and of one worker's leases, for metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.fleet_view import FleetLease
from penstock.core.leases.held_leases import HeldLeases
from penstock.core.leases.lease_view import OwnerState


class CoordinatorStats(Struct, frozen=True):
    """Figures for metrics, as of the last round.

    Args:
        total_leases: Unfinished leases in the table.
        ended_leases: Finished ones that are not deleted yet.
        unclaimed_leases: Unfinished ones without a live owner.
        worker_count: Live owners, this worker included.
        held_leases: Held by this worker.
        lost_leases: Lost since the start.
        takes: By reason, since the start.
    """

    total_leases: int = 0
    ended_leases: int = 0
    unclaimed_leases: int = 0
    worker_count: int = 1
    held_leases: int = 0
    lost_leases: int = 0
    takes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_fleet(cls, fleet: Sequence[FleetLease], lease_count: int, worker_count: int) -> CoordinatorStats:
        """Count the leases of a table.

        Args:
            fleet: Every unfinished lease with its owner's state.
            lease_count: All leases.
            worker_count: Live owners, this worker included.
        """
        return cls(
            total_leases=len(fleet),
            ended_leases=lease_count - len(fleet),
            unclaimed_leases=sum(1 for entry in fleet if entry.owner_state is not OwnerState.ALIVE),
            worker_count=worker_count,
        )

    @property
    def table_leases(self) -> int:
        """Every lease in the table."""
        return self.total_leases + self.ended_leases

    def with_held(self, held_leases: HeldLeases, takes: Mapping[str, int]) -> CoordinatorStats:
        """Return these figures with the leases that this worker holds now."""
        return replace(
            self,
            held_leases=len(held_leases),
            lost_leases=held_leases.lost_count,
            takes=tuple(sorted(takes.items())),
        )
