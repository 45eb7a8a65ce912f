"""The fleet as one worker sees it, and what a plan for it is made of: judged leases, living workers, moves, reasons.

The policies (`penstock.core.balance`, `balance_kcl2`) decide on these; a worker's id may name its zone and how much it can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from penstock.core.lease import Lease, RequestHandover, Take
from penstock.core.lease_view import Hold, LeaseView


class Reason(Enum):
    """Why a lease moves."""

    UNOWNED = "unowned"
    EXPIRED = "expired"
    OWN = "own"  # it bears this worker's name from before a restart
    CHILD = "child"  # this worker ended its parent
    SHARE = "share"  # this worker has fewer than its share
    LEFT_OVER = "left_over"  # free for long: whoever should take it does not
    HANDED_OVER = "handed_over"
    HANDOVER_OVERDUE = "handover_overdue"
    STEAL = "steal"  # kcl2: from the most loaded worker
    VERY_OLD = "very_old"  # kcl2: nobody has renewed it for three lease durations
    SURPLUS = "surplus"  # more leases than max_leases


class FleetLease(NamedTuple):
    """One unfinished lease, judged."""

    lease: Lease
    hold: Hold
    unchanged_s: float = 0.0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """Write this to get the lease: a `Take`, or a `RequestHandover` where somebody reads it."""

    write: Take | RequestHandover
    reason: Reason


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Finish, checkpoint and free this lease."""

    key: str
    reason: Reason


Move: TypeAlias = Gain | GiveUp


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """What bounds a plan.

    Args:
        max_leases: Nobody's share is larger; assumed the same for all workers.
        leases_to_acquire: At most so many gains at a time.
        handover: False takes live leases without asking.
        left_over_s: A free lease that stands for so long is offered to the next worker, and so on.
    """

    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    left_over_s: float = 20.0


DEFAULT_LIMITS: Final = BalanceLimits()


def fleet_of(view: LeaseView, now_s: float) -> list[FleetLease]:
    """Judge every unfinished lease of a view."""
    return [
        FleetLease(lease, hold, unchanged_s, view.waits_for_parents(lease))
        for lease, hold, unchanged_s in view.holds(now_s)
        if hold is not Hold.ENDED
    ]


def live_workers(fleet: Iterable[FleetLease], me: str) -> set[str]:
    """Give everybody who renews a lease or has asked for one, and this worker."""
    workers = {me}
    for lease, hold, _, _ in fleet:
        if hold is Hold.ALIVE:
            if lease.owner is not None:
                workers.add(lease.owner)
            if lease.checkpoint_owner is not None:
                workers.add(lease.checkpoint_owner)
    return workers


def zone_of(worker: str) -> str:
    """Give the zone that a worker id names: what stands before the first "/", or nothing."""
    zone, slash, _ = worker.partition("/")
    return zone if slash else ""


def capacity_of(worker: str) -> int:
    """Give how much a worker can do beside others: the number after the last "@" of its id, or 1."""
    number = worker.rpartition("@")[2] if "@" in worker else ""
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) <= 6 else 1


def tie(*parts: str) -> int:
    """Order what is otherwise equal: the same on every worker, unlike for every lease."""
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest(), "big")
