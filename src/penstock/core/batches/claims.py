"""The claim protocol: fixes the end of a batch, which is found only while the batch is read.

The offset that Spark logs before a batch runs has the batch's start in each shard, but not its end. A task reads a shard
from that start to its limit or to the tip. Before it finishes, it *claims* the end: one conditional write on the shard's
lease. The first claim of a batch is final. Every other execution of the batch (a retry, a speculative copy, a second
action, a replay after a crash) finds the claim and reads exactly to it. So every execution that Spark accepts holds the
same records. The next batch starts at the claims.

Five rules complete the protocol:

1. A claim survives every change of owner. Each query has its own claim attribute on the row, and no take, release or
   checkpoint removes it. Another query's claim write drops it only if the records of the dropped claim have left the stream,
   or if the row has more than eight claims of other queries.
2. A task must not read if another worker has the lease, or if another worker's checkpoint is past the batch's start. It
   then claims an empty range. Without this claim a later execution could find the lease free and read.
3. The driver passes to each task the query's claim that it saw when it planned the batch. The task expects this claim, or a
   claim of its own batch, on the row. Any other claim was made by another driver on the same checkpoint location: the task
   fails. A batch is identified by its number and by the run of the driver that planned it
   (`penstock.core.batches.known_batches`). When the batch is done, the query's claim on a row must be the batch's, or
   still the one that the driver saw.
4. If the claim that the driver saw is missing, the row was deleted and created again. Another execution of the batch may have
   read to an end that this row does not have. So the task claims an empty range, and the next batch reads the records,
   at-least-once. If the claim disappears while the task reads, the task fails and is repeated.
5. A claim also keeps the ranges of the four batches before it. A driver that was paused during one of them finishes it with
   the same records, because its sink may have begun to overwrite the output of the driver that followed. For an older batch
   the task fails (`ClaimedElsewhere`); it never returns fewer records.

Four pure functions hold the rules:

- `plan_read`: a task has read its lease. To which position does it read the shard?
- `judge_refused_claim`: a claim was refused. What does the row mean for the records that the task has read?
- `plan_dropped_claims`: a claim is written. Which claims of other queries does the row lose?
- `resolve_start`: the driver plans the next batch. Where does each shard start?
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias, assert_never

from msgspec import Struct, field

from penstock.core.batches.known_batches import KnownBatches
from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.position import Position
from penstock.core.shard import ChildShard
from penstock.errors import PositionError

CLAIMS_MAX: Final = 8
"""Most claims of other workers that a row keeps; the oldest are dropped first."""

PAST_CLAIMS_MAX: Final = 4
"""Earlier batches whose ranges a claim keeps. With four, a row stays below 1 KB, the size of one write unit."""

_NOTE_FORMAT: Final = 3
_NOTE_LENGTH: Final = 12
_NOTE_LENGTH_MIN: Final = 9


class ClaimNote(Struct, frozen=True):
    """Figures that a task passes to the driver with its claim.

    Args:
        has_more: Whether unread records follow the end. With AvailableNow, records that arrived after its moment do not count.
        tip_ms: Moment at which no record followed the end, by the service's clock, or None.
        is_whole_record: The end is the last user record of its Kinesis record.
        record_count: User records in the range.
        bytes_count: Bytes of user data in the range.
        millis_behind_latest: Age of the oldest record after the end, or 0 at the tip; None if it is not known.
        last_arrival_ms: Arrival of the last record of the range, or None when it is empty.
        children: The child shards, if the end is SHARD_END.
        began_with_kept_iterator: The task began with an iterator that its process had kept from an earlier batch.
        query: Spark's id of the streaming query, or None if Spark does not pass it to tasks.
        process: Identifies the process that made the claim among those that read the batch; None in older claims.
        pushed_count: User records in the range that a subscription delivered.
        subscription_ends: Number of subscriptions that ended during the read, by reason.
    """

    has_more: bool = False
    tip_ms: int | None = None
    is_whole_record: bool = True
    record_count: int = 0
    bytes_count: int = 0
    millis_behind_latest: int | None = 0
    last_arrival_ms: int | None = None
    children: tuple[ChildShard, ...] = ()
    began_with_kept_iterator: bool = False
    query: str | None = None
    process: str | None = None
    pushed_count: int = 0
    subscription_ends: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode for the claim's `note`."""
        document: list[Any] = [
            _NOTE_FORMAT,
            self.has_more + 2 * self.is_whole_record + 4 * self.began_with_kept_iterator,
            self.tip_ms,
            self.record_count,
            self.bytes_count,
            self.millis_behind_latest,
            self.last_arrival_ms,
            self.query,
            self.process,
            self.pushed_count,
            dict(self.subscription_ends),
            [
                [child.shard_id, list(child.parents), str(child.hash_range.start), str(child.hash_range.end)]
                for child in self.children
            ],
        ]
        # To keep the row small, zeros and empty values at the end (no children, no subscription) are left out.
        while len(document) > _NOTE_LENGTH_MIN and not document[-1]:
            document.pop()
        return json.dumps(document, separators=(",", ":")).encode()


