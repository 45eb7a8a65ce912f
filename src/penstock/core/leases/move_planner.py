"""What one worker does about the balance now: the policy's plan, less what should wait for the fleet to settle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.leases.balance import plan_balance
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_membership import FleetMembership
from penstock.core.leases.fleet_view import BalanceLimits, FleetLease, Gain, Move, live_workers, tie
from penstock.core.leases.lease_view import OwnerState

_LEFT_OVER_ROUNDS: Final = 1.25  # every worker has had a round by then


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What one round moves.

    Args:
        moves: In the order in which they should be made.
        look_s: When a look at the table will find more to move; infinity where the regular round is soon enough.
    """

    moves: Sequence[Move]
    look_s: float


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
        self, fleet: Sequence[FleetLease], now_s: float, *, round_s: float, held_count: int, chance: float
    ) -> RoundPlan:
        """Plan this round's moves.

        Args:
            fleet: Every unfinished lease as judged from here.
            now_s: Monotonic seconds.
            round_s: Mean time between two rounds.
            held_count: Leases in this worker's hands.
            chance: In [0, 1), for policies whose choices are random.
        """
        options = self.options
        self._membership.observe(live_workers(fleet, self.me), now_s, round_s)
        left_over_s = _LEFT_OVER_ROUNDS * round_s
        moves = plan_balance(
            fleet,
            self.me,
            options.policy,
            BalanceLimits(options.max_leases, options.leases_to_acquire, options.handover, left_over_s),
            lease_duration_s=options.lease_duration_s,
            chance=chance,
        )
        look_s = math.inf
        if options.max_leases is None or held_count < options.max_leases:
            look_s = _left_over_look_s(fleet, left_over_s, now_s)
        if options.policy is not BalancePolicy.KCL2 and not self._membership.is_settled(now_s):
            live = [move for move in moves if isinstance(move, Gain) and move.is_live]
            if live:
                moves = self._hold_back(moves, live, fleet)
                look_s = min(look_s, self._membership.due_s)
        return RoundPlan(moves, look_s)

    def _hold_back(
        self, moves: Sequence[Move], live: Sequence[Gain], fleet: Sequence[FleetLease]
    ) -> list[Move]:
        """Keep what need not wait for the fleet to settle: free leases, and one ask of a worker that has nothing."""
        rest = [move for move in moves if not (isinstance(move, Gain) and move.is_live)]
        is_seen = any(
            entry.lease.owner == self.me and entry.owner_state is OwnerState.ALIVE for entry in fleet
        )
        if is_seen or rest:
            return rest
        # Two newcomers: the same scan, the same plan, the same first lease. Each chooses by its own name instead.
        return [min(live, key=lambda move: tie(self.me, move.write.key))]


def _left_over_look_s(fleet: Sequence[FleetLease], left_over_s: float, now_s: float) -> float:
    """Return when a free lease will have been left for long enough to be anybody's; infinity for never."""
    moments = (
        now_s + step * left_over_s - entry.free_s
        for entry in fleet
        if entry.owner_state is not OwnerState.ALIVE and not entry.waits
        for step in (1, 2)
    )
    return min((moment_s for moment_s in moments if moment_s > now_s), default=math.inf)
