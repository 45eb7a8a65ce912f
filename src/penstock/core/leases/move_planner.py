"""Plans one worker's moves in a round: the policy's plan, without the moves that wait until the fleet has settled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from penstock.core.leases.balance import plan_balance, take
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_view import (
    Acquisition,
    BalanceLimits,
    FleetLease,
    Move,
    live_workers,
    tie_break,
)
from penstock.core.leases.lease_view import OwnerState
from penstock.core.leases.table_scans import ScanPlan

_NEWCOMER_ROUNDS: Final = 0.25  # wait after a new worker was seen: others may be starting too
_WAIT_ROUNDS_MAX: Final = 3.0  # longest wait while workers start one after the other
_ABSENCE_ROUNDS: Final = 4.0  # a worker that was without a lease for less than this is not new


class FleetSettling:
    """Decides when the fleet is settled: until then a worker requests one live lease at most. Not thread-safe.

    Workers of a deployment start within seconds of each other, and a worker without a lease is invisible. If each requested
    its share at once, the first one would get half of all leases and hand most of them over again. So a new worker requests
    one lease, by which the others see it, and its share when a round has passed. It takes free leases at once, since they
    are unread.
    """

    def __init__(self) -> None:
        self._last_seen_s: dict[str, float] = {}  # by live worker
        self._began_s: float | None = None  # when the current wait began
        self.due_s: float = math.inf
        """When the fleet will be settled, if no other worker appears."""

    def on_workers(
        self, workers: Iterable[str], now_s: float, round_s: float, whole_scan_s: float = 0.0
    ) -> None:
        """Handle the live workers of a scan: a new worker begins a wait, or lengthens it up to a limit.

        Args:
            workers: All live workers, this one included.
            whole_scan_s: Mean time between two scans of the whole table. A worker is new if it was not seen for
                `_ABSENCE_ROUNDS` times this or `round_s`, whichever is longer.
        """
        is_first = not self._last_seen_s
        known_since_s = now_s - _ABSENCE_ROUNDS * max(round_s, whole_scan_s)
        last_seen_s = {worker: at_s for worker, at_s in self._last_seen_s.items() if at_s >= known_since_s}
        live_workers_now = dict.fromkeys(workers, now_s)
        has_newcomers = not live_workers_now.keys() <= last_seen_s.keys()
        self._last_seen_s = last_seen_s | live_workers_now
        if has_newcomers:
            if self.is_settled(now_s):
                self._began_s = self.due_s = now_s
            wait_s = round_s * (1.0 if is_first else _NEWCOMER_ROUNDS)
            began_s = now_s if self._began_s is None else self._began_s
            self.due_s = min(max(self.due_s, now_s + wait_s), began_s + _WAIT_ROUNDS_MAX * round_s)

    def is_settled(self, now_s: float) -> bool:
        """Return whether a worker may request its share."""
        return self._began_s is None or now_s >= self.due_s


_LEFT_OVER_ROUNDS: Final = 1.25  # every worker has had a round by then; see `BalanceLimits.left_over_s`
_WATCHERS_ROUNDS: Final = 2  # a free lease is left to the watchers of its part for this long
_PART_SCAN_ROUNDS: Final = 0.25  # until the next scan of a part with free leases
_DOUBLINGS_MAX: Final = 6
_FIRST_SHARES_MAX: Final = 2  # times a worker's mean leases: a watcher's limit until others have scanned


class RoundPlan(Struct, frozen=True):
    """The moves of one round.

    Args:
        moves: In the order in which they should be made.
        extra_scan_due_s: When an extra scan will find more leases to move; infinity if the regular round is soon enough.
    """

    moves: Sequence[Move]
    extra_scan_due_s: float


NOTHING_TO_MOVE: Final = RoundPlan((), extra_scan_due_s=math.inf)


class MovePlanner:
    """Plans one worker's moves, round after round. Not thread-safe."""

    def __init__(self, me: str, options: CoordinatorOptions) -> None:
        self.me = me
        self.options = options
        self._settling = FleetSettling()

    def is_settled(self, now_s: float) -> bool:
        """Return whether the fleet has settled: no new worker has appeared lately."""
        return self._settling.is_settled(now_s)

    def plan_round(
        self,
        fleet: Sequence[FleetLease],
        now_s: float,
        scan_plan: ScanPlan,
        *,
        held_count: int,
        chance: float,
    ) -> RoundPlan:
        """Plan this round's moves, after a scan of the whole table.

        Args:
            chance: In [0, 1), for policies whose choices are random.
        """
        options, settling_s = self.options, scan_plan.settling_s
        self._settling.on_workers(live_workers(fleet, self.me), now_s, settling_s, scan_plan.whole_scan_s)
        left_over_s = _LEFT_OVER_ROUNDS * settling_s
        moves = plan_balance(
            fleet,
            self.me,
            options.policy,
            BalanceLimits(options.max_leases, options.leases_to_acquire, options.handover, left_over_s),
            lease_duration_s=options.lease_duration_s,
            chance=chance,
        )
        extra_scan_due_s = math.inf
        if options.has_room(held_count):
            extra_scan_due_s = _left_over_scan_due_s(fleet, left_over_s, now_s)
        if options.policy is not BalancePolicy.KCL2 and not self._settling.is_settled(now_s):
            live_moves = [move for move in moves if isinstance(move, Acquisition) and move.is_live]
            if live_moves:
                moves = self._limit_live_moves(live_moves, moves, fleet)
                extra_scan_due_s = min(extra_scan_due_s, self._settling.due_s)
        if scan_plan.part is not None:
            moves = _leave_to_watchers(moves, fleet, _WATCHERS_ROUNDS * settling_s)
        return RoundPlan(moves, extra_scan_due_s)

    def plan_free_takes(self, fleet: Sequence[FleetLease], scan_plan: ScanPlan) -> list[Acquisition]:
        """Plan only the takes of this worker's share of the free leases, between two rounds.

        A lease that never had an owner is left to the rounds: the worker that has just ended its parent takes it.
        """
        if not any(entry.is_takable for entry in fleet):
            return []
        limits = BalanceLimits(self.options.max_leases, left_over_s=_LEFT_OVER_ROUNDS * scan_plan.settling_s)
        moves = plan_balance(fleet, self.me, self.options.policy, limits)
        had_owner = {entry.lease.key for entry in fleet if entry.lease.counter > 0}
        return [
            move
            for move in moves
            if isinstance(move, Acquisition) and not move.is_live and move.write.key in had_owner
        ]

    def plan_part_takes(
        self,
        part: Sequence[FleetLease],
        now_s: float,
        scan_plan: ScanPlan,
        *,
        held_count: int,
    ) -> RoundPlan:
        """Plan the takes of free leases in the part of the table that this worker watches.

        The watchers of a part scan it at different moments, and each takes a share of the free leases that it finds. A
        watcher that leaves some scans again soon and takes twice as many: some of the other watchers may be gone too.

        Args:
            part: The leases of the part.
        """
        options = self.options
        free = [entry for entry in part if entry.is_takable]
        if not free:
            return NOTHING_TO_MOVE
        soon_s = _PART_SCAN_ROUNDS * scan_plan.round_s
        # The longest-free lease could have been taken in this many extra scans.
        doublings = min(int(max(entry.free_s for entry in free) / soon_s), _DOUBLINGS_MAX)
        wanted = math.ceil(len(free) / max(1.0, scan_plan.watcher_count) * 2**doublings)
        # After the loss of many workers, the first watcher that scans leaves some leases to those that scan a moment later.
        count_max = math.ceil(
            _FIRST_SHARES_MAX * scan_plan.leases_per_worker * 2 ** max(0, doublings // 2 - 1)
        )
        room = max(1, count_max - held_count)
        if options.max_leases is not None:
            room = min(room, max(0, options.max_leases - held_count))
        free.sort(key=lambda entry: tie_break(self.me, entry.lease.key))
        taken = free[: min(wanted, room)][: options.leases_to_acquire]
        is_urgent = doublings < _DOUBLINGS_MAX and len(taken) < len(free)
        extra_scan_due_s = now_s + soon_s if is_urgent else math.inf
        return RoundPlan([take(entry, self.me) for entry in taken], extra_scan_due_s)

    def _limit_live_moves(
        self, live_moves: Sequence[Acquisition], moves: Sequence[Move], fleet: Sequence[FleetLease]
    ) -> list[Move]:
        """Return the moves without the acquisitions of live leases.

        If this worker has no lease and no other move, one of these is kept: by its request the others see this worker.
        """
        kept = [move for move in moves if not (isinstance(move, Acquisition) and move.is_live)]
        has_lease = any(
            entry.lease.owner == self.me and entry.owner_state is OwnerState.ALIVE for entry in fleet
        )
        if has_lease or kept:
            return kept
        # Two new workers with the same scan have the same plan, with the same first lease. So each chooses by its own name.
        return [min(live_moves, key=lambda move: tie_break(self.me, move.write.key))]


def _leave_to_watchers(moves: Sequence[Move], fleet: Sequence[FleetLease], patience_s: float) -> list[Move]:
    """Return the moves without the takes of leases that were not free for `patience_s` yet.

    The watchers of a lease's part see first that it is free. After that time they have no room, and any worker takes it.
    """
    long_free = {entry.lease.key for entry in fleet if entry.free_s >= patience_s}
    return [
        move
        for move in moves
        if not isinstance(move, Acquisition) or move.is_live or move.write.key in long_free
    ]


def _left_over_scan_due_s(fleet: Sequence[FleetLease], left_over_s: float, now_s: float) -> float:
    """Return the next moment at which a lease will have been free for `left_over_s` or for twice as long; infinity for none.

    From either moment on, further workers may take the lease.
    """
    moments = (
        now_s + step * left_over_s - entry.free_s for entry in fleet if entry.is_takable for step in (1, 2)
    )
    return min((moment_s for moment_s in moments if moment_s > now_s), default=math.inf)
