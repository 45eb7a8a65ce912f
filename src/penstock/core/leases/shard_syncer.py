"""Which leases exist: one worker's part in creating the first ones, filling holes and clearing away.

Every worker runs one of these over the same scans. The work that one worker is enough for (a listing because of a
hole, a deletion) falls to the worker whose name comes next on a ring of the live workers; if it does not do it,
everybody does after twice the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from penstock.core.hash_key import HashRange
from penstock.core.leases.coordinator_events import (
    CoordinatorOptions,
    Level,
    ListingDone,
    ListingPurpose,
    ListShards,
    NotDone,
    Topic,
    Unknown,
)
from penstock.core.leases.fleet_view import tie
from penstock.core.leases.lease import Applied, Create, Delete, Lease, Refused
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import PendingWrite, PendingWrites
from penstock.core.leases.required_leases import (
    BadSnapshot,
    Coverage,
    HoleWatch,
    Missing,
    MissingLease,
    fill_filter,
    find_holes,
    find_vanished,
    first_filter,
    plan_deletions,
    plan_first_leases,
    plan_missing,
)
from penstock.core.leases.starting_per_shard import unknown_names

_RESTORED_COUNTER_STEP: Final = 1_000_000
"""Counters fence writes. A row that is made again must never come to a counter that somebody still holds."""
_MEMORY_ROUNDS: Final = 3
_REST_DURATIONS: Final = 3  # lease durations that a finished lease stands before it is deleted
_DELETIONS_PER_ROUND: Final = 100
_RETRIES_MAX: Final = 8  # of one creation; the next round looks at what is missing anew


class ShardSyncer:
    """Creates and deletes leases as the stream changes.

    Args:
        me: The worker's id.
        options: As for the coordinator.
        view: The coordinator's.
        writes: Where effects go.
    """

    def __init__(self, me: str, options: CoordinatorOptions, view: LeaseView, writes: PendingWrites) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.writes = writes
        self.ranges: dict[str, HashRange] = {}
        self.cold_until_s: float | None = None
        self.wants_round = False
        self._listing: ListingPurpose | None = None
        self._first: deque[Lease] = deque()
        self._filling: deque[tuple[Lease, str]] = deque()
        self._retries = 0
        self._holes = HoleWatch(options.hole_confidence_rounds)
        self._hole_rounds = 0
        self._plan_before: list[MissingLease] | None = None
        self._lacking: dict[str, int] = {}  # shard -> rounds in a row
        self._absent_before: set[str] = set()
        self._vanished_before: frozenset[str] | None = None
        self._vanished: frozenset[str] = frozenset()
        self._garbage_due_s: float | None = None
        self.table_was_missing = False
        self._memory: dict[str, Lease] = {}
        self._remembered_s = float("-inf")

    # --- an empty table -------------------------------------------------------------------------------

    def remember(self, leases: Mapping[str, Lease], now_s: float) -> None:
        """Keep what the table held: an empty table later is a deleted one, not a new application."""
        self._memory = dict(leases)
        self._remembered_s = now_s

    def restore_if_gone(self, scanned: AbstractSet[str], now_s: float) -> bool:
        """Bring back what is missing when the table was deleted and another worker has begun to fill a new one.

        Args:
            scanned: Keys of every row that stands.
            now_s: Monotonic seconds.

        Returns:
            True when leases are being created: nothing else should be decided from this scan.
        """
        was_missing, self.table_was_missing = self.table_was_missing, False
        if now_s > self._remembered_s + _MEMORY_ROUNDS * self.options.interval_s:
            return False  # too old: leases that were finished and deleted since would come back
        unfinished = {key for key, lease in self._memory.items() if not lease.is_ended}
        if not unfinished or not (was_missing or unfinished.isdisjoint(scanned)) or unfinished <= scanned:
            return False
        self._restore(scanned)
        return True

    def on_empty_table(self, now_s: float) -> None:
        """Start the application, after a wait of this worker's own length; or bring back what was deleted."""
        if self._memory:
            # What is remembered stays until leases are seen again: an application that has ever had any is never new.
            if not self.writes.has_creations():
                self._restore(frozenset())
            return
        if self._listing is not None or self._first:
            return
        if self.cold_until_s is None:
            # Fifty workers that start together must not list the shards fifty times: most find the leases
            # already there when they look again.
            self.cold_until_s = now_s + self.options.cold_start_jitter_s * self.writes.draw()
        elif now_s >= self.cold_until_s:
            self.cold_until_s = None
            self._list(ListingPurpose.FIRST_LEASES, *first_filter(self.options.start))

    def _restore(self, scanned: AbstractSet[str]) -> None:
        leases = {key: lease for key, lease in self._memory.items() if key not in scanned}
        self.writes.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            f"{len(leases)} leases are gone with the lease table: they are created again at the "
            "checkpoints that this worker has seen; records after them are delivered again",
        )
        for lease in leases.values():
            bare = replace(
                lease,
                counter=lease.counter + _RESTORED_COUNTER_STEP,
                owner=None,
                checkpoint_owner=None,
                pending=None,
                pending_state=None,
                claims=(),  # what was seen of them may be older than batches that are done
            )
            self.writes.enqueue(Create(self.options.own(bare)), ("create", "restored"))
        self.wants_round = True

    def _list(
        self, purpose: ListingPurpose, filter_type: str | None = None, timestamp_ms: int | None = None
    ) -> None:
        self._listing = purpose
        self.writes.emit(ListShards(purpose, filter_type, timestamp_ms))

    def compare(self) -> None:
        """List every shard, to compare leases with that do not name their stream."""
        if self._listing is None:
            self._list(ListingPurpose.COMPARE)

    def on_listing_failed(self) -> None:
        """Take in that a listing gave nothing; the next round asks again."""
        self._listing = None

    def on_listing(self, event: ListingDone, now_s: float) -> None:
        """Take in a listing."""
        self._listing = None
        if event.purpose is ListingPurpose.FIRST_LEASES:
            self._on_first_listing(event)
            return
        for shard in event.shards:
            self.ranges[shard.shard_id] = shard.hash_range
        if event.purpose is ListingPurpose.COMPARE:
            self.wants_round = True
        elif event.purpose is ListingPurpose.FILL_HOLE:
            self._on_fill_listing(event)
        else:
            self._vanished_before, self._vanished = find_vanished(
                self.view.rows(), event.shards, self._vanished_before
            )
            self._garbage_due_s = now_s + self.options.garbage_interval_s * (0.8 + 0.4 * self.writes.draw())

    def _on_first_listing(self, event: ListingDone) -> None:
        if len(self.view):
            return  # somebody else has started the application meanwhile
        if any(shard.shard_id in self.view.damaged for shard in event.shards):
            return  # it was started before: a row that cannot be read is one of its leases
        plan = plan_first_leases(event.shards, self.options.start, event.moment_ms)
        if isinstance(plan, BadSnapshot):
            self.writes.report(
                Topic.HOLE,
                Level.ERROR,
                f"the listing does not cover the hash range: {plan.detail}; it is asked again",
            )
            return
        for name in unknown_names(event.shards, self.options.start):
            self.writes.report(
                Topic.SHARD_VANISHED,
                Level.ERROR,
                f"shard {name} is named in the starting position and the stream does not list it: it is misspelt, or it "
                "has left the stream with every record in it",
                name,
            )
        self._first = deque(plan)
        self._retries = 0
        self._create_first()

    def _create_first(self) -> None:
        # The first lease decides who starts the application; the others follow when it stands.
        if not self.writes.enqueue(Create(self.options.own(self._first[0])), ("first",)):
            self._first.clear()  # a write for it is under way: the next round shows what stands

    def on_first_created(self, outcome: Applied | Refused | NotDone | Unknown) -> None:
        """Take in the answer to the lease that decides who starts the application."""
        if not self._first:
            return
        if isinstance(outcome, NotDone | Unknown):
            self._retries += 1
            if self._retries <= _RETRIES_MAX:
                self._create_first()
            else:
                self._first.clear()
            return
        mine = self._first.popleft()
        rest, self._first = self._first, deque()
        row = outcome.row if isinstance(outcome, Refused) else mine
        if row is None or row.checkpoint != mine.checkpoint or row.stream not in (None, self.options.stream):
            self.wants_round = True
            return  # another worker's moment counts; it creates the others too
        self.wants_round = not rest
        for lease in rest:
            self.writes.enqueue(Create(self.options.own(lease)), ("create", "first"))

    def on_created(self, pending: PendingWrite, outcome: Applied | Refused | NotDone | Unknown) -> None:
        """Take in the answer to another creation."""
        _, why = pending.purpose
        if isinstance(outcome, Applied):
            self.writes.report(
                Topic.CREATED,
                Level.INFO,
                f"lease {pending.write.key} created ({why})",
                pending.write.key,
                why,
            )
        if isinstance(outcome, Applied | Refused):
            self._retries = 0
            # Not before the last one: a half-created table looks full of holes. Takes may be under way meanwhile.
            self.wants_round = self.wants_round or not self.writes.has_creations()
        else:
            self._retries += 1
            if self._retries <= _RETRIES_MAX:
                self.writes.enqueue(pending.write, pending.purpose)
                return
        self._fill_next()

    # --- every round ----------------------------------------------------------------------------------

    def on_round(self, now_s: float, workers: Sequence[str], lacking: set[str]) -> None:
        """Look after the table: the scan of this round is in the view.

        Args:
            now_s: Monotonic seconds.
            workers: Live workers, this one included.
            lacking: Shards whose missing leases this worker waits for.
        """
        self.cold_until_s = None
        lacking = lacking | self.view.lacking_parents()
        self._lacking = {shard: self._lacking.get(shard, 0) + 1 for shard in lacking}
        if self._filling or self._listing is not None:
            return
        self._watch_holes(workers)
        self._clear_away(now_s, workers)

    def _is_mine(self, workers: Sequence[str], task: str) -> bool:
        ring = sorted((tie(worker), worker) for worker in workers)
        return ring[bisect_left(ring, (tie(task), "")) % len(ring)][1] == self.me

    def _watch_holes(self, workers: Sequence[str]) -> None:
        coverage = self._coverage()
        if coverage.unknown:
            self._hole_rounds += 1
            if self._is_my_turn(workers, f"ranges {coverage.unknown[0]}"):
                self._hole_rounds = 0
                self._list(ListingPurpose.FILL_HOLE)
            return
        confirmed = self._holes.observe(coverage.holes)
        lacking = self._long_lacking()
        if not confirmed and not lacking:
            self._hole_rounds = 0
            self._plan_before = None
            return
        self._hole_rounds += 1
        task = f"hole {confirmed[0].start}" if confirmed else f"lacking {min(lacking)}"
        if self._is_my_turn(workers, task):
            spans = ", ".join(f"{hole.start}..{hole.end}" for hole in confirmed[:3])
            what = (
                f"no unfinished lease covers hash keys {spans}"
                if spans
                else f"no lease for parent {min(lacking)}"
            )
            self.writes.report(
                Topic.HOLE, Level.WARNING, f"{what}; the shards are listed to see what is missing"
            )
            self._list(ListingPurpose.FILL_HOLE, *fill_filter(self.view, self.options.start))

    def _coverage(self) -> Coverage:
        # A row that cannot be read is there; nobody can tell whether it is finished, and nothing may take its place.
        damaged = [Lease(key) for key in self.view.damaged if key not in self.view and key in self.ranges]
        return find_holes([*self.view, *damaged], self.ranges)

    def _long_lacking(self) -> set[str]:
        needed = self.options.hole_confidence_rounds
        return {shard for shard, rounds in self._lacking.items() if rounds >= needed}

    def _is_my_turn(self, workers: Sequence[str], task: str) -> bool:
        patience = 2 * self.options.hole_confidence_rounds
        return self._hole_rounds > patience or self._is_mine(workers, task)

    def _on_fill_listing(self, event: ListingDone) -> None:
        coverage = self._coverage()
        lacking = self._long_lacking()
        absent = lacking - {shard.shard_id for shard in event.shards}
        self.view.gone |= absent & self._absent_before  # two listings agree
        self._absent_before = absent
        plan = [
            missing
            for missing in plan_missing(
                self.view.rows(), event.shards, coverage.holes, self.options.start, lacking=lacking - absent
            )
            if missing.lease.key not in self.view.damaged
        ]
        if any(missing.why is Missing.UNEXPLAINED for missing in plan):
            # A listing can be incomplete, and a wrong guess here reads shards out of order: two must agree.
            agreed, self._plan_before = plan == self._plan_before, plan
            if not agreed:
                plan = []
        self._filling = deque(
            (missing.lease, "child" if missing.why is Missing.CHILD else "unexplained") for missing in plan
        )
        self._retries = 0
        self._fill_next()

    def _fill_next(self) -> None:
        # One after the other, parents first: a child without its parent's lease would be read at once.
        while self._filling:
            lease, why = self._filling.popleft()
            if self.writes.enqueue(Create(self.options.own(lease)), ("create", why)):
                self.writes.report(
                    Topic.HOLE,
                    Level.WARNING,
                    f"shard {lease.key} has no lease: it gets one at {lease.checkpoint} ({why})",
                    lease.key,
                )
                return

    def _clear_away(self, now_s: float, workers: Sequence[str]) -> None:
        if not self.options.cleanup:
            return
        rows = self.view.rows()
        deletions = plan_deletions(rows, self._vanished)
        begun = 0
        for deletion in deletions:
            key = deletion.write.key
            if self.view.unchanged_s(key, now_s) < _REST_DURATIONS * self.options.lease_duration_s:
                continue  # a creation whose answer was lost may still arrive, and would bring the row back
            if begun < _DELETIONS_PER_ROUND and self._is_mine(workers, key):
                begun += self.writes.enqueue(deletion.write, ("delete", deletion.why))
        if self._garbage_due_s is None:
            self._garbage_due_s = now_s + self.options.garbage_interval_s * self.writes.draw()
        if now_s >= self._garbage_due_s and self._listing is None:
            self._garbage_due_s = now_s + self.options.garbage_interval_s
            stale = any(
                row.is_ended and self.view.unchanged_s(key, now_s) >= self.options.garbage_interval_s
                for key, row in rows.items()
            )
            if stale:
                self._list(ListingPurpose.FIND_VANISHED)

    def on_deleted(self, pending: PendingWrite, outcome: Applied | Refused | NotDone | Unknown) -> None:
        """Take in the answer to a deletion; what is not done is planned again by a later round."""
        if isinstance(outcome, Applied) and isinstance(pending.write, Delete):
            self.view.forget(pending.write.key)
            why = pending.purpose[1]
            self.writes.report(
                Topic.DELETED,
                Level.INFO,
                f"lease {pending.write.key} deleted: {why.value}",
                pending.write.key,
                why.name.lower(),
            )
