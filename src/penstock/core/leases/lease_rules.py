"""The effect of each write on a row, or the reason why it is refused: pure functions.

`apply_write(row, write)` decides a write. The DynamoDB adapter has the same rule as a condition expression, the simulator
calls this one, and a contract test asks both the same questions.

Source:
    The conditions of KCL 2.x's lease refresher (take, renew, checkpoint), KCL 3's hand-over fields; the
    forward-only rule, the reader's name in its writes, the claims, the mark and the stream are Penstock's own.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from penstock.core.leases.lease import BatchClaim, Lease, mark_at
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    LeaseUpdate,
    LeaseWrite,
    Outcome,
    Promote,
    Refusal,
    Refused,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
    is_forward,
)
from penstock.core.position import LATEST, SHARD_END, Position
from penstock.core.starting import pin_latest
from penstock.core.stream_identity import StreamIdentity


def may_move(old: Position, new: Position) -> bool:
    """Return whether a checkpoint may move from `old` to `new`: forwards, or to the same position."""
    return new == old or is_forward(old, new)


def apply_write(row: Lease | None, write: LeaseWrite) -> Outcome:
    """Decide a write against the current row.

    Args:
        row: The row with the write's key, or None if there is none.

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
    return Applied(_row_after(row, write))


def shows(row: Lease | None, write: LeaseWrite) -> bool:  # noqa: C901, PLR0911 - one table
    """Return whether a row shows that a write with a lost answer was applied to it."""
    if isinstance(write, Delete):
        return row is None
    if row is None:
        return False
    if isinstance(write, Create):
        return row == write.lease
    if isinstance(write, Claim):
        return write.claim in row.claims
    if isinstance(write, Promote):
        return row.checkpoint == write.position and row.pending is None
    if isinstance(write, Take):
        return (row.counter, row.owner, row.run) == (write.counter + 1, write.worker, write.run)
    if isinstance(write, Renew):
        is_same_run = write.run is None or row.run == write.run
        return is_same_run and row.counter == write.counter + 1 and row.reader == write.worker
    if isinstance(write, Checkpoint):
        # A take by another worker also adds 1 to the counter, and it keeps the checkpoint. But it adds 1 to the owner switches,
        # which a checkpoint sets to 0.
        return (row.counter, row.checkpoint, row.owner_switches) == (write.counter + 1, write.position, 0)
    if isinstance(write, LateCheckpoint):
        return row.checkpoint == write.position
    if isinstance(write, RequestHandover):
        return (row.owner, row.checkpoint_owner) == (write.worker, write.owner)
    if isinstance(write, End):
        return row.counter == write.counter + 1 and row.is_ended
    if isinstance(write, Release):
        return (
            row.counter == write.counter + 1
            and (row.owner, row.checkpoint_owner) == (write.next_owner, None)
            and (write.position is None or row.checkpoint == write.position)
        )
    return row.counter == write.counter + 1 and row.owner is None and row.checkpoint == write.position


def _refusal(row: Lease, write: LeaseUpdate) -> Refusal | None:  # noqa: C901, PLR0911, PLR0912 - one table of rules
    """Return why a row refuses a write, or None."""
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
            if write.seen_claim is not None and not row.has_claim(write.seen_claim):
                return Refusal.CLAIMED
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
    """Refuse a claim unless its worker reads the shard and nothing has changed: its last claim, the claims to drop, the checkpoint.

    A forfeit, which claims that the batch holds nothing of the shard, needs neither the lease nor an unchanged checkpoint.
    """
    if not write.forfeits and row.reader != write.claim.worker:
        return Refusal.OWNER
    if _is_of_another_stream(row, write.stream):
        return Refusal.STREAM
    own = row.claim_of(write.claim.worker)
    if (None if own is None else own.identity) != write.before:
        return Refusal.CLAIMED
    existing = {(claim.worker, claim.batch) for claim in row.claims}
    if not existing.issuperset(write.dropped):
        return Refusal.CLAIM_GONE
    is_same = write.forfeits or row.checkpoint == write.checkpoint_seen
    return None if is_same else Refusal.CHECKPOINT