def parse_note(note: bytes) -> ClaimNote | None:
    """Parse a claim's note; None if the claim has none, or if the bytes are damaged or of another format."""
    try:
        found = json.loads(note)
        if found[0] != _NOTE_FORMAT:
            return None
        found += [None] * (_NOTE_LENGTH - len(found))
        _, flags, tip_ms, records, size, behind_ms, arrival_ms, query, process, pushed, ends, children = found
        return ClaimNote(
            has_more=bool(flags & 1),
            tip_ms=tip_ms,
            is_whole_record=bool(flags & 2),
            record_count=int(records or 0),
            bytes_count=int(size or 0),
            millis_behind_latest=behind_ms,
            last_arrival_ms=arrival_ms,
            children=tuple(
                ChildShard(shard_id, tuple(parents), HashRange(int(low), int(high)))
                for shard_id, parents, low, high in children or ()
            ),
            began_with_kept_iterator=bool(flags & 4),
            query=query,
            process=process,
            pushed_count=int(pushed or 0),
            subscription_ends=dict(ends or {}),
        )
    except (ValueError, LookupError, TypeError, PositionError):
        return None


# --- a task has read its lease ----------------------------------------------------------------------------


class Execution(Struct, frozen=True):
    """One batch in one shard, as the driver passes it to a task.

    Args:
        worker: The query's worker id.
        run: The run of the driver that made the task.
        expected_claim: The query's claim that the driver saw on the row, as (batch, run); None if it saw none.
        planned_by: The run of the driver that planned the batch, from its offset; None if it is not known.
    """

    worker: str
    batch: int
    run: str
    start: Position
    expected_claim: tuple[int, str] | None = None
    planned_by: str | None = None


class ReadFreely(Struct, frozen=True):
    """No end is claimed yet: read to the limit or the tip, then claim."""


class ReadTo(Struct, frozen=True):
    """The end is claimed: read exactly up to and including it."""

    end: Position


class NothingReason(Enum):
    """Why a batch holds nothing of a shard."""

    LEASE_LOST = "another worker has the lease now and reads on from its checkpoint"
    DONE_ELSEWHERE = (
        "another worker's checkpoint has passed the batch's start; the next batch starts at that checkpoint"
    )
    ROW_RECREATED = (
        "its lease was deleted and created again (was the table emptied?); the next batch has the records"
    )


class ReadNothing(Struct, frozen=True):
    """The batch holds nothing of the shard: claim an empty range, and return no records."""

    reason: NothingReason


class ClaimedElsewhere(Struct, frozen=True):
    """The row has another driver's claim, or this query's claim of a much later batch: the task fails, and no sink gets the batch."""

    claim: BatchClaim


class ReadUnclaimed(Struct, frozen=True):
    """The lease is missing, so no end can be claimed: read to the limit or the tip, at-least-once, and log a warning."""


