"""The balance policies: pure functions that plan which worker holds which lease, each move with its reason.

There is no leader. Every worker computes the same target for all workers from its scan, and carries out its own part: the
worker that is to get a lease acquires it. A worker acquires its whole share in one round. It takes free leases, and
requests live ones, whose owners finish first (a hand-over).

- `even`: every worker gets the whole part of leases/workers, and the remainder goes to the workers with the most leases,
  so that as few leases as possible move. No lease is taken from a worker that has at most one lease more.
- `by_zone`: every zone gets the same number (the remainder to the fullest), then even within each zone. A worker's zone
  is the text before the first "/" of its id (`zone/name`); ids without one form a zone of their own. The owner is an
  opaque text to Java KCL workers, so the convention needs no attribute.
- `by_throughput`: the same kilobytes per second for every worker, within a tenth, by few moves of shards. A
  worker id that ends in `@8` gets as much as eight others. Meant for a fleet of Penstock workers: Java KCL 2.x workers
  balance counts and would work against it.
- `kcl2`: the rule of Java KCL 2.x, see `plan_kcl2`.

Another worker's `max_leases` is unknown, since KCL's rows have no attribute for it. It is inferred: a worker that has not
taken a lease of its share for a round has no room, so its current number is its share, and the others share the rest. A
lease that was free for two rounds goes to any worker with room.

Finished leases do not count. A lease that waits for its parents counts once it is held, but no worker takes it before it
can be read: the worker that ends the last parent takes the children, since it loses a lease at that moment.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.fleet_view import (
    DEFAULT_LIMITS,
    Acquisition,
    BalanceLimits,
    FleetLease,
    Move,
    Reason,
    ReleaseLease,
    capacity_of,
    live_workers,
    tie_break,
    zone_of,
)
from penstock.core.leases.lease_view import OwnerState
from penstock.core.leases.lease_writes import RequestHandover, Take

VERY_OLD_DURATIONS = 3
"""After this many lease durations without a renewal any worker takes the lease, even beyond its share."""


def plan_kcl2(
    fleet: Sequence[FleetLease], me: str, limits: BalanceLimits, *, lease_duration_s: float, chance: float
) -> list[Acquisition]:
    """Plan which leases the lease taker of Java KCL 2.x would take now; at most one is stolen.

    It is slower and less even than `even`: it steals one lease per round, and only if no lease is free. A lease
    that has no owner, or was not renewed for three lease durations, is taken by any worker, even beyond its share.

    Args:
        limits: Their `handover` has no effect: a lease is stolen without a request.
        chance: Replaces Java's random shuffles.

    Source:
        The decision order of KCL 2.7.3's lease taker. Two differences: finished leases are left out here (Java counts
        them until it deletes them), and a worker at its limit takes no very old leases.
    """
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
        return [take(entry, me, Reason.VERY_OLD) for entry in very_old[:room]]
    target = 1 if len(counts) >= len(fleet) else -(-len(fleet) // len(counts))
    if cap is not None:
        target = min(target, cap)
    need = target - counts[me]
    if need <= 0:
        return []
    if available:
        return [take(entry, me, Reason.EXPIRED) for entry in available[:need]]
    return _steal(fleet, me, counts, target=target, need=need, seed=seed)


def _steal(
    fleet: Sequence[FleetLease], me: str, counts: dict[str, int], *, target: int, need: int, seed: str
) -> list[Acquisition]:
    """Steal a lease from the worker with the most leases: more than the target, or as many while this worker needs several."""
    others = {worker: count for worker, count in counts.items() if worker != me}
    if not others:
        return []
    donor = max(others, key=lambda worker: (others[worker], tie_break(seed, worker)))
    over = others[donor] - target
    if over < 0 or (over == 0 and need <= 1):
        return []
    held = [entry for entry in fleet if entry.lease.owner == donor and entry.owner_state is OwnerState.ALIVE]
    return [take(min(held, key=lambda entry: tie_break(seed, entry.lease.key)), me, Reason.STEAL)]


_LOAD_TOLERANCE: Final = 0.10  # of the mean load: smaller differences stay, since rates change all the time
_PASSES_MAX: Final = 20
_WEIGHT_FLOOR: Final = 0.05  # of the mean: an idle shard still costs calls and a lease


def plan_balance(
    fleet: Sequence[FleetLease],
    me: str,
    policy: BalancePolicy = BalancePolicy.EVEN,
    limits: BalanceLimits = DEFAULT_LIMITS,
    *,
    workers: Iterable[str] = (),
    lease_duration_s: float = 10.0,
    chance: float = 0.5,
) -> list[Move]:
    """Plan which leases this worker acquires or releases now.

    1. Assign the free leases, and live ones beyond their owners' shares, to new owners.
    2. If workers have long left free leases of their shares, assign again: their current number becomes their share.
    3. Plan this worker's part, within its limits.

    Args:
        workers: Live workers that own no lease.
        lease_duration_s: For `kcl2`, which treats leases of three times this age differently.
        chance: In [0, 1), for `kcl2`, whose choices are random.

    Returns:
        Moves in the order in which they should be made: free leases first. If all workers have the same fleet, `max_leases` and
        policy (except `kcl2`), no lease is in the plans of two of them, unless it was free for long.
    """
    if policy is BalancePolicy.KCL2:
        takes = plan_kcl2(fleet, me, limits, lease_duration_s=lease_duration_s, chance=chance)
        return list(takes[: limits.leases_to_acquire])
    counts = dict.fromkeys(live_workers(fleet, me) | set(workers), 0)
    alive = OwnerState.ALIVE  # looked up once: the fleet may have ten thousand leases
    free = []
    for entry in fleet:
        if entry.owner_state is not alive:
            if entry.is_takable:
                free.append(entry)
        elif (owner := entry.lease.owner) is not None:
            counts[owner] += 1
    caps = dict.fromkeys(counts, limits.max_leases)
    assigned = _assign_leases(fleet, free, counts, policy, caps)
    left_over = {
        entry.lease.key: assigned[entry.lease.key]
        for entry in free
        if entry.free_s >= limits.left_over_s and assigned.get(entry.lease.key, me) != me
    }
    if left_over:
        # These workers have not taken their leases for a round: full, dead, or with another policy.
        caps |= {worker: counts[worker] for worker in left_over.values()}
        assigned = _assign_leases(fleet, free, counts, policy, caps)
    moves = _own_acquisitions(fleet, free, me, assigned, left_over, limits)
    if limits.max_leases is not None:
        moves = moves[: max(0, limits.max_leases - counts[me])]
    return [*moves[: limits.leases_to_acquire], *_release_surplus(fleet, me, counts, limits)]


# --- targets --------------------------------------------------------------------------------------------


def plan_targets(
    counts: Mapping[str, int], total: int, policy: BalancePolicy, caps: Mapping[str, int | None]
) -> dict[str, int]:
    """Return every worker's number of leases.

    Args:
        counts: The current number of leases of each live worker.
        total: Leases to share, free ones included.
        policy: EVEN or BY_ZONE.
        caps: The limit of each worker; None for no limit.
    """
    if policy is not BalancePolicy.BY_ZONE:
        return _share_evenly(counts, total, caps)
    zones: dict[str, dict[str, int]] = {}
    for worker, count in counts.items():
        zones.setdefault(zone_of(worker), {})[worker] = count
    zone_counts = {zone: sum(members.values()) for zone, members in zones.items()}
    zone_caps = {zone: _sum_of_caps([caps[worker] for worker in members]) for zone, members in zones.items()}
    zone_targets = _share_evenly(zone_counts, total, zone_caps)
    targets: dict[str, int] = {}
    for zone, members in zones.items():
        targets.update(_share_evenly(members, zone_targets[zone], caps))
    return targets


def _sum_of_caps(caps: Sequence[int | None]) -> int | None:
    limits = [cap for cap in caps if cap is not None]
    return sum(limits) if len(limits) == len(caps) else None


def _share_evenly(counts: Mapping[str, int], total: int, caps: Mapping[str, int | None]) -> dict[str, int]:
    """Share leases evenly, up to each worker's limit; the remainder goes to the workers that own most."""
    targets: dict[str, int] = {}
    fullest_first = sorted(counts, key=lambda worker: (-counts[worker], tie_break(worker)))
    left = total
    while fullest_first:  # each turn but the last fills at least one worker up to its limit
        base, remainder = divmod(left, len(fullest_first))
        shares = {
            worker: base + (1 if place < remainder else 0) for place, worker in enumerate(fullest_first)
        }
        full = {}
        for worker, share in shares.items():
            cap = caps[worker]
            if cap is not None and share >= cap:
                full[worker] = cap
        if not full:
            return targets | shares
        targets |= full
        left -= sum(full.values())
        fullest_first = [worker for worker in fullest_first if worker not in full]
    return targets


