"""Leases and the writes on them: each write is a value, each rule a pure function.

The lease table is shared with Java KCL workers, so the attributes are theirs. A write is decided by
`apply_write(row, write)`; the DynamoDB adapter has the same rule as a condition expression, the fake and the
simulator call this one, and a contract test asks both the same questions.

Every write but `Create` demands that the row exists, so none can bring a deleted lease back. The checkpoint
never moves back, whoever writes it. The counter is the fence, as the KCL has it, and a reader's own writes
demand its name beside it: a row that was deleted and made again may come to a counter that somebody still knows.

Source:
    The conditions of KCL 2.x's lease refresher (take, renew, checkpoint), KCL 3's hand-over fields; the
    forward-only rule, the reader's name in its writes, the claims, the mark and the stream are Penstock's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, assert_never

from penstock.core.hash_key import HashRange
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from penstock.core.starting import pin_latest
from penstock.core.stream_identity import StreamIdentity


@dataclass(frozen=True, slots=True)
class PastClaim:
    """The range of an earlier batch: a driver that was paused may still execute it after its successor went on.

    Args:
        batch: Its number.
        start: Where it started.
        end: Where it ended.
    """

    batch: int
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """The end of one batch of one query in one shard, fixed by the first execution that reached one.

    It stands in an attribute of its own, which no take, release or checkpoint clears, whoever writes it: an execution
    of the batch finds its end however many workers had the lease in between.

    Args:
        worker: The query's worker id. A row holds at most one claim of each.
        batch: Number of the batch; grows with every batch of this worker.
        run: The life of the query's driver that planned the batch: tells two drivers of one checkpoint apart.
        start: Where the batch starts.
        end: Everything up to and including it belongs to the batch; `start` where the batch holds nothing.
        note: Opaque bytes for the driver (counts, children, lag).
        made_ms: When it was made, milliseconds since the epoch: tells which claims are too old to be needed.
        earlier: The claims before it, the latest first.
    """

    worker: str
    batch: int
    run: str
    start: Position
    end: Position
    note: bytes = b""
    made_ms: int = 0
    earlier: tuple[PastClaim, ...] = ()

    @property
    def identity(self) -> tuple[int, str]:
        """Batch and run: what a driver remembers of a claim that it has seen."""
        return (self.batch, self.run)

    def end_of(self, batch: int, start: Position) -> Position | None:
        """Return where a batch ended that started there; None when this claim does not know."""
        known = (PastClaim(self.batch, self.start, self.end), *self.earlier)
        return next((past.end for past in known if (past.batch, past.start) == (batch, start)), None)

    def past(self, count_max: int) -> tuple[PastClaim, ...]:
        """Return this claim and those before it as the next claim keeps them, at most so many."""
        return (PastClaim(self.batch, self.start, self.end), *self.earlier)[:count_max]


@dataclass(frozen=True, slots=True)
class TipMark:
    """The position that a Penstock worker wrote last, and when nothing was left to read behind it.

    Args:
        position: A record.
        tip_ms: Moment at which nothing was left behind `position`, by the service's clock, or None where more was there.
    """

    position: Position
    tip_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StopNote:
    """Why a shard is held and not read.

    Args:
        worker: Who wrote it. It says nothing about another reader, who may be a Java worker and leave it standing.
        reason: One line for people.
    """

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """One row of the lease table.

    Args:
        key: The shard's id (`leaseKey`).
        counter: Bumped by every owner's write: the fence and the heartbeat (`leaseCounter`).
        owner: Worker id, or None while nobody owns it (`leaseOwner`).
        checkpoint: Everything up to and including this is done.
        owner_switches: Changes of owner since the last checkpoint.
        parents: Bare shard ids (`parentShardId`, a string set).
        children: Bare shard ids (`childShardIds`).
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

    @property
    def is_ended(self) -> bool:
        """Whether everything in the shard is done."""
        return self.checkpoint.is_shard_end

    @property
    def reader(self) -> str | None:
        """Who may read the shard now: during a hand-over the old owner, else the owner."""
        return self.checkpoint_owner or self.owner

    @property
    def stopped_reason(self) -> str | None:
        """Why the worker that holds the lease does not read the shard; None where it reads."""
        return (
            self.stopped.reason if self.stopped is not None and self.stopped.worker == self.reader else None
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


# --- the writes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """Write a lease that does not exist yet. Loses against any row of the same key."""

    lease: Lease

    @property
    def key(self) -> str:
        """The row that the write is about."""
        return self.lease.key


@dataclass(frozen=True, slots=True)
class Take:
    """Become the owner, whoever was it, if the counter is as read. Clears hand-over and pending fields.

    Args:
        pin_ms: The moment that a bare LATEST means, written beside it; then the checkpoint must be a bare LATEST. None
            leaves the checkpoint alone.
        stream: The stream that the taker reads; a row of another one is refused. None does not ask.
    """

    key: str
    counter: int
    worker: str
    pin_ms: int | None = None
    stream: StreamIdentity | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Show that the reader lives, if the counter is as last written and no hand-over is asked for.

    Args:
        worker: Who writes; must be the reader.
        during_handover: True for the old owner that keeps reading until it has finished.
        tip: Where nothing was left to read, and when; None leaves what stands.
        stream: The stream that the owner reads, for a row that does not say yet; None leaves what stands.
        stopped_reason: Why the owner does not read the shard; None where it reads, or is about to.
    """

    key: str
    counter: int
    worker: str
    throughput_kbps: float | None = None
    during_handover: bool = False
    tip: TipMark | None = None
    stream: StreamIdentity | None = None
    stopped_reason: str | None = None

    @property
    def stopped(self) -> StopNote | None:
        """What the row says of the shard then."""
        return None if self.stopped_reason is None else StopNote(self.worker, self.stopped_reason)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The reader's checkpoint, if the counter is as last written and the position does not move back.

    It is a heartbeat too, and it ends a pending checkpoint.

    Args:
        tip_ms: Moment at which nothing was left behind `position`, or None.
    """

    key: str
    counter: int
    worker: str
    position: Position
    tip_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LateCheckpoint:
    """Checkpoint what a reader finished after its lease was taken: strictly forwards, never SHARD_END; owner and counter stay."""

    key: str
    position: Position


@dataclass(frozen=True, slots=True)
class End:
    """SHARD_END and no owner, in one write. Only after the children's leases exist."""

    key: str
    counter: int
    worker: str
    children: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """Give the lease up, with a last checkpoint (or None) in the same write.

    Args:
        next_owner: None frees the lease; a name completes a hand-over to that worker.
        tip: Where nothing was left to read, and when; None marks just `position` as this worker's.
    """

    key: str
    counter: int
    worker: str
    position: Position | None = None
    next_owner: str | None = None
    tip: TipMark | None = None


@dataclass(frozen=True, slots=True)
class RequestHandover:
    """Name the next owner while the present one finishes (KCL 3's graceful hand-off; counter untouched)."""

    key: str
    owner: str
    worker: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Fix where a batch ends in this shard: the first execution of the batch that writes wins.

    Written by tasks, which do not know the counter, so the counter stays. The batch before is done when this one runs,
    so its end (this batch's start) becomes the checkpoint in the same write. Without being the reader, a task may only
    claim that the batch holds nothing of the shard; that touches neither the checkpoint nor the pending one.

    Args:
        claim: Whose, of which batch, from where to where. The worker must be the reader unless the claim is empty.
        checkpoint_seen: The row's checkpoint as the task read it.
        before: The worker's own claim as the task read it, as (batch, run), or None: only that one is replaced.
        tip_ms: Moment at which nothing was left behind the batch's start, or None.
        dropped: Claims of other workers that are too old to be needed, as (worker, batch): they go in the same write.
        stream: The stream that the task reads; a row of another one is refused. None does not ask.
    """

    key: str
    claim: BatchClaim
    checkpoint_seen: Position
    before: tuple[int, str] | None = None
    tip_ms: int | None = None
    dropped: tuple[tuple[str, int], ...] = ()
    stream: StreamIdentity | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the batch holds nothing of the shard."""
        return self.claim.end == self.claim.start

    @property
    def forfeits(self) -> bool:
        """Whether this fixes nothing but that the batch holds nothing, which needs no lease."""
        return self.is_empty and not self.claim.note

    @property
    def moves_checkpoint(self) -> bool:
        """Whether the batch's start is ahead of the checkpoint and takes its place."""
        return not self.forfeits and _is_forward(self.checkpoint_seen, self.claim.start)


@dataclass(frozen=True, slots=True)
class Promote:
    """Let the claim of a batch that is done become the checkpoint.

    Only that very claim: a promotion that is slow on its way never touches the claim of a later batch. Counter and
    owner stay, so it needs no turn among the owner's other writes. The claim stays too: the batch may be repeated.

    Args:
        worker: The query's worker id; must be the owner (or the one that still reads during a hand-over).
        batch: Number of the batch that is done.
        position: The end that it claimed; a record, ahead of the checkpoint.
        tip_ms: Moment at which nothing was left behind `position`, or None.
    """

    key: str
    worker: str
    batch: int
    position: Position
    tip_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a lease whose counter and checkpoint are as read."""

    key: str
    counter: int
    checkpoint: Position


@dataclass(frozen=True, slots=True)
class Reset:
    """Set a checkpoint anywhere, backwards too, and clear the owner: an operator's act, counter as read.

    Args:
        forget: The worker whose claim goes: its checkpoint location was restored from a copy that does not know it.
        claim: The claim of that worker that stands in its place, or None.
    """

    key: str
    counter: int
    position: Position
    forget: str | None = None
    claim: BatchClaim | None = None


LeaseWrite: TypeAlias = (
    Create
    | Take
    | Renew
    | Checkpoint
    | LateCheckpoint
    | End
    | Release
    | RequestHandover
    | Claim
    | Promote
    | Delete
    | Reset
)


# --- the outcomes ---------------------------------------------------------------------------------------


class Refusal(Enum):
    """Why a write was refused."""

    EXISTS = "the lease exists already"
    MISSING = "the lease does not exist"
    COUNTER = "the counter is not as read: somebody else wrote"
    OWNER = "the owner is another one"
    HANDOVER = "a hand-over is under way"
    BACKWARDS = "the checkpoint would move back"
    CHECKPOINT = "the checkpoint is not as read"
    CLAIMED = (
        "the worker's claim is not as read: another execution of the batch, or another driver, has claimed"
    )
    CLAIM_GONE = "the claim that was to become the checkpoint, or to be dropped, does not stand any more"
    STREAM = "the lease belongs to a shard of another stream"


@dataclass(frozen=True, slots=True)
class Applied:
    """The write happened; `lease` is the row after it (None after a delete)."""

    lease: Lease | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The write did not happen; `row` is what stands there, as far as the table told."""

    reason: Refusal
    row: Lease | None


Outcome: TypeAlias = Applied | Refused


# --- the rules ------------------------------------------------------------------------------------------


def may_move(old: Position, new: Position) -> bool:
    """Whether a checkpoint may go from `old` to `new`: forwards, or to the same place."""
    return new == old or _is_forward(old, new)


def _is_forward(old: Position, new: Position) -> bool:
    # Sentinels other than SHARD_END are starting points: a record is ahead of each of them, but no checkpoint
    # moves from one starting point to another.
    if new.is_shard_end:
        return not old.is_shard_end
    return new.is_record and old < new


def apply_write(row: Lease | None, write: LeaseWrite) -> Outcome:
    """Decide a write against the row that stands in the table.

    Args:
        row: The row with the write's key, or None when there is none.
        write: What is wanted.

    Returns:
        `Applied` with the row after the write, or `Refused` with the reason. The first reason in the order
        existence, counter, owner, hand-over, checkpoint is given.
    """
    if isinstance(write, Create):
        return Applied(write.lease) if row is None else Refused(Refusal.EXISTS, row)
    if row is None:
        return Refused(Refusal.MISSING, None)
    reason = _refusal(row, write)
    if reason is not None:
        return Refused(reason, row)
    return Applied(_after(row, write))


_Update: TypeAlias = (
    Take
    | Renew
    | Checkpoint
    | LateCheckpoint
    | End
    | Release
    | RequestHandover
    | Claim
    | Promote
    | Delete
    | Reset
)


def _refusal(row: Lease, write: _Update) -> Refusal | None:  # noqa: C901, PLR0911, PLR0912 - one table of rules
    if (
        isinstance(write, Take | Renew | Checkpoint | End | Release | Delete | Reset)
        and row.counter != write.counter
    ):
        return Refusal.COUNTER
    if isinstance(write, Renew | Checkpoint | End | Release | Promote) and row.reader != write.worker:
        return Refusal.OWNER
    match write:
        case Reset():
            return None
        case Take():
            if _is_of_another_stream(row, write.stream):
                return Refusal.STREAM
            is_pinnable = write.pin_ms is None or row.checkpoint == LATEST
            return None if is_pinnable else Refusal.CHECKPOINT
        case Renew():
            return (
                Refusal.HANDOVER if row.checkpoint_owner is not None and not write.during_handover else None
            )
        case Checkpoint():
            return None if may_move(row.checkpoint, write.position) else Refusal.BACKWARDS
        case LateCheckpoint():
            return _refusal_of_step(row, write.position)
        case End():
            return Refusal.BACKWARDS if row.is_ended else None
        case Release():
            if write.position is not None and not may_move(row.checkpoint, write.position):
                return Refusal.BACKWARDS
            return None
        case RequestHandover():
            if row.owner != write.owner:
                return Refusal.OWNER
            return Refusal.HANDOVER if row.checkpoint_owner is not None else None
        case Claim():
            return _refusal_of_claim(row, write)
        case Promote():
            claim = row.claim_of(write.worker)
            if claim is None or (claim.batch, claim.end) != (write.batch, write.position):
                return Refusal.CLAIM_GONE
            return _refusal_of_step(row, write.position)
        case Delete():
            return Refusal.CHECKPOINT if row.checkpoint != write.checkpoint else None
    assert_never(write)


def _is_of_another_stream(row: Lease, stream: StreamIdentity | None) -> bool:
    return stream is not None and row.stream not in (None, stream)


def _refusal_of_claim(row: Lease, write: Claim) -> Refusal | None:
    if not write.forfeits and row.reader != write.claim.worker:
        return Refusal.OWNER
    if _is_of_another_stream(row, write.stream):
        return Refusal.STREAM
    own = row.claim_of(write.claim.worker)
    if (None if own is None else own.identity) != write.before:
        return Refusal.CLAIMED
    standing = {(claim.worker, claim.batch) for claim in row.claims}
    if not standing.issuperset(write.dropped):
        return Refusal.CLAIM_GONE
    is_same = write.forfeits or row.checkpoint == write.checkpoint_seen
    return None if is_same else Refusal.CHECKPOINT


def _refusal_of_step(row: Lease, position: Position) -> Refusal | None:
    """Allow a step to a record further on, and nothing else."""
    forwards = _is_forward(row.checkpoint, position) and not position.is_shard_end
    return None if forwards else Refusal.BACKWARDS


def _mark_at(position: Position, tip_ms: int | None) -> TipMark | None:
    return TipMark(position, tip_ms) if position.is_record else None


def _after(row: Lease, write: _Update) -> Lease | None:  # noqa: C901, PLR0911 - one table of effects
    bumped = row.counter + 1
    unpended = replace(row, pending=None, pending_state=None)
    match write:
        case Take():
            is_stolen = row.owner is not None and row.owner != write.worker
            return replace(
                unpended,
                owner=write.worker,
                counter=bumped,
                owner_switches=row.owner_switches + (1 if is_stolen else 0),
                checkpoint_owner=None,
                checkpoint=row.checkpoint
                if write.pin_ms is None
                else pin_latest(row.checkpoint, write.pin_ms),
                stream=write.stream or row.stream,
                stopped=None,
            )
        case Renew():
            seen = row.throughput_kbps if write.throughput_kbps is None else write.throughput_kbps
            return replace(
                row,
                counter=bumped,
                throughput_kbps=seen,
                mark=write.tip or row.mark,
                stream=write.stream or row.stream,
                stopped=write.stopped,
            )
        case Checkpoint():
            mark = _mark_at(write.position, write.tip_ms)
            return replace(unpended, counter=bumped, checkpoint=write.position, owner_switches=0, mark=mark)
        case LateCheckpoint():
            return replace(row, checkpoint=write.position, mark=_mark_at(write.position, None))
        case Promote():
            mark = _mark_at(write.position, write.tip_ms)
            return replace(unpended, checkpoint=write.position, owner_switches=0, mark=mark)
        case End():
            return replace(
                unpended,
                counter=bumped,
                checkpoint=SHARD_END,
                owner=None,
                checkpoint_owner=None,
                owner_switches=0,
                children=write.children or row.children,
                mark=None,
            )
        case Release():
            return _after_release(row, write)
        case RequestHandover():
            return replace(row, owner=write.worker, checkpoint_owner=write.owner)
        case Claim():
            return _after_claim(row, write)
        case Reset():
            return replace(
                unpended,
                counter=bumped,
                owner=None,
                checkpoint_owner=None,
                checkpoint=write.position,
                owner_switches=0,
                claims=_claims_after_reset(row, write),
                mark=None,
                stopped=None,
            )
        case Delete():
            return None
    assert_never(write)


def _claims_after_reset(row: Lease, write: Reset) -> tuple[BatchClaim, ...]:
    kept = [claim for claim in row.claims if claim.worker != write.forget]
    standing = [] if write.claim is None else [write.claim]
    return tuple(sorted([*kept, *standing], key=lambda claim: claim.worker))


def _after_release(row: Lease, write: Release) -> Lease:
    mark = row.mark if write.position is None else _mark_at(write.position, None)
    return replace(
        row,
        pending=None,
        pending_state=None,
        counter=row.counter + 1,
        owner=write.next_owner,
        checkpoint_owner=None,
        checkpoint=row.checkpoint if write.position is None else write.position,
        owner_switches=_switches_after_release(row, write),
        mark=write.tip or mark,
        stopped=None,
    )


def _after_claim(row: Lease, write: Claim) -> Lease:
    gone = {worker for worker, _ in write.dropped} | {write.claim.worker}
    kept = [claim for claim in row.claims if claim.worker not in gone]
    claims = tuple(sorted([*kept, write.claim], key=lambda claim: claim.worker))
    if write.forfeits:
        return replace(row, claims=claims)
    moves = write.moves_checkpoint
    return replace(
        row,
        claims=claims,
        pending=write.claim.end,
        pending_state=None,
        checkpoint=write.claim.start if moves else row.checkpoint,
        owner_switches=0 if moves else row.owner_switches,
        mark=_mark_at(write.claim.start, write.tip_ms) if moves else row.mark,
    )


def _switches_after_release(row: Lease, write: Release) -> int:
    kept = row.owner_switches if write.position is None else 0
    return kept + (1 if write.next_owner is not None and write.next_owner != write.worker else 0)


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
