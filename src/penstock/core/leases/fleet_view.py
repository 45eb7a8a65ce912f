"""The fleet as one worker sees it: leases with their owners' states, live workers, and the moves of a plan with reasons.

The policies (`penstock.core.leases.balance`) plan with these values. A worker's id may name its zone and its
capacity.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import RequestHandover, Take


class Reason(Enum):
    """Why a lease moves."""

    UNOWNED = "unowned"
    EXPIRED = "expired"
    OWN = "own"  # this worker owned it before a restart
    ASSIGNED = "assigned"  # the leader of a native KCL 3 fleet gave it to this worker
    CHILD = "child"  # this worker ended its parent
    SHARE = "share"  # another worker has it, and this worker has fewer than its share
    LEFT_OVER = "left_over"  # free for long: the worker whose share it is does not take it
    HANDED_OVER = "handed_over"
    HANDOVER_OVERDUE = "handover_overdue"
    STEAL = "steal"  # kcl2: from the worker with the most leases
    VERY_OLD = "very_old"  # kcl2: not renewed for three lease durations


class FleetLease(NamedTuple):
    """One unfinished lease with its owner's state.

    Args:
        lease: The row. A hand-over that will not be answered is removed from it: `owner` is the worker for which the lease counts.
        unchanged_s: Seconds since the row was seen to change.
        waits_for_parents: The shard may not be read before its parents are finished.
        free_s: Seconds since the lease became free; 0 while it has a live owner.
        ignores_handovers: The owner has not answered a hand-over request: the lease is taken without one.
    """

    lease: Lease
    owner_state: OwnerState
    unchanged_s: float = 0.0
    waits_for_parents: bool = False
    free_s: float = 0.0
    ignores_handovers: bool = False

    @property
    def is_takable(self) -> bool:
        """Whether the shard has no reader although it may be read."""
        return self.owner_state is not OwnerState.ALIVE and not self.waits_for_parents


class Acquisition(Struct, frozen=True):
    """Acquire a lease by this write: a `Take`, or a `RequestHandover` if its reader would answer."""

    write: Take | RequestHandover
    reason: Reason

    @property
    def is_live(self) -> bool:
        """Whether another worker holds the lease and renews it."""
        return self.reason in (Reason.SHARE, Reason.STEAL)


class ReleaseLease(Struct, frozen=True):
    """Finish, checkpoint and release this lease: the worker has more than `max_leases`."""

    key: str


Move: TypeAlias = Acquisition | ReleaseLease


class BalanceLimits(Struct, frozen=True):
    """The limits of a plan.

    Args:
        max_leases: The most leases of this worker; the other workers are assumed to have the same limit.
        leases_to_acquire: The most acquisitions per plan.
        handover: Whether a live lease is requested from its owner; False takes it at once.
        left_over_s: A worker counts as full if a lease of its share has been free for this long. After twice this time any
            worker with room takes the lease.
    """

    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    left_over_s: float = 20.0


DEFAULT_LIMITS: Final = BalanceLimits()


def fleet_of(view: LeaseView, now_s: float, me: str, keys: Iterable[str] | None = None) -> list[FleetLease]:
    """Return every unfinished lease of a view with its owner's state, or those of some keys.

    A lease with an overdue hand-over counts for one of its two workers, `Handovers.owner_of_overdue`: the other may be dead, or may have
    lost the lease to a KCL 2.x worker.

    Args:
        me: This worker, which lives even if it has no lease.
        keys: The rows to return; each is in the view. None for all.
    """
    handovers = view.handovers
    fleet = [
        FleetLease(
            lease,
            owner_state,
            unchanged_s,
            waits_for_parents=view.waits_for_parents(lease),
            free_s=unchanged_s
            if owner_state is OwnerState.UNOWNED
            else max(0.0, unchanged_s - view.duration_s_of(lease)),
            ignores_handovers=handovers.ignores_handovers(lease.owner, now_s),
        )
        for lease, owner_state, unchanged_s in view.with_owner_states(now_s, keys)
        if owner_state is not OwnerState.ENDED and view.is_usable(lease.key)
    ]
    _settle_overdue_handovers(fleet, view, now_s, me)
    return fleet


def _settle_overdue_handovers(fleet: list[FleetLease], view: LeaseView, now_s: float, me: str) -> None:
    """Remove each overdue hand-over from its lease, and set `owner` to the worker for whom the lease counts."""
    handovers = view.handovers
    overdue = {
        place
        for place, entry in enumerate(fleet)
        if entry.owner_state is OwnerState.ALIVE and handovers.is_overdue(entry.lease, now_s)
    }
    if not overdue:
        return
    # The other leases show which workers live.
    others = (entry for place, entry in enumerate(fleet) if place not in overdue)
    living = live_workers(others, me)
    for place in sorted(overdue, key=lambda place: fleet[place].lease.key):
        lease = fleet[place].lease
        handovers.on_request_unanswered(lease, now_s)
        owner = handovers.owner_of_overdue(lease, living)
        living.add(owner)
        plain = replace(lease, owner=owner, checkpoint_owner=None)
        fleet[place] = fleet[place]._replace(lease=plain, ignores_handovers=True)


def live_workers(fleet: Iterable[FleetLease], me: str) -> set[str]:
    """Return the workers that renew a lease or have requested the hand-over of one, and this worker."""
    alive = OwnerState.ALIVE
    held = [entry.lease for entry in fleet if entry.owner_state is alive]
    workers = {me, *[lease.owner for lease in held], *[lease.checkpoint_owner for lease in held]}
    return {worker for worker in workers if worker is not None}


def zone_of(worker: str) -> str:
    """Return the zone in a worker id: the text before the first "/", or an empty text."""
    zone, slash, _ = worker.partition("/")
    return zone if slash else ""


def capacity_of(worker: str) -> int:
    """Return a worker's capacity relative to others: the number after the last "@" of its id, or 1."""
    number = worker.rpartition("@")[2] if "@" in worker else ""
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) <= 6 else 1


@lru_cache(maxsize=1 << 16)
def tie_break(*parts: str) -> int:
    """Return a hash of some texts that is the same on every worker; it puts leases and workers in one random order."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest(), "big")


def chosen_worker(workers: Iterable[str], task: str) -> str:
    """Return the one worker that does a task for its fleet: the next one on a hash ring of the live workers."""
    ring = sorted((tie_break(worker), worker) for worker in workers)
    return ring[bisect_left(ring, (tie_break(task), "")) % len(ring)][1]


class CoordinatorStats(Struct, frozen=True):
    """Figures for metrics.

    Args:
        total_leases: Unfinished leases in the table.
        ended_leases: Finished leases that are not deleted yet.
        unclaimed_leases: Unfinished leases without a live owner.
        worker_count: Live owners, this worker included.
        held_leases: Leases that this worker holds now.
        lost_leases: The number of leases lost since the start.
        take_counts: The number of acquired leases since the start, by reason.
    """

    total_leases: int = 0
    ended_leases: int = 0
    unclaimed_leases: int = 0
    worker_count: int = 1
    held_leases: int = 0
    lost_leases: int = 0
    take_counts: tuple[tuple[str, int], ...] = ()

    @property
    def table_leases(self) -> int:
        """The number of leases in the table."""
        return self.total_leases + self.ended_leases
