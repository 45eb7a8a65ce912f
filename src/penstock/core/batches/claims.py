"""The claim protocol: how the end of a batch becomes durable although it is found only while reading.

A task reads a shard from the batch's start until its limit or the tip, and before it finishes it *claims* the end on the
lease. The first claim of a batch is final. Every other execution of the batch (a retry, a speculative copy, a second
action, a replay after a crash) finds the claim and reads exactly up to it. So every execution that Spark accepts holds the
same records, whoever had the lease in between: a claim is in an attribute of its own, which no other worker's write clears.
When the next batch is planned, the batch before is done, and the next one starts at its claims.

A task that may not read (another worker has the lease, or another worker's checkpoint is past the start) claims that the
batch holds nothing of the shard, so that this too is the same in every execution.

A driver remembers which claim it saw on each shard when it planned. A claim that is neither that one nor one of the batch
itself was made by another driver, which works from the same checkpoint location and has gone on since. If the claim is
gone, the row was created anew (after somebody emptied the table) and nothing has been claimed on it since. Then the batch is
read from its start, at-least-once, as if the whole row were gone. An execution under which the claim goes is repeated instead:
its driver may have gone too, and the next one has set the lease back. A number alone does not name a batch
(`penstock.core.batches.known_batches`): a claim counts as one of a batch only if the same run of the driver planned it.

A claim keeps the ranges of a few batches before it. A driver that was paused in the middle of one of them finishes it with the
same records, because its sink may have begun to overwrite what the successor wrote. Nothing is known of an older batch: the
task fails, and never gives fewer records instead.

Three questions are answered here, each by a pure function:

- `plan_read`: a task looks at its lease: where does it read to?
- `judge_refused_claim`: a claim was refused: what stands there, and what does that mean for what was read?
- `resolve_start`: the driver plans the next batch: where does each shard start?
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
"""Claims of other workers that a row keeps at the most; the oldest go first."""

PAST_CLAIMS_MAX: Final = 4
"""Earlier batches whose ranges a claim keeps: with them a row stays below the kilobyte that one write unit buys."""

_NOTE_FORMAT: Final = 3
_NOTE_LENGTH: Final = 12
_NOTE_LENGTH_MIN: Final = 9


class ClaimNote(Struct, frozen=True):
    """What a task tells the driver beside its claim.

    Args:
        has_more: Something was left to read behind the end, before the moment up to which the query reads.
        tip_ms: Moment at which nothing at all was left behind the end, by the service's clock, or None.
        whole_record: The end is the last user record of its Kinesis record.
        record_count: User records in the range.
        bytes_count: Bytes of user data in the range.
        millis_behind_latest: Age of the oldest record behind the end, or 0 at the tip; None when it is not known.
        last_arrival_ms: Arrival of the last record of the range, or None when it is empty.
        children: The shards that follow, when the end is SHARD_END.
        kept_iterator: The task began with an iterator that its process had kept from an earlier batch.
        query: Spark's id of the streaming query, or None where Spark does not tell.
        process: Tells the process that made the claim from the others that read the batch; None in older claims.
        pushed_count: User records in the range that a subscription brought.
        push_ends: How often subscriptions ended under the reading, by the reason.
    """

    has_more: bool = False
    tip_ms: int | None = None
    whole_record: bool = True
    record_count: int = 0
    bytes_count: int = 0
    millis_behind_latest: int | None = 0
    last_arrival_ms: int | None = None
    children: tuple[ChildShard, ...] = ()
    kept_iterator: bool = False
    query: str | None = None
    process: str | None = None
    pushed_count: int = 0
    push_ends: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode for the claim's `note`."""
        document: list[Any] = [
            _NOTE_FORMAT,
            self.has_more + 2 * self.whole_record + 4 * self.kept_iterator,
            self.tip_ms,
            self.record_count,
            self.bytes_count,
            self.millis_behind_latest,
            self.last_arrival_ms,
            self.query,
            self.process,
            self.pushed_count,
            dict(self.push_ends),
            [
                [child.shard_id, list(child.parents), str(child.hash_range.start), str(child.hash_range.end)]
                for child in self.children
            ],
        ]
        while len(document) > _NOTE_LENGTH_MIN and not document[-1]:  # neither children nor a subscription
            document.pop()
        return json.dumps(document, separators=(",", ":")).encode()


def parse_note(note: bytes) -> ClaimNote | None:
    """Read a note; None for a claim that fixes nothing but that its batch holds nothing, or for damaged bytes."""
    try:
        found = json.loads(note)
        if found[0] != _NOTE_FORMAT:
            return None
        found += [None] * (_NOTE_LENGTH - len(found))
        _, flags, tip_ms, records, size, behind_ms, arrival_ms, query, process, pushed, ends, children = found
        return ClaimNote(
            has_more=bool(flags & 1),
            tip_ms=tip_ms,
            whole_record=bool(flags & 2),
            record_count=int(records or 0),
            bytes_count=int(size or 0),
            millis_behind_latest=behind_ms,
            last_arrival_ms=arrival_ms,
            children=tuple(
                ChildShard(shard_id, tuple(parents), HashRange(int(low), int(high)))
                for shard_id, parents, low, high in children or ()
            ),
            kept_iterator=bool(flags & 4),
            query=query,
            process=process,
            pushed_count=int(pushed or 0),
            push_ends=dict(ends or {}),
        )
    except (ValueError, LookupError, TypeError, PositionError):
        return None


