"""The parts of a coordinator that depend on the listing of one stream's shards.

A table of several streams has one set of parts for each, so that a stream that is denied or gone does not hold up the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_cleanup import LeaseCleanup
from penstock.core.leases.lease_keys import stream_id_of
from penstock.core.leases.listing_under_way import ListingUnderWay
from penstock.core.leases.shard_syncer import ShardSyncer
from penstock.core.leases.stream_rows import StreamRows

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


def streams_of(context: CoordinatorContext) -> dict[str, StreamLeases]:
    """Return the parts of every stream that a worker reads, by the stream's id."""
    streams = {}
    for stream_id in context.options.stream_ids:
        rows = StreamRows(context.view, stream_id) if stream_id else context.view
        own = replace(context, options=context.options.of_stream(stream_id))
        listing = ListingUnderWay(own.turn, stream_id, _PAUSE_ROUNDS * own.options.interval_s)
        syncer = ShardSyncer(own, rows, listing)
        cleanup = LeaseCleanup(own, rows, listing)
        streams[stream_id] = StreamLeases(stream_id, listing, syncer, cleanup)
    return streams
