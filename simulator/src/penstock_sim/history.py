"""The state that a history's lines describe, for the checkers to judge by.

No part of the checked code is asked. Positions are parsed here separately, sequence numbers compared as
integers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from msgspec import Struct, field

from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Claim, Create
from penstock.core.position import Position, Sentinel
from penstock_sim.faults import EPOCH_MS

HistoryEntry = tuple[Any, ...]


class StreamHistory(Struct):
    """One stream.

    Args:
        start_ms: Earlier records are not owed; None while the start is not known.
        retention_ms: How long it keeps a record; None is for ever.
        name: Its name, if several streams share the table.
        identity: Its identity in its rows.
        is_owed: Whether it is there, and in the lists of the workers to be.
        is_deleted: Whether it has been deleted.
    """

    start_ms: int | None
    retention_ms: int | None = None
    name: str = ""
    identity: str = ""
    is_owed: bool = True
    is_deleted: bool = False


class ShardHistory(Struct):
    """One shard: lineage, records, and how far they are done."""

    parents: tuple[str, ...]
    is_closed: bool = False
    children: list[str] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    arrivals_ms: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    verified: int = 0  # so many records from the first are known to be done, or out of scope
    trimmed: int = 0  # so many records from the first have left the stream
    is_expired: bool = False  # the shard itself has left the stream
    stream: StreamHistory = field(default_factory=lambda: StreamHistory(None))


class ReaderHistory(Struct):
    """One reader between its start and its end."""

    who: str
    key: str
    start_index: int
    next_index: int
    done_index: int
    position: Position
    deliveries: int = 0


class History(Struct):
    """Everything known at one moment of a history.

    Args:
        start: Where the application is configured to start.
        retention_ms: How long the stream keeps a record; None is for ever.
        limits: How many leases a worker holds at most, if it has a limit.
        foreign: Workers that know only the KCL's attributes of a lease.
        noteless: Workers that note nothing beside the KCL's attributes, the foreign and those of KCL 3.
        producers: Workers that put records, and have no lease.
    """

    start: Position
    retention_ms: int | None = None
    limits: dict[str, int] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()
    noteless: frozenset[str] = frozenset()
    producers: frozenset[str] = frozenset()
    is_migrating: bool = False
    """Whether KCL 3 workers take leases as KCL 2.x does, at times."""
    leaders: set[str] = field(default_factory=set)
    """Workers of the KCL that have led a native fleet."""
    fleet_modes: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The mode of lease decisions that each worker has last reported, and since when."""
    now: float = 0.0
    shards: dict[str, ShardHistory] = field(default_factory=dict)
    rows: dict[str, Lease] = field(default_factory=dict)
    changed_s: dict[str, float] = field(default_factory=dict)
    asked_s: dict[str, float] = field(default_factory=dict)
    owner_write_s: dict[tuple[str, str], float] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    disturbed: set[str] = field(default_factory=set)
    was_table_dropped: bool = False
    readers: dict[tuple[str, str, int], ReaderHistory] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    unread: set[tuple[str, int, str]] = field(default_factory=set)
    given_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    healed_s: float | None = None
    handled_s: float = float("-inf")
    """When records were handled last."""
    streams: dict[str, StreamHistory] = field(default_factory=dict)
    """By what their lease keys begin with: one without an id, unless several share the table."""

    def __post_init__(self) -> None:
        self.streams[""] = StreamHistory(_moment_of(self.start), self.retention_ms)

    # --- reading positions ----------------------------------------------------------------------------

    def index_after(self, key: str, position: Position) -> int:
        """Return the index of the first record that a position leaves to be read."""
        shard = self.shards[key]
        if position.sequence_number is not None:
            return bisect_right(shard.sequences, int(position.sequence_number) + position.sub_sequence_number)
        if position.sentinel is Sentinel.SHARD_END:
            return len(shard.sequences)
        if position.timestamp_ms is not None:
            return bisect_left(shard.arrivals_ms, position.timestamp_ms)
        return len(shard.sequences) if position.sentinel is Sentinel.LATEST else 0

    def first_undone(self, key: str, before_index: int) -> int | None:
        """Return the first record in scope before an index that is not done; None if all are.

        Records that have left the stream are out of scope.
        """
        shard = self.shards[key]
        start_ms = shard.stream.start_ms
        if start_ms is None:
            return None
        index = max(shard.verified, shard.trimmed)
        while index < before_index:
            if shard.arrivals_ms[index] >= start_ms and shard.sequences[index] not in shard.done:
                return shard.sequences[index]
            index += 1
        shard.verified = max(shard.verified, index)
        return None

    def holder_of(self, row: Lease) -> str | None:
        """Return the worker that a lease counts for: one that knows no asks keeps it when the one that asked has gone."""
        has_asker_gone = all(name_of(who) != row.owner for who in self.alive)
        return row.reader if has_asker_gone and row.reader in self.foreign else row.owner

    def now_s_since(self, moment_s: float | None) -> float:
        """Return the seconds since a moment; infinity if it never was."""
        return float("inf") if moment_s is None else self.now - moment_s

    def is_forgiven(self, key: str) -> bool:
        """Whether the fault plan itself damaged this lease: order and duplicates are not owed then."""
        return self.was_table_dropped or key in self.disturbed

    # --- taking history in ----------------------------------------------------------------------------

    def take_in(self, entry: HistoryEntry) -> None:
        """Apply one line, after the checkers have judged it."""
        self.now = entry[0]
        handler = getattr(self, f"_on_{entry[1]}", None)
        if handler is not None:
            handler(*entry[2:])

    def stream_of(self, key: str) -> StreamHistory:
        """Return the stream of a lease, by its key."""
        return self.streams.get(key.rpartition(":")[0], self.streams[""])

    def is_owed(self, key: str) -> bool:
        """Whether the fleet owes anything to the shard of a lease: its stream is there, and to be read."""
        return self.stream_of(key).is_owed

    def _on_stream(
        self, stream_id: str, name: str, identity: str, start: Position, retention_ms: int | None
    ) -> None:
        self.streams[stream_id] = StreamHistory(_moment_of(start), retention_ms, name, identity)

    def _on_stream_deleted(self, stream_id: str, _name: str) -> None:
        self.streams[stream_id].is_owed = False
        self.streams[stream_id].is_deleted = True

    def _on_left_out(self, stream_id: str) -> None:
        self.streams[stream_id].is_owed = False

    def _on_shard(self, key: str, parents: tuple[str, ...]) -> None:
        self.shards[key] = ShardHistory(parents, stream=self.stream_of(key))
        for parent in parents:
            self.shards[parent].children.append(key)

    def _on_closed(self, key: str) -> None:
        self.shards[key].is_closed = True

    def _on_put(self, key: str, sequence: int, arrival_ms: int) -> None:
        self.shards[key].sequences.append(sequence)
        self.shards[key].arrivals_ms.append(arrival_ms)

    def _on_write(self, who: str, write: Any, before: Lease | None, after: Lease | None) -> None:
        key = write.key
        if after is None:
            self.rows.pop(key, None)
            return
        self.rows[key] = after
        if isinstance(write, Claim):
            # Records that arrived after the batch was planned could not be read, so the driver must not skip them.
            planned_ms = self.given_ms.get((who, write.claim.batch), 0)
            is_the_drivers = name_of(who) == write.claim.worker
            self._skip_unread(key, write.claim, planned_ms if is_the_drivers else None)
        if isinstance(write, Create):
            self.created.add(key)
            moment, stream = after.checkpoint.timestamp_ms, self.stream_of(key)
            if moment is not None and (stream.start_ms is None or moment < stream.start_ms):
                stream.start_ms = moment
        if before is None or before.counter != after.counter:
            self.changed_s[key] = self.now
            self.owner_write_s[who, key] = self.now
        if after.checkpoint_owner is not None and (before is None or before.checkpoint_owner is None):
            self.asked_s[key] = self.now

    def _on_logged(self, who: str, batch: int, *_: Any) -> None:
        self.given_ms.setdefault((who, batch), EPOCH_MS + int(self.now * 1000))

    _on_batch = _on_logged  # a batch of an earlier driver is planned again

    def _on_unread(self, name: str, batch: int, keys: tuple[str, ...]) -> None:
        for key in keys:
            self.unread.add((name, batch, key))
            claim = self.rows[key].claim_of(name) if key in self.rows else None
            if claim is not None:
                self._skip_unread(key, claim, None)

    def _skip_unread(self, key: str, claim: BatchClaim, until_ms: int | None) -> None:
        """Mark the records of a committed batch as done that its action did not read: skipping them was the user's choice."""
        shard = self.shards[key]
        for past in claim.past(1 + len(claim.earlier)):
            if (claim.worker, past.batch, key) in self.unread:
                begin, end = self.index_after(key, past.start), self.index_after(key, past.end)
                if until_ms is not None:
                    end = min(end, bisect_right(shard.arrivals_ms, until_ms))
                shard.done.update(shard.sequences[begin:end])

    def _on_row_deleted(self, key: str, _reader: str | None) -> None:
        self.rows.pop(key, None)
        self.disturb(key)

    def disturb(self, key: str) -> None:
        """Forgive a shard and everything that descends from it."""
        if key not in self.disturbed and key in self.shards:
            self.disturbed.add(key)
            for child in self.shards[key].children:
                self.disturb(child)

    def _on_moved(self, _application: str) -> None:
        self.rows.clear()
        self.created.clear()

    def _on_table_dropped(self) -> None:
        self.rows.clear()
        self.was_table_dropped = True

    def _on_start(self, who: str, key: str, epoch: int, position: Position) -> None:
        index = self.index_after(key, position)
        self.readers[who, key, epoch] = ReaderHistory(who, key, index, index, index, position)

    def _on_deliver(self, who: str, key: str, epoch: int, sequences: tuple[int, ...]) -> None:
        reader = self.readers.get((who, key, epoch))
        if reader is not None:
            reader.next_index = bisect_right(self.shards[key].sequences, sequences[-1])
            reader.deliveries += 1

    def _on_done(self, who: str, key: str, epoch: int, sequences: tuple[int, ...]) -> None:
        self.shards[key].done.update(sequences)
        self.handled_s = self.now
        reader = self.readers.get((who, key, epoch))
        if reader is not None:
            reader.done_index = bisect_right(self.shards[key].sequences, sequences[-1])

    _on_dead = _on_done

    def _on_expired(self, key: str) -> None:
        self.shards[key].is_expired = True

    def _on_trimmed(self, key: str, count: int, _last: int) -> None:
        self.shards[key].trimmed = count

    def _on_gone(self, who: str, key: str, epoch: int) -> None:
        self.readers.pop((who, key, epoch), None)

    def _on_up(self, who: str) -> None:
        if name_of(who) not in self.producers:
            self.alive.add(who)

    def _on_down(self, who: str, _how: str) -> None:
        self.alive.discard(who)
        for found in [reader for reader in self.readers if reader[0] == who]:
            del self.readers[found]

    def _on_leads(self, who: str) -> None:
        self.leaders.add(name_of(who))

    def _on_version(self, _version: str) -> None:
        self.is_migrating = True

    def _on_report(self, who: str, topic: str, reason: str, _key: str | None) -> None:
        if topic == "FLEET" and reason != "unseen":
            self.fleet_modes[who] = (reason, self.now)

    def _on_healed(self) -> None:
        self.healed_s = self.now


def _moment_of(start: Position) -> int | None:
    """Return since when records are owed, as far as the configured start says it."""
    return 0 if start.sentinel is Sentinel.TRIM_HORIZON else start.timestamp_ms


def name_of(who: str) -> str:
    """Return the worker id of an incarnation."""
    return who.partition("#")[0]
