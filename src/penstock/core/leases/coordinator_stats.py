"""How the fleet and one worker's leases stand, in figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorStats:
    """Figures for metrics, as of the last round.

    Args:
        total_leases: Unfinished leases in the table.
        ended_leases: Finished ones that are not deleted yet.
        unclaimed_leases: Unfinished ones without a live owner.
        worker_count: Live owners, this worker included.
        held_leases: Held by this worker.
        reading_leases: Held and being read.
        lost_leases: Lost since the start.
        takes: By reason, since the start.
    """

    total_leases: int = 0
    ended_leases: int = 0
    unclaimed_leases: int = 0
    worker_count: int = 1
    held_leases: int = 0
    reading_leases: int = 0
    lost_leases: int = 0
    takes: tuple[tuple[str, int], ...] = ()
