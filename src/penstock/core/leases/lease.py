"""A lease: one row of the lease table, as a value.

Java KCL workers share the lease table, so the attributes are the KCL's. Those that begin with `penstock` are Penstock's own.
"""

from __future__ import annotations

from typing import Final, TypeVar
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.hash_key import HashRange
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity


class PastClaim(Struct, frozen=True):
    """The range of an earlier batch in a shard. A paused driver may still execute this batch after others were planned.

    Args:
        planned_by: The run of the driver that planned the batch, or None if unknown (early versions).
    """

    batch: int
    start: Position
    end: Position
    planned_by: str | None = None

    def is_of(self, batch: int, planned_by: str | None) -> bool:
        """Return whether this is the range of a batch, by its number and planning run. If either run is unknown, the number decides."""
        return self.batch == batch and (
            planned_by is None or self.planned_by is None or planned_by == self.planned_by
        )


class BatchClaim(Struct, frozen=True):
    """The end of one batch of one query in one shard, fixed by the first execution that claimed it.

    It has an attribute of its own, which no take, release or checkpoint of any worker clears. So every execution of the
    batch finds its end, however many workers had the lease in between.

    Args:
        worker: The query's worker id. A row holds at most one claim of each.
        batch: Number of the batch; grows with every batch of this worker.
        run: The run of the query's driver that started the batch: distinguishes two drivers of one checkpoint location.
        start: Where the batch starts.
        end: Everything up to and including it belongs to the batch; `start` if the batch holds nothing.
        note: Opaque bytes for the driver (counts, children, lag); empty if the batch holds nothing of the shard and no task read it.
        made_ms: When it was made, in milliseconds since the epoch; it decides which old claims are dropped.
        earlier: The claims before it, the latest first.
        planned_by: The run of the driver that planned the batch, from its offset. A replay under another driver keeps it; a
            batch of the same number in a copy of the checkpoint location has another one. None if unknown (early versions).
    """

    worker: str
    batch: int
    run: str
    start: Position
    end: Position
    note: bytes = b""
    made_ms: int = 0
    earlier: tuple[PastClaim, ...] = ()
    planned_by: str | None = None

    @property
    def identity(self) -> tuple[int, str]:
        """Batch and run, which identify a claim to a driver."""
        return (self.batch, self.run)

    def is_of(self, batch: int, planned_by: str | None) -> bool:
        """Return whether this is the claim of a batch, by its number and planning run."""
        return self.past_claims(1)[0].is_of(batch, planned_by)

    def end_of(self, batch: int, start: Position, planned_by: str | None) -> Position | None:
        """Return the end of a batch that started at a position; None if this claim does not have it."""
        claims = self.past_claims(1 + len(self.earlier))
        return next(
            (past.end for past in claims if past.is_of(batch, planned_by) and past.start == start), None
        )

    def past_claims(self, count_max: int) -> tuple[PastClaim, ...]:
        """Return the ranges of this claim and of the earlier ones, the latest first; the next claim keeps them as `earlier`."""
        return (PastClaim(self.batch, self.start, self.end, self.planned_by), *self.earlier)[:count_max]


RESTORED_COUNTER_STEP: Final = 1_000_000
"""A deleted lease is created again with a counter that is this much higher than the remembered one."""


class SeenClaim(Struct, frozen=True):
    """The claim of a query that its driver saw last on a row.

    Args:
        identity: The claim's batch and run; None if the row had no claim of the query.
        counter: The counter of the row on which the query saw the claim; None if it saw none.
    """

    worker: str
    identity: tuple[int, str] | None = None
    counter: int | None = None

    def expected_claim_on(self, row: Lease) -> SeenClaim:
        """Return the claim that a row must have for a late checkpoint: this one, or none (no identity) if the row was recreated."""
        return SeenClaim(self.worker) if self.predates(row) else self

    def predates(self, row: Lease) -> bool:
        """Return whether a row was deleted and created again after the claim was seen.

        Args:
            row: The row, or an old copy of it: the answer is False for a copy with an earlier claim of the query.
        """
        # A row that is created again has no claim, and its counter is 0 or about `RESTORED_COUNTER_STEP` higher. The counter of
        # any other row grows by one with each write: half a step tells the two apart.
        increase = 0 if self.counter is None else row.counter - self.counter
        is_recreated = increase < 0 or increase >= RESTORED_COUNTER_STEP // 2
        return is_recreated and row.claim_of(self.worker) is None


class TipMark(Struct, frozen=True):
    """The last position that a Penstock worker wrote, and a moment at which that position was the tip of the shard.

    Args:
        position: A record.
        tip_ms: Moment at which no record was after `position`, by the service's clock, or None if no such moment is known.
    """

    position: Position
    tip_ms: int | None = None


