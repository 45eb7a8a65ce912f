"""The shards of one streaming query: a pure machine between the lease coordinator and the claim protocol.

The coordinator (`core.coordinator`) says which shards are this query's: `StartReader` and `StopReader`. The claims
(`core.claims`) say where each was read to. A batch runs between two looks at the table and cannot be told to stop, so
shards come and go between batches only:

- `settle` is called when a batch is done: every shard's next start is resolved from its row.
- `hand_back` answers the coordinator for shards that are to go, with what is done in them; `drained` for those that are
  read to their end. Both are the reader's last word on a shard, as for the plain consumer.
- `promotions` are the claims that may become checkpoints while nothing else is to do.
- `next_offset` begins the next batch with what is left.

The simulator runs this very machine (`penstock.sim`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.core.claims import ClaimNote, Start, StartReason, may_promote, resolve_start
from penstock.core.coordination import (
    ReaderProgress,
    ReaderStopped,
    ShardDrained,
    StartReader,
    StopReader,
    StopWhy,
)
from penstock.core.lease import Lease, Promote
from penstock.core.offsets import Limit, StreamOffset
from penstock.core.position import Position
from penstock.core.shard import ChildShard
from penstock.core.starting import pin_latest

_GONE_BY_FORCE: Final = frozenset({StopWhy.LOST, StopWhy.EXPIRED})


@dataclass(slots=True)
class ShardState:
    """What is known of one shard between batches.

    Args:
        position: Where the next batch starts.
        has_news: Something is there to read.
        is_whole: No user record follows behind `position` in its own Kinesis record.
        is_finished: Closed, and nothing left: ready to end.
        children: What follows a finished shard.
        millis_behind_latest: As last heard.
        tip_seen_ms: Moment when nothing was left behind `position`, or None.
        iterator: Kept for the next probe.
        due_s: Earliest next probe, on the monotonic clock.
        arrival_ms: Arrival of the first unread record, when a probe saw it.
        bytes_count: Bytes of the last batch; how heavy the shard is.
    """

    position: Position
    has_news: bool = False
    is_whole: bool = False
    is_finished: bool = False
    children: tuple[ChildShard, ...] = ()
    millis_behind_latest: int = 0
    tip_seen_ms: int | None = None
    iterator: str | None = None
    due_s: float = float("-inf")
    arrival_ms: int | None = None
    bytes_count: int = 0


def state_after(position: Position, note: ClaimNote | None, now_ms: int) -> ShardState:
    """Give a shard's state after a batch that ended at `position`, from what its task told."""
    if note is None:
        return ShardState(position, is_whole=not position.is_record)
    return ShardState(
        position,
        has_news=not note.at_tip,
        is_whole=note.whole_record or not position.is_record,
        is_finished=position.is_shard_end,
        children=note.children,
        millis_behind_latest=note.millis_behind_latest,
        tip_seen_ms=now_ms if note.at_tip else None,
        bytes_count=note.bytes_count,
    )


def plan_recreation(
    rows: Mapping[str, Lease], known: StreamOffset, parents_of: Mapping[str, Iterable[str]]
) -> dict[str, Position]:
    """Say which leases an offset knows and the table does not, and where they start.

    A shard whose child, or child's child, has a lease is done: its own was cleared away.

    Args:
        rows: The lease table.
        known: The offset.
        parents_of: Shard id to parents' ids, as far as it is known; rows know their own parents.
    """
    done: set[str] = set()
    todo = [parent for row in rows.values() for parent in row.parents]
    while todo:
        key = todo.pop()
        if key not in done:
            done.add(key)
            todo.extend(parents_of.get(key, ()))
    return {key: position for key, position in known.shards.items() if key not in rows and key not in done}


class Surprise(Enum):
    """What a user should hear of when a batch is settled."""

    REWOUND = "the checkpoint location is older than the lease"
    NOT_READ = "the batch did not read the shard to its end"
    LEASE_GONE = "the lease was deleted"


