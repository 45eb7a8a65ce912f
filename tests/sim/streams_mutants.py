"""Planted bugs of workers that read several streams."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.consumer import shard_run
from penstock.consumer.fetching import ShardFetcher
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.lease import stream_id_of, stream_name_of
from penstock.core.leases.lease_view import StreamRows
from penstock.core.leases.lease_writes import Delete, LateCheckpoint
from penstock.core.leases.pending_writes import ForLateCheckpoint
from penstock.core.leases.required_leases import find_holes
from penstock.core.leases.shard_syncer import ShardSyncer
from penstock.core.leases.stream_leases import Streams
from penstock.runtime.stream_name_check import StreamNameCheck
from sim.mutants import Mutants

STREAMS_MUTANTS = Mutants()
planted = STREAMS_MUTANTS.planted
OURS = "Penstock, until it was simulated"
SEVERAL = "a consumer of several streams"

CREATE_FIRST_LEASES = Streams.create_first_leases


@planted("children without their stream", SEVERAL, 0, shard_run, "keyed_shard")
def bare_child(stream_id, child):
    return child


@planted("begun when another one is", SEVERAL, 2, StreamRows, "_is_of_stream")
def takes_every_row_for_its_own(self, key):
    return True


@planted("another stream covers the holes", SEVERAL, 4, ShardSyncer, "_coverage")
def covers_with_every_row(self):
    """A stream whose holes are not seen, since another's leases cover the same hash keys."""
    return find_holes(self.view._view, self.ranges)


def deletes(self, rows, is_unwanted):
    kept = self._stream_check.keep_own_streams(rows)
    for row in rows:
        if row not in kept and is_unwanted(row):
            delete = Delete(row.key, row.counter, row.checkpoint)
            self._writes.enqueue(delete, ForLateCheckpoint(LateCheckpoint(row.key, row.checkpoint)))
    return kept


@planted(
    "an old list deletes a new stream", "KCL 2.x in multi-stream mode", 0, Coordinator, "_keep_own_streams"
)
def deletes_what_it_does_not_read(self, rows):
    return deletes(self, rows, lambda row: True)


@planted("a clean-up by name takes the stream created anew", SEVERAL, 4, Coordinator, "_keep_own_streams")
def deletes_what_has_the_name(self, rows):
    names = {stream_name_of(stream_id) for stream_id in self.options.streams}
    return deletes(self, rows, lambda row: stream_name_of(stream_id_of(row.key)) in names)


@planted("every stream starts as the first", SEVERAL, 8, CoordinatorOptions, "of_stream")
def starts_as_the_first(self, stream_id):
    return replace(self, start=next(iter(self.streams.values())).start)


@planted("every lease is marked as the first stream's", SEVERAL, 0, CoordinatorOptions, "stream_of")
def marks_as_the_first(self, key):
    return next(iter(self.streams.values())).identity if self.streams else self.stream


@planted("a stream without leases holds up all", SEVERAL, 171, Streams, "create_first_leases")
def waits_for_every_stream(self, existing, now_s):
    started = CREATE_FIRST_LEASES(self, existing, now_s)
    return started if len(started._streams) == len(self._streams) else Streams(self._context, {})


@planted("a name is believed for ever", OURS, 6, StreamNameCheck, "check")
@planted("a beginning is believed to be the same stream's", OURS, 47, ShardFetcher, "_check_stream")
def believes_the_name(self):
    """A worker that takes a stream for the one that had its name before."""
