"""The parts of a coordinator that depend on the listing of one stream's shards.

A table of several streams has one set of parts for each, so that a stream that is denied or gone does not hold up the
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, Topic
from penstock.core.leases.coordinator_events import ListingPurpose, WriteOutcome
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import chosen_worker
from penstock.core.leases.lease import Lease, stream_id_of
from penstock.core.leases.lease_view import LeaseView, OwnerState, Rows, StreamRows
from penstock.core.leases.lease_writes import Applied
from penstock.core.leases.pending_writes import ForCleanup
from penstock.core.leases.required_leases import DeletionReason, find_vanished, plan_deletions
from penstock.core.leases.shard_syncer import ListingUnderWay, ShardSyncer
from penstock.core.shard import Shard


def describe_unread(
    view: LeaseView, syncers: Iterable[ShardSyncer], me: str, now_s: float, *, takes_free: bool, is_led: bool
) -> str | None:
    """Return why some part of the stream may have no living reader, or None.

    An owner counts as living only after this worker has seen it renew its lease: at its start, a worker counts every
    owner as alive.

    Args:
        view: The last known rows of the lease table.
        syncers: The shard syncers of the streams.
        me: This worker's id. Leases with this id as their reader have a reader.
        now_s: Monotonic seconds.
        takes_free: Whether this worker has room for free leases.
        is_led: Whether a leader assigns the leases, including those of dead workers.
    """
    gap = _describe_gap(view, syncers)
    if gap is not None or is_led:
        return gap
    for lease, state, _ in view.with_owner_states(now_s, view.watched):
        if state is OwnerState.ENDED or lease.reader == me:
            continue
        if state is OwnerState.ALIVE:
            if not view.was_renewed(lease.key):
                return f"{lease.reader} has not renewed the lease of shard {lease.key} yet"
        elif takes_free and not view.waits_for_parents(lease):
            return f"shard {lease.key} has no reader yet"
    return None


def _describe_gap(view: LeaseView, syncers: Iterable[ShardSyncer]) -> str | None:
    """Return which part of the stream has no readable lease, or None."""
    for syncer in syncers:
        for hole in syncer.find_open_holes():
            return f"no lease covers the hash keys {hole.start}..{hole.end}"
        for key in view.damaged.keys() & syncer.ranges.keys():
            return f"the row of lease {key} cannot be read: {view.damaged[key]}"
    missing = view.missing_parents()
    return f"the lease of shard {min(missing)} is missing, and its child waits for it" if missing else None


_REST_DURATIONS: Final = 3  # lease durations that a finished lease is kept unchanged
_DELETIONS_PER_ROUND: Final = 100


class LeaseCleanup:
    """Deletes leases that are not needed any more. Not thread-safe.

    One of the live workers is responsible for each deletion (`chosen_worker`). If it does not delete the lease, a later round
    plans the deletion again.

    Args:
        context: Shared by the parts of the coordinator.
        view: The last known rows of the stream.
        listing: Shared with the shard syncer.
    """

    def __init__(self, context: CoordinatorContext, view: Rows, listing: ListingUnderWay) -> None:
        self.me: str = context.me
        self.options: CoordinatorOptions = context.options
        self.view = view
        self._turn = context.turn
        self._writes = context.writes
        self._listing = listing
        self._vanished_before: frozenset[str] | None = None
        self._vanished: frozenset[str] = frozenset()
        self._listing_due_s: float | None = None

    def on_round(self, now_s: float, workers: Sequence[str]) -> None:
        """Begin this worker's deletions, and from time to time a listing that shows which shards have left the stream.

        Args:
            now_s: Monotonic seconds.
            workers: Live workers, this one included.
        """
        if not self.options.cleanup:
            return
        begun = 0
        for deletion in plan_deletions(self.view.rows(), self._vanished):
            key = deletion.write.key
            # One worker: Create, no answer. Another one: the shard's end, then this deletion. If the Create is still in flight,
            # it brings the row back.
            if self.view.unchanged_s(key, now_s) < _REST_DURATIONS * self.options.lease_duration_s:
                continue
            if begun < _DELETIONS_PER_ROUND and chosen_worker(workers, key) == self.me:
                begun += self._writes.enqueue(deletion.write, ForCleanup(deletion.why))
        if self._listing_due_s is None:
            self._listing_due_s = now_s + self.options.garbage_interval_s * self._turn.draw()
        if now_s >= self._listing_due_s and self._listing.may_begin(now_s):
            self._listing_due_s = now_s + self.options.garbage_interval_s
            if self._has_old_leases(now_s):
                self._listing.begin(ListingPurpose.FIND_VANISHED)

    def _has_old_leases(self, now_s: float) -> bool:
        return any(
            row.is_ended and self.view.unchanged_s(key, now_s) >= self.options.garbage_interval_s
            for key, row in self.view.rows().items()
        )

    def on_listing(self, shards: Sequence[Shard], now_s: float) -> None:
        """Handle a listing of every shard of the stream."""
        self._vanished_before, self._vanished = find_vanished(self.view.rows(), shards, self._vanished_before)
        self._listing_due_s = now_s + self.options.garbage_interval_s * (0.8 + 0.4 * self._turn.draw())

    def on_deleted(self, key: str, why: DeletionReason, outcome: WriteOutcome) -> None:
        """Handle the answer to a deletion."""
        if isinstance(outcome, Applied):
            self.view.forget(key)
            message = f"lease {key} deleted: {why.value}"
            self._turn.report(Topic.DELETED, Level.INFO, message, key, why.name.lower())


_PAUSE_ROUNDS: Final = 0.75
"""Pause after a failed listing; the next regular scan, which may be a little early, begins another one."""


class StreamLeases(Struct, frozen=True, eq=False):
    """The coordinator's parts for one stream.

    Args:
        stream_id: The prefix of the stream's lease keys; empty if the table has only this stream.
        listing: Begins the listings of its shards.
        syncer: Creates its leases.
        cleanup: Deletes those that are finished.
    """

    stream_id: str
    listing: ListingUnderWay
    syncer: ShardSyncer
    cleanup: LeaseCleanup

    def keys(self, keys: AbstractSet[str]) -> AbstractSet[str]:
        """Return the keys of this stream's leases among others."""
        return {key for key in keys if stream_id_of(key) == self.stream_id} if self.stream_id else keys

    def leases(self, leases: Mapping[str, Lease]) -> Mapping[str, Lease]:
        """Return this stream's leases among others, by key and in their order."""
        if not self.stream_id:
            return leases
        return {key: lease for key, lease in leases.items() if stream_id_of(key) == self.stream_id}


def streams_of(context: CoordinatorContext) -> dict[str, StreamLeases]:
    """Return the coordinator's parts for each stream that the worker reads, by stream id."""
    streams = {}
    for stream_id in context.options.stream_ids:
        rows = StreamRows(context.view, stream_id) if stream_id else context.view
        own = replace(context, options=context.options.of_stream(stream_id))
        listing = ListingUnderWay(own.turn, stream_id, _PAUSE_ROUNDS * own.options.interval_s)
        syncer = ShardSyncer(own, rows, listing)
        cleanup = LeaseCleanup(own, rows, listing)
        streams[stream_id] = StreamLeases(stream_id, listing, syncer, cleanup)
    return streams
