"""Turns the log of a real lease table and a query's checkpoint location into a trace for `model/Batches.tla`.

The log has every row as every write left it: who wrote, and what, follows from the change. The checkpoint location has the
planned and the committed batches. A program that notes what its actions read supplies the reads. All have the time of one
machine, which gives their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from penstock.core.batches.offsets import StreamOffset
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    LeaseWrite,
    Promote,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
from penstock.core.position import Position
from penstock_sim.events import leases, queries, streams
from penstock_sim.events.base import Event
from penstock_sim.model_batches import BatchTrace, traces_of_queries
from penstock_sim.model_log import change_of

_SUB_BITS: Final = 16
"""An aggregate has fewer records than 2^16."""


class Changed(NamedTuple):
    """A write on the lease table; `row` is None if it deleted the row."""

    at_s: float
    key: str
    row: Lease | None


class Planned(NamedTuple):
    """Spark has logged the offset of a batch."""

    at_s: float
    offset: StreamOffset


class ReadByAction(NamedTuple):
    """An action has read a batch: of each shard with rows, the first and the last record."""

    at_s: float
    batch: int
    ranges: Mapping[str, tuple[Position, Position]]


class Committed(NamedTuple):
    """Spark has logged that a batch is done."""

    at_s: float
    batch: int


class Failed(NamedTuple):
    """The query has ended with an error."""

    at_s: float
    text: str


Entry: TypeAlias = Changed | Planned | ReadByAction | Committed | Failed


def trace_of_query(
    name: str,
    query: str,
    entries: Iterable[Entry],
    parents: Mapping[str, Sequence[str]],
    records: Mapping[str, Iterable[Position]],
) -> BatchTrace:
    """Return what a real query did as a trace.

    Args:
        name: Of the history.
        query: The query's worker id.
        entries: Of the lease table, in the order of its log, and of the query; each list may stand behind the other.
        parents: Of each shard, by its key.
        records: Of each shard, all that were put.
    """
    events: list[Event] = [streams.ShardCreated(key, tuple(found)) for key, found in parents.items()]
    events += [
        streams.RecordPut(key, number_of_real(each), 0) for key, found in records.items() for each in found
    ]
    builder = _Builder(query)
    for entry in _in_order(entries):
        events += builder.events_of(entry)
    (trace,) = traces_of_queries(name, [query], events, number_of_real)
    return trace


def number_of_real(position: Position) -> int:
    """Return the number of a record: its sequence number, then its place in an aggregate."""
    assert position.sequence_number is not None
    return (int(position.sequence_number) << _SUB_BITS) + position.sub_sequence_number


def _in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort entries by time; the changes stay in the order of their log, whatever their times are."""
    timed: list[tuple[float, Entry]] = []
    latest_s = 0.0
    for entry in entries:
        if isinstance(entry, Changed):
            latest_s = max(latest_s, entry.at_s)
            timed.append((latest_s, entry))
        else:
            timed.append((entry.at_s, entry))
    return [entry for _, entry in sorted(timed, key=lambda each: each[0])]


class WriteFinder:
    """Finds which write has changed a row, and whose it was."""

    def __init__(self) -> None:
        self._rows: dict[str, Lease] = {}
        self._readers: dict[str, set[str]] = {}

    def on_row(self, key: str, row: Lease | None) -> leases.LeaseWritten:
        """Return the write that has left a row; rows come in the order of the log."""
        old = self._rows.pop(key, None)
        write, who = _write_of(key, old, row)
        if row is not None:
            if isinstance(write, LateCheckpoint):
                who = self._late_writer(row)
            self._rows[key] = row
            self._readers.setdefault(key, set()).add(row.reader or "")
        return leases.LeaseWritten(who, write, old, row)

    def _late_writer(self, row: Lease) -> str:
        """Return the only worker that can have written a late checkpoint; an empty name if there are several."""
        earlier = self._readers[row.key] - {"", row.reader}
        return next(iter(earlier)) if len(earlier) == 1 else "" if earlier else row.reader or ""


class _Builder:
    def __init__(self, query: str) -> None:
        self._query = query
        self._writes = WriteFinder()
        self._reads: dict[int, tuple[str, ...]] = {}

    def events_of(self, entry: Entry) -> Iterator[Event]:
        query = self._query
        match entry:
            case Changed():
                yield self._writes.on_row(entry.key, entry.row)
            case Planned(offset=offset):
                keys, run = tuple(offset.shares()), offset.known_batches.planner_of(offset.batch)
                self._reads[offset.batch] = keys
                yield queries.BatchPlanned(query, offset.batch, tuple(offset.shards.items()), keys, run)
            case ReadByAction(batch=batch, ranges=ranges):
                for key in sorted({*self._reads.get(batch, ()), *ranges}):
                    yield queries.BatchRead(
                        query, batch, key, tuple(map(number_of_real, ranges.get(key, ())))
                    )
            case Committed(batch=batch):
                yield queries.BatchCommitted(query, batch, ())
            case Failed(text=text):
                yield queries.QueryFailed(query, "", text)


def _write_of(key: str, old: Lease | None, new: Lease | None) -> tuple[LeaseWrite, str]:
    """Return the write that changed a row, and its worker; an empty name if any worker may have sent it."""
    if new is None:
        assert old is not None, f"the log deletes {key}, which has no row"
        return Delete(key, old.counter, old.checkpoint), ""
    if old is None:
        return Create(new), ""
    claimed = [claim for claim in new.claims if old.claim_of(claim.worker) != claim]
    if not claimed:
        return _write_without_claim(old, new)
    (claim,) = claimed
    if new.counter != old.counter:
        return Reset(key, old.counter, new.checkpoint, claim.worker, claim), claim.worker
    return _claim_of(old, new, claim), claim.worker


def _write_without_claim(old: Lease, new: Lease) -> tuple[LeaseWrite, str]:
    kind, worker = change_of(old, new)
    key, counter, at = old.key, old.counter, new.checkpoint
    who, reader = worker or "", new.reader or ""
    own = new.claim_of(who)
    if new.counter == old.counter and new.owner == old.owner and at == old.checkpoint:
        return Renew(key, counter, reader), reader  # attributes that the model does not have
    if kind == "Promote" and own is not None:
        return Promote(key, who, own.batch, at), who
    writes: dict[str, LeaseWrite] = {
        "RequestHandover": RequestHandover(key, old.owner or "", who),
        "End": End(key, counter, who),
        "Take": Take(key, counter, who),
        "Release": Release(key, counter, who, at, new.owner),
        "Checkpoint": Checkpoint(key, counter, who, at),
        "LateCheckpoint": LateCheckpoint(key, at),
    }
    return writes.get(kind, Renew(key, counter, who)), who


def _claim_of(old: Lease, new: Lease, claim: BatchClaim) -> Claim:
    before = old.claim_of(claim.worker)
    kept = {each.worker for each in new.claims}
    dropped = tuple((each.worker, each.batch) for each in old.claims if each.worker not in kept)
    return Claim(old.key, claim, old.checkpoint, None if before is None else before.identity, None, dropped)
