"""What one worker does about the balance now: the policy's plan, less what should wait for the fleet to settle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.core.leases.balance import plan_balance, take_free
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_membership import FleetMembership
from penstock.core.leases.fleet_view import Acquisition, BalanceLimits, FleetLease, Move, live_workers, tie
from penstock.core.leases.lease_view import OwnerState

_LEFT_OVER_ROUNDS: Final = 1.25  # every worker has had a round by then
_WATCHERS_ROUNDS: Final = 2  # so long a free lease is left to those that watch its part
_PART_SCAN_ROUNDS: Final = 0.25  # a part with free leases is looked at again so soon
_DOUBLINGS_MAX: Final = 6
_CROWDED_SHARES: Final = 2  # a worker has so many times its share before others have had their turn
_PRESENT_MIN: Final = 1 / 3  # when more of the fleet seems to have gone, it may be about to come back


class RoundPlan(Struct, frozen=True):
    """What one round moves.

    Args:
        moves: In the order in which they should be made.
        scan_s: When a look at the table will find more to move; infinity where the regular round is soon enough.
    """

    moves: Sequence[Move]
    scan_s: float


NOTHING_TO_MOVE: Final = RoundPlan((), math.inf)


class MovePlanner:
    """Plans one worker's moves, round after round. Not thread-safe.

    Args:
        me: The worker's id.
        options: As for the coordinator.
    """

    def __init__(self, me: str, options: CoordinatorOptions) -> None:
        self.me = me
        self.options = options
        self._membership = FleetMembership()

    def is_settled(self, now_s: float) -> bool:
        """Whether the workers that are seen are all that are coming."""
        return self._membership.is_settled(now_s)

    def plan(
        self,
        fleet: Sequence[FleetLease],
        now_s: float,
        *,
        round_s: float,
        held_count: int,
        chance: float,
        memory_s: float = 0.0,
        is_watched: bool = False,
    ) -> RoundPlan:
        """Plan this round's moves.

        Args:
            fleet: Every unfinished lease as judged from here.
            now_s: Monotonic seconds.
            round_s: Mean time between two rounds.
            held_count: Leases in this worker's hands.
            chance: In [0, 1), for policies whose choices are random.
            memory_s: Mean time between two looks at the whole table, where it is longer than a round.
            is_watched: Whether each part of the table has workers that look at it in every round.
        """
        options = self.options
        self._membership.on_workers(live_workers(fleet, self.me), now_s, round_s, memory_s)
        left_over_s = _LEFT_OVER_ROUNDS * round_s
        moves = plan_balance(
            fleet,
            self.me,
            options.policy,
            BalanceLimits(options.max_leases, options.leases_to_acquire, options.handover, left_over_s),
            lease_duration_s=options.lease_duration_s,
            chance=chance,
        )
        scan_s = math.inf
        if options.max_leases is None or held_count < options.max_leases:
            scan_s = _left_over_scan_s(fleet, left_over_s, now_s)
        if options.policy is not BalancePolicy.KCL2 and not self._membership.is_settled(now_s):
            live = [move for move in moves if isinstance(move, Acquisition) and move.is_live]
            if live:
                moves = self._hold_back(moves, live, fleet)
                scan_s = min(scan_s, self._membership.due_s)
        if is_watched:
            moves = _leave_to_watchers(moves, fleet, _WATCHERS_ROUNDS * round_s)
        return RoundPlan(moves, scan_s)

    def plan_part(
        self,
        part: Sequence[FleetLease],
        now_s: float,
        *,
        watchers: float,
        share: float,
        round_s: float,
        held_count: int,
    ) -> RoundPlan:
        """Plan which free leases to take of those in the part of the table that this worker watches.

        Its watchers look at unlike moments, and each takes a share of what it finds free. What is left it looks at
        again soon, and then for twice as much: some of the others may have gone too.

        Args:
            part: Every unfinished lease of the part as judged from here.
            now_s: Monotonic seconds.
            watchers: How many workers watch the part, when the fleet was last seen.
            share: How many leases each worker had then; 0 takes nothing.
            round_s: Mean time between two looks at it.
            held_count: Leases in this worker's hands.
        """
        options = self.options
        free = [entry for entry in part if entry.is_takable]
        if not free or not share:
            return NOTHING_TO_MOVE
        soon_s = _PART_SCAN_ROUNDS * round_s
        looks = min(int(max(entry.free_s for entry in free) / soon_s), _DOUBLINGS_MAX)
        wanted = math.ceil(len(free) / max(1.0, watchers * _present_share(part)) * 2**looks)
        # The first to see that many workers are gone leaves something to those that look a moment later.
        crowded = math.ceil(_CROWDED_SHARES * share * 2 ** max(0, looks // 2 - 1))
        room = max(1, crowded - held_count)
        if options.max_leases is not None:
            room = min(room, max(0, options.max_leases - held_count))
        free.sort(key=lambda entry: tie(self.me, entry.lease.key))
        taken = free[: min(wanted, room)][: options.leases_to_acquire]
        is_urgent = looks < _DOUBLINGS_MAX and len(taken) < len(free)
        scan_s = now_s + soon_s if is_urgent else math.inf
        return RoundPlan([take_free(entry, self.me) for entry in taken], scan_s)

    def _hold_back(
        self, moves: Sequence[Move], live: Sequence[Acquisition], fleet: Sequence[FleetLease]
    ) -> list[Move]:
        """Keep what need not wait for the fleet to settle: free leases, and one ask of a worker that has nothing."""
        rest = [move for move in moves if not (isinstance(move, Acquisition) and move.is_live)]
        is_seen = any(
            entry.lease.owner == self.me and entry.owner_state is OwnerState.ALIVE for entry in fleet
        )
        if is_seen or rest:
            return rest
        # Two newcomers: the same scan, the same plan, the same first lease. Each chooses by its own name instead.
        return [min(live, key=lambda move: tie(self.me, move.write.key))]


def _leave_to_watchers(moves: Sequence[Move], fleet: Sequence[FleetLease], patience_s: float) -> list[Move]:
    """Leave whatever is free to those that watch its part: they see it sooner than a look at the whole table.

    What they leave they have no room for, and it goes to anybody.
    """
    left = {entry.lease.key for entry in fleet if entry.free_s >= patience_s}
    return [
        move for move in moves if not isinstance(move, Acquisition) or move.is_live or move.write.key in left
    ]


def _present_share(part: Sequence[FleetLease]) -> float:
    """Return which share of the workers that own leases of a part still live."""
    owners = {entry.lease.owner for entry in part if entry.lease.owner is not None}
    living = {entry.lease.owner for entry in part if entry.owner_state is OwnerState.ALIVE} - {None}
    return max(_PRESENT_MIN, len(living) / len(owners)) if owners else 1.0


def _left_over_scan_s(fleet: Sequence[FleetLease], left_over_s: float, now_s: float) -> float:
    """Return when a free lease will have been left for long enough to be anybody's; infinity for never."""
    moments = (
        now_s + step * left_over_s - entry.free_s for entry in fleet if entry.is_takable for step in (1, 2)
    )
    return min((moment_s for moment_s in moments if moment_s > now_s), default=math.inf)