# --- a task looks at its lease ---------------------------------------------------------------------------


class Execution(Struct, frozen=True):
    """One batch in one shard, as the driver gave it out.

    Args:
        worker: The query's worker id.
        batch: The batch's number.
        run: The life of the driver that gave it out.
        start: Where the batch starts in this shard.
        seen: The query's own claim as the driver saw it, as (batch, run), or None where there was none.
        planned_by: The life of the driver that planned it, as its offset says; None where that is not known.
    """

    worker: str
    batch: int
    run: str
    start: Position
    seen: tuple[int, str] | None = None
    planned_by: str | None = None


class ReadFreely(Struct, frozen=True):
    """No end is fixed yet: read to the limit or the tip, then claim."""


class ReadTo(Struct, frozen=True):
    """An execution of this batch has fixed the end: read exactly up to and including it."""

    end: Position


class NothingReason(Enum):
    """Why a batch holds nothing of a shard."""

    LEASE_LOST = "another worker has the lease now and reads on from its checkpoint"
    DONE_ELSEWHERE = (
        "another worker's checkpoint has passed the batch's start: what follows it comes in the next batch"
    )


class ReadNothing(Struct, frozen=True):
    """The batch holds nothing of the shard: claim that, and return no records."""

    reason: NothingReason


class ClaimedElsewhere(Struct, frozen=True):
    """Another driver has claimed from the same checkpoint location: fail, so that no sink sees the batch."""

    claim: BatchClaim


class ReadUnclaimed(Struct, frozen=True):
    """The lease is gone, so no end can be fixed: read to the tip, at-least-once, and say so loudly."""


ReadPlan: TypeAlias = ReadFreely | ReadTo | ReadNothing | ClaimedElsewhere | ReadUnclaimed


def plan_read(lease: Lease | None, execution: Execution) -> ReadPlan:
    """Decide what an execution of a batch reads in one shard.

    Args:
        lease: The shard's lease as it stands, or None when the row is gone.
        execution: The batch.
    """
    if lease is None:
        return ReadUnclaimed()
    claim = lease.claim_of(execution.worker)
    end = None if claim is None else claim.end_of(execution.batch, execution.start, execution.planned_by)
    if end is not None:
        return ReadTo(end)
    if claim is not None and claim.identity != execution.seen:
        return ClaimedElsewhere(claim)
    if lease.reader != execution.worker:
        return ReadNothing(NothingReason.LEASE_LOST)
    if _is_passed(execution.start, lease):
        # While the lease was this query's, no checkpoint passed the start of its batch.
        return ReadNothing(NothingReason.DONE_ELSEWHERE)
    return ReadFreely()


def _is_passed(position: Position, lease: Lease) -> bool:
    # A starting point on the lease says nothing of what was read: a shard that has a parent is read from its beginning also
    # where its row says LATEST, which is "further on" than TRIM_HORIZON.
    return lease.checkpoint.is_in_shard and position < lease.checkpoint


# --- a claim was refused ---------------------------------------------------------------------------------


class RefusedClaim(Enum):
    """What a refused claim means for the task that wrote it."""

    AGREES = "the end that stands is the one that was read to"
    READ_ON = "the end that stands is further on: read on to it"
    REPEAT = "the end that stands comes before what was given out: the task must be repeated"
    CLAIM_AGAIN = "the row changed, but no end is fixed: claim again with what stands there now"
    MADE_ANEW = (
        "the claim before is gone, so the row was set back or made anew meanwhile: the task must be repeated"
    )
    LOST = "the lease is another worker's now, and no end was fixed before: the task must be repeated"
    ANOTHER_DRIVER = "another driver has claimed from the same checkpoint location"
    GONE = "the lease does not exist any more"


