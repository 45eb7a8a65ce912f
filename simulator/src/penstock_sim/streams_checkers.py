"""Checkers for several streams in one lease table: each keeps to itself, and a failing one holds up no other."""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.core.leases.lease_writes import Create
from penstock_sim.checker import Broken, Checker
from penstock_sim.events import leases, reading, streams
from penstock_sim.plan import EPOCH_MS

READ_WITHIN_S: Final = 60.0
"""A record is handled within this time if faults happen only in other streams."""


class OwnStreamOnly(Checker):
    """T1: a worker writes and reads leases of the streams in its list, and each lease stays with its stream."""

    invariant = "T1"

    def _begin(self) -> None:
        self._read_by: dict[str, tuple[str, ...]] = {}

    def _on_streams_chosen(self, event: streams.StreamsChosen) -> None:
        self._read_by[event.who] = event.stream_ids

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write, after = event.who, event.write, event.after
        key = write.key
        if key not in self.history.shards:
            raise Broken(f"{event.kind} of {who} is of {key}, which is not a shard")
        if who not in self._read_by:
            return  # rows that were in the table before
        stream_id = streams.stream_id_of(key)
        if stream_id not in self._read_by[who]:
            raise Broken(f"{event.kind} of {who} is of {key}, whose stream it does not read")
        if after is None:
            return
        for other in sorted(after.parents | after.children):
            if streams.stream_id_of(other) != stream_id:
                raise Broken(f"{event.kind} of {who} lets {key} name {other}, of another stream")
        identity = self.history.streams[stream_id].identity
        if after.stream is not None and str(after.stream) != identity:
            raise Broken(f"{event.kind} of {who} marks {key} as of {after.stream}")

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        if streams.stream_id_of(event.key) not in self._read_by[event.who]:
            raise Broken(f"{event.who} reads {event.key}, whose stream is not in its list")

    def _on_delivered_from(self, event: reading.DeliveredFrom) -> None:
        stream_id, _, shard_id = event.key.rpartition(":")
        if event.places != ((self.history.streams[stream_id].name, shard_id),):
            raise Broken(f"{event.who} hands over records of {event.key} as those of {event.places}")


class DeletedStaysAsItWas(Checker):
    """T2: no lease of a stream is begun or deleted once the stream is gone, and nothing of its leases is taken for another's.

    Leases of an earlier list may still be written, also by a worker that was paused: it has not noticed the change.
    """

    invariant = "T2"
    _UNDER_WAY_S: Final = 20.0  # leases of an earlier list may still be written

    def _begin(self) -> None:
        self._gone_s: dict[str, float] = {}

    def _written_until_s(self, who: str, gone_s: float) -> float:
        until_s = gone_s + self._UNDER_WAY_S
        for paused_s, resumed_s in self.history.pauses.get(who, ()):
            if paused_s <= until_s:
                until_s = max(until_s, resumed_s + self._UNDER_WAY_S)
        return until_s

    def _on_stream_deleted(self, event: streams.StreamDeleted) -> None:
        self._gone_s[event.stream_id] = self.history.now

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write = event.write
        gone_s = self._gone_s.get(streams.stream_id_of(write.key))
        if gone_s is None or self.history.now < self._written_until_s(event.who, gone_s):
            return
        is_new = isinstance(write, Create) and event.before is None and write.key not in self.history.created
        if is_new and not self.history.is_exempt(write.key):
            raise Broken(
                f"{event.who} creates {write.key} at {event.after and event.after.checkpoint}, whose stream is gone"
            )


class OthersGoOn(Checker):
    """T3: if only one stream has faults, every record of the others is handled soon."""

    invariant = "T3"

    def _begin(self) -> None:
        self._read_since_s: dict[str, float] = {}
        self._in_trouble: set[str] = set()
        self._due: deque[tuple[float, str, int, int]] = deque()

    def _on_streams_chosen(self, event: streams.StreamsChosen) -> None:
        for stream_id in event.stream_ids:
            self._read_since_s.setdefault(stream_id, self.history.now)

    def _on_stream_failed(self, event: streams.StreamRefused | streams.StreamDeleted) -> None:
        self._in_trouble.add(event.stream_id)

    def _on_list_changed(self, event: streams.ListChanged) -> None:
        """A stream left out of a worker's list is not owed until all have it again."""
        self._in_trouble.update(
            stream_id for stream_id, stream in self.history.streams.items() if stream.name not in event.names
        )

    def _on_record_put(self, event: streams.RecordPut) -> None:
        self._due.append((self.history.now + READ_WITHIN_S, event.key, event.number, event.arrival_ms))
        while self._due and self._due[0][0] <= self.history.now:
            _, put_into, number, came_ms = self._due.popleft()
            self._judge(put_into, number, came_ms)

    def _judge(self, key: str, sequence: int, arrival_ms: int) -> None:
        shard, stream_id = self.history.shards[key], streams.stream_id_of(key)
        since_s = self._read_since_s.get(stream_id)
        if since_s is None or stream_id in self._in_trouble or sequence in shard.done:
            return
        start_ms = shard.stream.start_ms
        is_owed = start_ms is not None and arrival_ms >= start_ms
        put_s = (arrival_ms - EPOCH_MS) / 1000
        if is_owed and put_s >= since_s and sequence not in shard.sequences[: shard.trimmed]:
            raise Broken(f"record {sequence} of {key} is not handled {READ_WITHIN_S:.0f} s after it was put")


STREAMS: Final = (DeletedStaysAsItWas,)