ReadPlan: TypeAlias = ReadFreely | ReadTo | ReadNothing | ClaimedElsewhere | ReadUnclaimed


def plan_read(lease: Lease | None, execution: Execution) -> ReadPlan:
    """Decide how far an execution of a batch reads in one shard.

    Args:
        lease: The shard's current lease, or None if the row is missing.
    """
    if lease is None:
        return ReadUnclaimed()
    claim = lease.claim_of(execution.worker)
    end = None if claim is None else claim.end_of(execution.batch, execution.start, execution.planned_by)
    if end is not None:
        return ReadTo(end)
    if claim is not None and claim.identity != execution.expected_claim:
        return ClaimedElsewhere(claim)
    if lease.reader != execution.worker:
        reason = NothingReason.LEASE_LOST
    elif is_checkpoint_past(lease, execution.start):
        # While this query holds the lease, no checkpoint passes the start of its batch. So another worker has held it.
        reason = NothingReason.DONE_ELSEWHERE
    elif claim is None and execution.expected_claim is not None:
        reason = NothingReason.ROW_RECREATED
    else:
        return ReadFreely()
    return ReadNothing(reason)


def is_checkpoint_past(lease: Lease, position: Position) -> bool:
    """Return whether the checkpoint is after a position of the shard."""
    # TRIM_HORIZON and LATEST do not show that anything was read: a child shard is read from its beginning even at LATEST.
    return lease.checkpoint.is_in_shard and position < lease.checkpoint


# --- a claim was refused ---------------------------------------------------------------------------------


class ClaimRefusal(Enum):
    """Meaning of a refused claim for the task that wrote it."""

    AGREES = "the claimed end is the one that the task read to"
    READ_ON = "the claimed end is further on: read on to it"
    REPEAT = "the task emitted records beyond the claimed end: the task must be repeated"
    CLAIM_AGAIN = "the row changed, but no end is claimed: claim again against the current row"
    LOST = "the lease was lost or created again, and no end had been claimed: the task must be repeated"
    ANOTHER_DRIVER = "another driver has claimed from the same checkpoint location"
    GONE = "the lease does not exist any more"


def judge_refused_claim(
    row: Lease | None, execution: Execution, read_to: Position
) -> tuple[ClaimRefusal, Position]:
    """Decide the next step of a task whose claim of `read_to`, the position to which it has read, was refused.

    Returns:
        The decision, and the end that another execution has claimed (`read_to` if there is none).
    """
    plan = plan_read(row, execution)
    match plan:
        case ReadUnclaimed():
            return (ClaimRefusal.GONE, read_to)
        case ReadFreely():
            return (ClaimRefusal.CLAIM_AGAIN, read_to)
        case ReadNothing():
            return (ClaimRefusal.LOST, read_to)
        case ClaimedElsewhere():
            return (ClaimRefusal.ANOTHER_DRIVER, read_to)
        case ReadTo(end):
            if end == read_to:
                return (ClaimRefusal.AGREES, end)
            return (ClaimRefusal.READ_ON if read_to < end else ClaimRefusal.REPEAT, end)
        case _:
            assert_never(plan)


def plan_dropped_claims(lease: Lease, worker: str, kept_after_ms: int) -> tuple[tuple[str, int], ...]:
    """Return the claims of other workers that are removed from a row when this worker writes its claim.

    A claim is needed while its batch can be repeated, that is until the batch's records have left the stream. A query that
    has ended for good does not remove its claim, so a row keeps the claims of at most `CLAIMS_MAX` other workers.

    Args:
        kept_after_ms: Claims made before this moment cover only records that have left the stream.

    Returns:
        (worker, batch) of each dropped claim, ordered by worker.
    """
    others = [claim for claim in lease.claims if claim.worker != worker]
    oldest = sorted(others, key=lambda claim: claim.made_ms)[: max(0, len(others) - CLAIMS_MAX)]
    gone = [claim for claim in others if claim.made_ms < kept_after_ms or claim in oldest]
    return tuple((claim.worker, claim.batch) for claim in gone)