# --- assignment -----------------------------------------------------------------------------------------


def _assign_leases(
    fleet: Sequence[FleetLease],
    free: Sequence[FleetLease],
    counts: Mapping[str, int],
    policy: BalancePolicy,
    caps: Mapping[str, int | None],
) -> dict[str, str]:
    """Return the new owner of every lease that moves."""
    if policy is BalancePolicy.BY_THROUGHPUT:
        return _assign_by_throughput(fleet, free, counts, caps)
    offered = [entry.lease.key for entry in free]
    # A free lease that waits for its parents does not count.
    targets = plan_targets(counts, sum(counts.values()) + len(offered), policy, caps)
    surplus = {worker: counts[worker] - target for worker, target in targets.items()}
    wanted = {worker: -over for worker, over in surplus.items() if over < 0}
    return _deal_leases([*sorted(offered, key=tie_break), *_surplus_leases(fleet, surplus)], wanted)


def _surplus_leases(fleet: Sequence[FleetLease], surplus: dict[str, int]) -> list[str]:
    """Return the leases that workers have beyond their targets, chosen from those that may move.

    Args:
        surplus: By worker, its number of leases beyond its target; negative below the target.
    """
    by_donor: dict[str, list[FleetLease]] = {worker: [] for worker, over in surplus.items() if over > 0}
    if not by_donor:
        return []
    for entry in fleet:
        owner = entry.lease.owner
        if owner in by_donor and _may_move(entry):
            by_donor[owner].append(entry)
    keys = []
    for donor, entries in by_donor.items():
        # A lease that is not read yet moves at no cost.
        entries.sort(key=lambda entry: (not entry.waits_for_parents, tie_break(entry.lease.key)))
        keys += [entry.lease.key for entry in entries[: surplus[donor]]]
    return sorted(keys, key=tie_break)