def _refusal_of_step(row: Lease, position: Position) -> Refusal | None:
    """Allow a step to a record further on, and nothing else."""
    forwards = is_forward(row.checkpoint, position) and not position.is_shard_end
    return None if forwards else Refusal.BACKWARDS


def _row_after(row: Lease, write: LeaseUpdate) -> Lease | None:  # noqa: C901, PLR0911 - one table of effects
    """Return the row after an accepted write; None after a delete."""
    next_counter = row.counter + 1
    without_pending = replace(row, pending=None, pending_state=None)
    match write:
        case Take():
            is_stolen = row.owner is not None and row.owner != write.worker
            return replace(
                without_pending,
                owner=write.worker,
                counter=next_counter,
                owner_switches=row.owner_switches + (1 if is_stolen else 0),
                checkpoint_owner=None,
                checkpoint=row.checkpoint
                if write.pin_ms is None
                else pin_latest(row.checkpoint, write.pin_ms),
                stream=write.stream or row.stream,
                stopped=None,
                term=None,
                run=write.run,
            )
        case Renew():
            throughput_kbps = row.throughput_kbps if write.throughput_kbps is None else write.throughput_kbps
            return replace(
                row,
                counter=next_counter,
                throughput_kbps=throughput_kbps,
                mark=write.tip or row.mark,
                stream=write.stream or row.stream,
                stopped=write.stopped,
                term=write.term,
                run=write.run or row.run,
            )
        case Checkpoint():
            mark = mark_at(write.position, write.tip_ms)
            return replace(
                without_pending, counter=next_counter, checkpoint=write.position, owner_switches=0, mark=mark
            )
        case LateCheckpoint():
            return replace(row, checkpoint=write.position, mark=mark_at(write.position))
        case Promote():
            mark = mark_at(write.position, write.tip_ms)
            return replace(without_pending, checkpoint=write.position, owner_switches=0, mark=mark)
        case End():
            return replace(
                without_pending,
                counter=next_counter,
                checkpoint=SHARD_END,
                owner=None,
                checkpoint_owner=None,
                owner_switches=0,
                children=write.children or row.children,
                mark=None,
            )
        case Release():
            position = write.position
            return replace(
                without_pending,
                counter=next_counter,
                owner=write.next_owner,
                checkpoint_owner=None,
                checkpoint=row.checkpoint if position is None else position,
                owner_switches=(row.owner_switches if position is None else 0)
                + (write.next_owner not in (None, write.worker)),
                mark=write.tip or (row.mark if position is None else mark_at(position)),
                stopped=None,
                term=None,
            )
        case RequestHandover():
            return replace(row, owner=write.worker, checkpoint_owner=write.owner)
        case Claim():
            return _after_claim(row, write)
        case Reset():
            return replace(
                without_pending,
                counter=next_counter,
                owner=None,
                checkpoint_owner=None,
                checkpoint=write.position,
                owner_switches=0,
                claims=_claims_after_reset(row, write),
                mark=mark_at(write.position) if write.is_followed else None,
                stopped=None,
                term=None,
            )
        case Delete():
            return None
    assert_never(write)


def _claims_after_reset(row: Lease, write: Reset) -> tuple[BatchClaim, ...]:
    kept = [claim for claim in row.claims if claim.worker != write.forget]
    existing = [] if write.claim is None else [write.claim]
    return tuple(sorted([*kept, *existing], key=lambda claim: claim.worker))


def _after_claim(row: Lease, write: Claim) -> Lease:
    """Replace the worker's claim, drop old claims of other workers, and show the batch's end as the pending checkpoint.

    The batch starts where the previous one ended, and that one is done. So the batch's start becomes the checkpoint if it is
    ahead of the row's. A forfeit changes only the claims.
    """
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
        mark=mark_at(write.claim.start, write.tip_ms) if moves else row.mark,
    )
