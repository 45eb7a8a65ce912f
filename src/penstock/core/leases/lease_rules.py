"""The effect of each write on a row, or the reason why it is refused: pure functions.

`apply_write(row, write)` decides a write. The DynamoDB adapter has the same rule as a condition expression, and sets the fields
that `changes_of` names. The simulator calls this function, and a contract test compares the two.

Source:
    The conditions of KCL 2.x's lease refresher (take, renew, checkpoint), KCL 3's hand-over fields; the
    forward-only rule, the reader's name in its writes, the claims, the mark and the stream are Penstock's own.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, assert_never

from msgspec.structs import replace

from penstock.core.leases.lease import BatchClaim, Lease, new_tip_mark
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

_CountedWrite: TypeAlias = Take | Renew | Checkpoint | End | Release | Reset
"""A write that adds 1 to the counter, if the counter is as read."""


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


def shows_write(row: Lease | None, write: LeaseWrite) -> bool:  # noqa: C901, PLR0911 - one table
    """Return whether a row shows that a write whose answer was lost has been applied to it."""
    if isinstance(write, Delete):
        return row is None
    if row is None:
        return False
    if isinstance(write, Create):
        return row == write.lease
    if isinstance(write, Claim):
        return write.claim in row.claims
    if isinstance(write, Promote):
        return row.checkpoint == write.position and row.pending_checkpoint is None
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
    # It is a Reset.
    return row.counter == write.counter + 1 and row.owner is None and row.checkpoint == write.position


def _refusal(row: Lease, write: LeaseUpdate) -> Refusal | None:  # noqa: C901, PLR0911, PLR0912 - one table of rules
    """Return why a row refuses a write, or None."""
    if isinstance(write, _CountedWrite | Delete) and row.counter != write.counter:
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
            may_renew = row.checkpoint_owner is None or write.during_handover
            return None if may_renew else Refusal.HANDOVER
        case Checkpoint():
            return None if may_move(row.checkpoint, write.position) else Refusal.BACKWARDS
        case LateCheckpoint():
            if write.seen_claim is not None and not row.has_claim(write.seen_claim):
                return Refusal.CLAIMED
            return _refusal_unless_ahead(row, write.position)
        case End():
            return Refusal.BACKWARDS if row.is_ended else None
        case Release():
            may_release = write.position is None or may_move(row.checkpoint, write.position)
            return None if may_release else Refusal.BACKWARDS
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
            return _refusal_unless_ahead(row, write.position)
        case Delete():
            return Refusal.CHECKPOINT if row.checkpoint != write.checkpoint else None
    assert_never(write)


def _is_of_another_stream(row: Lease, stream: StreamIdentity | None) -> bool:
    return stream is not None and row.stream not in (None, stream)


def _refusal_of_claim(row: Lease, write: Claim) -> Refusal | None:
    """Return why a row refuses a claim; None if its worker reads the shard and the row is as the task read it.

    A forfeit, which claims that the batch holds nothing of the shard, needs neither the lease nor an unchanged checkpoint.
    """
    if not write.is_forfeit and row.reader != write.claim.worker:
        return Refusal.OWNER
    if _is_of_another_stream(row, write.stream):
        return Refusal.STREAM
    own = row.claim_of(write.claim.worker)
    if (None if own is None else own.identity) != write.claim_seen:
        return Refusal.CLAIMED
    existing = {(claim.worker, claim.batch) for claim in row.claims}
    if not existing.issuperset(write.dropped_claims):
        return Refusal.CLAIM_GONE
    is_checkpoint_right = write.is_forfeit or row.checkpoint == write.checkpoint_seen
    return None if is_checkpoint_right else Refusal.CHECKPOINT


def _refusal_unless_ahead(row: Lease, position: Position) -> Refusal | None:
    """Return BACKWARDS unless a new checkpoint is a record that is ahead of the row's checkpoint."""
    is_ahead = is_forward(row.checkpoint, position) and position.is_record
    return None if is_ahead else Refusal.BACKWARDS


def _row_after(row: Lease, write: LeaseUpdate) -> Lease | None:
    """Return the row after an accepted write; None after a delete."""
    if isinstance(write, Delete):
        return None
    changes = changes_of(write)
    if counts_switch(write, row.owner):
        changes["owner_switches"] = row.owner_switches + 1
    new_claims = claims_of(write)
    if new_claims:
        claims = {claim.worker: claim for claim in row.claims} | new_claims
        changes["claims"] = tuple(claim for _, claim in sorted(claims.items()) if claim is not None)
    return replace(row, **changes)


