"""The state of a query's shards between two batches, and the result of a batch, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from penstock.core.batches.claims import BatchStart, ClaimNote, StartReason
from penstock.core.leases.coordinator_events import ReaderProgress
from penstock.core.leases.lease import Lease, TipMark
from penstock.core.position import Position
from penstock.core.shard import ChildShard
from penstock.core.starting import pin_latest


class ShardState(Struct):
    """State of one shard between batches.

    Args:
        position: Where the next batch starts.
        has_news: The shard has unread records.
        is_whole_record: The Kinesis record at `position` has no further user records.
        is_finished: The shard is closed and read to its end, so its lease can end.
        children: The child shards of a finished shard; empty if they are not known yet.
        millis_behind_latest: Last reported age of the oldest unread record, 0 at the tip; None if it is not known.
        tip_seen_ms: Moment when no record was after `position`, by the service's clock, or None.
        iterator: The shard iterator for the next probe; None if the probe has to fetch one.
        due_s: Earliest next probe, on the monotonic clock.
        arrival_ms: Arrival of the first unread record; None unless a probe has returned that record.
        bytes_count: Bytes of user data of the last batch, as the shard's weight.
        unread_since_ms: Earliest possible arrival of the records after `position`, by the service's clock; None if it is not
            known. It needs a probe that has found the record at `position`, and `iterator` to read on from there.
        is_probed: A probe of this run has shown whether there are records to read.
        is_foreign: `position` is the checkpoint of a worker that does not record tip marks.
    """

    position: Position
    has_news: bool = False
    is_whole_record: bool = False
    is_finished: bool = False
    children: tuple[ChildShard, ...] = ()
    millis_behind_latest: int | None = None
    tip_seen_ms: int | None = None
    iterator: str | None = None
    due_s: float = float("-inf")
    arrival_ms: int | None = None
    bytes_count: int = 0
    unread_since_ms: int | None = None
    is_probed: bool = False
    is_foreign: bool = False

    def has_records_before(self, until_ms: int | None) -> bool:
        """Return whether unread records arrived before a moment (None: at any time); True if their arrival is not known."""
        return self.has_news and (until_ms is None or self.arrival_ms is None or self.arrival_ms < until_ms)

    @property
    def tip(self) -> TipMark | None:
        """Return the tip mark for the lease; None if `position` is not a record, or was not seen at the tip."""
        if self.tip_seen_ms is None or not self.position.is_record:
            return None
        return TipMark(self.position, self.tip_seen_ms)


def state_at_start(next_start: BatchStart, row: Lease | None, now_ms: int) -> ShardState:
    """Return the state of a shard at its start in the next batch, before a probe.

    Args:
        next_start: The start. If a task claimed it as its end, the task's note has further fields of the state.
        row: The shard's lease, for its tip mark and the writer of its checkpoint; None if the lease is missing.
        now_ms: Time of day, to which a LATEST without a moment is pinned.
    """
    position, note = pin_latest(next_start.position, now_ms), next_start.note
    tips = (None if note is None else note.tip_ms, None if row is None else row.tip_ms_at(position))
    # Of two tip marks the later one counts.
    tip_ms = max((each for each in tips if each is not None), default=None)
    if note is None:
        is_foreign = row is not None and row.checkpoint == position and row.has_foreign_checkpoint
        return ShardState(
            position,
            is_whole_record=not position.is_record,
            is_finished=position.is_shard_end,
            tip_seen_ms=tip_ms,
            is_foreign=is_foreign,
        )
    return ShardState(
        position,
        has_news=note.has_more,
        is_whole_record=note.is_whole_record or not position.is_record,
        is_finished=position.is_shard_end,
        children=note.children,
        millis_behind_latest=note.millis_behind_latest,
        tip_seen_ms=tip_ms,
        bytes_count=note.bytes_count,
    )


class Settlement(Struct, frozen=True):
    """Result of a batch that is done.

    Args:
        record_count: User records of the batch, from its claims.
        bytes_count: Bytes of user data.
        claim_count: Shards in which a task claimed the batch's end.
        kept_iterator_count: Of these, shards whose task began with an iterator from an earlier batch.
        unexpected_starts: Each shard that does not start at the end of the previous batch, with the reason.
        progress: For the coordinator, which reports stalled shards and balances by throughput.
        queries: Spark's ids of the queries whose tasks made the claims of this worker.
        processes: The processes that made the claims.
        pushed_count: User records of the batch that a subscription delivered.
        subscription_ends: Number of subscriptions that ended during reads, by reason.
    """

    record_count: int
    bytes_count: int
    claim_count: int
    kept_iterator_count: int
    unexpected_starts: tuple[tuple[str, StartReason], ...]
    progress: tuple[ReaderProgress, ...]
    queries: frozenset[str] = frozenset()
    processes: frozenset[str] = frozenset()
    pushed_count: int = 0
    subscription_ends: Mapping[str, int] = field(default_factory=dict)


class SettledShard(Struct, frozen=True):
    """One shard after a batch.

    Args:
        note: The note of the batch's claim in the shard; None if the batch did not read the shard.
        unexpected_start: Why the shard does not start at the end of the previous batch; None if it does.
        bytes_count: Bytes of user data that the batch read of the shard.
    """

    state: ShardState
    note: ClaimNote | None = None
    unexpected_start: StartReason | None = None
    bytes_count: int = 0


def settle_shard(
    next_start: BatchStart,
    row: Lease | None,
    now_ms: int,
    previous_state: ShardState | None,
    *,
    is_read: bool,
) -> SettledShard:
    """Return the state of a shard after a batch, with the reason if it does not start at the batch's end.

    Args:
        next_start: As for `state_at_start`; so are `row` and `now_ms`.
        previous_state: The shard's state before the batch, with the result of its last probe.
        is_read: Whether the batch read the shard.
    """
    state = state_at_start(next_start, row, now_ms)
    is_unexpected = next_start.reason is StartReason.LEASE_GONE or (
        is_read and next_start.reason is StartReason.NOT_READ
    )
    unexpected = next_start.reason if is_unexpected else None
    if is_read:
        return SettledShard(state, next_start.note, unexpected, state.bytes_count)
    if (
        previous_state is not None
        and previous_state.position == state.position
        and not previous_state.is_finished
    ):
        state = previous_state
    return SettledShard(state, unexpected_start=unexpected)


def settlement_of(settled: Mapping[str, SettledShard], progress: tuple[ReaderProgress, ...]) -> Settlement:
    """Return the result of a batch: the sums of its claims' notes."""
    notes = [each.note for each in settled.values() if each.note is not None]
    return Settlement(
        record_count=sum(note.record_count for note in notes),
        bytes_count=sum(note.bytes_count for note in notes),
        claim_count=len(notes),
        kept_iterator_count=sum(note.began_with_kept_iterator for note in notes),
        unexpected_starts=tuple(
            (key, each.unexpected_start) for key, each in settled.items() if each.unexpected_start is not None
        ),
        progress=progress,
        queries=frozenset(note.query for note in notes if note.query is not None),
        processes=frozenset(note.process for note in notes if note.process is not None),
        pushed_count=sum(note.pushed_count for note in notes),
        subscription_ends=sum((Counter(note.subscription_ends) for note in notes), Counter()),
    )
