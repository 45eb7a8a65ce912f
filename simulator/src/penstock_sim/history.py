"""The state that a history's lines describe, for the checkers to judge by.

No part of the checked code is asked. Positions are parsed here separately, sequence numbers compared as
integers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field

from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Claim, Create
from penstock.core.position import Position, Sentinel
from penstock_sim.events import kcl3, leases, processes, queries, reading, sinks
from penstock_sim.events import producers as producer_events
from penstock_sim.events import streams as stream_events
from penstock_sim.events.base import HistoryEntry, Subscriber, name_of
from penstock_sim.plan import EPOCH_MS, QueuePlan


@dataclass
class StreamHistory:
    """One stream."""

    start_ms: int | None  # earlier records are not owed; None while the start is not known
    retention_ms: int | None = None  # how long it keeps a record; None is for ever
    name: str = ""  # its name, if several streams share the table
    identity: str = ""  # its identity in its rows
    is_owed: bool = True  # whether it is there, and in the lists of the workers to be
    is_deleted: bool = False  # whether it has been deleted


@dataclass
class ShardHistory:
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


@dataclass
class ReaderHistory:
    """One reader between its start and its end."""

    who: str
    key: str
    start_index: int
    next_index: int
    done_index: int
    position: Position
    deliveries: int = 0


@dataclass
class AttemptHistory:
    """One attempt of a task that writes."""

    texts: tuple[str, ...]  # its rows, in order
    keeps_letters: bool  # whether it puts bad rows aside
    began_s: float  # when it began
    seen: Counter[str] = field(default_factory=Counter)  # how often readers of the streams see each row by it
    excused: Counter[str] = field(default_factory=Counter)  # how often more than once has a cause
    letters: Counter[str] = field(default_factory=Counter)  # how often it put each row aside in a stream


@dataclass
class History(Subscriber):
    """Everything known at one moment of a history."""

    start: Position  # where the application is configured to start
    retention_ms: int | None = None  # how long the stream keeps a record; None is for ever
    limits: dict[str, int] = field(default_factory=dict)  # the most leases of each worker with a limit
    foreign: frozenset[str] = frozenset()  # workers that know only the KCL's attributes of a lease
    # Workers of the KCL, 2.x (the foreign) and 3: they write no attribute of Penstock.
    kcl_workers: frozenset[str] = frozenset()
    producers: frozenset[str] = frozenset()  # workers that put records, and have no lease
    is_migrating: bool = False  # whether KCL 3 workers take leases as KCL 2.x does, at times
    leaders: set[str] = field(default_factory=set)  # workers of the KCL that have led a native fleet
    fleet_modes: dict[str, tuple[str, float]] = field(default_factory=dict)  # each worker's mode, since when
    is_quiet: bool = False  # whether the fleet has settled, so that nothing may move any more
    now: float = 0.0
    shards: dict[str, ShardHistory] = field(default_factory=dict)
    rows: dict[str, Lease] = field(default_factory=dict)
    changed_s: dict[str, float] = field(default_factory=dict)
    asked_s: dict[str, float] = field(default_factory=dict)
    owner_write_s: dict[tuple[str, str], float] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    exempted: set[str] = field(default_factory=set)
    was_table_dropped: bool = False
    readers: dict[tuple[str, str, int], ReaderHistory] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    unread: set[tuple[str, int, str]] = field(default_factory=set)
    given_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    healed_s: float | None = None
    handled_s: float = float("-inf")  # when records were handled last
    key_of: dict[str, str] = field(default_factory=dict)
    """The key of each record that a producer or a sink can put: the records of one key have an order."""
    bad_rows: dict[str, str] = field(default_factory=dict)  # rows that the service can never accept, and why
    planned_writes: dict[tuple[str, int], tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """The rows of each partition, by query and batch."""
    attempts: dict[str, AttemptHistory] = field(
        default_factory=lambda: {"a producer": AttemptHistory((), keeps_letters=False, began_s=0.0)}
    )
    """Attempts of tasks that write, by name; and all producers as one."""
    # When each process was paused, and until when.
    pauses: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    second_drivers: set[str] = field(default_factory=set)  # queries with two drivers on their location
    restored: set[str] = field(default_factory=set)  # queries whose checkpoint location was set back
    copied: set[str] = field(default_factory=set)
    """Queries whose checkpoint location was copied: since then the number of a batch does not identify it."""
    queues: QueuePlan | None = None  # the plan of a queue's workers
    streams: dict[str, StreamHistory] = field(default_factory=dict)
    """The streams by the prefix of their lease keys, which is empty unless several share the table."""

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
        """Return the worker that a lease counts for: one without hand-overs keeps it when the one that requested it has gone."""
        has_requester_gone = all(name_of(who) != row.owner for who in self.alive)
        return row.reader if has_requester_gone and row.reader in self.foreign else row.owner

    @property
    def now_ms(self) -> int:
        """The service's clock."""
        return EPOCH_MS + int(self.now * 1000)

    def now_s_since(self, moment_s: float | None) -> float:
        """Return the seconds since a moment; infinity if it never was."""
        return float("inf") if moment_s is None else self.now - moment_s

    def is_exempt(self, key: str) -> bool:
        """Whether a planned fault damaged this lease: then checkers ignore order and duplicates."""
        return self.was_table_dropped or key in self.exempted

    def has_two_drivers(self, query: str) -> bool:
        """Whether two drivers may work under the name of a query."""
        return query in self.second_drivers or query in self.copied

    def is_query_exempt(self, query: str) -> bool:
        """Whether a query may have had another driver, or an earlier state of its checkpoint location."""
        return self.has_two_drivers(query) or query in self.restored

    # --- taking history in ----------------------------------------------------------------------------

    def take_in(self, entry: HistoryEntry) -> None:
        """Apply an event, after the checkers have judged it."""
        self.now = entry.at_s
        self.handle(entry.event)

    def stream_of(self, key: str) -> StreamHistory:
        return self.streams.get(stream_events.stream_id_of(key), self.streams[""])

    def is_owed(self, key: str) -> bool:
        """Whether the fleet owes anything to the shard of a lease: its stream is there, and to be read."""
        return self.stream_of(key).is_owed

    def _on_stream_created(self, event: stream_events.StreamCreated) -> None:
        self.streams[event.stream_id] = StreamHistory(
            _moment_of(event.start), event.retention_ms, event.name, event.identity
        )

    def _on_stream_deleted(self, event: stream_events.StreamDeleted) -> None:
        self.streams[event.stream_id].is_owed = False
        self.streams[event.stream_id].is_deleted = True

    def _on_stream_unlisted(self, event: stream_events.StreamUnlisted) -> None:
        self.streams[event.stream_id].is_owed = False

    def _on_shard_created(self, event: stream_events.ShardCreated) -> None:
        key = event.key
        self.shards[key] = ShardHistory(event.parents, stream=self.stream_of(key))
        for parent in event.parents:
            self.shards[parent].children.append(key)

    def _on_shard_closed(self, event: stream_events.ShardClosed) -> None:
        self.shards[event.key].is_closed = True

    def _on_record_put(self, event: stream_events.RecordPut) -> None:
        self.shards[event.key].sequences.append(event.number)
        self.shards[event.key].arrivals_ms.append(event.arrival_ms)

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        who, write, before, after = event.who, event.write, event.before, event.after
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

    def _on_batch_planned(self, event: queries.BatchPlanned | queries.BatchStarted) -> None:
        self.given_ms.setdefault((event.who, event.batch), self.now_ms)

    def _on_batch_unread(self, event: queries.BatchUnread) -> None:
        for key in event.keys:
            self.unread.add((event.query, event.batch, key))
            claim = self.rows[key].claim_of(event.query) if key in self.rows else None
            if claim is not None:
                self._skip_unread(key, claim, None)

    def _skip_unread(self, key: str, claim: BatchClaim, until_ms: int | None) -> None:
        """Mark the records of a committed batch as done that its action did not read: skipping them was the user's choice."""
        shard = self.shards[key]
        for past in claim.past_claims(1 + len(claim.earlier)):
            if (claim.worker, past.batch, key) in self.unread:
                begin, end = self.index_after(key, past.start), self.index_after(key, past.end)
                if until_ms is not None:
                    end = min(end, bisect_right(shard.arrivals_ms, until_ms))
                shard.done.update(shard.sequences[begin:end])

    def _on_lease_deleted(self, event: leases.LeaseDeleted) -> None:
        self.rows.pop(event.key, None)
        self.exempt(event.key)

    def exempt(self, key: str) -> None:
        """Exempt a shard and its descendants from the checks of order and duplicates: their rows were damaged."""
        if key not in self.exempted and key in self.shards:
            self.exempted.add(key)
            for child in self.shards[key].children:
                self.exempt(child)

    def _on_application_renamed(self, event: queries.ApplicationRenamed) -> None:
        self.rows.clear()
        self.created.clear()

    def _on_table_dropped(self, event: leases.TableDropped) -> None:
        self.rows.clear()
        self.was_table_dropped = True

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        key = event.key
        index = self.index_after(key, event.position)
        self.readers[event.who, key, event.epoch] = ReaderHistory(
            event.who, key, index, index, index, event.position
        )

    def _on_records_delivered(self, event: reading.RecordsDelivered) -> None:
        reader = self.readers.get(event.reader)
        if reader is not None:
            reader.next_index = bisect_right(self.shards[event.key].sequences, event.numbers[-1])
            reader.deliveries += 1

    def _on_records_handled(self, event: reading.RecordsHandled | reading.RecordsDeadLettered) -> None:
        self.shards[event.key].done.update(event.numbers)
        self.handled_s = self.now
        reader = self.readers.get(event.reader)
        if reader is not None:
            reader.done_index = bisect_right(self.shards[event.key].sequences, event.numbers[-1])

    def _on_shard_expired(self, event: stream_events.ShardExpired) -> None:
        self.shards[event.key].is_expired = True

    def _on_records_trimmed(self, event: stream_events.RecordsTrimmed) -> None:
        self.shards[event.key].trimmed = event.count

    def _on_reader_ended(self, event: reading.ReaderEnded) -> None:
        self.readers.pop(event.reader, None)

    def _on_process_started(self, event: processes.ProcessStarted) -> None:
        if name_of(event.who) not in self.producers:
            self.alive.add(event.who)

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        self.alive.discard(event.who)
        for found in [reader for reader in self.readers if reader[0] == event.who]:
            del self.readers[found]

    def _on_process_paused(self, event: processes.ProcessPaused) -> None:
        self.pauses.setdefault(event.who, []).append((self.now, event.until_s))

    def _on_second_driver_started(self, event: queries.SecondDriverStarted) -> None:
        self.second_drivers.add(event.query)

    def _on_location_restored(self, event: queries.LocationRestored) -> None:
        self.restored.add(event.query)

    def _on_location_copied(self, event: queries.LocationCopied) -> None:
        self.copied.add(event.query)

    def _on_record_added(self, event: producer_events.RecordAdded) -> None:
        self.key_of[event.text] = event.key

    def _on_bad_row_added(self, event: sinks.BadRowAdded) -> None:
        self.bad_rows[event.text] = event.why

    def _on_write_planned(self, event: sinks.WritePlanned) -> None:
        self.planned_writes[event.query, event.batch] = event.texts

    def _on_write_task_started(self, event: sinks.WriteTaskStarted) -> None:
        self.attempts[event.attempt] = AttemptHistory(event.texts, event.keeps_letters, self.now)

    def _on_records_doubtful(
        self, event: producer_events.RecordsUnanswered | producer_events.RecordsMisrouted
    ) -> None:
        self.attempts[event.attempt].excused.update(event.texts)

    def _on_records_stored(self, event: producer_events.RecordsStored) -> None:
        if event.is_read:
            self.attempts[event.attempt].seen.update(event.texts)

    def _on_dead_letters_stored(self, event: sinks.DeadLettersStored) -> None:
        self.attempts[event.attempt].letters.update(event.texts)

    def _on_leader_elected(self, event: kcl3.LeaderElected) -> None:
        self.leaders.add(name_of(event.who))

    def _on_version_changed(self, event: kcl3.VersionChanged) -> None:
        self.is_migrating = True

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        if event.topic == "FLEET" and event.reason != "unseen":
            self.fleet_modes[event.who] = (event.reason, self.now)

    def _on_faults_ended(self, event: processes.FaultsEnded) -> None:
        self.healed_s = self.now


def _moment_of(start: Position) -> int | None:
    """Return since when records are owed, as far as the configured start says it."""
    return 0 if start.sentinel is Sentinel.TRIM_HORIZON else start.timestamp_ms