_NO_PENDING: Final = {"pending_checkpoint": None, "pending_checkpoint_state": None}
# Only the owner that wrote these fields uses them: a change of owner clears them.
_NO_OWNER_FIELDS: Final = {**_NO_PENDING, "checkpoint_owner": None, "stop_note": None, "term": None}


def changes_of(write: LeaseUpdate) -> dict[str, Any]:  # noqa: C901, PLR0911, PLR0912 - one table
    """Return the new values of the `Lease` fields that a write sets.

    The claims (`claims_of`), and owner switches that depend on the row (`counts_switch`), are not among them.
    """
    counted: dict[str, Any] = {}
    if isinstance(write, _CountedWrite):
        counted["counter"] = write.counter + 1
    match write:
        case Take():
            pinned = None if write.pin_ms is None else pin_latest(LATEST, write.pin_ms)
            taken = {"owner": write.worker, "run": write.run}
            return counted | _NO_OWNER_FIELDS | taken | _given_fields(checkpoint=pinned, stream=write.stream)
        case Renew():
            kept = _given_fields(
                throughput_kbps=write.throughput_kbps, mark=write.tip, stream=write.stream, run=write.run
            )
            return counted | {"stop_note": write.stop_note, "term": write.term} | kept
        case Checkpoint() | Promote():
            return counted | _NO_PENDING | _checkpoint_changes(write.position, write.tip_ms)
        case LateCheckpoint():
            return {"checkpoint": write.position, "mark": new_tip_mark(write.position)}
        case End():
            ended = {"owner": None, "checkpoint_owner": None} | _checkpoint_changes(SHARD_END)
            return counted | _NO_PENDING | ended | _given_fields(children=write.children or None)
        case Release():
            moved = {} if write.position is None else _checkpoint_changes(write.position)
            if moved and _hands_lease_on(write):
                moved["owner_switches"] = 1
            owner = {"owner": write.next_owner}
            return counted | _NO_OWNER_FIELDS | owner | moved | _given_fields(mark=write.tip)
        case RequestHandover():
            return {"owner": write.worker, "checkpoint_owner": write.owner}
        case Claim():
            # The batch starts where the previous one ended, and that one is done. So the batch's start becomes the checkpoint if
            # it is ahead of the row's. Others see the batch's end as the pending checkpoint. A forfeit changes only the claims.
            if write.is_forfeit:
                return {}
            moved = _checkpoint_changes(write.claim.start, write.tip_ms) if write.moves_checkpoint else {}
            return {"pending_checkpoint": write.claim.end, "pending_checkpoint_state": None} | moved
        case Reset():
            mark = new_tip_mark(write.position) if write.has_later_records else None
            freed: dict[str, Any] = {"owner": None, "mark": mark}
            return counted | _NO_OWNER_FIELDS | _checkpoint_changes(write.position) | freed
        case Delete():
            return {}
    assert_never(write)


def _given_fields(**fields: Any) -> dict[str, Any]:
    """Return the fields whose value is not None: the row keeps its value of the others."""
    return {name: value for name, value in fields.items() if value is not None}


def _checkpoint_changes(position: Position, tip_ms: int | None = None) -> dict[str, Any]:
    return {"checkpoint": position, "owner_switches": 0, "mark": new_tip_mark(position, tip_ms)}


def _hands_lease_on(write: Release) -> bool:
    return write.next_owner not in (None, write.worker)


def counts_switch(write: LeaseUpdate, owner: str | None) -> bool:
    """Return whether a write adds 1 to the owner switches of a row.

    Args:
        owner: The row's owner before the write.
    """
    if isinstance(write, Take):
        return owner not in (None, write.worker)
    return isinstance(write, Release) and write.position is None and _hands_lease_on(write)


def claims_of(write: LeaseUpdate) -> dict[str, BatchClaim | None]:
    """Return the claims that a write sets, by worker; None for a claim that it removes."""
    claims: dict[str, BatchClaim | None] = {}
    if isinstance(write, Claim):
        claims = dict.fromkeys(worker for worker, _ in write.dropped_claims)
        claims[write.claim.worker] = write.claim
    elif isinstance(write, Reset) and write.claim_worker is not None:
        claims[write.claim_worker] = write.claim
    return claims