# --- the driver plans the next batch ---------------------------------------------------------------------


class StartReason(Enum):
    """Reason for a shard's start in the next batch."""

    CLAIMED = "the end of the last claim"
    CHECKPOINT = "the lease's checkpoint"
    NOT_READ = "the previous batch has no claim in the shard: its start again"
    LEASE_GONE = "the lease was deleted: the start of the previous batch again"


class BatchStart(Struct, frozen=True):
    """Start of a shard in the next batch, and the reason. If it is the end of a claim, `note` is the claim's note."""

    position: Position
    reason: StartReason
    note: ClaimNote | None = None


def resolve_start(
    lease: Lease | None, worker: str, known_batches: KnownBatches, previous_start: Position | None
) -> BatchStart | None:
    """Decide where the next batch starts in one shard.

    Args:
        known_batches: The batches up to and including the previous one, which is done.
        previous_start: The previous batch's start in this shard; None if that batch did not include the shard.

    Returns:
        The start; None if there is neither a lease nor a start in the previous batch.
    """
    if lease is None:
        return None if previous_start is None else BatchStart(previous_start, StartReason.LEASE_GONE)
    claim = lease.claim_of(worker)
    is_of_last_batch = claim is not None and _is_of_last_batch(claim, known_batches, previous_start)
    if claim is not None and is_of_last_batch and not is_checkpoint_past(lease, claim.end):
        note = parse_note(claim.note)
        # A claim that has no note and ends at the checkpoint adds nothing to the checkpoint.
        if note is not None or claim.end != lease.checkpoint:
            return BatchStart(claim.end, StartReason.CLAIMED, note)
    if previous_start is None or is_of_last_batch or is_checkpoint_past(lease, previous_start):
        # While this query holds the lease, no checkpoint passes the start of its batch. If one has passed the previous start,
        # another worker has held the lease and read on.
        return BatchStart(lease.checkpoint, StartReason.CHECKPOINT)
    return BatchStart(previous_start, StartReason.NOT_READ)


def _is_of_last_batch(
    claim: BatchClaim, known_batches: KnownBatches, previous_start: Position | None
) -> bool:
    """Return whether a claim has the end of the last batch that included the shard.

    If `previous_start` is None, the previous batch did not include the shard, so an earlier one did.
    """
    if not known_batches.has(claim):
        return False
    if previous_start is None:
        return claim.batch < known_batches.last
    return (claim.batch, claim.start) == (known_batches.last, previous_start)


def find_unknown_claims(
    rows: Iterable[Lease], worker: str, known_batches: KnownBatches
) -> list[tuple[Lease, BatchClaim]]:
    """Return the rows with this worker's claims of batches that the checkpoint location has no record of.

    Such a batch is later than the location's last one, or another run of the driver planned it. So the location was
    restored from a copy, or another driver works from a copy.
    """
    claims = ((row, row.claim_of(worker)) for row in rows)
    return [(row, claim) for row, claim in claims if claim is not None and not known_batches.has(claim)]


def last_claimed_batch(rows: Iterable[Lease], worker: str) -> int:
    """Return the highest batch that a query has claimed on any of these leases; -1 if it has claimed none."""
    claims = (row.claim_of(worker) for row in rows)
    return max((claim.batch for claim in claims if claim is not None), default=-1)


def may_promote(lease: Lease, worker: str, known_batches: KnownBatches, done_through: Position) -> bool:
    """Return whether the end of the query's claim may become the checkpoint now; the checkpoint only moves forwards.

    The claim may be of an earlier batch, if later batches read nothing of the shard.

    Args:
        known_batches: The batches up to the last one that is done.
        done_through: Everything in the shard up to and including this position is done.
    """
    claim = lease.claim_of(worker)
    return claim is not None and known_batches.has(claim) and lease.checkpoint < claim.end <= done_through
