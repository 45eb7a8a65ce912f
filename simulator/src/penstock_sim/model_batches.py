"""Turns histories of Spark queries into traces that TLC compares with `model/Batches.tla`: one for each query.

Positions become ordinals, as in `model_trace`: the distinct positions of a shard in rows, claims and offsets, and the last
record of each read, and the place before its first one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.leases.lease import BatchClaim, Lease, PastClaim
from penstock.core.leases.lease_writes import Claim, LateCheckpoint, Promote, Renew, Reset
from penstock.core.position import Position, Sentinel
from penstock_sim.events import leases, queries, streams
from penstock_sim.events.base import Event, Subscriber, name_of
from penstock_sim.model_trace import number_of
from penstock_sim.plan import Scenario
from penstock_sim.run import SeedResult

_NOBODY, _QUERY, _OTHER = 0, 1, 99
_NO_CLAIM: Final = {"batch": 0, "run": 0, "planner": 0, "start": 0, "end": 0, "earlier": []}


@dataclass
class BatchTrace:
    """One query of a history as the model sees it."""

    name: str  # where it comes from
    parents: dict[str, list[str]]  # of each shard, by its key
    records: int  # ordinals of a shard
    holds: dict[str, list[int]]  # of each shard, the ordinals with records since the ordinal before
    events: list[dict[str, Any]]  # in order; each has its name, and its row or batch
    left_out: str = ""  # why the history is longer than the trace; empty if it is not


@dataclass
class _Extractor(Subscriber):
    query: str
    ordinals: dict[str, list[int]]
    records: int
    number_of: Callable[[Position], int]
    events: list[dict[str, Any]] = field(default_factory=list)
    left_out: str = ""
    may_refuse: bool = False
    unread: tuple[str, ...] = ()
    starts: dict[int, dict[str, int]] = field(default_factory=dict)
    runs: dict[str | None, int] = field(default_factory=lambda: {None: 0})

    def emit(self, name: str, **fields: Any) -> None:
        self.events.append({"name": name, **fields})

    def run(self, name: str | None) -> int:
        return self.runs.setdefault(name, len(self.runs))

    def at(self, key: str, position: Position) -> int:
        if position.is_shard_end:
            return self.records + 1
        return bisect_right(self.ordinals[key], self.number_of(position)) if position.is_record else 0

    def past(self, key: str, claim: PastClaim | BatchClaim) -> dict[str, Any]:
        ends = {"start": self.at(key, claim.start), "end": self.at(key, claim.end)}
        return {"batch": claim.batch, "planner": self.run(claim.planned_by), **ends}

    def row(self, key: str, row: Lease | None) -> dict[str, Any]:
        if row is None:
            return {"exists": False, "holder": _NOBODY, "at": 0, "claim": _NO_CLAIM}
        holder = _NOBODY if row.reader is None else _QUERY if row.reader == self.query else _OTHER
        claim = row.claim_of(self.query)
        as_claim = _NO_CLAIM
        if claim is not None:
            earlier = [self.past(key, each) for each in claim.earlier]
            as_claim = {**self.past(key, claim), "run": self.run(claim.run), "earlier": earlier}
        return {"exists": True, "holder": holder, "at": self.at(key, row.checkpoint), "claim": as_claim}

    def _on_written(self, event: leases.LeaseWritten) -> None:
        write, key = event.write, event.write.key
        row = self.row(key, event.after)
        match write:
            case Claim(claim=claim) if claim.worker == self.query:
                batch, run = write.claim_seen or (0, None)
                self.emit(
                    "Claim",
                    shard=key,
                    row=row,
                    **self.past(key, claim),
                    run=self.run(claim.run),
                    before=[batch, self.run(run)],
                    rowAt=self.at(key, write.checkpoint_seen),
                    forfeits=write.is_forfeit,
                )
            case Promote() if write.worker == self.query:
                self.emit("Promote", shard=key, row=row, batch=write.batch, at=self.at(key, write.position))
            case Reset():
                self.emit("Reset", shard=key, row=row, isOwn=write.claim_worker == self.query)
            case Claim() if any(worker == self.query for worker, _ in write.dropped_claims):
                self.left_out = "another query drops a claim"
            case Claim() | Promote():
                self.emit("Checkpoint", shard=key, row=row, isOwn=False)
            case Renew() if self.row(key, event.before) == row:
                pass
            case _:
                is_own = name_of(event.who) == self.query
                self.emit(type(write).__name__, shard=key, row=row, isOwn=is_own)

    def _on_planned(self, event: queries.BatchPlanned) -> None:
        if name_of(event.who) == self.query and event.batch:
            starts = {key: self.at(key, start) for key, start in event.starts}
            self.starts[event.batch] = starts
            run = self.run(event.run)
            self.emit("Plan", batch=event.batch, run=run, starts=starts, reads=frozenset(event.keys))

    def _on_read(self, event: queries.BatchRead) -> None:
        if name_of(event.who) != self.query or event.batch not in self.starts:
            return
        key, numbers = event.key, event.numbers
        first = last = self.starts[event.batch].get(key, 0)
        if numbers:
            first = bisect_left(self.ordinals[key], numbers[0])
            last = bisect_right(self.ordinals[key], numbers[-1])
        self.emit("Read", shard=key, batch=event.batch, first=first, last=last)

    def _on_unread(self, event: queries.BatchUnread) -> None:
        if event.query == self.query:
            self.unread = event.keys

    def _on_committed(self, event: queries.BatchCommitted) -> None:
        if event.query == self.query and event.batch:
            self.emit("Commit", batch=event.batch, unread=frozenset(self.unread))
            self.unread = ()

    def _on_trimmed(self, event: streams.RecordsTrimmed) -> None:
        self.emit("Trim", shard=event.key, at=bisect_right(self.ordinals[event.key], event.last))

    def _on_expired(self, event: streams.ShardExpired) -> None:
        self.emit("Trim", shard=event.key, at=self.records)

    def _on_restored(self, event: queries.LocationRestored) -> None:
        if event.query == self.query:
            self.may_refuse = True
            self.emit("SetBack", batch=event.batch, isCommitted=event.is_committed)

    def _on_second(self, event: queries.SecondDriverStarted) -> None:
        self.may_refuse |= event.query == self.query

    def _on_failed(self, event: queries.QueryFailed) -> None:
        if name_of(event.who) == self.query and "AnotherDriver" in f"{event.error} {event.text}":
            self.emit("Refuse", isAlone=not self.may_refuse)

    def _on_left_out(
        self,
        event: leases.TableDropped
        | leases.LeaseDeleted
        | queries.ApplicationRenamed
        | queries.LocationCopied,
    ) -> None:
        self.left_out = f"the model does not have {type(event).__name__}"


def batch_traces(name: str, scenario: Scenario, result: SeedResult) -> list[BatchTrace]:
    """Return the history of each query of the simulator as a trace."""
    events = [entry.event for entry in result.history]
    return traces_of_queries(name, sorted(scenario.queries), events, number_of)


def traces_of_queries(
    name: str, queries: Iterable[str], events: Sequence[Event], number_of: Callable[[Position], int]
) -> list[BatchTrace]:
    """Return events as a trace for each query.

    Args:
        number_of: Gives each record a number; they grow in a shard.
    """
    shards = _shards_of(events, number_of)
    records = max((len(shard.ordinals) for shard in shards.values()), default=0) + 1
    ordinals = {key: shard.ordinals for key, shard in shards.items()}
    parents = {key: list(shard.parents) for key, shard in shards.items()}
    traces = []
    for query in queries:
        holds = {key: shard.holds(query) for key, shard in shards.items()}
        extractor = _Extractor(query, ordinals, records, number_of)
        for event in events:
            extractor.handle(event)
            if extractor.left_out:
                break
        found, left_out = extractor.events, extractor.left_out
        traces.append(BatchTrace(f"{name}, query {query}", parents, records, holds, found, left_out))
    return traces


@dataclass
class _Shard:
    parents: tuple[str, ...]
    ordinals: list[int] = field(default_factory=list)
    put: list[int] = field(default_factory=list)
    read_from: dict[str, int] = field(default_factory=dict)
    """The record with which the first read of each query began."""
    starts_late: bool = False
    """At LATEST or at a moment: the records before that are left out."""

    def holds(self, query: str) -> list[int]:
        first = self.read_from.get(query, math.inf) if self.starts_late else 0
        return sorted({bisect_left(self.ordinals, number) + 1 for number in self.put if number >= first})


def _shards_of(events: Iterable[Event], number_of: Callable[[Position], int]) -> dict[str, _Shard]:
    shards: dict[str, _Shard] = {}
    for event in events:
        match event:
            case streams.ShardCreated():
                shards[event.key] = _Shard(event.parents)
            case streams.RecordPut():
                shards[event.key].put.append(event.number)
            case queries.BatchRead(who=who, key=key, numbers=numbers) if numbers:
                shards[key].ordinals += [numbers[0] - 1, numbers[-1]]  # a missing first record shows, too
                shards[key].read_from.setdefault(name_of(who), numbers[0])
            case queries.BatchPlanned() | leases.LeaseWritten():
                for key, position in _positions(event):
                    if position.is_record:
                        shards[key].ordinals.append(number_of(position))
                    elif position.sentinel is not Sentinel.TRIM_HORIZON and not position.is_shard_end:
                        shards[key].starts_late = True
            case _:
                pass
    for shard in shards.values():
        shard.ordinals = sorted(set(shard.ordinals))
    return shards


def _positions(event: queries.BatchPlanned | leases.LeaseWritten) -> Iterator[tuple[str, Position]]:
    if isinstance(event, queries.BatchPlanned):
        yield from event.starts
        return
    write, key = event.write, event.write.key
    claims: list[BatchClaim | PastClaim] = []
    if isinstance(write, Claim):
        claims.append(write.claim)
        yield key, write.checkpoint_seen
    if isinstance(write, Promote | LateCheckpoint):
        yield key, write.position
    if event.after is not None:
        yield key, event.after.checkpoint
        claims += event.after.claims
        claims += [past for claim in event.after.claims for past in claim.earlier]
    for claim in claims:
        yield key, claim.start
        yield key, claim.end
