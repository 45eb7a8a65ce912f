"""The shards of one streaming query: a pure machine between the lease coordinator and the claim protocol.

The coordinator (`penstock.core.leases.coordinator`) assigns shards to this query and takes them away: `StartReader` and
`StopReader`. The claims (`penstock.core.batches.claims`) have the end of a batch in each shard. A running batch cannot be
stopped, so shards are added and removed only between batches:

- `on_start_reader` and `on_stop_reader` handle the coordinator's commands.
- `settle` is called when a batch is done. It resolves every shard's next start from its row.
- `release_stopped` and `release_finished` release the shards that must stop and those that are read to their end. They return the
  answers for the coordinator; each is the last event about its shard, as from a reader of the plain consumer.
- `promotions` returns the claims that may become checkpoints while the query is idle.
- `next_offset` plans the next batch over the remaining shards.

The simulator runs this machine too (`penstock_sim`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import (
    BatchStart,
    StartReason,
    find_unknown_claims,
    may_promote,
    resolve_start,
)
from penstock.core.batches.known_batches import KnownBatches
from penstock.core.batches.offsets import SharedLimits, StreamOffset
from penstock.core.batches.several_offsets import serving_order
from penstock.core.batches.shard_state import (
    SettledShard,
    Settlement,
    ShardState,
    settle_shard,
    settlement_of,
    state_at_start,
)
from penstock.core.leases.coordinator_effects import StartReader, StopReader, StopWhy
from penstock.core.leases.coordinator_events import ReaderProgress, ReaderStopped, ShardDrained
from penstock.core.leases.lease import BatchClaim, Lease, SeenClaim, TipMark
from penstock.core.leases.lease_writes import Promote
from penstock.core.position import SHARD_END, Position
from penstock.core.shard import ChildShard
from penstock.core.stream_identity import StreamIdentity

_NO_CHILDREN: Final[Mapping[str, tuple[ChildShard, ...]]] = {}
_LEASE_IS_GONE: Final = frozenset({StopWhy.LOST, StopWhy.EXPIRED})


ENDED_MAX: Final = 10_000
"""Ended shards that an offset keeps, those with the highest ids: children of older ones are long taken."""


def list_ended_shards(
    logged_positions: Mapping[str, Position],
    parents_of_ended: Mapping[str, frozenset[str]],
    parents_of_unfinished: Mapping[str, frozenset[str]],
) -> dict[str, Position]:
    """Return the finished shards that the next offset lists at SHARD_END: those without a child in that offset.

    If the lease table is lost, only this entry, or that of a child, shows that the shard must not be read again.

    Args:
        logged_positions: Positions in the previous offset.
        parents_of_ended: The parents of each shard that was read to its end since the previous offset.
        parents_of_unfinished: The parents of each unfinished shard in the next offset.
    """
    ended = parents_of_ended.keys() | {key for key, place in logged_positions.items() if place.is_shard_end}
    with_child = frozenset().union(*parents_of_unfinished.values(), *parents_of_ended.values())
    return dict.fromkeys(sorted(ended - with_child - parents_of_unfinished.keys())[-ENDED_MAX:], SHARD_END)


class _HeldShard(Struct):
    """A shard that the coordinator assigned to this query; `stop_reason` is None unless the shard must be released."""

    epoch: int
    position: Position
    lease: Lease
    stop_reason: StopWhy | None = None


class QueryShards:
    """The query's shards and the position of each. Not thread-safe.

    Args:
        last_batch: Batches up to this number were claimed before the query began, whatever the offset says.
    """

    def __init__(self, worker: str, last_batch: int = 0) -> None:
        self.worker = worker
        self.states: dict[str, ShardState] = {}
        self._held: dict[str, _HeldShard] = {}
        self._settled_offset = StreamOffset()  # of the batch that was settled last
        self._settled_s: float | None = None  # when it was settled
        self.is_settled: bool = False  # no batch is under way
        self._promotions: dict[str, Promote] = {}  # claims of done batches that may become checkpoints
        # Shards released since the last batch was settled: they may be acquired again before the next one is settled.
        self._released: dict[str, tuple[ShardState, Promote | None]] = {}
        # Shards that were read to their end since the last batch began, with their parents.
        self._ended: dict[str, frozenset[str]] = {}
        self._last_claims: dict[str, SeenClaim] = {}  # the query's last seen claim of each shard
        self._rows_before_start: dict[str, Lease] = {}
        """Rows read to settle the last batch that name this query as the reader and whose StartReader had not arrived."""
        self.unverified_claims: set[str] = set()  # shards whose last seen claim may have been removed since
        self._last_batch_before_query = last_batch
        self._last_batch = last_batch  # the highest number of a batch so far: the next one is one higher

    def is_settled_for(self, batch: int) -> bool:
        """Whether this batch is the one that was settled last."""
        return self.is_settled and self._settled_offset.batch == batch

    @property
    def unprobed_shards(self) -> list[str]:
        """The shards that neither have new records nor were probed yet."""
        return sorted(key for key, state in self.states.items() if not state.has_news and not state.is_probed)

    @property
    def shard_ids(self) -> frozenset[str]:
        """The query's shards, including those that must stop."""
        return frozenset(self._held)

    # --- the coordinator's commands -----------------------------------------------------------------------

    def on_start_reader(self, effect: StartReader, now_ms: int) -> None:
        """Handle StartReader: add a shard for the next batch. It gets its state now, or from `settle` if a batch is under way."""
        held = self._held[effect.key] = _HeldShard(effect.epoch, effect.position, effect.lease)
        row = self._rows_before_start.pop(effect.key, effect.lease)
        if row.counter >= effect.lease.counter:  # a task has claimed on it since the coordinator read it
            effect = replace(effect, lease=row)
        if effect.lease.claim_of(self.worker) is None and effect.key in self._last_claims:
            # The row is older than the query's last claim, or that claim was dropped as too old: a new read shows which.
            self.unverified_claims.add(effect.key)
        # During a batch, keep the claim that its tasks expect: `find_replaced_claims` compares the row with it.
        if self.is_settled or effect.key not in self._last_claims:
            self.on_row(effect.lease)
        if self.is_settled:
            state = self._resume(held, effect, now_ms)
            if state is not None:
                self.states[effect.key] = state

    def _resume(self, held: _HeldShard, effect: StartReader, now_ms: int) -> ShardState | None:
        """Return the state from which to read an added shard; None if its row has another reader already.

        A shard that was released since the last batch keeps its state, unless the coordinator's position is later.
        """
        settled = self._settled_offset
        released = self._released.pop(effect.key, None)
        if released is None:
            next_start = self._next_start(
                held, effect.lease, settled.shards.get(effect.key), settled.known_batches
            )
            if next_start is None:
                return None
        else:
            state, promotion = released
            is_coordinator_ahead = held.position.is_record and state.position < held.position
            if not is_coordinator_ahead:
                # The row in the command can be older than the query's last claim on it.
                if promotion is not None:
                    self._promotions[effect.key] = promotion
                return state
            next_start = BatchStart(held.position, StartReason.CHECKPOINT)
        state = state_at_start(next_start, effect.lease, now_ms)
        if may_promote(effect.lease, self.worker, settled.known_batches, next_start.position):
            self._plan_promotion(effect.lease, state)
        return state

    def on_row(self, row: Lease) -> None:
        """Remember the query's claim on a row: the tasks of the next batch expect it there.

        The row may be older than one that was seen before. Batch numbers only grow, so the claim with the higher number
        counts.
        """
        claim = row.claim_of(self.worker)
        last = self.last_claim(row.key)
        if claim is not None and (last is None or claim.batch >= last[0]):
            self._last_claims[row.key] = SeenClaim(self.worker, claim.identity, row.counter)

    def on_fresh_rows(self, keys: Iterable[str], rows: Mapping[str, Lease]) -> None:
        """Replace the remembered claims of rows that were read just now; a missing claim is remembered as missing."""
        for key in keys:
            self.unverified_claims.discard(key)
            self._last_claims.pop(key, None)
            if key in rows:
                self.on_row(rows[key])

    def last_claim(self, key: str) -> tuple[int, str] | None:
        """Return the query's last seen claim of a shard, as (batch, run); None if it has none."""
        seen = self._last_claims.get(key)
        return None if seen is None else seen.identity

    def claims_of_another_driver(
        self, rows: Iterable[Lease], known_batches: KnownBatches
    ) -> list[tuple[str, BatchClaim]]:
        """Return claims that another driver has made in the query's name, by shard.

        The checkpoint location has no record of their batches. A claim from before the query's start is left out, and so is one
        that this driver has seen there already.
        """
        unknown = find_unknown_claims(rows, self.worker, known_batches)
        return [(row.key, claim) for row, claim in unknown if self._is_new(claim, self.last_claim(row.key))]

    def _is_new(self, claim: BatchClaim, last_claim: tuple[int, str] | None) -> bool:
        """Return whether a claim was made after the query began, and is not the one that this driver saw last."""
        # Older claims are no sign of another driver. Those on other workers' leases stay there, and an eventually consistent
        # read may return claims that were removed.
        return claim.batch > self._last_batch_before_query and claim.identity != last_claim

    def find_replaced_claims(
        self, start: StreamOffset, rows: Mapping[str, Lease]
    ) -> list[tuple[str, BatchClaim]]:
        """Return claims of earlier batches that the tasks of a done batch did not expect, by shard.

        The tasks expected the last claim that this driver saw. There are two possible causes for another one: while this driver was
        paused, another driver on an older copy of the checkpoint location has reset the lease; or the lease table was restored from a
        backup.
        """
        claims = ((key, rows[key].claim_of(self.worker)) for key in start.shares() if key in rows)
        return [
            (key, claim)
            for key, claim in claims
            if claim is not None
            and claim.batch < start.batch
            and start.known_batches.has(claim)
            and claim.identity != self.last_claim(key)
        ]

    def find_reset_claim(self, row: Lease) -> BatchClaim | None:
        """Return the query's claim on an acquired lease if it is older than one that this driver saw there, else None.

        Batch numbers on a lease only grow, unless another driver resets it, or the lease table is restored from a backup.
        """
        if not self.is_settled:  # `find_replaced_claims` checks the row when the batch is done
            return None
        later = self._rows_before_start.get(row.key, row)
        claim = (later if later.counter >= row.counter else row).claim_of(self.worker)
        last = self.last_claim(row.key)
        return claim if claim is not None and last is not None and claim.batch < last[0] else None

    def rows_to_read(self, start: StreamOffset) -> list[str]:
        """Return the shards whose leases are read to settle a batch: those in the batch, and those added since."""
        return sorted({*start.shares(), *(key for key in self._held if key not in self.states)})

    def find_unclaimed_shards(self, start: StreamOffset, rows: Mapping[str, Lease]) -> list[str]:
        """Return the shards of a done batch that belong to this query and have no claim of the batch."""
        found = []
        for key in start.shares():
            row = rows.get(key)
            if row is None or row.reader != self.worker:
                continue
            claim = row.claim_of(self.worker)
            if claim is None or claim.batch != start.batch or not start.known_batches.has(claim):
                found.append(key)
        return found

    def on_stop_reader(self, effect: StopReader) -> None:
        """Handle StopReader: mark a shard for release. `release_stopped` answers when no batch is under way."""
        held = self._held.get(effect.key)
        if held is not None and held.epoch == effect.epoch and held.stop_reason not in _LEASE_IS_GONE:
            held.stop_reason = effect.why

    # --- a batch is done ------------------------------------------------------------------------------

    def settle(
        self,
        start: StreamOffset,
        rows: Mapping[str, Lease],
        now_ms: int,
        now_s: float,
        keys_read: Collection[str] | None = None,
    ) -> Settlement:
        """Resolve the next start of every shard, now that the batch of this offset is done.

        A shard whose row was not read keeps its state and its planned promotion: the batch has not read the shard, and no
        other worker could replace the query's claim.

        Args:
            keys_read: The shards whose rows were read, at least `rows_to_read(start)`; None for all. A shard that was read and is
                not in `rows` has no lease.
        """
        unread = frozenset() if keys_read is None else self.states.keys() - set(keys_read)
        self._promotions = {} if keys_read is None else _without_keys(self._promotions, keys_read)
        self._released = {}
        self._rows_before_start = {
            key: row for key, row in rows.items() if key not in self._held and row.reader == self.worker
        }
        settled: dict[str, SettledShard] = {}
        shares = start.shares()
        for key, held in sorted(self._held.items()):
            if key in unread:
                settled[key] = SettledShard(self.states[key])
            else:
                found = self._settle_shard(key, held, rows.get(key), start, now_ms, is_read=key in shares)
                if found is not None:
                    settled[key] = found
        self.states = {key: each.state for key, each in settled.items()}
        elapsed_s = None if self._settled_s is None else now_s - self._settled_s
        progress = tuple(
            _progress_event(key, self._held[key].epoch, each.state, each.bytes_count, elapsed_s)
            for key, each in settled.items()
        )
        self._last_batch = max(start.batch, self._last_batch)
        self._settled_offset, self._settled_s, self.is_settled = start, now_s, True
        return settlement_of(settled, progress)

    def _settle_shard(
        self,
        key: str,
        held: _HeldShard,
        row: Lease | None,
        start: StreamOffset,
        now_ms: int,
        *,
        is_read: bool,
    ) -> SettledShard | None:
        """Resolve the next start of a shard from its row, and plan its promotion; None if another worker reads it now.

        Args:
            is_read: Whether the batch read the shard.
        """
        if row is not None:
            self.on_row(row)
            if row.reader != self.worker:
                held.stop_reason = StopWhy.LOST  # released with the end that its tasks claimed, if any
        next_start = self._next_start(held, row, start.shards.get(key), start.known_batches)
        if next_start is None:
            return None
        found = settle_shard(next_start, row, now_ms, self.states.get(key), is_read=is_read)
        if row is not None and may_promote(row, self.worker, start.known_batches, found.state.position):
            self._plan_promotion(row, found.state)
        return found

    def _next_start(
        self,
        held: _HeldShard,
        row: Lease | None,
        previous_start: Position | None,
        known_batches: KnownBatches,
    ) -> BatchStart | None:
        """Return a held shard's start after the last batch; None if another worker reads the shard now.

        A shard that another worker reads now has a start in two cases, and the query releases it there. The batch claimed an end
        that the other worker's checkpoint has not reached: the start is that end. Or the lease was deleted and another process has
        created it again, at a checkpoint before the batch: the start is the batch's.

        Args:
            previous_start: The last batch's start in the shard; None if the batch did not include the shard.
        """
        has_other_reader = row is not None and row.reader != self.worker
        if row is not None and has_other_reader and not self._has_end_ahead(row, known_batches):
            seen = self._last_claims.get(row.key)
            is_recreated = seen is not None and seen.predates(row)
            if previous_start is not None and is_recreated and row.checkpoint < previous_start:
                return BatchStart(previous_start, StartReason.LEASE_GONE)
            return None  # the lease's new reader goes on from the checkpoint
        start = resolve_start(row, self.worker, known_batches, previous_start)
        if previous_start is not None:
            return start
        # The batch did not include the shard, so the shard starts at the coordinator's position. That can be ahead of the row (an earlier
        # reader's checkpoint is written late) or another starting point. But if the row has a record or the shard's end at or after that
        # position, the shard starts there.
        is_exact = start is not None and (start.position.is_record or start.position.is_shard_end)
        if start is not None and is_exact and not start.position < held.position:
            return start
        return BatchStart(held.position, StartReason.CHECKPOINT)

    def _has_end_ahead(self, row: Lease, known_batches: KnownBatches) -> bool:
        """Return whether the last batch claimed an end in the shard that the row's checkpoint has not reached."""
        claim = row.claim_of(self.worker)
        return (
            claim is not None
            and claim.batch == known_batches.last
            and known_batches.has(claim)
            and not claim.end <= row.checkpoint
        )

    def _plan_promotion(self, row: Lease, state: ShardState) -> None:
        """Plan to make the claimed end of the done batch the checkpoint while the query is idle."""
        claim = row.claim_of(self.worker)
        if claim is not None and claim.end.is_record:  # SHARD_END is written with `End`
            tip_ms = state.tip_seen_ms if claim.end == state.position else None
            self._promotions[row.key] = Promote(row.key, self.worker, claim.batch, claim.end, tip_ms)

    def progress_of_idle_shards(self) -> list[ReaderProgress]:
        """Return the progress of the shards that have a tip mark, for the coordinator."""
        idle = [(key, state) for key, state in sorted(self.states.items()) if key in self._held and state.tip]
        return [_progress_event(key, self._held[key].epoch, state, 0, None) for key, state in idle]

    # --- between batches ------------------------------------------------------------------------------

    def childless_shards(self) -> list[str]:
        """Return the shards that are read to their end and whose claim names no children."""
        return sorted(key for key, state in self.states.items() if state.is_finished and not state.children)

    def find_recreated_leases(self, rows: Mapping[str, Lease]) -> frozenset[str]:
        """Return the shards whose leases may have been deleted and created again since the query got them.

        The counter of such a row shows this even before the coordinator has reported the loss. A lost lease that was only taken
        by another worker still has the query's claim; one on which the query never had a claim counts as created again.

        Args:
            rows: Current leases of a batch's shards, before `on_fresh_rows` handles them.
        """
        new = {key for key, seen in self._last_claims.items() if key in rows and seen.predates(rows[key])}
        return frozenset(
            new.union(
                key
                for key in self._lost_shards() & rows.keys()
                if key not in self._last_claims or rows[key].claim_of(self.worker) is None
            )
        )

    def _lost_shards(self) -> frozenset[str]:
        return frozenset(key for key, held in self._held.items() if held.stop_reason is StopWhy.LOST)

    def lost_positions(self) -> dict[str, TipMark]:
        """Return the position and tip moment of each shard whose lease was lost or deleted; none while a batch is under way."""
        lost = self._lost_shards() if self.is_settled else ()
        states = {key: self.states[key] for key in lost if key in self.states}
        return {key: TipMark(state.position, state.tip_seen_ms) for key, state in states.items()}

    def release_finished(
        self, listed_children: Mapping[str, tuple[ChildShard, ...]] = _NO_CHILDREN
    ) -> list[ShardDrained]:
        """Release the shards that are read to their end. The coordinator creates the children and then ends the leases.

        Args:
            listed_children: Children of shards in `childless_shards`, from a listing. Those without an entry are not released.
        """
        events = []
        waiting = set(self.childless_shards()) - listed_children.keys()
        for key in sorted(
            key for key, state in self.states.items() if state.is_finished and key not in waiting
        ):
            held = self._held.pop(key)
            state = self.states.pop(key)
            state.children = state.children or listed_children[key]
            self._released[key] = (state, None)
            self._ended[key] = held.lease.parents
            events.append(ShardDrained(key, held.epoch, state.children))
        return events

    def release_stopped(self) -> list[ReaderStopped]:
        """Release the shards that must stop, with their positions; none while a batch is under way."""
        if not self.is_settled:
            return []
        leaving = [key for key, held in sorted(self._held.items()) if held.stop_reason is not None]
        return [self._release(key) for key in leaving]

    def release_all(self) -> list[ReaderStopped]:
        """Release every shard, because the query ends; none while a batch is under way."""
        if not self.is_settled:
            return []
        return [self._release(key) for key in sorted(self._held)]

    def _release(self, key: str) -> ReaderStopped:
        """Release a shard, with its position. Its state is kept: it may be acquired again before the next batch is settled."""
        held = self._held.pop(key)
        state = self.states.pop(key, None)
        promotion = self._promotions.pop(key, None)
        if state is None or not state.position.is_record:
            return ReaderStopped(key, held.epoch, None)
        self._released[key] = (state, promotion)
        seen_claim = self._last_claims.get(key, SeenClaim(self.worker))
        return ReaderStopped(key, held.epoch, state.position, state.tip, seen_claim)

    def promotions(self) -> list[Promote]:
        """Return the claims of the done batch that may become checkpoints."""
        return list(self._promotions.values())

    def on_promoted(self, keys: Iterable[str]) -> None:
        """Drop promotions that were written or never will be."""
        for key in keys:
            self._promotions.pop(key, None)

    # --- the next batch -------------------------------------------------------------------------------

    def next_offset(
        self,
        start: StreamOffset,
        shard_ids: Iterable[str],
        *,
        run: str,
        stream: StreamIdentity,
        record_count_max: int | None,
        bytes_max: int | None,
        until_ms: int | None,
        deaggregates: bool = True,
        lease_table: str = "",
    ) -> StreamOffset:
        """Return the offset of the next batch: it starts at the current position of every shard.

        Args:
            shard_ids: The shards that the batch reads; at least one.
            until_ms: Records that arrived at or after this moment are left for later batches; None for no such moment.
        """
        batch = self._last_batch = max(self._last_batch, start.batch) + 1
        ordered = sorted(shard_ids)
        assert ordered, "a batch reads at least one shard"
        tips = ((key, self.states[key].tip_seen_ms) for key in ordered)
        parents = {key: self._held[key].lease.parents for key in self.states}
        return StreamOffset(
            batch=batch,
            worker=start.worker or self.worker,
            stream_arn=stream.arn,
            stream_created_ms=stream.created_ms,
            shards=list_ended_shards(start.shards, self._ended, parents)
            | {key: state.position for key, state in self.states.items()},
            until_ms=until_ms,
            limit=SharedLimits(record_count_max, bytes_max, tuple(serving_order(ordered, batch))),
            tips={key: tip_ms for key, tip_ms in tips if tip_ms is not None},
            deaggregates=deaggregates,
            runs=start.known_batches.runs_with(run),
            lease_table=lease_table,
        )

    def probe_again(self) -> None:
        """Make a new probe of every shard without news due at once, since records may have arrived after the last one.

        The answer to a probe under way changes only the old state, so it does not count.
        """
        for key, state in self.states.items():
            if not state.has_news and not state.is_finished:
                self.states[key] = replace(state, is_probed=False, due_s=float("-inf"))

    def on_batch_start(self) -> None:
        """Handle the start of a batch, after Spark has logged its offset: no shard is added or removed until the next `settle`."""
        self.is_settled = False
        self._ended.clear()


def _without_keys(promotions: Mapping[str, Promote], keys: Collection[str]) -> dict[str, Promote]:
    return {key: write for key, write in promotions.items() if key not in keys}


def _progress_event(
    key: str, epoch: int, state: ShardState, bytes_count: int, elapsed_s: float | None
) -> ReaderProgress:
    speed = None if not elapsed_s or elapsed_s <= 0 else bytes_count / 1024 / elapsed_s
    return ReaderProgress(key, epoch, str(state.position), state.millis_behind_latest, speed, state.tip)
