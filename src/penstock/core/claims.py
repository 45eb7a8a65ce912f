"""The claim protocol: how the end of a batch becomes durable although it is found only while reading.

A task reads a shard from the batch's start until its limit or the tip, and before it finishes it *claims* the
end on the lease, tagged with the batch. The first claim stands. Any other execution of the batch (a retry, a
speculative copy, a replay after a crash) finds the claim and reads exactly up to it, so every execution that
Spark accepts holds the same records. When the next batch is planned, the batch before is done and its claims
are where the next one starts.

Three questions are answered here, each by a pure function:

- `plan_read`: a task looks at its lease: where does it read to?
- `settle_claim`: a claim was refused: what stands there, and what does that mean for what was read?
- `resolve_start`: the driver plans the next batch: where does each shard start?
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, assert_never

from penstock.core.hash_key import HashRange
from penstock.core.lease import Lease
from penstock.core.offsets import decode_position, encode_position
from penstock.core.position import Position
from penstock.core.shard import ChildShard
from penstock.errors import PositionError


@dataclass(frozen=True, slots=True)
class ClaimNote:
    """What a task tells the driver beside its claim.

    Args:
        start: Where the batch started in this shard: a claim counts only for the same start.
        at_tip: Nothing was left to read when the task ended.
        whole_record: The end is the last user record of its Kinesis record.
        record_count: User records in the range.
        bytes_count: Bytes of user data in the range.
        millis_behind_latest: As the service last said.
        last_arrival_ms: Arrival of the last record of the range, or None when it is empty.
        children: The shards that follow, when the end is SHARD_END.
        kept_iterator: The task began with an iterator that its process had kept from an earlier batch.
    """

    start: Position
    at_tip: bool = False
    whole_record: bool = True
    record_count: int = 0
    bytes_count: int = 0
    millis_behind_latest: int = 0
    last_arrival_ms: int | None = None
    children: tuple[ChildShard, ...] = ()
    kept_iterator: bool = False

    def to_bytes(self) -> bytes:
        """Encode for `pendingCheckpointState`."""
        document: dict[str, Any] = {
            "v": 1,
            "start": encode_position(self.start),
            "tip": self.at_tip,
            "whole": self.whole_record,
            "records": self.record_count,
            "bytes": self.bytes_count,
            "behind": self.millis_behind_latest,
            "arrival": self.last_arrival_ms,
            "kept": self.kept_iterator,
            "children": [
                [child.shard_id, list(child.parents), str(child.hash_range.start), str(child.hash_range.end)]
                for child in self.children
            ],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def parse_note(state: bytes | None) -> ClaimNote | None:
    """Read a note; None when the bytes are somebody else's (a KCL worker's prepared checkpoint, say)."""
    if state is None:
        return None
    try:
        document = json.loads(state)
        return ClaimNote(
            start=decode_position(document["start"]),
            at_tip=bool(document["tip"]),
            whole_record=bool(document["whole"]),
            record_count=int(document["records"]),
            bytes_count=int(document["bytes"]),
            millis_behind_latest=int(document["behind"]),
            last_arrival_ms=document["arrival"],
            children=tuple(
                ChildShard(shard_id, tuple(parents), HashRange(int(low), int(high)))
                for shard_id, parents, low, high in document["children"]
            ),
            kept_iterator=bool(document.get("kept", False)),
        )
    except (ValueError, KeyError, TypeError, PositionError):
        return None


# --- a task looks at its lease ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadFreely:
    """No end is fixed yet: read to the limit or the tip, then claim."""


@dataclass(frozen=True, slots=True)
class ReadTo:
    """An execution of this batch has fixed the end: read exactly up to and including it."""

    end: Position
    note: ClaimNote | None = None


class Idle(Enum):
    """Why a task must not read its shard in this batch."""

    LEASE_LOST = "another worker owns the lease now and reads on from its checkpoint"
    REWOUND = "the checkpoint location is older than the lease: the batch number was used by a later batch"


@dataclass(frozen=True, slots=True)
class ReadNothing:
    """Give no records: they come elsewhere or later."""

    reason: Idle


@dataclass(frozen=True, slots=True)
class ReadUnclaimed:
    """The lease is gone, so no end can be fixed: read to the tip, at-least-once, and say so loudly."""


ReadPlan: TypeAlias = ReadFreely | ReadTo | ReadNothing | ReadUnclaimed


def plan_read(lease: Lease | None, worker: str, batch: int, start: Position) -> ReadPlan:
    """Decide what an execution of a batch reads in one shard.

    Args:
        lease: The shard's lease as it stands, or None when the row is gone.
        worker: The query's worker id.
        batch: The batch's number.
        start: Where the batch starts in this shard.
    """
    if lease is None:
        return ReadUnclaimed()
    if lease.claim_worker == worker and lease.claim_batch is not None:
        if lease.claim_batch == batch:
            return _plan_again(lease, start)
        if lease.claim_batch > batch:
            return ReadNothing(Idle.REWOUND)
    if lease.reader != worker:
        return ReadNothing(Idle.LEASE_LOST)
    return ReadFreely()


def _plan_again(lease: Lease, start: Position) -> ReadPlan:
    if lease.pending is None:
        # The claim became the checkpoint already: the batch is replayed after it was done (its commit was
        # lost). The checkpoint is its end as long as nobody else wrote, and nobody else can own claim_worker.
        return ReadTo(lease.checkpoint)
    note = parse_note(lease.pending_state)
    if note is None or note.start != start:
        # A claim of an abandoned timeline with the same number; its range is not this batch's.
        return ReadNothing(Idle.REWOUND)
    return ReadTo(lease.pending, note)


# --- a claim was refused ---------------------------------------------------------------------------------


class Settled(Enum):
    """What a refused claim means for the task that wrote it."""

    AGREES = "the end that stands is the one that was read to"
    READ_ON = "the end that stands is further on: read on to it"
    REPEAT = "the end that stands comes before what was given out: the task must be repeated"
    CLAIM_AGAIN = "the row changed, but no end is fixed: claim again with what stands there now"
    LOST = "the lease is another worker's now: what was given out will be given out again there"
    GONE = "the lease does not exist any more"


def settle_claim(
    row: Lease | None, worker: str, batch: int, start: Position, mine: Position
) -> tuple[Settled, Position]:
    """Decide what to do after a refused claim.

    Args:
        row: The lease as it stands now.
        worker: The query's worker id.
        batch: The batch's number.
        start: Where the batch starts.
        mine: The end that this execution read to.

    Returns:
        What it means, and the end that stands (`mine` where none does).
    """
    plan = plan_read(row, worker, batch, start)
    match plan:
        case ReadUnclaimed():
            return (Settled.GONE, mine)
        case ReadFreely():
            return (Settled.CLAIM_AGAIN, mine)
        case ReadNothing(reason):
            return (Settled.LOST if reason is Idle.LEASE_LOST else Settled.REPEAT, mine)
        case ReadTo(end):
            if end == mine:
                return (Settled.AGREES, end)
            return (Settled.READ_ON if mine < end else Settled.REPEAT, end)
        case _:
            assert_never(plan)


# --- the driver plans the next batch ---------------------------------------------------------------------


class StartReason(Enum):
    """Where a shard's start comes from."""

    CLAIMED = "the end that was claimed last"
    CHECKPOINT = "the lease's checkpoint"
    NOT_READ = "the batch before did not read the shard to an end: its start again"
    REWOUND = "the checkpoint location is older than the lease: its start again"
    LEASE_GONE = "the lease was deleted: the start of the batch before again"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a shard starts in the next batch, and why."""

    position: Position
    reason: StartReason
    note: ClaimNote | None = None


def resolve_start(lease: Lease | None, worker: str, batch: int, planned: Position | None) -> Start | None:
    """Decide where the next batch starts in one shard.

    Args:
        lease: The shard's lease, or None when the row is gone.
        worker: The query's worker id.
        batch: Number of the batch before, which is done.
        planned: Where that batch started in this shard, or None when it did not include the shard.

    Returns:
        The start; None when nothing is known of the shard (no lease, and not in the batch before).
    """
    if lease is None:
        return None if planned is None else Start(planned, StartReason.LEASE_GONE)
    if planned is None:
        return _resolve_unplanned(lease, worker, batch)
    if lease.claim_worker == worker and lease.claim_batch is not None:
        if lease.claim_batch > batch:
            return Start(planned, StartReason.REWOUND)
        if lease.claim_batch == batch:
            return _resolve_claimed(lease, planned)
    if planned < lease.checkpoint:
        # Somebody else owned it meanwhile and went on: while it was ours, the checkpoint never passed the start.
        return Start(lease.checkpoint, StartReason.CHECKPOINT)
    return Start(planned, StartReason.NOT_READ)


def _resolve_unplanned(lease: Lease, worker: str, batch: int) -> Start:
    # A claim of an earlier batch that nobody has promoted: the lease was out of sight when that batch was settled, and
    # nobody else had it since, or the claim would be gone.
    if lease.claim_worker == worker and lease.claim_batch is not None and lease.claim_batch < batch:
        note = parse_note(lease.pending_state)
        if lease.pending is not None and note is not None:
            return Start(lease.pending, StartReason.CLAIMED, note)
    return Start(lease.checkpoint, StartReason.CHECKPOINT)


def _resolve_claimed(lease: Lease, planned: Position) -> Start:
    if lease.pending is None:
        return Start(lease.checkpoint, StartReason.CHECKPOINT)
    note = parse_note(lease.pending_state)
    if note is None or note.start != planned:
        return Start(planned, StartReason.REWOUND)
    return Start(lease.pending, StartReason.CLAIMED, note)


def may_promote(lease: Lease, worker: str, batch: int, done: Position) -> bool:
    """Whether a claim that stands on a lease may become the checkpoint now.

    Only forwards: after a rewind the claim lies behind the checkpoint, and the claim stays what the query goes by. A claim
    of an earlier batch counts too: the shard had nothing to read since.

    Args:
        lease: The lease as it stands.
        worker: The query's worker id.
        batch: Number of the last batch that is done.
        done: Where the shard goes on: everything up to and including it is done.
    """
    return (
        lease.claim_worker == worker
        and lease.claim_batch is not None
        and lease.claim_batch <= batch
        and lease.pending is not None
        and lease.checkpoint < lease.pending <= done
    )
