"""The parts of a coordinator that depend on the listing of one stream's shards.

A table of several streams has one set of parts for each, so that a stream that is denied or gone does not hold up the
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, Topic
from penstock.core.leases.coordinator_events import ListingDone, ListingPurpose, WriteOutcome
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import chosen_worker
from penstock.core.leases.lease import Lease, stream_id_of
from penstock.core.leases.lease_view import OwnerState, StreamRows
from penstock.core.leases.lease_writes import Applied
from penstock.core.leases.pending_writes import ForCleanup
from penstock.core.leases.required_leases import DeletionReason, find_unlisted_leases, plan_deletions
from penstock.core.leases.shard_syncer import ListingCalls, ShardSyncer
from penstock.core.shard import Shard

_REST_DURATIONS: Final = 3  # a finished lease is deleted after this many lease durations without a change
_DELETIONS_PER_ROUND: Final = 100


class LeaseCleanup:
    """Deletes leases that are not needed any more. Not thread-safe.

    One of the live workers is responsible for each deletion (`chosen_worker`). If it does not delete the lease, a later round
    plans the deletion again.

    Args:
        view: The stream's rows in the table.
        listing: Shared with the shard syncer.
    """

    def __init__(self, context: CoordinatorContext, view: StreamRows, listing: ListingCalls) -> None:
        self.me: str = context.me
        self.options: CoordinatorOptions = context.options
        self.view = view
        self._table_view = context.view
        self._turn = context.turn
        self._writes = context.writes
        self._listing = listing
        # Finished leases that the last listing lacked, and those that the last two lacked.
        self._unlisted_leases: frozenset[str] = frozenset()
        self._vanished_leases: frozenset[str] = frozenset()
        self._listing_due_s: float | None = None

    def on_round(self, now_s: float, workers: Sequence[str]) -> None:
        """Begin the deletions that this worker is chosen for, and from time to time a listing that finds vanished shards.

        Args:
            workers: Live workers, this one included.
        """
        begun = 0
        for deletion in plan_deletions(self.view.rows(), self._vanished_leases):
            key = deletion.write.key
            # A Create without an answer may still be in flight. After the deletion it would bring the row back.
            if self._table_view.unchanged_s(key, now_s) < _REST_DURATIONS * self.options.lease_duration_s:
                continue
            if begun < _DELETIONS_PER_ROUND and chosen_worker(workers, key) == self.me:
                begun += self._writes.enqueue(deletion.write, ForCleanup(deletion.why))
        if self._listing_due_s is None:
            self._listing_due_s = now_s + self.options.garbage_interval_s * self._turn.draw()
        if now_s >= self._listing_due_s and self._listing.may_begin(now_s):
            self._listing_due_s = now_s + self.options.garbage_interval_s
            if self._has_old_leases(now_s):
                self._listing.begin(now_s, ListingPurpose.FIND_VANISHED)

    def _has_old_leases(self, now_s: float) -> bool:
        return any(
            row.is_ended and self._table_view.unchanged_s(key, now_s) >= self.options.garbage_interval_s
            for key, row in self.view.rows().items()
        )

    def on_listing(self, shards: Sequence[Shard], now_s: float) -> None:
        """Handle a listing of every shard of the stream."""
        before, self._unlisted_leases = self._unlisted_leases, find_unlisted_leases(self.view.rows(), shards)
        self._vanished_leases = before & self._unlisted_leases
        self._listing_due_s = now_s + self._turn.jittered(self.options.garbage_interval_s, 0.2)

    def on_deleted(self, key: str, why: DeletionReason, outcome: WriteOutcome) -> None:
        """Handle the answer to a deletion."""
        if isinstance(outcome, Applied):
            self._table_view.forget(key)
            message = f"lease {key} deleted: {why.value}"
            self._turn.report(Topic.DELETED, Level.INFO, message, key, why.name.lower())


_PAUSE_ROUNDS: Final = 0.75
"""Pause after a failed listing; the next regular scan, which may be a little early, begins another one."""


class StreamLeases(Struct, frozen=True, eq=False):
    """The coordinator's parts for one stream.

    Args:
        stream_id: The prefix of the stream's lease keys; empty if the table has only this stream.
    """

    stream_id: str
    listing: ListingCalls
    syncer: ShardSyncer
    cleanup: LeaseCleanup

    def own_keys(self, keys: AbstractSet[str]) -> AbstractSet[str]:
        """Return those of some lease keys that are of this stream."""
        return {key for key in keys if stream_id_of(key) == self.stream_id} if self.stream_id else keys

    def own_leases(self, leases: Mapping[str, Lease]) -> Mapping[str, Lease]:
        """Return those of some leases that are of this stream, by key and in their order."""
        if not self.stream_id:
            return leases
        return {key: lease for key, lease in leases.items() if stream_id_of(key) == self.stream_id}

    def on_listing(self, event: ListingDone, now_s: float) -> None:
        """Handle a listing of the stream's shards."""
        self.listing.on_done()
        if event.purpose is ListingPurpose.FIRST_LEASES:
            self.syncer.on_first_listing(event)
            return
        self.syncer.on_shards_listed(event.shards)
        if event.purpose is ListingPurpose.FILL_HOLE:
            self.syncer.on_fill_listing(event)
        elif event.purpose is ListingPurpose.FIND_VANISHED:
            self.cleanup.on_listing(event.shards, now_s)


