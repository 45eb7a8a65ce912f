"""The writes on leases and their outcomes, all plain values; `penstock.core.leases.lease_rules` decides each one.

Every write but `Create` requires that the row exists, so none can bring a deleted lease back. No write but `Reset` moves a
checkpoint back. The counter is the fence, as in the KCL. A reader's own writes require its name as well: a row that was
deleted and created again may reach a counter that an old holder still has.

`Model:` names the actions of `model/Leases.tla` for this write; docs/protocol.md explains them.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from penstock.core.leases.lease import BatchClaim, Lease, LeaseTerm, SeenClaim, StopNote, TipMark, WorkerRun
from penstock.core.position import Position
from penstock.core.stream_identity import StreamIdentity


def is_forward(old: Position, new: Position) -> bool:
    """Return whether a checkpoint moves forwards from `old` to `new`."""
    # Sentinels other than SHARD_END are starting points: a record is ahead of each of them, but no checkpoint
    # moves from one starting point to another.
    if new.is_shard_end:
        return not old.is_shard_end
    return new.is_record and old < new


class Create(Struct, frozen=True):
    """Create a lease; refused if a row of the same key exists.

    Model: `CreateChild`.
    """

    lease: Lease

    @property
    def key(self) -> str:
        """The key of the row."""
        return self.lease.key


class Take(Struct, frozen=True):
    """Become the owner if the counter is unchanged. Clears hand-over and pending fields.

    Model: `Take`, `TakeOverdue`.

    Args:
        pin_ms: The moment to write beside a checkpoint of LATEST without a moment; the row must have such a checkpoint. None
            leaves the checkpoint as it is.
        stream: The taker's stream; a row of another stream is refused. None: no check.
        run: The taker's run; the sender of the write adds it.
    """

    key: str
    counter: int
    worker: str
    pin_ms: int | None = None
    stream: StreamIdentity | None = None
    run: WorkerRun | None = None


class Renew(Struct, frozen=True):
    """Renew a lease if the counter is unchanged and no hand-over was requested.

    Model: `Renew`, `Adopt`.

    Args:
        worker: The writer; must be the reader.
        during_handover: True for a reader that knows of the hand-over request and reads on until it has finished.
        tip: The tip mark; None keeps the row's.
        stream: The owner's stream, for a row without one; None keeps the row's.
        stopped_reason: Why the owner does not read the shard; None if it reads, or is about to.
        term_ms: The lease's duration if longer than the application's lease duration.
        run: The reader's run; the sender of the write adds it. None keeps the row's.
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
        """The row's `term` after the write."""
        return None if self.term_ms is None else LeaseTerm(self.worker, self.term_ms)

    @property
    def stop_note(self) -> StopNote | None:
        """The row's `stop_note` after the write."""
        return None if self.stopped_reason is None else StopNote(self.worker, self.stopped_reason)


class Checkpoint(Struct, frozen=True):
    """Write the reader's checkpoint if the counter is unchanged and the position does not move back.

    It is a renewal too, and it clears the pending checkpoint.

    Model: `Checkpoint`.

    Args:
        tip_ms: Moment at which no record was after `position`, or None.
    """

    key: str
    counter: int
    worker: str
    position: Position
    tip_ms: int | None = None


class LateCheckpoint(Struct, frozen=True):
    """Write the last position of a reader whose lease was taken: strictly forwards, never SHARD_END; owner and counter stay.

    Model: `LateCheckpoint`.

    Args:
        seen_claim: If the reader was a query: the row must still have the claim that it saw. A driver on an older copy of the
            checkpoint location may have reset the lease, and reads on from an earlier position (`Drop` of the batches' model).
    """

    key: str
    position: Position
    seen_claim: SeenClaim | None = None


class End(Struct, frozen=True):
    """Write SHARD_END and remove the owner. Only after the children's leases exist.

    Model: `End`.
    """

    key: str
    counter: int
    worker: str
    children: frozenset[str] = frozenset()


class Release(Struct, frozen=True):
    """Release a lease, and write a last checkpoint with it.

    Model: `Release`, `ReleaseFreely`.

    Args:
        position: The last checkpoint; None leaves the row's.
        next_owner: None frees the lease; a name completes a hand-over to that worker.
        tip: The tip mark; None marks only `position` as this worker's.
    """

    key: str
    counter: int
    worker: str
    position: Position | None = None
    next_owner: str | None = None
    tip: TipMark | None = None


