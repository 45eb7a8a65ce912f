"""The shard syncer of one stream: creates the first leases of an application, and leases that are missing later.

Every worker runs one over the same scans. If a hole is found, one of the live workers lists the shards
(`chosen_worker`); if it does not, every worker lists them after twice the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from penstock.core.hash_key import HashRange
from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, ListShards, Topic, Turn
from penstock.core.leases.coordinator_events import (
    ListingDone,
    ListingPurpose,
    NotDone,
    Unknown,
    WriteOutcome,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import chosen_worker
from penstock.core.leases.lease import RESTORED_COUNTER_STEP, Lease
from penstock.core.leases.lease_view import StreamRows
from penstock.core.leases.lease_writes import Applied, Create, Refused
from penstock.core.leases.pending_writes import ForFirstLease, ForMissingLease, PendingWrite
from penstock.core.leases.required_leases import (
    BadSnapshot,
    CreationReason,
    HoleCounts,
    LeaseCoverage,
    MissingLease,
    find_holes,
    first_listing_filter,
    hole_listing_filter,
    plan_first_leases,
    plan_missing_leases,
    unknown_names,
)
from penstock.core.shard import Shard


class ListingCalls:
    """Begins the listings of one stream's shards, one at a time. Not thread-safe.

    Args:
        stream_id: The stream; empty if the table has one stream.
        pause_s: Pause after a failed listing. While leases move, the table is scanned often, and without a pause each scan
            would list the shards of a stream that is gone.
    """

    def __init__(self, turn: Turn, stream_id: str = "", pause_s: float = 0.0) -> None:
        self._turn = turn
        self._stream_id = stream_id
        self._pause_s = pause_s
        self._purpose: ListingPurpose | None = None
        self._failed_s = -math.inf
        self.sent_s: float | None = None
        """When the listing in flight was sent; None if none is in flight."""

    @property
    def is_under_way(self) -> bool:
        """Whether a listing is in flight."""
        return self._purpose is not None

    def may_begin(self, now_s: float) -> bool:
        """Return whether no listing is in flight, and the pause after a failed one is over."""
        return self._purpose is None and now_s >= self._failed_s + self._pause_s

    def begin(
        self,
        now_s: float,
        purpose: ListingPurpose,
        filter_type: str | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """List shards. No listing may be in flight."""
        assert self._purpose is None, f"a listing for {purpose} while one for {self._purpose} is under way"
        self._purpose, self.sent_s = purpose, now_s
        self._turn.emit(ListShards(purpose, filter_type, timestamp_ms, self._stream_id))

    def on_done(self) -> None:
        """Handle the answer to the listing."""
        self._purpose = self.sent_s = None

    def on_failed(self, now_s: float) -> None:
        """Handle a failed listing."""
        self._purpose = self.sent_s = None
        self._failed_s = now_s


_MEMORY_SCANS: Final = 3  # remembered rows that are older may have been read on, finished and deleted since
_HOLE_ROUNDS: Final = 3  # in a row, in which a hole is seen before it is filled
_RETRIES_MAX: Final = 8  # of one creation; the next round plans again


class ShardSyncer:
    """Creates the first leases of one stream, missing ones, and those of a deleted table. Not thread-safe.

    Args:
        view: The stream's rows in the table.
        listing: Shared with the cleanup.
    """

    def __init__(self, context: CoordinatorContext, view: StreamRows, listing: ListingCalls) -> None:
        self.me: str = context.me
        self.options: CoordinatorOptions = context.options
        self.view = view
        self._table_view = context.view
        self._turn = context.turn
        self._writes = context.writes
        self._listing = listing
        self._scans = context.scans
        self.ranges: dict[str, HashRange] = {}
        self.first_listing_due_s: float | None = None  # when a stream without leases is listed
        # Leases to be created one after the other: the first ones of an empty table, and those that fill holes.
        self._first_leases: deque[Lease] = deque()
        self._missing_leases: deque[MissingLease] = deque()
        self._retries = 0  # of the creation under way
        self._holes = HoleCounts(_HOLE_ROUNDS)
        self._hole_since_s: float | None = None  # since when a hole is known and not filled
        # By the previous listing, if it had an unexplained shard.
        self._plan_before: list[MissingLease] | None = None
        self._missing_rounds: dict[str, int] = {}  # parent without a lease -> rounds in a row
        self._needed_parents: AbstractSet[str] = set()  # missing parents that this worker's leases wait for
        self._unlisted_before: set[str] = set()  # missing parents that the previous listing did not have
        self._is_table_gone = False  # the table was deleted, and still lacks leases
        self._memory: dict[str, Lease] = {}  # the rows as they were seen last, in case the table is deleted
        self._remembered_s = -math.inf  # when a scan last showed rows
        self.needs_scan: bool = False
        """Whether the last scan of the whole table shows a possible hole that this worker must confirm."""
        self._ended_open: frozenset[str] = frozenset()  # open shards with ended leases: they are not read

    # --- an empty table -------------------------------------------------------------------------------

    def remember_scan(self, leases: Mapping[str, Lease], now_s: float) -> None:
        """Remember the leases that a scan has shown: an empty table later means a deleted table, not a new application.

        If the scan has shown none of the stream's leases, the earlier memory is kept.
        """
        if leases:
            self._memory = dict(leases)
            self._remembered_s = now_s

    def remember_known_rows(self, leases: Mapping[str, Lease]) -> None:
        """Update the remembered leases with rows known since the last scan, which show ended shards and new children."""
        if self._memory:
            self._memory |= leases

    def restore_if_table_gone(self, scanned: AbstractSet[str], now_s: float) -> bool:
        """Create missing leases again if the table was deleted and another worker has begun to fill a new one.

        The table counts as deleted if a call found none, or if the scan has none of the remembered unfinished leases.

        Args:
            scanned: Keys of every existing row.

        Returns:
            Whether the table counts as deleted and lacks leases: then no other decision about this stream may be made from this
            scan.
        """
        # If a child is past its start, other workers have ended its parents and may have deleted their leases.
        leases_past_start = [lease for lease in self.view if lease.checkpoint.is_in_shard]
        ended_parents = frozenset().union(*(lease.parents for lease in leases_past_start))
        unfinished_keys = {key for key, lease in self._memory.items() if not lease.is_ended} - ended_parents
        is_found_gone = self._is_memory_recent(now_s) and unfinished_keys.isdisjoint(scanned)
        self._is_table_gone = (self._is_table_gone or is_found_gone) and not unfinished_keys <= scanned
        if self._is_table_gone:
            self._restore(scanned | ended_parents)
        return self._is_table_gone

    def _is_memory_recent(self, now_s: float) -> bool:
        pause_s = max(self.options.interval_s, self._scans.regular_pause_s)
        return now_s <= self._remembered_s + _MEMORY_SCANS * pause_s

    def on_no_rows(self, now_s: float) -> None:
        """Create the remembered leases again, or list the shards for the first leases; first wait for other workers to do so.

        The memory is kept until leases are seen again: an application that had leases is never new.
        """
        self._is_table_gone |= self._is_memory_recent(now_s)
        if self._is_table_gone:
            self._restore(frozenset())
            return
        if not self._listing.may_begin(now_s) or self._first_leases:
            return
        if self.first_listing_due_s is None:
            # Fifty workers that start together must not list the shards fifty times: most find the leases in their next scan.
            # A worker that stood still leaves a deleted table to those that have read on.
            shortest_s, jitter_s = (
                (self.options.interval_s, 1.0) if self._memory else (0.0, self.options.cold_start_jitter_s)
            )
            self.first_listing_due_s = now_s + shortest_s + jitter_s * self._turn.draw()
        elif now_s >= self.first_listing_due_s:
            self.first_listing_due_s = None
            if self._memory:
                self._is_table_gone = True
                self._restore(frozenset())
            else:
                self._listing.begin(
                    now_s, ListingPurpose.FIRST_LEASES, *first_listing_filter(self.options.start)
                )

    def _restore(self, except_keys: AbstractSet[str]) -> None:
        """Create the remembered leases again, except those of some keys, unless this stream's creations are under way already."""
        if self._writes.has_creations(self._memory):
            return  # a scan that began before an answer lacks that lease still
        leases = {key: lease for key, lease in self._memory.items() if key not in except_keys}
        begun = 0
        # A worker's renewal of the deleted row may still be in flight. It would be applied once the new row has the same
        # counter, so the new counter begins far above.
        for lease in leases.values():
            bare = replace(
                lease,
                counter=lease.counter + RESTORED_COUNTER_STEP,
                owner=None,
                checkpoint_owner=None,
                pending_checkpoint=None,
                pending_checkpoint_state=None,
                run=None,
                claims=(),  # the remembered claims may be older than batches that are done
            )
            begun += self._writes.enqueue(
                Create(self.options.with_stream(bare)), ForMissingLease(CreationReason.RESTORED)
            )
        if not begun:
            return
        self._turn.report(
            Topic.TABLE_GONE,
            Level.ERROR,
            f"{len(leases)} leases are gone with the lease table: they are created again at the "
            "checkpoints that this worker has seen; records after them are delivered again",
        )
        self._scans.request_whole_scan()

    def on_table_missing(self, now_s: float) -> None:
        """Handle a deleted lease table: missing leases will be created again, unless the remembered rows are too old."""
        self._is_table_gone |= self._is_memory_recent(now_s)

    def on_shards_listed(self, shards: Iterable[Shard]) -> None:
        """Keep the hash ranges of listed shards, for rows without one."""
        self.ranges.update((shard.shard_id, shard.hash_range) for shard in shards)

    def on_first_listing(self, event: ListingDone) -> None:
        """Handle the listing from which a new application gets its first leases."""
        if len(self.view):
            return  # another worker has started the application meanwhile
        if any(shard.shard_id in self.view.damaged_rows for shard in event.shards):
            return  # it was started before: an unreadable row is one of its leases
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
        self._first_leases = deque(plan)
        self._retries = 0
        self._create_first_lease()

    def _create_first_lease(self) -> None:
        # If two workers list the shards at different moments, the table refuses the Create of one of them. The other worker
        # creates all further leases, at its own moment.
        if not self._writes.enqueue(Create(self.options.with_stream(self._first_leases[0])), ForFirstLease()):
            self._first_leases.clear()  # a write for it is in flight: the next round decides

    def on_first_lease_created(self, outcome: WriteOutcome) -> None:
        """Handle the answer to the creation of the lease that decides which worker starts the application."""
        if not self._first_leases:
            return
        if isinstance(outcome, NotDone | Unknown):
            self._retries += 1
            if self._retries <= _RETRIES_MAX:
                self._create_first_lease()
            else:
                self._first_leases.clear()
            return
        mine = self._first_leases.popleft()
        rest, self._first_leases = self._first_leases, deque()
        row = outcome.row if isinstance(outcome, Refused) else mine
        if (
            row is None
            or row.checkpoint != mine.checkpoint
            or row.stream not in (None, self.options.stream_of(mine.key))
        ):
            # Another worker has created this lease with its own starting moment. That moment counts for all leases, so the
            # other worker creates the rest too.
            self._scans.request_whole_scan()
            return
        if not rest:
            self._scans.request_whole_scan()
        for lease in rest:
            self._writes.enqueue(
                Create(self.options.with_stream(lease)), ForMissingLease(CreationReason.FIRST)
            )

    def on_lease_created(
        self, pending: PendingWrite, purpose: ForMissingLease, outcome: WriteOutcome
    ) -> None:
        """Handle the answer to the creation of a lease other than the first one."""
        if isinstance(outcome, Applied):
            key, why = pending.write.key, purpose.reason.value
            self._turn.report(Topic.CREATED, Level.INFO, f"lease {key} created ({why})", key, why)
        if isinstance(outcome, Applied | Refused):
            self._retries = 0
            # Scan only after the last creation: a half-created table looks full of holes. Takes in flight do no harm.
            if not self._writes.has_creations():
                self._scans.request_whole_scan()
        else:
            self._retries += 1
            if self._retries <= _RETRIES_MAX:
                self._writes.enqueue(pending.write, purpose)
                return
        self._create_next_missing_lease()

    # --- every round ----------------------------------------------------------------------------------

    def on_round(self, now_s: float, workers: Sequence[str], needed_parents: AbstractSet[str]) -> bool:
        """Check for holes: the scan of this round is in the view.

        Args:
            workers: Live workers, this one included.
            needed_parents: Parents without a lease that this worker waits for.

        Returns:
            Whether leases may be deleted: not while missing leases are being created, or shards listed.
        """
        self.first_listing_due_s = None
        self._needed_parents = needed_parents
        missing = needed_parents | self.view.missing_parents()
        self._missing_rounds = {shard: self._missing_rounds.get(shard, 0) + 1 for shard in missing}
        self.needs_scan = False
        if self._missing_leases or self._listing.is_under_way:
            return False
        self._check_for_holes(workers, now_s)
        return True

    def _check_for_holes(self, workers: Sequence[str], now_s: float) -> None:
        """List the shards if this worker must: for a lease without a range, or for holes or missing parents of several rounds."""
        coverage = self._coverage()
        without_range = coverage.leases_without_range
        if without_range or coverage.holes or self._missing_rounds:
            self.needs_scan = bool(self._needed_parents) or chosen_worker(workers, "holes") == self.me
        self._hole_since_s = now_s if self._hole_since_s is None else self._hole_since_s
        hole_age_s = now_s - self._hole_since_s
        if without_range:
            is_responsible = self._is_responsible(workers, f"ranges {without_range[0]}", hole_age_s)
            if is_responsible and self._listing.may_begin(now_s):
                self._hole_since_s = None
                self._listing.begin(now_s, ListingPurpose.FILL_HOLE)
            return
        confirmed = self._holes.on_round(coverage.holes)
        missing = self._confirmed_missing_parents()
        if not confirmed and not missing:
            self._hole_since_s = None
            self._plan_before = None
            return
        task = f"hole {confirmed[0].start}" if confirmed else f"parent {min(missing)}"
        # Another worker may have listed the shards and seen that a parent has left the stream. A worker whose leases wait for
        # that parent does not see this listing, so it lists the shards itself.
        must_list = self._is_responsible(workers, task, hole_age_s) or bool(missing & self._needed_parents)
        if must_list and self._listing.may_begin(now_s):
            spans = ", ".join(f"{hole.start}..{hole.end}" for hole in confirmed[:3])
            gap = f"no unfinished lease covers hash keys {spans}"
            if not spans:
                gap = f"no lease for parent {min(missing)}"
            # A parent has no lease while its own parent is read. If a lease is missing, the listing leads to its creation, with a warning.
            level = Level.WARNING if spans else Level.INFO
            self._turn.report(Topic.HOLE, level, f"{gap}; the shards are listed to find the missing leases")
            self._listing.begin(
                now_s, ListingPurpose.FILL_HOLE, *hole_listing_filter(self.view, self.options.start)
            )

    def _coverage(self, also_covered: Iterable[str] = ()) -> LeaseCoverage:
        # An unreadable row counts as an unfinished lease: it may be one, and no other row may replace it.
        damaged = [
            Lease(key) for key in self.view.damaged_rows if key not in self.view and key in self.ranges
        ]
        return find_holes([*self.view, *damaged, *(Lease(key) for key in also_covered)], self.ranges)

    def find_open_holes(self) -> tuple[HashRange, ...]:
        """Return the hash keys that neither an unfinished lease nor an open shard with an ended lease covers.

        Empty while the range of a lease is unknown.
        """
        coverage = self._coverage(self._ended_open)
        return () if coverage.leases_without_range else coverage.holes

    def _confirmed_missing_parents(self) -> set[str]:
        return {shard for shard, rounds in self._missing_rounds.items() if rounds >= _HOLE_ROUNDS}

    def _is_responsible(self, workers: Sequence[str], task: str, hole_age_s: float) -> bool:
        """Return whether this worker lists the shards: the worker chosen for the task does, and after a longer wait every worker."""
        # A wait in rounds is right even in a fleet whose workers watch parts and seldom scan the whole table: the worker that
        # confirms a hole scans the whole table in every round.
        patience_s = (2 * _HOLE_ROUNDS - 0.5) * self.options.interval_s
        return hole_age_s >= patience_s or chosen_worker(workers, task) == self.me

    def on_fill_listing(self, event: ListingDone) -> None:
        """Handle the listing that was requested because of a hole in the leases."""
        coverage, rows = self._coverage(), self.view.rows()
        open_keys = (shard.shard_id for shard in event.shards if shard.is_open)
        self._ended_open = frozenset(key for key in open_keys if key in rows and rows[key].is_ended)
        parents = self._confirmed_missing_parents()
        unlisted = parents - {shard.shard_id for shard in event.shards}
        self._table_view.on_shards_vanished(unlisted & self._unlisted_before)  # two listings agree
        self._unlisted_before = unlisted
        plan = [
            missing
            for missing in plan_missing_leases(
                rows, event.shards, coverage.holes, self.options.start, needed_parents=parents - unlisted
            )
            if missing.lease.key not in self.view.damaged_rows
        ]
        if any(missing.why is CreationReason.UNEXPLAINED for missing in plan):
            # A listing can be incomplete, and a wrong lease here reads shards out of order: two listings must agree.
            is_repeated, self._plan_before = plan == self._plan_before, plan
            if not is_repeated:
                plan = []
        self._missing_leases = deque(plan)
        self._retries = 0
        self._create_next_missing_lease()

    def _create_next_missing_lease(self) -> None:
        # One after the other, parents first: a child without its parent's lease would be read at once.
        while self._missing_leases:
            missing = self._missing_leases.popleft()
            lease, why = missing.lease, missing.why
            if self._writes.enqueue(Create(self.options.with_stream(lease)), ForMissingLease(why)):
                self._turn.report(
                    Topic.HOLE,
                    Level.WARNING,
                    f"shard {lease.key} has no lease: it gets one at {lease.checkpoint} ({why.value})",
                    lease.key,
                )
                return
