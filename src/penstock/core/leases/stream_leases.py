"""The parts of a coordinator that depend on the listing of one stream's shards.

A table of several streams has one set of parts for each, so that a stream that is denied or gone does not hold up the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_cleanup import LeaseCleanup
from penstock.core.leases.lease_keys import stream_id_of
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.listing_under_way import ListingUnderWay
from penstock.core.leases.pending_writes import PendingWrites
from penstock.core.leases.shard_syncer import ShardSyncer
from penstock.core.leases.stream_rows import StreamRows
from penstock.core.leases.table_scans import TableScans
from penstock.core.leases.turn import Turn

_PAUSE_ROUNDS: Final = 0.75
"""Pause after a failed listing; the next regular scan, which may be a little early, begins another one."""


class StreamLeases(Struct, frozen=True, eq=False):
    """The parts of one stream.

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


def streams_of(  # noqa: PLR0917 - the parts of one coordinator
    me: str,
    options: CoordinatorOptions,
    view: LeaseView,
    turn: Turn,
    writes: PendingWrites,
    scans: TableScans,
) -> dict[str, StreamLeases]:
    """Return the parts of every stream that a worker reads, by the stream's id.

    Args:
        me: The worker's id.
        options: As for the coordinator.
        view: The coordinator's.
        turn: Where effects go.
        writes: Sends writes.
        scans: Asked for a scan after leases were created.
    """
    streams = {}
    for stream_id in options.stream_ids:
        rows = StreamRows(view, stream_id) if stream_id else view
        own = options.of_stream(stream_id)
        listing = ListingUnderWay(turn, stream_id, _PAUSE_ROUNDS * own.interval_s)
        syncer = ShardSyncer(me, own, rows, turn, writes, listing, scans)
        cleanup = LeaseCleanup(me, own, rows, turn, writes, listing)
        streams[stream_id] = StreamLeases(stream_id, listing, syncer, cleanup)
    return streams
