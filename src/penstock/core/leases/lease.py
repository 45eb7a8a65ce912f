"""A lease: one row of the lease table, as a value.

The lease table is shared with Java KCL workers, so the attributes are theirs; the claims, the mark, the stream and the
note on a stopped shard are Penstock's own.
"""

from __future__ import annotations

from zlib import crc32

from msgspec import Struct

from penstock.core.hash_key import HashRange
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.stream_identity import StreamIdentity


class PastClaim(Struct, frozen=True):
    """The range of an earlier batch: a driver that was paused may still execute it after its successor went on.

    Args:
        batch: Its number.
        start: Where it started.
        end: Where it ended.
        planned_by: The run of the driver that planned it, or None where that is not known (early versions).
    """

    batch: int
    start: Position
    end: Position
    planned_by: str | None = None

    def is_of(self, batch: int, planned_by: str | None) -> bool:
        """Whether this is the batch of a number that a run planned; where one of the two is not known, the number decides."""
        return self.batch == batch and (
            planned_by is None or self.planned_by is None or planned_by == self.planned_by
        )


class BatchClaim(Struct, frozen=True):
    """The end of one batch of one query in one shard, fixed by the first execution that reached one.

    It stands in an attribute of its own, which no take, release or checkpoint clears, whoever writes it: an execution
    of the batch finds its end however many workers had the lease in between.

    Args:
        worker: The query's worker id. A row holds at most one claim of each.
        batch: Number of the batch; grows with every batch of this worker.
        run: The life of the query's driver that gave the batch out: tells two drivers of one checkpoint apart.
        start: Where the batch starts.
        end: Everything up to and including it belongs to the batch; `start` where the batch holds nothing.
        note: Opaque bytes for the driver (counts, children, lag).
        made_ms: When it was made, milliseconds since the epoch: tells which claims are too old to be needed.
        earlier: The claims before it, the latest first.
        planned_by: The life of the driver that planned the batch, as its offset says: a replay under another driver keeps it,
            and a batch of the same number in a copy of the checkpoint location has another one. None where that is not
            known (early versions).
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
        """Batch and run: what a driver remembers of a claim that it has seen."""
        return (self.batch, self.run)

    def is_of(self, batch: int, planned_by: str | None) -> bool:
        """Whether this is a claim of the batch of a number that a run planned."""
        return self.past(1)[0].is_of(batch, planned_by)

    def end_of(self, batch: int, start: Position, planned_by: str | None) -> Position | None:
        """Return where a batch ended that started there; None when this claim does not know."""
        known = self.past(1 + len(self.earlier))
        return next(
            (past.end for past in known if past.is_of(batch, planned_by) and past.start == start), None
        )

    def past(self, count_max: int) -> tuple[PastClaim, ...]:
        """Return this claim and those before it as the next claim keeps them, at most so many."""
        return (PastClaim(self.batch, self.start, self.end, self.planned_by), *self.earlier)[:count_max]


class TipMark(Struct, frozen=True):
    """The position that a Penstock worker wrote last, and when nothing was left to read behind it.

    Args:
        position: A record.
        tip_ms: Moment at which nothing was left behind `position`, by the service's clock, or None where more was there.
    """

    position: Position
    tip_ms: int | None = None


class StopNote(Struct, frozen=True):
    """Why a shard is held and not read.

    Args:
        worker: Who wrote it. It says nothing about another reader, who may be a Java worker and leave it standing.
        reason: One line for people.
    """

    worker: str
    reason: str


class LeaseTerm(Struct, frozen=True):
    """How long a lease lasts whose reader renews it less often than the application's lease duration asks for.

    Args:
        worker: Who wrote it. It says nothing about another reader, who may be a Java worker and leave it standing.
        duration_ms: The counter may stand still for so long.
    """

    worker: str
    duration_ms: int


class WorkerRun(Struct, frozen=True, order=True):
    """One life of a worker: tells two processes apart that work under the same worker id.

    Args:
        number: Higher than that of every earlier life that the lease table still showed when this one began.
        name: Drawn by chance, behind a checksum of the worker id: a Java worker that takes the lease leaves the run of the
            owner before it in the row.
    """

    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.number}-{self.name}"

    def is_of(self, worker: str) -> bool:
        """Whether this is a life of a worker."""
        return self.name.startswith(_checksum(worker))


def name_run(worker: str, drawn: str) -> str:
    """Return a name for a life of a worker.

    Args:
        worker: The worker's id.
        drawn: Drawn by chance.
    """
    return f"{_checksum(worker)}{drawn}"


def parse_run(text: str) -> WorkerRun | None:
    """Return the run that a text names; None if it names none, since a lease can be read without."""
    number, _, name = text.partition("-")
    return WorkerRun(int(number), name) if number.isdecimal() and name else None


def _checksum(worker: str) -> str:
    return f"{crc32(worker.encode(errors='surrogatepass')) & 0xFFFF:04x}"


class Lease(Struct, frozen=True):
    """One row of the lease table.

    Args:
        key: The shard's id (`leaseKey`), behind its stream's id where several streams share the table
            (`penstock.core.leases.lease_keys`).
        counter: Bumped by every owner's write: the fence and the heartbeat (`leaseCounter`).
        owner: Worker id, or None while nobody owns it (`leaseOwner`).
        checkpoint: Everything up to and including this is done.
        owner_switches: Changes of owner since the last checkpoint.
        parents: Keys of the parents' leases (`parentShardId`, a set of bare shard ids).
        children: Keys of the children's leases (`childShardIds`).
        hash_range: None in rows of old writers.
        pending: A prepared checkpoint (`pendingCheckpoint`), or None. A claim shows its end here to others.
        pending_state: Opaque bytes beside it (`pendingCheckpointState`), of KCL workers.
        checkpoint_owner: While a hand-over is under way: the worker that still reads and checkpoints, while
            `owner` names the next one (`checkpointOwner`, KCL 3).
        throughput_kbps: Smoothed kilobytes per second (`throughputKBps`), or None.
        claims: The last claim of each query that read here (`penstockClaim:<worker>`), by worker.
        mark: What a Penstock worker wrote last (`penstockMark`, `penstockTipMillis`), or None.
        stream: Whose shard it is (`penstockStream`), or None in rows that only KCL workers have written.
        stopped: Why its reader does not read it (`penstockStopped`), or None.
        term: How long it lasts where that is longer than usual (`penstockTerm`), or None.
        run: The life of the worker that took or renewed it last (`penstockRun`), or None. It stays when the lease is given up.
    """

    key: str
    counter: int = 0
    owner: str | None = None
    checkpoint: Position = TRIM_HORIZON
    owner_switches: int = 0
    parents: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    pending: Position | None = None
    pending_state: bytes | None = None
    checkpoint_owner: str | None = None
    throughput_kbps: float | None = None
    claims: tuple[BatchClaim, ...] = ()
    mark: TipMark | None = None
    stream: StreamIdentity | None = None
    stopped: StopNote | None = None
    term: LeaseTerm | None = None
    run: WorkerRun | None = None

    @property
    def is_ended(self) -> bool:
        """Whether everything in the shard is done."""
        return self.checkpoint.is_shard_end

    @property
    def reader(self) -> str | None:
        """Who may read the shard now: during a hand-over the old owner, else the owner."""
        return self.checkpoint_owner or self.owner

    @property
    def next_owner(self) -> str | None:
        """Who gets the shard when the hand-over under way is done; None without one."""
        return None if self.checkpoint_owner is None else self.owner

    @property
    def stopped_reason(self) -> str | None:
        """Why the worker that holds the lease does not read the shard; None where it reads."""
        return (
            self.stopped.reason if self.stopped is not None and self.stopped.worker == self.reader else None
        )

    @property
    def term_s(self) -> float:
        """How long the reader says that it may take to renew; 0 where it says nothing."""
        return (
            self.term.duration_ms / 1000 if self.term is not None and self.term.worker == self.reader else 0.0
        )

    def claim_of(self, worker: str) -> BatchClaim | None:
        """Return the claim of one query, or None."""
        return next((claim for claim in self.claims if claim.worker == worker), None)

    def tip_ms_at(self, position: Position) -> int | None:
        """Return the moment at which nothing was left behind a position, or None where nobody noted one."""
        return self.mark.tip_ms if self.mark is not None and self.mark.position == position else None

    @property
    def has_foreign_checkpoint(self) -> bool:
        """Whether the checkpoint is a record that no Penstock worker wrote: nobody noted whether more was behind it."""
        return self.checkpoint.is_record and (self.mark is None or self.mark.position < self.checkpoint)


def starting_lease(
    shard_id: str,
    position: Position,
    parents: tuple[str, ...],
    hash_range: HashRange | None,
    stream: StreamIdentity | None = None,
) -> Lease:
    """Return the lease that is created for a shard at a starting position (children: TRIM_HORIZON, always)."""
    return Lease(
        key=shard_id,
        checkpoint=position,
        parents=frozenset(parents),
        hash_range=hash_range,
        stream=stream,
    )