@dataclass(slots=True)
class _Held:
    """A shard that the coordinator gave to this query."""

    epoch: int
    position: Position
    leaving: StopWhy | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a done batch came to.

    Args:
        record_count: User records of the batch, as its tasks told.
        bytes_count: Bytes of user data.
        claim_count: Shards whose end its tasks claimed.
        kept_iterator_count: Of those, how many were begun with an iterator that was kept from an earlier batch.
        surprises: Shards whose start is not simply the end of the batch before, and why.
        progress: For the coordinator's watch and its balance by throughput.
    """

    record_count: int
    bytes_count: int
    claim_count: int
    kept_iterator_count: int
    surprises: tuple[tuple[str, Surprise], ...]
    progress: tuple[ReaderProgress, ...]


class QueryShards:
    """Which shards the query has, and where each stands. Not thread-safe.

    Args:
        worker: The query's worker id.
    """

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.states: dict[str, ShardState] = {}
        self._held: dict[str, _Held] = {}
        self._last = StreamOffset()
        self._settled_batch: int | None = None
        self._settled_s: float | None = None
        self._promotions: dict[str, Promote] = {}
        self._given_back: dict[str, tuple[ShardState, Promote | None]] = {}
        self._last_batch = 0

    @property
    def is_settled(self) -> bool:
        """Whether no batch is under way as far as this machine knows."""
        return self._settled_batch is not None

    def is_settled_for(self, batch: int) -> bool:
        """Whether this batch was the one that was settled last."""
        return self._settled_batch == batch

    @property
    def held(self) -> frozenset[str]:
        """The shards that are the query's now, those on their way out included."""
        return frozenset(self._held)

    # --- the coordinator's word -----------------------------------------------------------------------

    def start(self, effect: StartReader, now_ms: int) -> None:
        """Take a shard in. It is read from the next batch on."""
        held = self._held[effect.key] = _Held(effect.epoch, effect.position)
        if self.is_settled:
            state = self._begin_again(held, effect, now_ms)
            if state is not None:
                self.states[effect.key] = state

    def _begin_again(self, held: _Held, effect: StartReader, now_ms: int) -> ShardState | None:
        given = self._given_back.pop(effect.key, None)
        if given is not None and not (held.position.is_record and given[0].position < held.position):
            # It was this query's a moment ago. The row that came with the word can be older than its last claim.
            if given[1] is not None:
                self._promotions[effect.key] = given[1]
            return given[0]
        begin = (
            Start(held.position, StartReason.CHECKPOINT)
            if given is not None
            else self._begin(held, effect.lease, self._last.shards.get(effect.key), self._last.batch)
        )
        if begin is None:
            return None
        if may_promote(effect.lease, self.worker, self._last.batch, begin.position):
            self._plan_promotion(effect.lease)
        return state_after(pin_latest(begin.position, now_ms), begin.note, now_ms)

    def stop(self, effect: StopReader) -> None:
        """Note that a shard is to go; `hand_back` answers when no batch is under way."""
        held = self._held.get(effect.key)
        if held is not None and held.epoch == effect.epoch and held.leaving not in _GONE_BY_FORCE:
            held.leaving = effect.why

    # --- a batch is done ------------------------------------------------------------------------------

    def settle(self, start: StreamOffset, rows: Mapping[str, Lease], now_ms: int, now_s: float) -> Settlement:
        """Resolve where every shard goes on, now that the batch of this offset is done.

        Args:
            start: The done batch's offset.
            rows: The lease table as it stands after the batch.
            now_ms: Time of day.
            now_s: Monotonic seconds.
        """
        self.states = {}
        self._promotions = {}
        self._given_back = {}
        surprises: list[tuple[str, Surprise]] = []
        progress: list[ReaderProgress] = []
        elapsed_s = None if self._settled_s is None else now_s - self._settled_s
        notes: list[ClaimNote] = []
        for key, held in sorted(self._held.items()):
            row = rows.get(key)
            if row is not None and row.reader != self.worker:
                held.leaving = StopWhy.LOST  # handed back with what its tasks have claimed, if anything
            begin = self._begin(held, row, start.shards.get(key), start.batch)
            if begin is None:
                continue
            surprise = _surprise(key, begin.reason, start)
            if surprise is not None:
                surprises.append((key, surprise))
            state = self.states[key] = state_after(pin_latest(begin.position, now_ms), begin.note, now_ms)
            if begin.note is not None:
                notes.append(begin.note)
            if row is not None and may_promote(row, self.worker, start.batch, state.position):
                self._plan_promotion(row)
            progress.append(_progress(key, held.epoch, state, elapsed_s))
        claimed = (row.claim_batch for row in rows.values() if row.claim_batch is not None)
        self._last_batch = max(start.batch, self._last_batch, max(claimed, default=0))
        self._last, self._settled_batch, self._settled_s = start, start.batch, now_s
        return Settlement(
            record_count=sum(note.record_count for note in notes),
            bytes_count=sum(note.bytes_count for note in notes),
            claim_count=len(notes),
            kept_iterator_count=sum(note.kept_iterator for note in notes),
            surprises=tuple(surprises),
            progress=tuple(progress),
        )

    def _begin(self, held: _Held, row: Lease | None, planned: Position | None, batch: int) -> Start | None:
        is_lost = row is not None and row.reader != self.worker
        if row is not None and is_lost and (row.claim_worker, row.claim_batch) != (self.worker, batch):
            return None  # whoever has it goes on from its checkpoint
        begin = resolve_start(row, self.worker, batch, planned)
        if planned is not None:
            return begin
        # What the coordinator says can be ahead of the row (an earlier reader's last word) or be another beginning.
        is_ahead = begin is not None and (begin.position.is_record or begin.position.is_shard_end)
        if begin is not None and is_ahead and not begin.position < held.position:
            return begin
        return Start(held.position, StartReason.CHECKPOINT)

    def _plan_promotion(self, row: Lease) -> None:
        end, batch = row.pending, row.claim_batch
        if end is not None and batch is not None and end.is_record:  # the shard's end has a write of its own
            self._promotions[row.key] = Promote(row.key, self.worker, batch, end)

    # --- between batches ------------------------------------------------------------------------------

    def drained(self) -> list[ShardDrained]:
        """Give up the shards that are read to their end: children first, then the end, is the coordinator's."""
        events = []
        for key in sorted(key for key, state in self.states.items() if state.is_finished):
            held = self._held.pop(key)
            state = self.states.pop(key)
            self._given_back[key] = (state, None)
            events.append(ShardDrained(key, held.epoch, state.children))
        return events

    def hand_back(self) -> list[ReaderStopped]:
        """Give up the shards that are to go, with what is done in them; nothing while a batch is under way."""
        if not self.is_settled:
            return []
        leaving = [key for key, held in sorted(self._held.items()) if held.leaving is not None]
        return [self._give_back(key) for key in leaving]

    def hand_back_all(self) -> list[ReaderStopped]:
        """Give up every shard: the query ends while no batch is under way."""
        if not self.is_settled:
            return []
        return [self._give_back(key) for key in sorted(self._held)]

    def _give_back(self, key: str) -> ReaderStopped:
        held = self._held.pop(key)
        state = self.states.pop(key, None)
        promotion = self._promotions.pop(key, None)
        if state is None or not state.position.is_record:
            return ReaderStopped(key, held.epoch, None)
        self._given_back[key] = (state, promotion)
        return ReaderStopped(key, held.epoch, state.position)

    def promotions(self) -> list[Promote]:
        """Give the claims of the done batch that may become checkpoints."""
        return list(self._promotions.values())

    def note_promoted(self, keys: Iterable[str]) -> None:
        """Take in that promotions were written, or will never be."""
        for key in keys:
            self._promotions.pop(key, None)

    # --- the next batch -------------------------------------------------------------------------------

    def next_offset(
        self,
        start: StreamOffset,
        wanted: Iterable[str],
        *,
        stream: tuple[str, int],
        record_count_max: int | None,
        bytes_max: int | None,
        until_ms: int | None,
    ) -> StreamOffset:
        """Begin the next batch: it starts where every shard stands now.

        Args:
            start: The offset of the batch before, which is settled.
            wanted: The shards that have something to read.
            stream: The stream's ARN and its moment of creation in milliseconds.
            record_count_max: User records in the batch, or None.
            bytes_max: Bytes of user data in the batch, or None.
            until_ms: Records that arrived at or after it stay for later, or None.
        """
        batch = self._last_batch = max(self._last_batch, start.batch) + 1
        limit = None
        if record_count_max is not None or bytes_max is not None or until_ms is not None:
            ordered = sorted(wanted)
            turn = batch % len(ordered)
            limit = Limit(record_count_max, bytes_max, tuple(ordered[turn:] + ordered[:turn]))
        return StreamOffset(
            batch=batch,
            worker=start.worker or self.worker,
            stream_arn=stream[0],
            stream_created_ms=stream[1],
            shards={key: state.position for key, state in self.states.items()},
            until_ms=until_ms,
            limit=limit,
        )

    def batch_begins(self) -> None:
        """Take in that tasks were given out: nothing moves until the next `settle`."""
        self._settled_batch = None


def _surprise(key: str, reason: StartReason, start: StreamOffset) -> Surprise | None:
    if reason is StartReason.REWOUND:
        return Surprise.REWOUND
    if reason is StartReason.LEASE_GONE:
        return Surprise.LEASE_GONE
    if reason is StartReason.NOT_READ and (start.limit is None or key in start.limit.shards):
        return Surprise.NOT_READ
    return None


def _progress(key: str, epoch: int, state: ShardState, elapsed_s: float | None) -> ReaderProgress:
    speed = None if not elapsed_s or elapsed_s <= 0 else state.bytes_count / 1024 / elapsed_s
    return ReaderProgress(key, epoch, str(state.position), state.millis_behind_latest, speed)