def new_tip_mark(position: Position, tip_ms: int | None = None) -> TipMark | None:
    """Return the tip mark of a row that gets a new checkpoint; None if that position is not a record."""
    return TipMark(position, tip_ms) if position.is_record else None


class StopNote(Struct, frozen=True):
    """The reason why a shard is held and not read.

    Args:
        worker: The worker that wrote the note. Once the shard has another reader, the note is void: Java workers leave it in place.
        reason: One readable line.
    """

    worker: str
    reason: str


class LeaseTerm(Struct, frozen=True):
    """The duration of a lease whose reader renews it less often than the application's lease duration requires.

    Args:
        worker: The worker that wrote the term. Once the shard has another reader, the term is void: Java workers leave it in place.
        duration_ms: The lease expires when its counter has not changed for this long.
    """

    worker: str
    duration_ms: int


class WorkerRun(Struct, frozen=True, order=True):
    """One process of a worker: distinguishes processes that run under the same worker id.

    Args:
        number: Higher than the number of every earlier run that the lease table showed when this one began.
        name: A checksum of the worker id, then a random text. A Java worker that takes the lease leaves the previous owner's
            run in the row: the checksum shows that it is not the Java worker's.
    """

    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.number}-{self.name}"

    def is_of(self, worker: str) -> bool:
        """Return whether this is a run of a worker."""
        return self.name.startswith(_checksum(worker))


def name_run(worker: str, random_text: str) -> str:
    """Return the name of a worker's new run, as `WorkerRun.name` has it."""
    return f"{_checksum(worker)}{random_text}"


def parse_run(text: str) -> WorkerRun | None:
    """Parse a run; return None for any other text: the lease can be read without its run."""
    number, _, name = text.partition("-")
    return WorkerRun(int(number), name) if number.isdecimal() and name else None


def _checksum(worker: str) -> str:
    return f"{crc32(worker.encode(errors='surrogatepass')) & 0xFFFF:04x}"


class Lease(Struct, frozen=True):
    """One row of the lease table.

    Args:
        key: The shard's id (`leaseKey`), prefixed with its stream's id if several streams share the table: see `lease_key`.
        counter: Incremented by each of the owner's writes: a fence, and the sign that the owner lives (`leaseCounter`).
        owner: Worker id, or None while the lease is unowned (`leaseOwner`).
        checkpoint: Everything up to and including this is done.
        owner_switches: Changes of owner since the last checkpoint.
        parents: Keys of the parents' leases (`parentShardId`, a set of bare shard ids).
        children: Keys of the children's leases (`childShardIds`).
        hash_range: None in rows of old writers.
        pending_checkpoint: A prepared checkpoint (`pendingCheckpoint`), or None. A claim shows its end here to others.
        pending_checkpoint_state: Opaque bytes beside it (`pendingCheckpointState`), of KCL workers.
        checkpoint_owner: While a hand-over is under way: the worker that still reads and checkpoints, while
            `owner` names the next one (`checkpointOwner`, KCL 3).
        throughput_kbps: Smoothed kilobytes per second (`throughputKBps`), or None if no worker has measured it.
        claims: The last claim of each query that read here (`penstockClaim:<worker>`), by worker.
        mark: The last position that a Penstock worker wrote (`penstockMark`, `penstockTipMillis`), or None.
        stream: The stream of the shard (`penstockStream`), or None in rows that only KCL workers have written.
        stop_note: Why its reader does not read it (`penstockStopped`), or None.
        term: Its duration if longer than the application's lease duration (`penstockTerm`), or None.
        run: The process that took or renewed it last (`penstockRun`), or None. A release keeps it.
    """

    key: str
    counter: int = 0
    owner: str | None = None
    checkpoint: Position = TRIM_HORIZON
    owner_switches: int = 0
    parents: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    pending_checkpoint: Position | None = None
    pending_checkpoint_state: bytes | None = None
    checkpoint_owner: str | None = None
    throughput_kbps: float | None = None
    claims: tuple[BatchClaim, ...] = ()
    mark: TipMark | None = None
    stream: StreamIdentity | None = None
    stop_note: StopNote | None = None
    term: LeaseTerm | None = None
    run: WorkerRun | None = None

    @property
    def is_ended(self) -> bool:
        """Whether everything in the shard is done."""
        return self.checkpoint.is_shard_end

    @property
    def reader(self) -> str | None:
        """The worker that may read the shard now: during a hand-over the old owner, else the owner."""
        return self.checkpoint_owner or self.owner

    @property
    def next_owner(self) -> str | None:
        """The worker that owns the lease after the current hand-over; None without one."""
        return None if self.checkpoint_owner is None else self.owner

    @property
    def stopped_reason(self) -> str | None:
        """Why the reader does not read the shard; None if it reads, or is about to."""
        note = self.stop_note
        return note.reason if note is not None and note.worker == self.reader else None

    @property
    def term_s(self) -> float:
        """The duration that the reader has given the lease, in seconds; 0 if the lease has the application's duration."""
        term = self.term
        return term.duration_ms / 1000 if term is not None and term.worker == self.reader else 0.0

    def claim_of(self, worker: str) -> BatchClaim | None:
        """Return the claim of one query, or None."""
        return next((claim for claim in self.claims if claim.worker == worker), None)

    def has_claim(self, seen: SeenClaim) -> bool:
        """Return whether the claim of a query is the one that its driver saw."""
        claim = self.claim_of(seen.worker)
        return (None if claim is None else claim.identity) == seen.identity

    def tip_ms_at(self, position: Position) -> int | None:
        """Return the moment at which no record was after a position, or None if the row has none for it."""
        return self.mark.tip_ms if self.mark is not None and self.mark.position == position else None

    @property
    def has_foreign_checkpoint(self) -> bool:
        """Whether the checkpoint is a record that no Penstock worker wrote. Then it is unknown whether more records followed it."""
        return self.checkpoint.is_record and (self.mark is None or self.mark.position < self.checkpoint)


