"""The writes on leases and their outcomes, all plain values; `penstock.core.leases.lease_rules` decides each one.

Every write but `Create` demands that the row exists, so none can bring a deleted lease back. The checkpoint never moves
back, whoever writes it. The counter is the fence, as the KCL has it, and a reader's own writes demand its name beside
it: a row that was deleted and made again may come to a counter that somebody still knows.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from penstock.core.leases.lease import BatchClaim, Lease, LeaseTerm, StopNote, TipMark, WorkerRun
from penstock.core.position import Position
from penstock.core.stream_identity import StreamIdentity


def is_forward(old: Position, new: Position) -> bool:
    """Whether a checkpoint that goes from `old` to `new` moves on."""
    # Sentinels other than SHARD_END are starting points: a record is ahead of each of them, but no checkpoint
    # moves from one starting point to another.
    if new.is_shard_end:
        return not old.is_shard_end
    return new.is_record and old < new


class Create(Struct, frozen=True):
    """Write a lease that does not exist yet. Loses against any row of the same key."""

    lease: Lease

    @property
    def key(self) -> str:
        """The row that the write is about."""
        return self.lease.key


class Take(Struct, frozen=True):
    """Become the owner, whoever was it, if the counter is as read. Clears hand-over and pending fields.

    Args:
        pin_ms: The moment that a bare LATEST means, written beside it; then the checkpoint must be a bare LATEST. None
            leaves the checkpoint alone.
        stream: The stream that the taker reads; a row of another one is refused. None does not ask.
        run: The taker's life; the sender of the write adds it.
    """

    key: str
    counter: int
    worker: str
    pin_ms: int | None = None
    stream: StreamIdentity | None = None
    run: WorkerRun | None = None


class Renew(Struct, frozen=True):
    """Show that the reader lives, if the counter is as last written and no hand-over is asked for.

    Args:
        worker: Who writes; must be the reader.
        during_handover: True for the old owner that keeps reading until it has finished.
        tip: Where nothing was left to read, and when; None leaves what stands.
        stream: The stream that the owner reads, for a row that does not say yet; None leaves what stands.
        stopped_reason: Why the owner does not read the shard; None where it reads, or is about to.
        term_ms: How long the lease lasts from here on, where that is longer than the application's lease duration.
        run: The reader's life; the sender of the write adds it. None leaves what stands.
    """

    key: str
    counter: int
    worker: str
    throughput_kbps: float | None = None
    during_handover: bool = False
    tip: TipMark | None = None
    stream: StreamIdentity | None = None
    stopped_reason: str | None = None
    term_ms: int | None = None
    run: WorkerRun | None = None

    @property
    def term(self) -> LeaseTerm | None:
        """What the row says of the lease's duration then."""
        return None if self.term_ms is None else LeaseTerm(self.worker, self.term_ms)

    @property
    def stopped(self) -> StopNote | None:
        """What the row says of the shard then."""
        return None if self.stopped_reason is None else StopNote(self.worker, self.stopped_reason)


class Checkpoint(Struct, frozen=True):
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


class LateCheckpoint(Struct, frozen=True):
    """Checkpoint what a reader finished after its lease was taken: strictly forwards, never SHARD_END; owner and counter stay."""

    key: str
    position: Position


class End(Struct, frozen=True):
    """SHARD_END and no owner, in one write. Only after the children's leases exist."""

    key: str
    counter: int
    worker: str
    children: frozenset[str] = frozenset()


class Release(Struct, frozen=True):
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


class RequestHandover(Struct, frozen=True):
    """Name the next owner while the present one finishes (KCL 3's graceful hand-off; counter untouched)."""

    key: str
    owner: str
    worker: str


class Claim(Struct, frozen=True):
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
        return not self.forfeits and is_forward(self.checkpoint_seen, self.claim.start)


class Promote(Struct, frozen=True):
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


class Delete(Struct, frozen=True):
    """Remove a lease whose counter and checkpoint are as read."""

    key: str
    counter: int
    checkpoint: Position


class Reset(Struct, frozen=True):
    """Set a checkpoint anywhere, backwards too, and clear the owner: an operator's act, counter as read.

    Args:
        forget: The worker whose claim goes: its checkpoint location was restored from a copy that does not know it.
        claim: The claim of that worker that stands in its place, or None.
        is_followed: Records are known to come behind the position: where they are gone they are lost, and nobody has to ask
            whether there were any.
    """

    key: str
    counter: int
    position: Position
    forget: str | None = None
    claim: BatchClaim | None = None
    is_followed: bool = False


LeaseUpdate: TypeAlias = (
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
"""A write on a row that must exist."""

LeaseWrite: TypeAlias = Create | LeaseUpdate


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


class Applied(Struct, frozen=True):
    """The write happened; `lease` is the row after it (None after a delete)."""

    lease: Lease | None


class Refused(Struct, frozen=True):
    """The write did not happen; `row` is what stands there, as far as the table told."""

    reason: Refusal
    row: Lease | None


Outcome: TypeAlias = Applied | Refused
