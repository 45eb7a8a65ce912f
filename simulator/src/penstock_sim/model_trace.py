"""Turns a history of a fleet into a trace that TLC compares with `model/Leases.tla`.

A trace is data: the constants of the model for this history, and its events in an order in which the model could take them.
Positions become ordinals: the distinct positions of a shard's checkpoints, and of the last record that each reader handled,
numbered from 1; 0 is before all records.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Create,
    End,
    LateCheckpoint,
    LeaseWrite,
    Release,
    Renew,
    RequestHandover,
    Take,
)
from penstock.core.position import Position
from penstock.core.shard_graph import ancestors_of
from penstock_sim.events import leases, processes, reading, streams
from penstock_sim.events.base import HistoryEntry, Subscriber, name_of
from penstock_sim.history import History, ShardHistory
from penstock_sim.plan import Scenario
from penstock_sim.run import SeedResult
from penstock_sim.table import Fate, TableCall

Event: TypeAlias = list[Any]
_NO_RUN: Final = 0
"""In place of a run that no process of the history has written; it is not compared."""


@dataclass
class Trace:
    """One history as the model sees it."""

    name: str  # where it comes from
    workers: list[str]  # the workers that run Penstock's protocol
    java: list[str]  # KCL 2.x workers
    parents: dict[str, list[str]]  # of each shard, by its key
    records: int  # ordinals of a shard, the last one for its end
    unasked: list[str]  # workers whose live leases others take without a request
    unaware: list[str]  # workers that know no hand-overs
    events: list[Event]  # in order; each begins with its name
    left_out: str = ""  # why the history is longer than the trace; empty if it is not
    is_log: bool = False  # whether the writes are all that is known


def number_of(position: Position) -> int:
    """Return the number of a record as the simulated stream counts: its sequence number plus its place in an aggregate."""
    assert position.sequence_number is not None
    return int(position.sequence_number) + position.sub_sequence_number


@dataclass
class _Shard:
    parents: tuple[str, ...]
    ordinals: list[int] = field(default_factory=list)
    last: int | None = None
    """The number of the last record of a shard that is closed in this history; None while it is open, or has no record."""
    records: int = 0  # the ordinals of any shard, set once all are known

    def ordinal_of(self, position: Position) -> int:
        if position.is_shard_end:
            return self.records + 1
        return self.ordinal(number_of(position)) if position.is_record else 0

    def ordinal(self, number: int) -> int:
        """Return the ordinal that is reached with a record."""
        is_all = self.last is not None and number >= self.last
        return self.records if is_all else bisect_right(self.ordinals, number)


@dataclass
class _Reader:
    index: int
    at: int
    gets: set[int]
    begun: dict[int, float] = field(default_factory=dict)
    handled: set[int] = field(default_factory=set)


@dataclass
class _Progress:
    """A write with a checkpoint: when it was sent, and when the table decided it, as places in the history.

    A `Checkpoint` may be behind what the reader has done; in the model the other writes have all that the reader has done.
    """

    sent: float
    decided: float
    at: int
    may_be_behind: bool


@dataclass
class _Delivery:
    """A call of a handler, which the model has as one step.

    The step is where the call begins, because the deadline and the parents are looked at then. It comes after a release or
    a late checkpoint of the same reader that does not cover its records, and never before the end of the call if a checkpoint
    that covers them was sent before that end.
    """

    who: str
    key: str
    begun: float
    ended: float
    at: int
    is_orphan: bool


class _Extractor(Subscriber):
    def __init__(
        self, scenario: Scenario, shards: dict[str, _Shard], gets: dict[tuple[str, str, int], set[int]]
    ) -> None:
        self._gets = gets
        self.scenario = scenario
        self.history = History(scenario.options.start.default)
        self.shards = shards
        self.place = 0.0
        self.now_s = 0.0
        self.events: list[tuple[float, int, Event]] = []
        self.left_out = ""
        self.readers: dict[tuple[str, str, int], _Reader] = {}
        self._sent: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._progress: dict[tuple[str, str], list[_Progress]] = {}
        self._deadlines: dict[tuple[str, str], float] = {}
        self._runs: dict[str, int] = {}
        self._guarded: set[tuple[str, str]] = set()
        self._exits: dict[str, float] = {}
        self._deliveries: list[_Delivery] = []
        self._drained: dict[tuple[str, str], int] = {}
        self._removed: set[str] = set()
        self._starts: dict[tuple[str, str], list[float]] = {}

    # --- emitting -------------------------------------------------------------------------------------

    def emit(self, event: Event, place: float | None = None) -> None:
        self.events.append((self.place if place is None else place, len(self.events), event))

    def take_in(self, place: int, entry: HistoryEntry) -> None:
        self.place, self.now_s = float(place), entry.at_s
        self._pause_overdue()
        self.handle(entry.event)

    def _pause_overdue(self) -> None:
        for who_key, deadline_s in list(self._deadlines.items()):
            if deadline_s < self.now_s:
                del self._deadlines[who_key]
                self._guarded.discard(who_key)
                self.emit(["Pause", *who_key])

    # --- the table ------------------------------------------------------------------------------------

    def on_call(self, call: TableCall) -> None:
        """Take in a write at the table."""
        self.place, self.now_s = call.place - 0.5, call.at_s
        self._pause_overdue()
        write, key = call.write, call.write.key
        if isinstance(write, Take | Renew) and write.run is not None:
            self._runs[write.run.name] = int(call.who.partition("#")[2])
        if isinstance(write, Create) and write.lease.counter:
            if call.fate is not Fate.SENT:
                self.left_out = "leases of a deleted table are created again"
            return
        is_dead = call.who in self._exits
        if is_dead and call.fate is Fate.SENT:
            return
        sent_place, sent_s = self._sent.get(
            (call.who, f"write {type(write).__name__}", key), (self.place, call.at_s)
        )
        # The write of a process that has ended since is sent just before the end, and arrives now.
        place = self._exits[call.who] - 0.25 if is_dead else self.place
        position = _position_of(write)
        if position is not None and call.fate is not Fate.ARRIVED:
            at = self.shards[key].ordinal_of(position)
            self._progress.setdefault((call.who, key), []).append(
                _Progress(sent_place, place, at, isinstance(write, Checkpoint))
            )
        self._emit_drained(call, place)
        self._emit_write(call, place, is_dead=is_dead)
        self._guarded = {
            each for each in self._guarded if each[1] != key and key not in self.shards[each[1]].parents
        }
        if isinstance(write, Take | Renew | Checkpoint) and call.fate is not Fate.SENT and not is_dead:
            self._move_deadline((name_of(call.who), key), sent_s)

    def _emit_write(self, call: TableCall, place: float, *, is_dead: bool) -> None:
        worker, write, fate = name_of(call.who), call.write, call.fate
        key, kind = write.key, type(write).__name__
        row = self.row(call.after, key)
        # A write that is only sent leaves no row: in its place is the counter or the owner that the write needs.
        sent = [False, getattr(write, "counter", 0), *self.row(None, key)[2:]]
        if isinstance(write, RequestHandover):
            sent[2] = write.owner
        position = _position_of(write)
        at = 0 if position is None else self.shards[key].ordinal_of(position)
        is_free = self.history.shards[key].is_expired
        if isinstance(write, Create):
            is_free = key in self._removed
        if isinstance(write, Release):  # a reader that has stopped leaves all that it has done to the release
            is_free = any(each[:2] == (call.who, key) for each in self.readers)
        if is_dead and fate is not Fate.ARRIVED:
            self.emit([kind, worker, key, "sent", sent, at, is_free], place)
        if is_dead or fate is Fate.ARRIVED:
            self.emit(["Arrive", worker, key, kind, row])
        else:
            self.emit([kind, worker, key, fate.name.lower(), sent if fate is Fate.SENT else row, at, is_free])

    def _emit_drained(self, call: TableCall, place: float) -> None:
        """Emit that a process has read shards to their ends, before the first write that needs it."""
        write, keys = call.write, tuple[str, ...]()
        if isinstance(write, Create):
            keys = self.shards[write.key].parents
        elif isinstance(write, End):
            keys = (write.key,)
        for key in keys:
            if (call.who, key) in self._drained:
                self.emit(["Drain", name_of(call.who), key, self._drained[call.who, key]], place)

    def _move_deadline(self, who_key: tuple[str, str], sent_s: float) -> None:
        options = self.scenario.options
        hold_s = options.lease_duration_s - options.margin_s
        deadline_s = sent_s + hold_s / (1 - self.scenario.faults.clock_rate_spread)
        self._deadlines[who_key] = max(deadline_s, self._deadlines.get(who_key, 0.0))

    def is_orphan(self, key: str) -> bool:
        return any(self.history.shards[parent].is_expired for parent in self.shards[key].parents)

    def row(self, row: Lease | None, key: str) -> list[Any]:
        """Return a row as the model has it."""
        if row is None:
            return [False, 0, "none", "none", 0, _NO_RUN]
        run = _NO_RUN if row.run is None else self._runs.get(row.run.name, _NO_RUN)
        return [
            True,
            row.counter,
            row.owner or "none",
            row.checkpoint_owner or "none",
            self.shards[key].ordinal_of(row.checkpoint),
            run,
        ]

    def _on_call_made(self, event: processes.CallMade) -> None:
        self._sent[event.who, event.call, event.key] = (self.place, self.now_s)

    def _on_deleted(self, event: leases.LeaseDeleted) -> None:
        # With the row goes the only sign that the shard's ancestors were read.
        self._removed |= {
            event.key,
            *ancestors_of([event.key], {key: s.parents for key, s in self.shards.items()}),
        }
        self.emit(["Gone", "none", event.key])

    def _on_dropped(self, event: leases.TableDropped) -> None:
        self.left_out = self.left_out or "the table is deleted"

    # --- processes ------------------------------------------------------------------------------------

    def _on_exited(self, event: processes.ProcessExited) -> None:
        self._exits[event.who] = self.place
        worker = name_of(event.who)
        for who_key in [each for each in self._deadlines if each[0] == worker]:
            del self._deadlines[who_key]
        self.emit(["Exit", worker, "none"])

    def _on_second(self, event: processes.SecondProcessStarted) -> None:
        self.left_out = self.left_out or f"a second process of {event.worker} starts"

    # --- the stream and its readers -------------------------------------------------------------------

    def _on_started(self, event: reading.ReaderStarted) -> None:
        at = self.shards[event.key].ordinal_of(event.position)
        index = self.history.index_after(event.key, event.position)
        self.readers[event.reader] = _Reader(index, at, self._gets.get(event.reader, set()))
        self._starts.setdefault((event.who, event.key), []).append(self.place)
        if at:
            self.emit(["Start", name_of(event.who), event.key, at, self.is_orphan(event.key)])

    def _on_delivered(self, event: reading.RecordsDelivered | reading.RecordsRedelivered) -> None:
        reader = self.readers.get(event.reader)
        if reader is None:
            return
        reader.begun.update(dict.fromkeys(event.numbers, self.place))
        who_key = (name_of(event.who), event.key)
        if who_key not in self._guarded:
            self._guarded.add(who_key)
            self.emit(["Begin", *who_key, self.is_orphan(event.key)])

    def _on_handled(self, event: reading.RecordsHandled | reading.RecordsDeadLettered) -> None:
        reader, shard = self.readers.get(event.reader), self.history.shards[event.key]
        if reader is None:
            return
        reader.handled.update(event.numbers)
        first = reader.index
        self._advance(reader, shard)
        passed = shard.sequences[first : reader.index]
        if not passed:
            return
        begun = max(reader.begun.get(number, 0.0) for number in passed)
        # One step for each ordinal: a checkpoint may lie between two records of one call.
        for at in dict.fromkeys(map(self.shards[event.key].ordinal, passed)):
            if at != reader.at:
                reader.at = at
                self._deliveries.append(
                    _Delivery(event.who, event.key, begun, self.place, at, self.is_orphan(event.key))
                )

    def place_deliveries(self) -> None:
        """Emit each delivery at a moment at which the model can make it: see `_Delivery`."""
        for each in self._deliveries:
            starts = self._starts[each.who, each.key]
            after = bisect_right(starts, each.begun)
            end = starts[after] if after < len(starts) else math.inf
            writes = [
                write
                for write in self._progress.get((each.who, each.key), ())
                if each.begun < write.decided and write.sent < end
            ]
            if any(write.at >= each.at and write.sent < each.ended for write in writes):
                place = each.ended
            else:
                behind = (write.decided for write in writes if write.at < each.at and not write.may_be_behind)
                place = max([each.begun, *behind])
            self.emit(["Deliver", name_of(each.who), each.key, each.at, each.is_orphan], place + 0.125)

    @staticmethod
    def _advance(reader: _Reader, shard: ShardHistory) -> None:
        while reader.index < len(shard.sequences):
            number = shard.sequences[reader.index]
            is_lost = reader.index < shard.trimmed and number not in reader.gets
            if not is_lost and number not in reader.handled:
                return
            reader.index += 1

    def _on_ended(self, event: reading.ReaderEnded) -> None:
        reader, shard = self.readers.pop(event.reader, None), self.history.shards[event.key]
        if reader is None:
            return
        self._advance(reader, shard)
        if shard.is_closed and reader.index == len(shard.sequences):
            self._drained[event.who, event.key] = reader.at


def trace_of(name: str, scenario: Scenario, result: SeedResult) -> Trace:
    """Return a history as a trace."""
    shards, gets = _first_pass(result)
    records = 1 + max((len(shard.ordinals) for shard in shards.values()), default=0)
    for shard in shards.values():
        shard.records = records
    extractor = _Extractor(scenario, shards, gets)
    _second_pass(extractor, result)
    events = [event for _, _, event in sorted(extractor.events, key=lambda each: each[:2])]
    options, workers = scenario.options, _workers(scenario, result)
    has_requests = options.handover and options.policy is not BalancePolicy.KCL2
    return Trace(
        name,
        workers,
        [],
        {key: list(shard.parents) for key, shard in shards.items()},
        records,
        sorted(scenario.foreign) if has_requests else workers,
        sorted(scenario.foreign),
        events,
        extractor.left_out,
    )


def _first_pass(result: SeedResult) -> tuple[dict[str, _Shard], dict[tuple[str, str, int], set[int]]]:
    """Return the shards, with all their ordinals, and the records that each reader gets."""
    shards: dict[str, _Shard] = {}
    last: dict[str, int] = {}
    gets: dict[tuple[str, str, int], set[int]] = {}
    for entry in result.history:
        match entry.event:
            case streams.ShardCreated() as event:
                shards[event.key] = _Shard(event.parents)
            case streams.RecordPut() as event:
                last[event.key] = event.number
            case reading.RecordsDelivered() as event:
                gets.setdefault(event.reader, set()).update(event.numbers)
            case streams.ShardClosed() as event:
                shards[event.key].last = last.get(event.key)
            case reading.ReaderStarted() as event:
                _count(shards[event.key], (event.position,))
    for call in result.calls:
        _count(shards[call.write.key], _positions(call))
    handled = (entry.event for entry in result.history if isinstance(entry.event, reading.RecordsHandled))
    for (_, key, _), number in {event.reader: event.numbers[-1] for event in handled}.items():
        shards[key].ordinals.append(number)
    for shard in shards.values():
        shard.ordinals = sorted(set(shard.ordinals))
    return shards, gets


def _second_pass(extractor: _Extractor, result: SeedResult) -> None:
    """Take in the history and its writes, in their order, up to the first event that the model does not have."""
    calls = list(result.calls)
    decided = {call.place for call in calls if call.fate is not Fate.SENT}
    calls.reverse()
    for place, entry in enumerate(result.history):
        while calls and calls[-1].place <= place and not extractor.left_out:
            extractor.on_call(calls.pop())
        if extractor.left_out:
            break
        if not isinstance(entry.event, leases.LeaseWritten):
            extractor.take_in(place, entry)
        elif place not in decided:
            row = extractor.row(entry.event.after, entry.event.write.key)
            extractor.emit(["Given", "none", entry.event.write.key, row], float(place))
        extractor.history.take_in(entry)
    extractor.place_deliveries()


def _workers(scenario: Scenario, result: SeedResult) -> list[str]:
    """Return every worker that sends a write or that a row names."""
    found = {*scenario.workers, *(name_of(call.who) for call in result.calls)}
    for entry in result.history:
        if isinstance(entry.event, leases.LeaseWritten) and entry.event.after is not None:
            found |= {entry.event.after.owner or "", entry.event.after.checkpoint_owner or ""}
    return sorted(found - {""})


def _count(shard: _Shard, positions: Iterable[Position | None]) -> None:
    shard.ordinals += [number_of(each) for each in positions if each is not None and each.is_record]


def _position_of(write: LeaseWrite) -> Position | None:
    """Return the checkpoint that a write brings, or None."""
    return write.position if isinstance(write, Checkpoint | LateCheckpoint | Release) else None


def _positions(call: TableCall) -> list[Position | None]:
    rows = (call.before, call.after)
    return [_position_of(call.write), *(row.checkpoint for row in rows if row is not None)]