class Streams:
    """The parts of a coordinator for each stream that the worker reads, or for some of these. Not thread-safe."""

    def __init__(self, context: CoordinatorContext, streams: Mapping[str, StreamLeases]) -> None:
        self._context = context
        self._view = context.view
        self._streams = streams

    def __bool__(self) -> bool:
        return bool(self._streams)

    def __contains__(self, lease_key: str) -> bool:
        return self._context.options.stream_id_of(lease_key) in self._streams

    def __getitem__(self, stream_id: str) -> StreamLeases:
        return self._streams[stream_id]

    def stream_of(self, key: str) -> StreamLeases:
        """Return the parts for the stream of a lease."""
        return self._streams[self._context.options.stream_id_of(key)]

    def on_table_missing(self, now_s: float) -> None:
        """Handle a table that does not exist."""
        for stream in self._streams.values():
            stream.syncer.on_table_missing(now_s)

    def remember_known_rows(self, rows: Mapping[str, Lease]) -> None:
        """Remember the latest known rows, before the next scan replaces them."""
        for stream in self._streams.values():
            stream.syncer.remember_known_rows(stream.own_leases(rows))

    def remember_scan(self, rows: Mapping[str, Lease], now_s: float) -> None:
        """Remember the rows that a scan has shown."""
        for stream in self._streams.values():
            stream.syncer.remember_scan(stream.own_leases(rows), now_s)

    def begin_comparing(self, stream_ids: Iterable[str], now_s: float) -> None:
        """List the shards of some streams, to compare the rows with them."""
        for stream_id in stream_ids:
            listing = self._streams[stream_id].listing
            if listing.may_begin(now_s):
                listing.begin(now_s, ListingPurpose.COMPARE)

    def listings_under_way(self) -> Iterator[tuple[str, float]]:
        """Yield each stream whose shards are being listed, and when that was begun."""
        for stream_id, stream in self._streams.items():
            if stream.listing.sent_s is not None:
                yield stream_id, stream.listing.sent_s

    def create_first_leases(self, existing: AbstractSet[str], now_s: float) -> Streams:
        """Begin to create the leases of streams that have none, or lack leases of a deleted table; return the other streams.

        Args:
            existing: Keys of all rows. An unreadable row counts as a lease if it was one when last seen.
        """
        complete = {}
        for stream_id, stream in self._streams.items():
            if not any(key in self._view for key in stream.own_keys(existing)):
                stream.syncer.on_no_rows(now_s)
            elif not stream.syncer.restore_if_table_gone(existing, now_s):
                complete[stream_id] = stream
        return Streams(self._context, complete)

    def sync_leases(self, workers: Sequence[str], needed_parents: AbstractSet[str], now_s: float) -> bool:
        """Create missing leases and delete finished ones, stream by stream.

        Args:
            workers: Live workers, this one included.
            needed_parents: Parents without a lease for which this worker's leases wait. This worker creates their leases itself:
                another worker may have seen the parent leave the stream, or may be a Java worker, which does not check.

        Returns:
            Whether a scan must confirm a possible hole.
        """
        for stream in self._streams.values():
            if stream.syncer.on_round(now_s, workers, stream.own_keys(needed_parents)):
                stream.cleanup.on_round(now_s, workers)
        return any(stream.syncer.needs_scan for stream in self._streams.values())

    @property
    def first_listing_due_s(self) -> float | None:
        """When the first shards are listed for a stream without leases; None if every stream has leases."""
        moments_s = (stream.syncer.first_listing_due_s for stream in self._streams.values())
        return min((moment_s for moment_s in moments_s if moment_s is not None), default=None)

    def describe_unread_part(self, me: str, now_s: float, *, has_room: bool, has_leader: bool) -> str | None:
        """Return why some part of the streams may have no living reader, or None.

        An owner counts as a living reader once this worker has seen it renew: the view counts every owner as alive at first.

        Args:
            me: This worker's id; it reads the leases in its name.
            has_room: Whether this worker has room for free leases.
            has_leader: Whether a leader assigns the leases, including those of dead workers.
        """
        view, gap = self._view, self._describe_gap()
        if gap is not None or has_leader:
            return gap
        for lease, state, _ in view.with_owner_states(now_s, view.watched_keys):
            if state is OwnerState.ENDED or lease.reader == me:
                continue
            if state is OwnerState.ALIVE:
                if not view.was_renewed(lease.key):
                    return f"{lease.reader} has not renewed the lease of shard {lease.key} yet"
            elif has_room and not view.waits_for_parents(lease):
                return f"shard {lease.key} has no reader yet"
        return None

    def describe_damaged_leases(self) -> tuple[str, ...]:
        """Return a sentence for each lease whose row cannot be read, so that no worker reads its shard.

        A row counts as a lease if it was one when last seen, or if the stream has a shard of that key.
        """
        view = self._view
        listed = [stream.syncer.ranges for stream in self._streams.values()]
        return tuple(
            f"the row of lease {key} cannot be read: {why}"
            for key, why in sorted(view.damaged_rows.items())
            if key in view or any(key in ranges for ranges in listed)
        )

    def _describe_gap(self) -> str | None:
        """Return a sentence about a part of the streams that no readable lease covers, or None."""
        view = self._view
        for stream in self._streams.values():
            for hole in stream.syncer.find_open_holes():
                return f"no lease covers the hash keys {hole.start}..{hole.end}"
            for key in view.damaged_rows.keys() & stream.syncer.ranges.keys():
                return f"the row of lease {key} cannot be read: {view.damaged_rows[key]}"
        missing = view.missing_parents()
        return (
            f"the lease of shard {min(missing)} is missing, and its child waits for it" if missing else None
        )


def streams_of(context: CoordinatorContext) -> Streams:
    """Return the coordinator's parts for each stream that the worker reads."""
    streams = {}
    for stream_id in context.options.stream_ids:
        rows = StreamRows(context.view, stream_id)
        own = replace(context, options=context.options.of_stream(stream_id))
        listing = ListingCalls(own.turn, stream_id, _PAUSE_ROUNDS * own.options.interval_s)
        syncer = ShardSyncer(own, rows, listing)
        streams[stream_id] = StreamLeases(stream_id, listing, syncer, LeaseCleanup(own, rows, listing))
    return Streams(context, streams)