def judge_refused_claim(
    row: Lease | None, execution: Execution, mine: Position, before: tuple[int, str] | None = None
) -> tuple[RefusedClaim, Position]:
    """Decide what to do after a refused claim.

    Args:
        row: The lease as it stands now.
        execution: The batch.
        mine: The end that this execution read to.
        before: The query's own claim that was to be replaced, as (batch, run), or None where none was seen.

    Returns:
        What it means, and the end that stands (`mine` where none does).
    """
    plan = plan_read(row, execution)
    # The query began anew from an earlier state of its location, and this task is of the driver before. A claim of it would move
    # the checkpoint past what is to be read again, and stop the new driver when it comes to this shard.
    is_anew = row is not None and before is not None and row.claim_of(execution.worker) is None
    match plan:
        case ReadUnclaimed():
            return (RefusedClaim.GONE, mine)
        case ReadFreely():
            return (RefusedClaim.MADE_ANEW if is_anew else RefusedClaim.CLAIM_AGAIN, mine)
        case ReadNothing():
            return (RefusedClaim.MADE_ANEW if is_anew else RefusedClaim.LOST, mine)
        case ClaimedElsewhere():
            return (RefusedClaim.ANOTHER_DRIVER, mine)
        case ReadTo(end):
            if end == mine:
                return (RefusedClaim.AGREES, end)
            return (RefusedClaim.READ_ON if mine < end else RefusedClaim.REPEAT, end)
        case _:
            assert_never(plan)


def plan_dropped_claims(lease: Lease, worker: str, kept_after_ms: int) -> tuple[tuple[str, int], ...]:
    """Return the claims of other workers that a claim drops.

    A claim is needed as long as its batch can be repeated: until its records have left the stream. A query that has gone
    for good leaves its claim behind, so the row keeps a bounded number of them.

    Args:
        lease: The row.
        worker: Whose claim is to be written.
        kept_after_ms: Claims made before this moment hold only records that have left the stream.

    Returns:
        (worker, batch) of each claim that goes, in the order of workers.
    """
    others = [claim for claim in lease.claims if claim.worker != worker]
    oldest = sorted(others, key=lambda claim: claim.made_ms)[: max(0, len(others) - CLAIMS_MAX)]
    gone = [claim for claim in others if claim.made_ms < kept_after_ms or claim in oldest]
    return tuple((claim.worker, claim.batch) for claim in gone)


# --- the driver plans the next batch ---------------------------------------------------------------------


class StartReason(Enum):
    """Where a shard's start comes from."""

    CLAIMED = "the end that was claimed last"
    CHECKPOINT = "the lease's checkpoint"
    NOT_READ = "the batch before did not read the shard to an end: its start again"
    LEASE_GONE = "the lease was deleted: the start of the batch before again"


class BatchStart(Struct, frozen=True):
    """Where a shard starts in the next batch, and why."""

    position: Position
    reason: StartReason
    note: ClaimNote | None = None


def resolve_start(
    lease: Lease | None, worker: str, known: KnownBatches, planned: Position | None
) -> BatchStart | None:
    """Decide where the next batch starts in one shard.

    Args:
        lease: The shard's lease, or None when the row is gone.
        worker: The query's worker id.
        known: The batches up to the one before, which is done.
        planned: Where that batch started in this shard, or None when it did not include the shard.

    Returns:
        The start; None when nothing is known of the shard (no lease, and not in the batch before).
    """
    if lease is None:
        return None if planned is None else BatchStart(planned, StartReason.LEASE_GONE)
    claim = lease.claim_of(worker)
    is_done = (
        claim is not None
        and known.has(claim)
        and (
            claim.batch < known.last
            if planned is None
            else (claim.batch, claim.start) == (known.last, planned)
        )
    )
    if claim is not None and is_done and not _is_passed(claim.end, lease):
        note = parse_note(claim.note)
        if note is not None or claim.end != lease.checkpoint:
            return BatchStart(claim.end, StartReason.CLAIMED, note)
    if planned is None or is_done or _is_passed(planned, lease):
        # Somebody else had it meanwhile and went on: while it was ours, the checkpoint never passed the start.
        return BatchStart(lease.checkpoint, StartReason.CHECKPOINT)
    return BatchStart(planned, StartReason.NOT_READ)


def find_unknown_claims(
    rows: Iterable[Lease], worker: str, known: KnownBatches
) -> list[tuple[Lease, BatchClaim]]:
    """Return the rows, and their claims of a query, whose batches the query's checkpoint location does not know.

    They are later than its last one, or another run of the driver planned them: the location was restored from a copy, or
    another driver works from one.
    """
    claims = ((row, row.claim_of(worker)) for row in rows)
    return [(row, claim) for row, claim in claims if claim is not None and not known.has(claim)]


def last_claimed_batch(rows: Iterable[Lease], worker: str) -> int:
    """Return the highest batch that a query has claimed on any of these leases; -1 where it has claimed none."""
    claims = (row.claim_of(worker) for row in rows)
    return max((claim.batch for claim in claims if claim is not None), default=-1)


def may_promote(lease: Lease, worker: str, known: KnownBatches, done: Position) -> bool:
    """Whether a claim that stands on a lease may become the checkpoint now.

    Only forwards. A claim of an earlier batch counts too: the shard had nothing to read since.

    Args:
        lease: The lease as it stands.
        worker: The query's worker id.
        known: The batches up to the last one that is done.
        done: Where the shard goes on: everything up to and including it is done.
    """
    claim = lease.claim_of(worker)
    return claim is not None and known.has(claim) and lease.checkpoint < claim.end <= done
