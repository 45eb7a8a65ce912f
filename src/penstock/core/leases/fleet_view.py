"""The fleet as one worker sees it, and what a plan for it is made of: judged leases, living workers, moves, reasons.

The policies (`penstock.core.leases.balance`, `balance_kcl2`) decide on these; a worker's id may name its zone and how much it can do.
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
    OWN = "own"  # it bears this worker's name from before a restart
    ASSIGNED = "assigned"  # the leader of a native KCL 3 fleet gave it to this worker
    CHILD = "child"  # this worker ended its parent
    SHARE = "share"  # this worker has fewer than its share
    LEFT_OVER = "left_over"  # free for long: whoever should take it does not
    HANDED_OVER = "handed_over"
    HANDOVER_OVERDUE = "handover_overdue"
    STEAL = "steal"  # kcl2: from the most loaded worker
    VERY_OLD = "very_old"  # kcl2: nobody has renewed it for three lease durations
    SURPLUS = "surplus"  # more leases than max_leases


class FleetLease(NamedTuple):
    """One unfinished lease, judged.

    Args:
        lease: The row. A hand-over that will not be answered does not show in it: the owner is who counts as such.
        owner_state: What may be said about the owner.
        unchanged_s: How long the row has stood unchanged.
        waits: Whether its parents are unfinished.
        free_s: How long it has been free for anybody.
        ignores_handovers: Whether asking the owner is of no use.
    """

    lease: Lease
    owner_state: OwnerState
    unchanged_s: float = 0.0
    waits: bool = False
    free_s: float = 0.0
    ignores_handovers: bool = False

    @property
    def is_takable(self) -> bool:
        """Whether nobody reads the shard though it may be read."""
        return self.owner_state is not OwnerState.ALIVE and not self.waits


class Acquisition(Struct, frozen=True):
    """Write this to get the lease: a `Take`, or a `RequestHandover` where somebody reads it who would answer.

    Args:
        is_live: Somebody holds the lease.
    """

    write: Take | RequestHandover
    reason: Reason
    is_live: bool = False


class ReleaseLease(Struct, frozen=True):
    """Finish, checkpoint and free this lease."""

    key: str
    reason: Reason


Move: TypeAlias = Acquisition | ReleaseLease


class BalanceLimits(Struct, frozen=True):
    """What bounds a plan.

    Args:
        max_leases: This worker never has more; the others' is not known, and taken to be the same.
        leases_to_acquire: At most so many gains at a time.
        handover: False takes live leases without asking.
        left_over_s: Who has not taken a lease that was free for so long has no room for it; after twice the time
            anybody with room takes it.
    """

    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    left_over_s: float = 20.0


DEFAULT_LIMITS: Final = BalanceLimits()


def fleet_of(
    view: LeaseView, now_s: float, me: str = "", keys: Iterable[str] | None = None
) -> list[FleetLease]:
    """Judge every unfinished lease of a view, or those of some keys.

    A hand-over that will not be answered is no hand-over: its lease counts for the one of its two workers that is
    known to live by another lease, and for the reader when neither is. So a worker that died while it asked a Java
    2.x worker, and the name that such a worker leaves in the reader's field, count for nothing.

    Args:
        view: What was seen.
        now_s: Monotonic seconds.
        me: This worker, which lives.
        keys: Known rows; None for all.
    """
    handovers = view.handovers
    fleet = [
        FleetLease(
            lease,
            owner_state,
            unchanged_s,
            view.waits_for_parents(lease),
            unchanged_s
            if owner_state is OwnerState.UNOWNED
            else max(0.0, unchanged_s - view.duration_s_of(lease)),
            handovers.ignores_handovers(lease.owner, now_s),
        )
        for lease, owner_state, unchanged_s in view.judged(now_s, keys)
        if owner_state is not OwnerState.ENDED and view.is_usable(lease.key)
    ]
    overdue = [
        place
        for place, entry in enumerate(fleet)
        if entry.owner_state is OwnerState.ALIVE and handovers.is_overdue(entry.lease, now_s)
    ]
    if overdue:
        left_out = set(overdue)
        living = live_workers((entry for place, entry in enumerate(fleet) if place not in left_out), me)
        for place in sorted(overdue, key=lambda place: fleet[place].lease.key):
            lease = fleet[place].lease
            handovers.on_unanswered(lease, now_s)
            owner = handovers.holder(lease, living)
            living.add(owner)
            plain = replace(lease, owner=owner, checkpoint_owner=None)
            fleet[place] = fleet[place]._replace(lease=plain, ignores_handovers=True)
    return fleet


def live_workers(fleet: Iterable[FleetLease], me: str) -> set[str]:
    """Return everybody who renews a lease or has asked for one, and this worker."""
    alive = OwnerState.ALIVE
    held = [entry.lease for entry in fleet if entry.owner_state is alive]
    workers = {me, *[lease.owner for lease in held], *[lease.checkpoint_owner for lease in held]}
    return {worker for worker in workers if worker is not None}


def zone_of(worker: str) -> str:
    """Return the zone that a worker id names: what stands before the first "/", or nothing."""
    zone, slash, _ = worker.partition("/")
    return zone if slash else ""


def capacity_of(worker: str) -> int:
    """Return how much a worker can do beside others: the number after the last "@" of its id, or 1."""
    number = worker.rpartition("@")[2] if "@" in worker else ""
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) <= 6 else 1


@lru_cache(maxsize=1 << 16)
def tie(*parts: str) -> int:
    """Return a number that orders what is otherwise equal: the same on every worker, and another one for every lease."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest(), "big")


def chosen_worker(workers: Iterable[str], task: str) -> str:
    """Return the worker that a task falls to which one worker is enough for: the next one on a ring of the live workers."""
    ring = sorted((tie(worker), worker) for worker in workers)
    return ring[bisect_left(ring, (tie(task), "")) % len(ring)][1]
