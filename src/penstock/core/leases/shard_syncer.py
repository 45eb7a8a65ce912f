"""Keeps the leases in step with one stream's shards: one worker's part in creating the first ones and filling holes.

Every worker runs one of these over the same scans. A listing because of a hole falls to one of the live workers
(`chosen_worker`); if it does not list, everybody does after twice the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from penstock.core.hash_key import HashRange
from penstock.core.leases.coordinator_effects import Level, Topic
from penstock.core.leases.coordinator_events import (
    ListingDone,
    ListingPurpose,
    NotDone,
    Unknown,
    WriteOutcome,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import chosen_worker
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, Create, Refused
from penstock.core.leases.listing_under_way import ListingUnderWay
from penstock.core.leases.pending_writes import PendingWrite, PendingWrites
from penstock.core.leases.required_leases import (
    BadSnapshot,
    Coverage,
    HoleWatch,
    MissingLease,
    MissingReason,
    fill_filter,
    find_holes,
    first_filter,
    plan_first_leases,
    plan_missing,
)
from penstock.core.leases.starting_per_shard import unknown_names
from penstock.core.leases.stream_rows import Rows
from penstock.core.leases.table_scans import TableScans
from penstock.core.leases.turn import Turn
from penstock.core.leases.write_purposes import CreationReason, ForFirstLease, ForMissingLease
from penstock.core.shard import Shard

_RESTORED_COUNTER_STEP: Final = 1_000_000
_MEMORY_ROUNDS: Final = 3
_RETRIES_MAX: Final = 8  # of one creation; the next round looks at what is missing anew


class ShardSyncer:
    """Creates the leases that the table lacks. Not thread-safe.

    Args:
        me: The worker's id.
        options: As for the coordinator.
        view: What the coordinator knows of the stream's rows.
        turn: Where effects go.
        writes: Sends writes.
        listing: Shared with the cleanup.
        scans: Asked for a scan when what was created should be seen.
    """

    def __init__(  # noqa: PLR0917 - the parts of one coordinator
        self,
        me: str,
        options: CoordinatorOptions,
        view: Rows,
        turn: Turn,
        writes: PendingWrites,
        listing: ListingUnderWay,
        scans: TableScans,
    ) -> None:
        self.me = me
        self.options = options
        self.view = view
        self._turn = turn
        self._writes = writes
        self._listing = listing
        self._scans = scans
        self.ranges: dict[str, HashRange] = {}
        self.cold_until_s: float | None = None
        self._first: deque[Lease] = deque()
        self._filling: deque[tuple[Lease, CreationReason]] = deque()
        self._retries = 0
        self._holes = HoleWatch(options.hole_confidence_rounds)
        self._hole_s: float | None = (
            None  # since when something is known to be missing, and nobody has filled it
        )
        self._plan_before: list[MissingLease] | None = None
        self._lacking: dict[str, int] = {}  # shard -> rounds in a row
        self._awaited: AbstractSet[str] = (
            set()
        )  # those that keep this worker's own finished shards from being ended
        self._absent_before: set[str] = set()
        self._is_table_gone = False
        self._memory: dict[str, Lease] = {}
        self._remembered_s = float("-inf")
        self.wants_scan = False
        """The last look at the whole table seems to show a hole, and it falls to this worker to see whether it stays."""
        self._left_out: frozenset[str] = (
            frozenset()
        )  # open shards whose leases are ended: nobody is to read them

    # --- an empty table -------------------------------------------------------------------------------

    def remember(self, leases: Mapping[str, Lease], now_s: float) -> None:
        """Keep what the table held: an empty table later is a deleted one, not a new application.

        Where none of the stream's leases is in the part of the table that was looked at, what was remembered before stays.
        """
        if leases:
            self._memory = dict(leases)
            self._remembered_s = now_s

    def remember_answers(self, leases: Mapping[str, Lease]) -> None:
        """Bring what is kept up to date, with what writes have shown since the last look: shards that ended, and their children.

        Args:
            leases: What was known before this look.
        """
        if self._memory:
            self._memory |= leases

    def restore_if_gone(self, scanned: AbstractSet[str], now_s: float) -> bool:
        """Bring back what is missing when the table was deleted and another worker has begun to fill a new one.

        Args:
            scanned: Keys of every row that stands.
            now_s: Monotonic seconds.

        Returns:
            True when leases are being created: nothing else should be decided from this scan.
        """
        was_missing, self._is_table_gone = self._is_table_gone, False
        if now_s > self._remembered_s + _MEMORY_ROUNDS * self.options.interval_s:
            return False  # too old: leases that were finished and deleted since would come back
        # Others have ended a shard and cleared its lease away where its child is past its start.
        begun = [lease for lease in self.view if lease.checkpoint.is_in_shard]
        followed = frozenset().union(*(lease.parents for lease in begun))
        unfinished = {key for key, lease in self._memory.items() if not lease.is_ended} - followed
        if not unfinished or not (was_missing or unfinished.isdisjoint(scanned)) or unfinished <= scanned:
            return False
        # While nothing can be created, since other writes on those leases are under way, the table stays a deleted one.
        if not self._writes.has_creations() and not self._restore(scanned | followed):
            self._is_table_gone = was_missing
        return True

    def on_no_rows(self, now_s: float) -> None:
        """Start to read the stream, after a wait of this worker's own length; or bring back what was deleted."""
        if self._memory:
            # What is remembered stays until leases are seen again: an application that has ever had any is never new.
            if not self._writes.has_creations():
                self._restore(frozenset())
            return
        if not self._listing.may_begin(now_s) or self._first:
            return
        if self.cold_until_s is None:
            # Fifty workers that start together must not list the shards fifty times: most find the leases
            # already there when they look again.
            self.cold_until_s = now_s + self.options.cold_start_jitter_s * self._turn.draw()
        elif now_s >= self.cold_until_s:
            self.cold_until_s = None
            self._listing.begin(ListingPurpose.FIRST_LEASES, *first_filter(self.options.start))

    def _restore(self, scanned: AbstractSet[str]) -> bool:
        """Create what is remembered and not scanned. False while other writes on all those leases are under way."""
        leases = {key: lease for key, lease in self._memory.items() if key not in scanned}
        begun = 0
        # One worker: Renew with counter 7, still on its way. Another one: makes the row again. If the new row could count up
        # to 7, the old renewal would be applied to it: so it begins far above.
        for lease in leases.values():
            bare = replace(
                lease,
                counter=lease.counter + _RESTORED_COUNTER_STEP,
                owner=None,
                checkpoint_owner=None,
                pending=None,
                pending_state=None,
                run=None,
                claims=(),  # what was seen of them may be older than batches that are done
            )
            begun += self._writes.enqueue(
                Create(self.options.own(bare)), ForMissingLease(CreationReason.RESTORED)
            )
        if not begun:
            return False
        self._turn.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            f"{len(leases)} leases are gone with the lease table: they are created again at the "
            "checkpoints that this worker has seen; records after them are delivered again",
        )
        self._scans.request()
        return True

    def on_table_missing(self) -> None:
        """Observe that the lease table was deleted: what a scan lacks from now on is to be brought back."""
        self._is_table_gone = True

    def on_shards_listed(self, shards: Iterable[Shard]) -> None:
        """Learn the hash ranges of listed shards, for rows that do not tell theirs."""
        self.ranges.update((shard.shard_id, shard.hash_range) for shard in shards)

    def on_first_listing(self, event: ListingDone) -> None:
        """Observe the shards that a new application begins with."""
        if len(self.view):
            return  # somebody else has started the application meanwhile
        if any(shard.shard_id in self.view.damaged for shard in event.shards):
            return  # it was started before: a row that cannot be read is one of its leases
        plan = plan_first_leases(event.shards, self.options.start, event.moment_ms)
        if isinstance(plan, BadSnapshot):
            self._turn.report(
                Topic.HOLE,
                Level.ERROR,
                f"the listing does not cover the hash range: {plan.detail}; it is asked again",
            )
            return
        for name in unknown_names(event.shards, self.options.start):
            self._turn.report(
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
        # Two workers: list the shards at unlike moments. Each: Create of the first lease, and one of the two is refused. Who
        # was first creates the others, all at one moment.
        if not self._writes.enqueue(Create(self.options.own(self._first[0])), ForFirstLease()):
            self._first.clear()  # a write for it is under way: the next round shows what stands

    def on_first_created(self, outcome: WriteOutcome) -> None:
        """Observe the answer to the creation of the lease that decides who starts the application."""
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
        if (
            row is None
            or row.checkpoint != mine.checkpoint
            or row.stream not in (None, self.options.stream_of(mine.key))
        ):
            # Another worker: Create of the same lease, pinned to its own moment. This one: Create, refused. The other's
            # moment counts for all, so it creates the rest too.
            self._scans.request()
            return
        if not rest:
            self._scans.request()
        for lease in rest:
            self._writes.enqueue(Create(self.options.own(lease)), ForMissingLease(CreationReason.FIRST))

    def on_created(
        self,
        pending: PendingWrite,
        purpose: ForMissingLease,
        outcome: WriteOutcome,
    ) -> None:
        """Observe the answer to another creation."""
        if isinstance(outcome, Applied):
            key, why = pending.write.key, purpose.reason.value
            self._turn.report(Topic.CREATED, Level.INFO, f"lease {key} created ({why})", key, why)
        if isinstance(outcome, Applied | Refused):
            self._retries = 0
            # Not before the last one: a half-created table looks full of holes. Takes may be under way meanwhile.
            if not self._writes.has_creations():
                self._scans.request()
        else:
            self._retries += 1
            if self._retries <= _RETRIES_MAX:
                self._writes.enqueue(pending.write, purpose)
                return
        self._fill_next()

    # --- every round ----------------------------------------------------------------------------------

    def on_round(self, now_s: float, workers: Sequence[str], lacking: AbstractSet[str]) -> bool:
        """Look for holes: the scan of this round is in the view.

        Args:
            now_s: Monotonic seconds.
            workers: Live workers, this one included.
            lacking: Shards whose missing leases this worker waits for.

        Returns:
            False while leases are being filled in, or shards are listed: nothing is to be cleared away meanwhile.
        """
        self.cold_until_s = None
        self._awaited = lacking
        lacking = lacking | self.view.missing_parents()
        self._lacking = {shard: self._lacking.get(shard, 0) + 1 for shard in lacking}
        self.wants_scan = False
        if self._filling or self._listing.is_under_way:
            return False
        self._watch_holes(workers, now_s)
        return True

    def _watch_holes(self, workers: Sequence[str], now_s: float) -> None:
        coverage = self._coverage()
        if coverage.unknown or coverage.holes or self._lacking:
            self.wants_scan = bool(self._awaited) or chosen_worker(workers, "holes") == self.me
        if coverage.unknown:
            is_my_turn = self._is_my_turn(workers, f"ranges {coverage.unknown[0]}", now_s)
            if is_my_turn and self._listing.may_begin(now_s):
                self._hole_s = None
                self._listing.begin(ListingPurpose.FILL_HOLE)
            return
        confirmed = self._holes.on_round(coverage.holes)
        lacking = self._long_lacking()
        if not confirmed and not lacking:
            self._hole_s = None
            self._plan_before = None
            return
        task = f"hole {confirmed[0].start}" if confirmed else f"lacking {min(lacking)}"
        # Another worker: lists the shards, and knows that a parent has left the stream. This one, which waits for that
        # parent's lease, would learn of it when it comes to its own turn.
        waits = not lacking.isdisjoint(self._awaited)
        if (self._is_my_turn(workers, task, now_s) or waits) and self._listing.may_begin(now_s):
            spans = ", ".join(f"{hole.start}..{hole.end}" for hole in confirmed[:3])
            what = (
                f"no unfinished lease covers hash keys {spans}"
                if spans
                else f"no lease for parent {min(lacking)}"
            )
            self._turn.report(
                Topic.HOLE, Level.WARNING, f"{what}; the shards are listed to see what is missing"
            )
            self._listing.begin(ListingPurpose.FILL_HOLE, *fill_filter(self.view, self.options.start))

    def _coverage(self, left_out: Iterable[str] = ()) -> Coverage:
        # A row that cannot be read is there; nobody can tell whether it is finished, and nothing may take its place.
        damaged = [Lease(key) for key in self.view.damaged if key not in self.view and key in self.ranges]
        return find_holes([*self.view, *damaged, *(Lease(key) for key in left_out)], self.ranges)

    def find_open_holes(self) -> tuple[HashRange, ...]:
        """Return the hash keys that no unfinished lease covers, as far as is known, and that somebody should read."""
        coverage = self._coverage(self._left_out)
        return () if coverage.unknown else coverage.holes

    def _long_lacking(self) -> set[str]:
        needed = self.options.hole_confidence_rounds
        return {shard for shard, rounds in self._lacking.items() if rounds >= needed}

    def _is_my_turn(self, workers: Sequence[str], task: str, now_s: float) -> bool:
        # In rounds, and not in looks at the whole table, which are rare where each worker watches a part: whoever is chosen looks in
        # every round.
        patience_s = (2 * self.options.hole_confidence_rounds - 0.5) * self.options.interval_s
        self._hole_s = now_s if self._hole_s is None else self._hole_s
        return now_s >= self._hole_s + patience_s or chosen_worker(workers, task) == self.me

    def on_fill_listing(self, event: ListingDone) -> None:
        """Observe the shards that a hole in the leases was listed for."""
        coverage, rows = self._coverage(), self.view.rows()
        is_open = (shard.shard_id for shard in event.shards if shard.is_open)
        self._left_out = frozenset(key for key in is_open if key in rows and rows[key].is_ended)
        lacking = self._long_lacking()
        absent = lacking - {shard.shard_id for shard in event.shards}
        self.view.on_shards_vanished(absent & self._absent_before)  # two listings agree
        self._absent_before = absent
        plan = [
            missing
            for missing in plan_missing(
                rows, event.shards, coverage.holes, self.options.start, lacking=lacking - absent
            )
            if missing.lease.key not in self.view.damaged
        ]
        if any(missing.why is MissingReason.UNEXPLAINED for missing in plan):
            # A listing can be incomplete, and a wrong guess here reads shards out of order: two must agree.
            agreed, self._plan_before = plan == self._plan_before, plan
            if not agreed:
                plan = []
        self._filling = deque(
            (
                missing.lease,
                CreationReason.CHILD if missing.why is MissingReason.CHILD else CreationReason.UNEXPLAINED,
            )
            for missing in plan
        )
        self._retries = 0
        self._fill_next()

    def _fill_next(self) -> None:
        # One after the other, parents first: a child without its parent's lease would be read at once.
        while self._filling:
            lease, why = self._filling.popleft()
            if self._writes.enqueue(Create(self.options.own(lease)), ForMissingLease(why)):
                self._turn.report(
                    Topic.HOLE,
                    Level.WARNING,
                    f"shard {lease.key} has no lease: it gets one at {lease.checkpoint} ({why.value})",
                    lease.key,
                )
                return
