"""Leases and the writes on them: each write is a value, each rule a pure function.

The lease table is shared with Java KCL workers, so the attributes are theirs. A write is decided by
`apply_write(row, write)`; the DynamoDB adapter has the same rule as a condition expression, the fake and the
simulator call this one, and a contract test asks both the same questions.

Every write but `Create` demands that the row exists, so none can bring a deleted lease back. The checkpoint
never moves back, whoever writes it. The counter is the fence, as the KCL has it, and a reader's own writes
demand its name beside it: a row that was deleted and made again may come to a counter that somebody still knows.

Source:
    The conditions of KCL 2.x's lease refresher (take, renew, checkpoint), KCL 3's hand-over fields; the
    forward-only rule, the reader's name in its writes and the claim are Penstock's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, assert_never

from penstock.core.hash_key import HashRange
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position


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
        pending: A prepared checkpoint or a claim (`pendingCheckpoint`), or None.
        pending_state: Opaque bytes beside it (`pendingCheckpointState`).
        checkpoint_owner: While a hand-over is under way: the worker that still reads and checkpoints, while
            `owner` names the next one (`checkpointOwner`, KCL 3).
        throughput_kbps: Smoothed kilobytes per second (`throughputKBps`), or None.
        claim_batch: Number of the last batch that claimed an end here (`penstockBatch`), or None.
        claim_worker: Who claimed it (`penstockWorker`), or None.
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
    claim_batch: int | None = None
    claim_worker: str | None = None

    @property
    def is_ended(self) -> bool:
        """Whether everything in the shard is done."""
        return self.checkpoint.is_shard_end

    @property
    def reader(self) -> str | None:
        """Who may read the shard now: during a hand-over the old owner, else the owner."""
        return self.checkpoint_owner or self.owner


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
    """Become the owner, whoever was it, if the counter is as read. Clears hand-over and pending fields."""

    key: str
    counter: int
    worker: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Say that the reader lives, if the counter is as last written and no hand-over is asked for.

    Args:
        worker: Who writes; must be the reader.
        during_handover: True for the old owner that keeps reading until it has finished.
    """

    key: str
    counter: int
    worker: str
    throughput_kbps: float | None = None
    during_handover: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The reader's checkpoint, if the counter is as last written and the position does not move back.

    It is a heartbeat too, and it ends a pending checkpoint.
    """

    key: str
    counter: int
    worker: str
    position: Position


@dataclass(frozen=True, slots=True)
class LateCheckpoint:
    """A just robbed worker's last word: strictly forwards, never SHARD_END; owner and counter stay."""

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
    """

    key: str
    counter: int
    worker: str
    position: Position | None = None
    next_owner: str | None = None


@dataclass(frozen=True, slots=True)
class RequestHandover:
    """Name the next owner while the present one finishes (KCL 3's graceful hand-off; counter untouched)."""

    key: str
    owner: str
    worker: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Fix where a batch ends in this shard: the first attempt of the batch that writes wins.

    Written by tasks, which do not know the counter, so the counter stays. The batch before is done when this
    one runs, so its end (this batch's start) becomes the checkpoint in the same write.

    Args:
        worker: The query's worker id; must be the owner (or the one that still reads during a hand-over).
        batch: Number of the batch; grows with every batch of this worker.
        end: Everything up to and including this belongs to the batch.
        state: Opaque bytes for the driver (counts, children, lag).
        checkpoint_seen: The row's checkpoint as the task read it.
        start: The batch's start; becomes the checkpoint when it is ahead of `checkpoint_seen`.
    """

    key: str
    worker: str
    batch: int
    end: Position
    state: bytes
    checkpoint_seen: Position
    start: Position

    @property
    def moves_checkpoint(self) -> bool:
        """Whether the batch's start is ahead of the checkpoint and takes its place."""
        return _is_forward(self.checkpoint_seen, self.start)


@dataclass(frozen=True, slots=True)
class Promote:
    """Let the claim of a batch that is done become the checkpoint.

    Only that very claim: a promotion that is slow on its way never touches the claim of a later batch. Counter and
    owner stay, so it needs no turn among the owner's other writes.

    Args:
        worker: The query's worker id; must be the owner (or the one that still reads during a hand-over).
        batch: Number of the batch that is done.
        position: The end that it claimed; a record, ahead of the checkpoint.
    """

    key: str
    worker: str
    batch: int
    position: Position


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a lease whose counter and checkpoint are as read."""

    key: str
    counter: int
    checkpoint: Position


@dataclass(frozen=True, slots=True)
class Reset:
    """Set a checkpoint anywhere, backwards too, and clear the owner: an operator's act, counter as read."""

    key: str
    counter: int
    position: Position


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
    CLAIMED = "an attempt of this batch, or of a later one of the same worker, has claimed already"
    CLAIM_GONE = "the claim that was to become the checkpoint does not stand any more"


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
    if isinstance(write, Renew | Checkpoint | End | Release | Claim | Promote) and row.reader != write.worker:
        return Refusal.OWNER
    match write:
        case Take() | Reset():
            return None
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
            # Batches are numbered by each query for itself: what another worker claimed before it lost the lease says
            # nothing about this one's batches.
            if (
                row.claim_worker == write.worker
                and row.claim_batch is not None
                and row.claim_batch >= write.batch
            ):
                return Refusal.CLAIMED
            return Refusal.CHECKPOINT if row.checkpoint != write.checkpoint_seen else None
        case Promote():
            stands = (row.claim_worker, row.claim_batch, row.pending)
            if stands != (write.worker, write.batch, write.position):
                return Refusal.CLAIM_GONE
            return _refusal_of_step(row, write.position)
        case Delete():
            return Refusal.CHECKPOINT if row.checkpoint != write.checkpoint else None
    assert_never(write)


def _refusal_of_step(row: Lease, position: Position) -> Refusal | None:
    """Allow a step to a record further on, and nothing else."""
    forwards = _is_forward(row.checkpoint, position) and not position.is_shard_end
    return None if forwards else Refusal.BACKWARDS


def _after(row: Lease, write: _Update) -> Lease | None:  # noqa: C901, PLR0911 - one table of effects
    bumped = row.counter + 1
    unpended = replace(row, pending=None, pending_state=None)
    match write:
        case Take():
            robbed = row.owner is not None and row.owner != write.worker
            return replace(
                unpended,
                owner=write.worker,
                counter=bumped,
                owner_switches=row.owner_switches + (1 if robbed else 0),
                checkpoint_owner=None,
            )
        case Renew():
            seen = row.throughput_kbps if write.throughput_kbps is None else write.throughput_kbps
            return replace(row, counter=bumped, throughput_kbps=seen)
        case Checkpoint():
            return replace(unpended, counter=bumped, checkpoint=write.position, owner_switches=0)
        case LateCheckpoint():
            return replace(row, checkpoint=write.position)
        case Promote():
            return replace(unpended, checkpoint=write.position, owner_switches=0)
        case End():
            return replace(
                unpended,
                counter=bumped,
                checkpoint=SHARD_END,
                owner=None,
                checkpoint_owner=None,
                owner_switches=0,
                children=write.children or row.children,
            )
        case Release():
            return replace(
                unpended,
                counter=bumped,
                owner=write.next_owner,
                checkpoint_owner=None,
                checkpoint=row.checkpoint if write.position is None else write.position,
                owner_switches=_switches_after_release(row, write),
            )
        case RequestHandover():
            return replace(row, owner=write.worker, checkpoint_owner=write.owner)
        case Claim():
            moves = write.moves_checkpoint
            return replace(
                row,
                pending=write.end,
                pending_state=write.state,
                claim_batch=write.batch,
                claim_worker=write.worker,
                checkpoint=write.start if moves else row.checkpoint,
                owner_switches=0 if moves else row.owner_switches,
            )
        case Reset():
            return replace(
                unpended,
                counter=bumped,
                owner=None,
                checkpoint_owner=None,
                checkpoint=write.position,
                owner_switches=0,
            )
        case Delete():
            return None
    assert_never(write)


def _switches_after_release(row: Lease, write: Release) -> int:
    kept = row.owner_switches if write.position is None else 0
    return kept + (1 if write.next_owner is not None and write.next_owner != write.worker else 0)


def starting_lease(
    shard_id: str, position: Position, parents: tuple[str, ...], hash_range: HashRange | None
) -> Lease:
    """Give the lease that is created for a shard at a starting position (children: TRIM_HORIZON, always)."""
    return Lease(key=shard_id, checkpoint=position, parents=frozenset(parents), hash_range=hash_range)