def _may_move(entry: FleetLease) -> bool:
    # Another hand-over of the lease may be in progress already.
    return entry.owner_state is OwnerState.ALIVE and entry.lease.checkpoint_owner is None


def _deal_leases(offered: Sequence[str], wanted: Mapping[str, int]) -> dict[str, str]:
    """Assign each lease to the next worker on a hash ring that still wants one.

    If the views of two workers differ a little, so do their results: they seldom choose the same lease.

    Args:
        wanted: By worker, the number of leases below its target; more than 0.
    """
    left = dict(wanted)
    ring = sorted((tie_break(worker), worker) for worker in left)
    assigned: dict[str, str] = {}
    for key in offered:
        if not ring:
            break
        place = bisect_left(ring, (tie_break(key), "")) % len(ring)
        worker = ring[place][1]
        assigned[key] = worker
        left[worker] -= 1
        if not left[worker]:
            del ring[place]
    return assigned


def _own_acquisitions(  # noqa: PLR0917 - the inputs of a plan
    fleet: Sequence[FleetLease],
    free: Sequence[FleetLease],
    me: str,
    assigned: Mapping[str, str],
    left_over: Container[str],
    limits: BalanceLimits,
) -> list[Acquisition]:
    """Plan this worker's acquisitions: first its free leases, then its live ones, then others that were free for long.

    Args:
        assigned: The new owner of every lease that moves.
        left_over: Free leases that were assigned to another worker first, which has not taken them for a round.
    """
    order = {key: place for place, (key, worker) in enumerate(assigned.items()) if worker == me}
    mine = [entry for entry in fleet if entry.lease.key in order] if order else []
    alive = OwnerState.ALIVE
    gained = [entry for entry in mine if entry.owner_state is not alive or entry.lease.owner != me]
    gained.sort(key=lambda entry: (entry.owner_state is alive, order[entry.lease.key]))
    moves = [
        _acquire(entry, me, limits, Reason.LEFT_OVER if entry.lease.key in left_over else None)
        for entry in gained
    ]
    long_free = [
        entry
        for entry in free
        if entry.free_s >= 2 * limits.left_over_s and assigned.get(entry.lease.key) != me
    ]
    long_free.sort(key=lambda entry: tie_break(me, entry.lease.key))
    return [*moves, *(_acquire(entry, me, limits, Reason.LEFT_OVER) for entry in long_free)]