def new_lease(shard: Shard | ChildShard, position: Position, stream: StreamIdentity | None = None) -> Lease:
    """Return a lease to create: unowned, for a listed shard or a child, at a starting position."""
    return Lease(
        shard.shard_id,
        checkpoint=position,
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
        stream=stream,
    )


# --- keys ------------------------------------------------------------------------------------------------

# A table of several streams has the format of the KCL's multi-stream mode. There a key is `account:stream:epoch:shardId`, and
# the text before the last colon is the stream's id. Parents and children are bare shard ids in the table and keys in memory,
# so the decisions about leases are the same for one stream and for several.
#
# Source: KCL's `StreamIdentifier` and `MultiStreamLease.getLeaseKey`. No shard id and no stream's name has a colon.

_AnyShard = TypeVar("_AnyShard", Shard, ChildShard)


def lease_key(stream_id: str, shard_id: str) -> str:
    """Return the key of a shard's lease; the stream id is empty for a table of one stream."""
    return f"{stream_id}:{shard_id}" if stream_id else shard_id


def stream_id_of(key: str) -> str:
    """Return the stream's id in a lease key; empty in a table of one stream."""
    return key.rpartition(":")[0]


def stream_name_of(stream_id: str) -> str:
    """Return the stream's name in a stream id; empty for the empty id of a table of one stream."""
    return stream_id.partition(":")[2].rpartition(":")[0]


def shard_id_of(key: str) -> str:
    """Return the shard id in a lease key."""
    return key.rpartition(":")[2]


def keyed_shard(stream_id: str, shard: _AnyShard) -> _AnyShard:
    """Return a listed shard or a child with lease keys in place of its own id and its parents' ids."""
    if not stream_id:
        return shard
    parents = tuple(lease_key(stream_id, parent) for parent in shard.parents)
    return replace(shard, shard_id=lease_key(stream_id, shard.shard_id), parents=parents)


def keyed_start(stream_id: str, start: StartingPosition) -> StartingPosition:
    """Return a starting position with lease keys in place of shard ids."""
    by_key = {lease_key(stream_id, shard_id): position for shard_id, position in start.by_shard.items()}
    return replace(start, by_shard=by_key)


# --- parts of the table ----------------------------------------------------------------------------------


class TablePart(Struct, frozen=True):
    """One of several parts that together hold every row once: a segment of a parallel scan.

    A part is read eventually consistent, for half the price: a stale row only causes a later decision or a refused write.

    Args:
        number: From 0 to `count` - 1.
        count: Number of parts; with 1, the part is the whole table.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        assert 0 <= self.number < self.count, self

    @property
    def is_whole_table(self) -> bool:
        """Whether it is the whole table."""
        return self.count == 1

    def holds(self, key: str) -> bool:
        """Return whether a row is in this part. Only for tables that are not in DynamoDB, which has parts of its own."""
        return number_of_part(key, self.count) == self.number


def number_of_part(key: str, count: int) -> int:
    """Return the number of the part that holds a row, for tables that are not in DynamoDB."""
    return crc32(key.encode()) % count


WHOLE_TABLE: Final = TablePart(0, 1)
"""All rows, read eventually consistent as every part is. A scan without a part is strongly consistent."""
