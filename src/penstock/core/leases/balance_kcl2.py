"""The lease taker of Java KCL 2.x, for fleets that want its rule exactly.

It is slower and less even than `even`: it steals one lease per round, and only if no lease is free; any worker takes a
lease that was not renewed for three lease durations, whatever its share.

Source:
    The decision order of KCL 2.7.3's lease taker. Two differences: finished leases are left out here (Java counts
    them until it deletes them), and a worker with as many leases as it may have takes none of the very old ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.leases.fleet_view import Acquisition, BalanceLimits, FleetLease, Reason, tie_break
from penstock.core.leases.lease_view import OwnerState
from penstock.core.leases.lease_writes import Take

VERY_OLD_DURATIONS = 3
"""After so many lease durations without a renewal the share no longer counts."""


def plan_kcl2(
    fleet: Sequence[FleetLease], me: str, limits: BalanceLimits, *, lease_duration_s: float, chance: float
) -> list[Acquisition]:
    """Plan which leases the Java taker would take now; at most one is stolen.

    Args:
        fleet: Every unfinished lease with its owner's state.
        me: This worker's id.
        limits: Only `max_leases` and `leases_to_acquire` have an effect: a lease is stolen without a hand-over request.
        lease_duration_s: The failover time.
        chance: In [0, 1): replaces Java's random shuffles.
    """
    gains = _plan(fleet, me, limits, lease_duration_s=lease_duration_s, chance=chance)
    return gains[: limits.leases_to_acquire]


def _plan(
    fleet: Sequence[FleetLease], me: str, limits: BalanceLimits, *, lease_duration_s: float, chance: float
) -> list[Acquisition]:
    cap = limits.max_leases
    counts = {me: 0}
    for entry in fleet:
        owner = entry.lease.owner
        if entry.owner_state is OwnerState.ALIVE and owner is not None:
            counts[owner] = counts.get(owner, 0) + 1
    available = [entry for entry in fleet if entry.owner_state is not OwnerState.ALIVE]
    seed = repr(chance)
    available.sort(key=lambda entry: tie_break(seed, entry.lease.key))
    very_old = [
        entry
        for entry in available
        if entry.owner_state is OwnerState.UNOWNED
        or entry.unchanged_s > VERY_OLD_DURATIONS * lease_duration_s
    ]
    if very_old:
        room = len(very_old) if cap is None else max(0, cap - counts[me])
        return [_take(entry, me, Reason.VERY_OLD) for entry in very_old[:room]]
    target = 1 if len(counts) >= len(fleet) else -(-len(fleet) // len(counts))
    if cap is not None:
        target = min(target, cap)
    need = target - counts[me]
    if need <= 0:
        return []
    if available:
        return [_take(entry, me, Reason.EXPIRED) for entry in available[:need]]
    return _steal(fleet, me, counts, target=target, need=need, seed=seed)


def _steal(
    fleet: Sequence[FleetLease], me: str, counts: dict[str, int], *, target: int, need: int, seed: str
) -> list[Acquisition]:
    others = {worker: count for worker, count in counts.items() if worker != me}
    if not others:
        return []
    donor = max(others, key=lambda worker: (others[worker], tie_break(seed, worker)))
    over = others[donor] - target
    if over < 0 or (over == 0 and need <= 1):
        return []
    held = [entry for entry in fleet if entry.lease.owner == donor and entry.owner_state is OwnerState.ALIVE]
    return [_take(min(held, key=lambda entry: tie_break(seed, entry.lease.key)), me, Reason.STEAL)]


def _take(entry: FleetLease, me: str, reason: Reason) -> Acquisition:
    return Acquisition(Take(entry.lease.key, entry.lease.counter, me), reason)