def _acquire(entry: FleetLease, me: str, limits: BalanceLimits, reason: Reason | None = None) -> Acquisition:
    """Return a hand-over request for a live lease whose owner answers requests; for any other lease a take.

    Args:
        reason: The reason of a take of a free lease, as in `take`.
    """
    if entry.owner_state is not OwnerState.ALIVE:
        return take(entry, me, reason)
    owner = entry.lease.owner
    if limits.handover and not entry.ignores_handovers and owner is not None:
        return Acquisition(RequestHandover(entry.lease.key, owner, me), Reason.SHARE)
    return take(entry, me, Reason.SHARE)


def take(entry: FleetLease, me: str, reason: Reason | None = None) -> Acquisition:
    """Return the take of a lease.

    Args:
        reason: None for a free lease: the reason is then that it has no owner, or has expired.
    """
    if reason is None:
        reason = Reason.UNOWNED if entry.owner_state is OwnerState.UNOWNED else Reason.EXPIRED
    return Acquisition(Take(entry.lease.key, entry.lease.counter, me), reason)


def _release_surplus(
    fleet: Sequence[FleetLease], me: str, counts: Mapping[str, int], limits: BalanceLimits
) -> list[Move]:
    """Plan the release of this worker's leases above `max_leases`: first of leases that still wait for their parents."""
    if limits.max_leases is None or counts[me] <= limits.max_leases:
        return []
    held = [entry for entry in fleet if entry.lease.owner == me and _may_move(entry)]
    held.sort(key=lambda entry: (not entry.waits_for_parents, tie_break(entry.lease.key)))
    return [ReleaseLease(entry.lease.key) for entry in held[: counts[me] - limits.max_leases]]


# --- by throughput --------------------------------------------------------------------------------------


def _assign_by_throughput(
    fleet: Sequence[FleetLease],
    free: Sequence[FleetLease],
    counts: Mapping[str, int],
    caps: Mapping[str, int | None],
) -> dict[str, str]:
    """Return the new worker of each free lease and of each lease to move, so that all workers have about the same load."""
    plan = _LoadPlan(fleet, counts, caps)
    plan.assign_free([entry.lease.key for entry in free])
    for _ in range(_PASSES_MAX):  # if workers have different capacities, one move can make another one useful
        if not plan.even_out():
            break
    return plan.assigned


