"""Which rows of the lease table one worker reads, and when.

In a fleet of ordinary size every worker scans the whole table in every round, which costs workers x leases. In a larger one
each worker watches a part of the table: it scans that part in every round, as several other workers do, and the whole table
from time to time. So the fleet's reads grow with the leases only:

| read | how often | for |
|---|---|---|
| the part | every round, and when a lease in it expires | unread leases |
| the whole table | one worker after the other, as the budget allows | the balance, holes, finished leases |
| a small table | every 0.06 lease durations, if `scans_for_free_leases` | leases that other workers have released or left behind |
| one row of another part | once, by its key | a parent that a lease waits for; a lease whose owner is unknown |

`plan_scans` has the numbers. Workers choose their parts by their places on a ring, so that all parts have equally many
watchers. The workers of each zone are spaced evenly on the ring: if a zone is lost, no part loses all of its watchers.

A worker that starts on a large table does not know how many others there are. Others may be starting too, and must not scan
the whole table all at once. So it scans its part, then another one, estimates the size of the fleet from the owners in the
two, and scans the whole table after a random time that is proportional to that size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from penstock.core.backoff import Backoff
from penstock.core.leases.coordinator_effects import EnsureTable, FetchLease, Level, ScanTable, Topic, Turn
from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_view import FleetLease, tie_break, zone_of
from penstock.core.leases.lease import WHOLE_TABLE, TablePart
from penstock.core.leases.lease_view import LeaseView, OwnerState

_EVERY_ROUND_SHARE: Final = 1 / 8  # of the budget, for strongly consistent scans of all rows in every round
_PART_SHARE: Final = 2 / 3
_WHOLE_SHARE: Final = 1 / 3
_PART_ROUNDS: Final = 0.75  # a part is scanned more often: fewer workers watch each lease
_WATCHERS_MIN: Final = 2  # of a part, however many leases there are
_WHOLE_ROUNDS_MIN: Final = 4  # between two whole scans of a worker that watches a part
_MOVING_SHARE: Final = 1 / 2  # of that time, while leases are moving
_SETTLING_SHARE: Final = 1 / 6  # of that time, until a new worker requests its share
_LEASES_PER_WORKER: Final = 10  # assumed until the fleet was seen
_RING: Final = 1 << 64
_JITTER: Final = 0.2  # of the interval, to both sides
_EXTRA_SCAN_ROUNDS: Final = 0.2  # the shortest time between extra scans, in rounds
_GATHERING_ROUNDS: Final = 0.5  # by then, workers that started at the same time own a lease
_FETCHES_MAX: Final = 20
_FREE_LEASE_SCAN_DURATIONS: Final = 0.06  # between two scans for free leases alone, in lease durations
_FREE_LEASE_SCAN_SHARE: Final = 1 / 20  # of the budget, for those scans of all workers
_FREE_LEASE_SCAN_ROUNDS_MAX: Final = 1 / 2  # no such scans if the budget allows them only this far apart
_FREE_LEASE_SCAN_TABLE_ROWS_MAX: Final = 400  # workers that start together do not know yet how many they are
_PAGE_ROWS: Final = 10  # about as many rows as DynamoDB's smallest read unit has
_FETCH_RETRY_S: Final = 1.0


# --- the plan ---------------------------------------------------------------------------------------------


class ScanPlan(Struct, frozen=True):
    """The scans of one worker.

    Args:
        part: The part that it watches in every round; None for the whole table.
        round_s: Mean seconds between two scans of the part, or of the whole table without one.
        whole_scan_s: Mean seconds between two scans of the whole table.
        moving_scan_s: The same while leases are moving.
        settling_s: How long a new worker waits for others before it scans again and requests its share.
        whole_scan_s_per_worker: The seconds that each worker of the fleet adds to `whole_scan_s`.
        watcher_count: Mean number of workers that watch a part.
        leases_per_worker: Mean number of leases of a worker.
        free_lease_scan_s: Mean seconds between two scans for free leases alone; infinity for none.
    """

    part: TablePart | None
    round_s: float
    whole_scan_s: float
    moving_scan_s: float
    settling_s: float
    whole_scan_s_per_worker: float = 0.0
    watcher_count: float = 1.0
    leases_per_worker: float = 0.0
    free_lease_scan_s: float = math.inf


def plan_scans(
    options: CoordinatorOptions, me: str, row_count: int, workers: Collection[str] = ()
) -> ScanPlan:
    """Plan the scans of one worker.

    1. Count the workers, and place this one on their ring, from 0 to 1.
    2. If the budget does not allow every worker to scan the whole table in every round, divide it into parts.
    3. Plan scans of the whole table, or of the part at this worker's place and sometimes of the whole table.

    Args:
        row_count: The rows of the table.
        workers: Live workers, this one included; empty until this worker has seen them. Until then their number is estimated
            from the table's size. If so many can scan the whole table within one round, this worker scans it at once.
    """
    interval_s, budget = options.interval_s, options.scanned_rows_per_s_max
    per_worker_s = row_count / (budget * _WHOLE_SHARE)
    if workers:
        ring = _ring_of(workers)
        worker_count, place = len(ring), (ring.index(me) + 0.5) / len(ring)
    else:
        worker_count, place = max(1, row_count // _LEASES_PER_WORKER), tie_break(me) / _RING
    is_first_small = not workers and per_worker_s * worker_count <= interval_s
    reads = row_count * worker_count
    is_small = is_first_small or reads <= budget * _EVERY_ROUND_SHARE * interval_s
    part_s = _PART_ROUNDS * interval_s
    part_count = 1
    if options.policy is not BalancePolicy.KCL2 and not is_small:
        # The number of parts is doubled as long as each part keeps `part_watchers_min` watchers, or only `_WATCHERS_MIN` if
        # more would exceed the budget for scans of parts.
        affordable = budget * _PART_SHARE * part_s / row_count
        watchers_min = min(options.part_watchers_min, max(_WATCHERS_MIN, affordable / 2))
        while worker_count / (2 * part_count) >= watchers_min:
            part_count *= 2
    if part_count == 1:
        round_s = interval_s if is_first_small else max(interval_s, reads / budget)
        free_lease_scan_s = (
            _plan_free_lease_scans(options, row_count, worker_count) if len(workers) > 1 else math.inf
        )
        return ScanPlan(None, round_s, round_s, round_s, round_s, free_lease_scan_s=free_lease_scan_s)
    whole_scan_s = max(_WHOLE_ROUNDS_MIN * interval_s, per_worker_s * worker_count)
    return ScanPlan(
        TablePart(min(int(place * part_count), part_count - 1), part_count),
        round_s=part_s,
        whole_scan_s=whole_scan_s,
        moving_scan_s=max(interval_s, whole_scan_s * _MOVING_SHARE),
        settling_s=max(interval_s, whole_scan_s * _SETTLING_SHARE),
        whole_scan_s_per_worker=per_worker_s,
        watcher_count=worker_count / part_count,
        leases_per_worker=row_count / worker_count,
    )


def _plan_free_lease_scans(options: CoordinatorOptions, row_count: int, worker_count: int) -> float:
    """Return the seconds between two scans that are only for free leases, or infinity."""
    is_wanted = (
        options.scans_for_free_leases
        and options.policy is not BalancePolicy.KCL2
        and options.leases_to_acquire is None  # this limit per round would hold for each of these scans
        and row_count <= _FREE_LEASE_SCAN_TABLE_ROWS_MAX
    )
    rows_per_s = options.scanned_rows_per_s_max * _FREE_LEASE_SCAN_SHARE
    scan_s = max(
        _FREE_LEASE_SCAN_DURATIONS * options.lease_duration_s,
        max(row_count, _PAGE_ROWS) * worker_count / rows_per_s,
    )
    is_wanted = is_wanted and scan_s <= _FREE_LEASE_SCAN_ROUNDS_MAX * options.interval_s
    return scan_s if is_wanted else math.inf


def _ring_of(workers: Collection[str]) -> list[str]:
    """Return the workers in an order that spaces those of each zone evenly."""
    zones: dict[str, list[str]] = {}
    for worker in sorted(workers, key=tie_break):
        zones.setdefault(zone_of(worker), []).append(worker)
    places = [
        ((rank + 0.5) / len(members), tie_break(zone), worker)
        for zone, members in zones.items()
        for rank, worker in enumerate(members)
    ]
    return [worker for _, _, worker in sorted(places)]


def estimate_workers(owners: AbstractSet[str], other_owners: AbstractSet[str], part_count: int) -> float:
    """Estimate the number of other workers in a fleet from the owners of the leases in two parts of its table.

    In a balanced fleet the owners of any two parts are drawn from the same workers: the more owners they have in common, the
    fewer workers there are. Workers that have just started own leases only in the parts that they watch. Then two parts have
    no common owners, and every part has about equally many.

    Args:
        owners: Of the leases in one part.
        other_owners: Of the leases in another part.
        part_count: The parts of the table.
    """
    common_owners = owners & other_owners
    if not common_owners:
        return float(part_count * max(len(owners), len(other_owners)))
    return len(owners) * len(other_owners) / len(common_owners)


# --- scans ------------------------------------------------------------------------------------------------


class TableState(Enum):
    """Whether the lease table can be used."""

    UNKNOWN = "to be created or found at the next due moment"
    ENSURING = "being created or found"
    READY = "usable"


class TableScans:
    """The scans of one worker: which part the next one reads and when it begins. Not thread-safe."""

    def __init__(self, me: str, options: CoordinatorOptions, view: LeaseView, turn: Turn) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.plan: ScanPlan = plan_scans(options, me, 0)
        self.part: TablePart | None = None
        """The part that the next regular scan reads; None for the whole table."""
        self.has_scanned_whole_table: bool = False
        self._turn = turn
        self._first_part_owners: set[str] | None = None  # other workers, in the first scan of a part
        self._state = TableState.UNKNOWN
        self._state_due_s = -math.inf  # when to create the table, while it is not known to exist
        self._regular_due_s = math.inf  # of the next regular scan
        self.regular_pause_s: float = self.plan.round_s
        """Mean seconds between two regular scans. Longer than a round if an index shows the own leases."""
        # When the next scan of the whole table begins, if regular scans read a part, or if one is requested (-inf: at once).
        self._whole_due_s = math.inf
        self._not_before_s = -math.inf  # the earliest next scan after one that failed
        self._is_scanning = False
        self._is_scanning_whole = False  # the scan in flight, or the last one, is of the whole table
        self._free_lease_due_s = math.inf  # of the next scan that is only for free leases
        self.is_free_lease_scan: bool = False
        """Whether the scan in flight, or the last one, is only for free leases."""
        self._failures = 0  # of scans, in a row
        self._of_unknown_owner: set[str] = set()  # leases whose owner a lost answer or a loss left unknown
        self._resolved_by_scan: set[str] = set()  # those whose owner the scan in flight will show

    @property
    def next_wake_s(self) -> float:
        """When `advance` must be called next; infinity while an answer is pending."""
        if self._state is TableState.UNKNOWN:
            return self._state_due_s
        if self._state is not TableState.READY or self._is_scanning:
            return math.inf
        return max(self._not_before_s, min(self._regular_due_s, self._whole_due_s, self._free_lease_due_s))

    @property
    def is_quiet(self) -> bool:
        """Whether no scan is in flight or requested, and none is needed to find out which leases this worker owns."""
        is_scanning = self._is_scanning and not self.is_free_lease_scan
        return not is_scanning and self._whole_due_s > -math.inf and not self._of_unknown_owner

    @property
    def leases_of_unknown_owner(self) -> frozenset[str]:
        """Keys of the leases whose owner is unknown until they are read again."""
        return frozenset(self._of_unknown_owner)

    def advance(self, now_s: float) -> None:
        """Create the table, or begin a scan, if it is due."""
        if self._state is TableState.UNKNOWN and now_s >= self._state_due_s:
            self._state = TableState.ENSURING
            self._turn.emit(EnsureTable())
        if now_s >= self.next_wake_s and self._state is TableState.READY:
            if now_s < min(self._regular_due_s, self._whole_due_s):
                self._begin_free_lease_scan()
            else:
                self._begin_regular_scan(is_whole_table=self.part is None or now_s >= self._whole_due_s)

    def _begin_free_lease_scan(self) -> None:
        self._is_scanning = self.is_free_lease_scan = True
        self._is_scanning_whole = False
        self._free_lease_due_s = math.inf
        self._turn.emit(ScanTable(WHOLE_TABLE))

    def _begin_regular_scan(self, *, is_whole_table: bool) -> None:
        self._is_scanning = True
        self.is_free_lease_scan = False
        self._is_scanning_whole = is_whole_table
        if is_whole_table:
            self._resolved_by_scan = set(self._of_unknown_owner)
            self._whole_due_s = math.inf
        # Beside scans of a part, those of the whole table are eventually consistent too: see `ScanTable`.
        self._turn.emit(ScanTable(WHOLE_TABLE if is_whole_table and self.part is not None else self.part))

    def request_whole_scan(self) -> None:
        """Request a scan of the whole table that begins after this moment: one in flight may have begun too early."""
        self._whole_due_s = -math.inf

    def request_whole_scan_by(self, at_s: float) -> None:
        """Request a scan of the whole table that begins by a moment; one in flight does not count."""
        self._whole_due_s = min(self._whole_due_s, at_s)

    def request_whole_scan_in_a_round(self, now_s: float, *, are_scans_rare: bool) -> None:
        """Request a scan of the whole table about one round from now, if the regular scans would not make one.

        Args:
            are_scans_rare: Whether the regular scans are further apart than rounds.
        """
        if self.plan.part is not None:
            self.request_whole_scan_by(now_s + self._turn.jittered(self.options.interval_s, _JITTER))
        elif are_scans_rare:
            self.request_whole_scan_by(now_s + self._turn.jittered(self.plan.round_s, _JITTER))

    def schedule_regular_scan_in(self, pause_s: float, now_s: float) -> None:
        """Schedule the next regular scan; requested scans stay."""
        self.regular_pause_s = pause_s
        self._regular_due_s = now_s + pause_s

    def schedule_scans(
        self, now_s: float, extra_scan_due_s: float, *, is_whole_table: bool, is_moving: bool
    ) -> None:
        """Schedule the next regular scan, after one has ended: after a round, or earlier if a lease expires before.

        A worker that watches a part also schedules its next scan of the whole table.

        Args:
            extra_scan_due_s: When an extra scan will find leases to move; infinity for never.
            is_whole_table: Whether the scan that has ended read the whole table.
            is_moving: Whether it found leases to move.
        """
        plan = self.plan
        self.regular_pause_s = plan.round_s
        due_s = now_s + self._turn.jittered(plan.round_s, _JITTER)
        expiry_s = self._next_expiry_s(now_s)
        # With scans for free leases, one of these finds the expired lease.
        if expiry_s < math.inf and plan.free_lease_scan_s == math.inf:
            due_s = min(due_s, expiry_s + 0.02 * plan.round_s * self._turn.draw())
        if plan.part is not None and is_whole_table:
            pause_s = self._turn.jittered(plan.moving_scan_s if is_moving else plan.whole_scan_s, _JITTER)
            self.request_whole_scan_by(min(now_s + pause_s, max(extra_scan_due_s, now_s + plan.settling_s)))
            extra_scan_due_s = math.inf
        if plan.part is not None and not self._is_whole_scheduled:
            # A new worker: it soon scans a second part, to estimate the size of the fleet.
            extra_scan_due_s = min(extra_scan_due_s, now_s + _GATHERING_ROUNDS * plan.round_s)
        due_s = min(due_s, max(extra_scan_due_s, now_s + _EXTRA_SCAN_ROUNDS * plan.round_s))
        self._regular_due_s = max(due_s, now_s + 0.01 * plan.round_s)

    def _next_expiry_s(self, now_s: float) -> float:
        """Return when the next lease of another worker that seems to have stopped expires; infinity if there is none."""
        expiry_s = self.view.next_expiry_s(self.me)
        return math.inf if expiry_s is None or expiry_s <= now_s else expiry_s

    def schedule_free_lease_scan(self, now_s: float) -> None:
        """Schedule the next scan that is only for free leases, if the plan has any: not later than the next expiry of a lease."""
        self._free_lease_due_s, pause_s = math.inf, self.plan.free_lease_scan_s
        if pause_s < math.inf:
            regular_s = now_s + self._turn.jittered(pause_s, _JITTER)
            self._free_lease_due_s = min(regular_s, self._next_expiry_s(now_s))

    @property
    def _is_whole_scheduled(self) -> bool:
        """Whether a scan of the whole table is in flight or scheduled."""
        return self._whole_due_s < math.inf or (self._is_scanning and self._is_scanning_whole)

    # --- answers ------------------------------------------------------------------------------------------

    def on_table_ready(self, now_s: float) -> None:
        """Handle a table that exists: scans may begin."""
        self._state = TableState.READY
        self._regular_due_s = now_s

    def on_table_failed(self, now_s: float) -> None:
        """Handle a table that could not be created or found."""
        self._state = TableState.UNKNOWN
        self._state_due_s = now_s + self.options.interval_s * (0.1 + 0.9 * self._turn.draw())

    def on_table_missing(self) -> bool:
        """Handle a call that found no table; return whether it is the first such call since the table was usable."""
        if self._state is not TableState.READY:
            return False
        self._turn.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            "the lease table was deleted while the application runs; it is created again",
        )
        self._state = TableState.UNKNOWN
        self._state_due_s = -math.inf
        return True

    def on_scan_done(self) -> None:
        """Handle a complete scan."""
        self._is_scanning = False
        self._failures = 0
        self._not_before_s = -math.inf
        self._of_unknown_owner -= self._resolved_by_scan
        self._resolved_by_scan.clear()

    def on_scan_failed(self, problem: Problem, now_s: float) -> bool:
        """Handle a failed scan: the same kind of scan is tried again after a back-off.

        Returns:
            Whether this is the first call that found no table, as `on_table_missing` returns it.
        """
        self._is_scanning = False
        self._failures += 1
        self._resolved_by_scan.clear()  # the owners of these leases are still unknown
        is_gone = problem is Problem.TABLE_MISSING and self.on_table_missing()
        interval_s = self.options.interval_s
        backoff = Backoff(min(1.0, interval_s), interval_s)
        self._not_before_s = now_s + 0.1 + backoff.delay_s(self._failures, self._turn.draw())
        if self.is_free_lease_scan:
            self._free_lease_due_s = self._not_before_s
        elif self._is_scanning_whole:
            self.request_whole_scan_by(self._not_before_s)
        else:
            self._regular_due_s = self._not_before_s
        return is_gone

    def on_row_count(self, row_count: int) -> None:
        """Handle the table's row count, as the service estimates it."""
        if not self.has_scanned_whole_table:
            self._set_plan(plan_scans(self.options, self.me, row_count))

    def on_whole_table_scanned(self, workers: Collection[str]) -> None:
        """Handle a scan of the whole table, which is in the view, and the live workers that it shows."""
        self.has_scanned_whole_table = True
        self._set_plan(plan_scans(self.options, self.me, len(self.view), workers))

    def _set_plan(self, plan: ScanPlan) -> None:
        self.plan = plan
        self.part = plan.part
        if plan.part is None:
            self.view.watch_whole_table()

    def on_part_scanned(self, part_leases: Sequence[FleetLease], now_s: float) -> None:
        """Handle a scan of a part: a new worker's second such scan schedules its first scan of the whole table."""
        own_part = self.plan.part
        if self.has_scanned_whole_table or own_part is None or self._is_whole_scheduled:
            return
        owners = {entry.lease.owner for entry in part_leases if entry.owner_state is OwnerState.ALIVE}
        others = {owner for owner in owners if owner not in (None, self.me)}
        count = own_part.count
        if self._first_part_owners is None:
            self._first_part_owners = others
            self.part = TablePart((own_part.number + count // 2) % count, count)
            return
        self.part = own_part
        other_count = estimate_workers(self._first_part_owners, others, count)
        within_s = self.plan.whole_scan_s_per_worker * other_count
        pause_s = within_s * self._turn.draw() if within_s > self.plan.round_s else 0.0
        self.request_whole_scan_by(now_s + pause_s)

    # --- single rows --------------------------------------------------------------------------------------

    def on_owner_unknown(self, key: str, now_s: float) -> None:
        """Handle a lease whose owner became unknown: only a read that begins later shows the owner."""
        self._of_unknown_owner.add(key)
        self._resolved_by_scan.discard(key)
        if self.part is None:
            self.request_whole_scan_by(now_s + self.options.interval_s)

    def on_owner_known(self, key: str) -> None:
        """Handle a row that was read by its key, which shows the lease's owner."""
        self._of_unknown_owner.discard(key)


class RowFetches:
    """The reads of single rows by their keys, for a worker that watches a part of the table. Not thread-safe."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._queue: list[tuple[float, str]] = []  # a heap of due times and keys
        self._queued_keys: set[str] = set()
        self._keys_in_flight: set[str] = set()

    @property
    def next_fetch_s(self) -> float:
        """When the next fetch may begin; infinity while the maximum is in flight."""
        if len(self._keys_in_flight) >= _FETCHES_MAX:
            return math.inf
        return self._queue[0][0] if self._queue else math.inf

    def request(self, keys: Iterable[str], now_s: float) -> None:
        """Request a fetch for each key that is not requested or in flight."""
        for key in keys:
            if key not in self._keys_in_flight and key not in self._queued_keys:
                self._enqueue(key, now_s)

    def fetch_due(self, now_s: float) -> None:
        """Begin the fetches that are due."""
        while self.next_fetch_s <= now_s:
            _, key = heappop(self._queue)
            self._queued_keys.discard(key)
            self._keys_in_flight.add(key)
            self._turn.emit(FetchLease(key))

    def on_answer(self, key: str) -> bool:
        """Handle a row that was read; return True if this part requested the read."""
        is_requested = key in self._keys_in_flight
        self._keys_in_flight.discard(key)
        return is_requested

    def on_failed(self, key: str, now_s: float) -> None:
        """Handle a row that could not be read: it is read again a little later."""
        if key in self._keys_in_flight:
            self._keys_in_flight.discard(key)
            self._enqueue(key, now_s + self._turn.jittered(_FETCH_RETRY_S, 0.5))

    def _enqueue(self, key: str, due_s: float) -> None:
        self._queued_keys.add(key)
        heappush(self._queue, (due_s, key))