class RequestHandover(Struct, frozen=True):
    """Request a lease: name the next owner while the current one finishes (KCL 3's hand-off; the counter stays).

    Model: `RequestHandover`.

    Args:
        owner: The current owner, which becomes the `checkpoint_owner`.
        worker: The requester, which becomes the owner.
    """

    key: str
    owner: str
    worker: str


class Claim(Struct, frozen=True):
    """Fix the end of a batch in this shard: the first execution of the batch that writes wins.

    Tasks write it, and they do not have the counter, so the counter stays. The previous batch is done when this one runs,
    so its end (this batch's start) becomes the checkpoint in the same write. A task whose worker is not the reader may only
    claim that the batch holds nothing of the shard (a forfeit); that changes neither checkpoint nor pending checkpoint.

    Model: `Claim` of `model/Batches.tla`.

    Args:
        claim: The worker, the batch and its range. The worker must be the reader unless the claim is a forfeit.
        checkpoint_seen: The row's checkpoint as the task read it.
        claim_seen: Batch and run of the worker's own claim as the task read it, or None: only that claim is replaced.
        tip_ms: Moment at which no record was after the batch's start, or None.
        dropped_claims: Worker and batch of each old claim of another query that the same write removes.
        stream: The task's stream; a row of another stream is refused. None: no check.
    """

    key: str
    claim: BatchClaim
    checkpoint_seen: Position
    claim_seen: tuple[int, str] | None = None
    tip_ms: int | None = None
    dropped_claims: tuple[tuple[str, int], ...] = ()
    stream: StreamIdentity | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the batch holds nothing of the shard."""
        return self.claim.end == self.claim.start

    @property
    def is_forfeit(self) -> bool:
        """Whether the claim only states that the batch holds nothing of the shard. No task has read the shard for it."""
        return self.is_empty and not self.claim.note

    @property
    def moves_checkpoint(self) -> bool:
        """Whether the batch's start is ahead of the checkpoint and replaces it."""
        return not self.is_forfeit and is_forward(self.checkpoint_seen, self.claim.start)


class Promote(Struct, frozen=True):
    """Make the claimed end of a finished batch the checkpoint.

    It applies to that claim alone: a delayed promotion never affects the claim of a later batch. Counter and owner stay, so
    its order among the owner's writes does not matter. The claim stays too: the batch may be repeated.

    Model: `Promote` and `Arrive` of `model/Batches.tla`.

    Args:
        worker: The query's worker id; must be the reader.
        batch: Number of the finished batch.
        position: The end in the claim: a record, ahead of the checkpoint.
        tip_ms: Moment at which no record was after `position`, or None.
    """

    key: str
    worker: str
    batch: int
    position: Position
    tip_ms: int | None = None


class Delete(Struct, frozen=True):
    """Delete a lease if its counter and checkpoint are unchanged.

    Model: `Delete`.
    """

    key: str
    counter: int
    checkpoint: Position


class Reset(Struct, frozen=True):
    """Set the checkpoint to any position, also backwards, and remove the owner, if the counter is unchanged.

    An operator writes it, or a query whose checkpoint location was restored.

    Model: `Reset` of `model/Batches.tla`; an operator's is left out.

    Args:
        claim_worker: The query whose claim on the row is replaced by `claim`, or removed without one: its restored checkpoint
            location has no record of that claim. None leaves all claims.
        has_later_records: Whether records are known to exist after the position. If they have expired since, that is data loss.
    """

    key: str
    counter: int
    position: Position
    claim_worker: str | None = None
    claim: BatchClaim | None = None
    has_later_records: bool = False


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
    COUNTER = "the counter is not as read: another process wrote the row"
    OWNER = "the owner is another one"
    HANDOVER = "a hand-over is under way"
    BACKWARDS = "the checkpoint would move back"
    CHECKPOINT = "the checkpoint is not as read"
    CLAIMED = (
        "the worker's claim is not as read: another execution of the batch, or another driver, has claimed"
    )
    CLAIM_GONE = "the claim that was to become the checkpoint, or to be dropped, does not exist any more"
    STREAM = "the lease belongs to a shard of another stream"


class Applied(Struct, frozen=True):
    """The write was applied; `lease` is the row after it, or None after a delete."""

    lease: Lease | None


class Refused(Struct, frozen=True):
    """The write was refused; `row` is the current row, if the table returned it."""

    reason: Refusal
    row: Lease | None


Outcome: TypeAlias = Applied | Refused