class _LoadPlan:
    """Assigns leases to even out the workers' loads. A load is the sum of a worker's weights, divided by its capacity.

    Args:
        counts: The current number of leases of each live worker.
        caps: The most leases of each worker; None for no limit.
    """

    def __init__(
        self, fleet: Sequence[FleetLease], counts: Mapping[str, int], caps: Mapping[str, int | None]
    ) -> None:
        self.assigned: dict[str, str] = {}
        """The new worker of each lease that has got one."""
        self._weights = _weights(fleet)
        self._counts = dict(counts)
        self._caps = caps
        self._capacity = {worker: capacity_of(worker) for worker in counts}
        self._loads = dict.fromkeys(counts, 0.0)
        self._movable: dict[str, list[tuple[float, str]]] = {worker: [] for worker in counts}  # weights, keys
        alive = OwnerState.ALIVE
        for entry in fleet:
            owner = entry.lease.owner
            if owner in self._loads and entry.owner_state is alive:
                weight = self._weights[entry.lease.key]
                self._loads[owner] += weight / self._capacity[owner]
                if _may_move(entry):
                    self._movable[owner].append((weight, entry.lease.key))

    def assign_free(self, keys: Sequence[str]) -> None:
        """Assign free leases, heaviest first, each to the worker with the least load."""
        idle_first = [(load, tie_break(worker), worker) for worker, load in self._loads.items()]
        heapq.heapify(idle_first)
        for key in sorted(keys, key=lambda key: (-self._weights[key], tie_break(key))):
            while idle_first and self._is_full(idle_first[0][2]):
                heapq.heappop(idle_first)
            if not idle_first:
                return
            _, order, worker = idle_first[0]
            self._assign(key, worker)
            self._movable[worker].append((self._weights[key], key))
            heapq.heapreplace(idle_first, (self._loads[worker], order, worker))

    def even_out(self) -> bool:
        """Move leases from the most to the least loaded worker while that narrows the gap clearly; return whether any moved."""
        has_moved = False
        loads, capacity = self._loads, self._capacity
        mean = sum(load * capacity[worker] for worker, load in loads.items()) / sum(capacity.values())
        tolerance = mean * _LOAD_TOLERANCE
        for leases in self._movable.values():
            leases.sort()
        order = sorted((load, tie_break(worker), worker) for worker, load in loads.items())
        while len(order) > 1:
            (low, _, receiver), (high, _, donor) = order[0], order[-1]
            if high <= mean + tolerance and low >= mean - tolerance:
                break
            if self._is_full(receiver):
                del order[0]
                continue
            ideal = (high - low) / (1 / capacity[donor] + 1 / capacity[receiver])
            useful_max = (high - low - tolerance) * capacity[receiver]
            place = _choose_lease(self._movable[donor], ideal, useful_max)
            if place is None:
                order.pop()  # no lease of the donor helps even the least loaded worker
                continue
            weight, key = self._movable[donor].pop(place)
            self._counts[donor] -= 1
            loads[donor] -= weight / capacity[donor]
            self._assign(key, receiver)
            insort(self._movable[receiver], (weight, key))
            has_moved = True
            del order[0], order[-1]
            for worker in (donor, receiver):
                insort(order, (loads[worker], tie_break(worker), worker))
        return has_moved

    def _is_full(self, worker: str) -> bool:
        cap = self._caps[worker]
        return cap is not None and self._counts[worker] >= cap

    def _assign(self, key: str, worker: str) -> None:
        self.assigned[key] = worker
        self._counts[worker] += 1
        self._loads[worker] += self._weights[key] / self._capacity[worker]


def _weights(fleet: Sequence[FleetLease]) -> dict[str, float]:
    """Return each lease's throughput in kilobytes per second, the mean if it is unknown, plus a little for every lease."""
    rates = {entry.lease.key: entry.lease.throughput_kbps for entry in fleet}
    known = [rate for rate in rates.values() if rate is not None]
    mean = sum(known) / len(known) if known else 1.0
    floor = (mean or 1.0) * _WEIGHT_FLOOR
    return {key: floor + (mean if rate is None else rate) for key, rate in rates.items()}


def _choose_lease(leases: list[tuple[float, str]], ideal: float, useful_max: float) -> int | None:
    """Return the place in `leases` of the lease that best narrows the gap between two loads; None if none does so clearly.

    Args:
        leases: Weight and key, lightest first.
        ideal: The weight that would close the gap.
        useful_max: A move of this weight or more is useless: the receiver would have about the load that the donor had, or more.
    """
    place = bisect_left(leases, (min(ideal, useful_max), ""))
    if place:
        return place - 1
    # No lease is lighter than the ideal: choose the lightest one if its move is still useful.
    return 0 if leases and leases[0][0] < useful_max else None
