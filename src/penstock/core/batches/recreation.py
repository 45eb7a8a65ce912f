"""Plans the creation of missing leases from a query's offset: the table was deleted, emptied, restored or renamed.

The offset has the position of each shard of the query, and the shards that are read to their end. The stream's listing adds
the children of ended shards. A part of the hash range that neither explains belonged to another worker: if that worker does
not return, the lease coordinator creates its leases.

The end of the last batch is not in the offset but in its claims. If the claims are lost, a repetition of the batch could have
more records than its first execution. A sink that has the batch already skips the repetition, and would miss these records. So a
lease that is created again when the query starts gets an empty claim of the batch: Spark repeats that batch without records of
this shard, and the next batch starts at the same position.

If the query has changed to another table, it copies the leases of the earlier table, with their claims, and repeats no record.
If the earlier table has claims of the query that the offset has no record of, that table is still in use, because the checkpoint
location was copied. Then only the end of the offset's own last batch is copied, if a claim still has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import find_unknown_claims, is_checkpoint_past
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.rewind import claim_of_last_batch
from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import BatchClaim, Lease, TipMark, new_lease, new_tip_mark
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Create, LeaseWrite, Reset, is_forward
from penstock.core.leases.required_leases import CreationReason, find_holes, plan_missing_leases
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position
from penstock.core.shard import Shard
from penstock.core.shard_graph import ancestors_of
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity

_NO_MARKS: Final[Mapping[str, TipMark]] = {}


class Recreation(Struct, frozen=True):
    """Writes that bring a lease table into agreement with an offset.

    Args:
        writes: In this order: parents before their children; writes of SHARD_END after the children.
        repeated_shards: Shards of the last batch that are read again from its start, since no claim shows its end.
        continued_shards: Shards of the last batch that go on after it, according to the earlier table.
        vanished_shards: Shards without a lease that left the stream unfinished, with the query's position.
        is_forked: The earlier table is still used, by a query that has gone on from another copy of the checkpoint
            location.
    """

    writes: tuple[LeaseWrite, ...]
    repeated_shards: Mapping[str, Position]
    continued_shards: tuple[str, ...]
    vanished_shards: Mapping[str, Position]
    is_forked: bool


def find_missing_leases(
    rows: Mapping[str, Lease], offset: StreamOffset, parents_of: Mapping[str, Iterable[str]]
) -> dict[str, Position]:
    """Return the unfinished shards of an offset that have no lease, with their positions.

    A shard counts as done if a descendant has a lease or is in the offset: the lease of a finished shard is deleted when
    its children are past their start.

    Args:
        parents_of: Shard id to parents' ids, for listed shards; rows have their own parents.
    """
    done = _ancestors_of_leases(rows, parents_of) | ancestors_of(offset.shards, parents_of)
    unfinished = ((key, position) for key, position in offset.shards.items() if not position.is_shard_end)
    return {key: position for key, position in unfinished if key not in rows and key not in done}


def find_missing_parents(rows: Mapping[str, Lease], offset: StreamOffset) -> set[str]:
    """Return the ended shards of an offset that have no lease although a merged child waits for them.

    An unread child waits for both its parents if one of them has a row.
    """
    missing = set()
    for row in rows.values():
        absent = row.parents - rows.keys()
        if absent and absent != row.parents and row.checkpoint == TRIM_HORIZON:
            missing |= {key for key in absent if key in offset.shards and offset.shards[key].is_shard_end}
    return missing


def find_skipped_shards(rows: Mapping[str, Lease], offset: StreamOffset) -> dict[str, Position]:
    """Return the positions of unfinished shards of an offset that have no lease, and whose descendants have one.

    Such a shard counts as done, although nothing shows whether its records after the position were read.
    """
    done = _ancestors_of_leases(rows, {})
    unfinished = ((key, position) for key, position in offset.shards.items() if not position.is_shard_end)
    return {key: position for key, position in unfinished if key not in rows and key in done}


def _ancestors_of_leases(rows: Mapping[str, Lease], parents_of: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the ancestors of all shards that have a lease."""
    begun = {parent for row in rows.values() for parent in row.parents}
    return begun | ancestors_of(begun, parents_of)


def find_outdated_leases(
    rows: Mapping[str, Lease], offset: StreamOffset, parents_of: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the shards that an offset has as ended and whose leases are unfinished: the table is older than the offset.

    Leases of other workers are left out.
    """
    ended = {key for key, position in offset.shards.items() if position.is_shard_end}
    ended |= ancestors_of(offset.shards, parents_of)
    own = (None, offset.worker)
    return sorted(key for key, row in rows.items() if key in ended and not row.is_ended and row.reader in own)


def is_table_complete(rows: Mapping[str, Lease], offset: StreamOffset) -> bool:
    """Return whether a table has everything that an offset needs, as far as that is known without a listing."""
    coverage = find_holes(rows.values(), {})
    has_holes = bool(coverage.holes) and not coverage.leases_without_range
    lineage = {key: row.parents for key, row in rows.items()}
    return not (
        find_missing_leases(rows, offset, {})
        or has_holes
        or find_missing_parents(rows, offset)
        or find_outdated_leases(rows, offset, lineage)
    )


def plan_recreation(
    rows: Mapping[str, Lease],
    offset: StreamOffset,
    shards: Mapping[str, Shard],
    stream: StreamIdentity,
    earlier_rows: Mapping[str, Lease] | None = None,
    *,
    now_ms: int = 0,
) -> Recreation:
    """Plan the writes that bring a table into agreement with an offset, when the query starts.

    Args:
        earlier_rows: The leases of the earlier table, if the query used another one when the offset was written; None if it
            used the same table, or if the earlier table cannot be read.
        now_ms: The time at which empty claims are made, for shards in which the end of the last batch is unknown.
    """
    return _Plan(rows, offset, shards, stream, earlier_rows).plan_start(now_ms)


def plan_lost_leases(
    rows: Mapping[str, Lease],
    offset: StreamOffset,
    shards: Mapping[str, Shard],
    stream: StreamIdentity,
    marks: Mapping[str, TipMark] = _NO_MARKS,
) -> Recreation:
    """Plan to create leases again that were deleted while the query runs.

    The plan has the leases of shards in the offset, and of the children of vanished shards. The lease coordinator creates the
    others.

    Args:
        marks: The query's positions in some of the shards, with their tip marks.
    """
    return _Plan(rows, offset, shards, stream, None).plan_running(marks)


class _Plan:
    """A plan in the making: each step sees the table as it is after the steps before."""

    def __init__(
        self,
        rows: Mapping[str, Lease],
        offset: StreamOffset,
        shards: Mapping[str, Shard],
        stream: StreamIdentity,
        earlier_rows: Mapping[str, Lease] | None,
    ) -> None:
        self._offset = offset
        self._worker = offset.worker
        self._own_readers = (None, offset.worker)  # readers of leases that the query may write
        self._shards = shards
        self._stream = stream
        self._has_changed_table = earlier_rows is not None  # to this one, since the offset was written
        self._earlier_rows = {key: row for key, row in (earlier_rows or {}).items() if row.stream == stream}
        # Whether the earlier table is still in use, because the checkpoint location was copied.
        self._is_forked = bool(
            find_unknown_claims(self._earlier_rows.values(), self._worker, offset.known_batches)
        )
        self._rows = dict(rows)  # as the planned writes leave them
        self._parents_of = {
            **{key: row.parents for table in (self._earlier_rows, rows) for key, row in table.items()},
            **{key: shard.parents for key, shard in shards.items()},
        }
        self._ranges = {key: shard.hash_range for key, shard in shards.items()}
        # Unfinished shards that have left the stream, with the query's positions.
        self._vanished: dict[str, Position] = {}
        self._writes: list[LeaseWrite] = []
        self._claimed_empty: set[str] = set()  # shards of the last batch that get an empty claim of it

    def plan_start(self, now_ms: int) -> Recreation:
        """Plan for the start of the query: copy the earlier table's leases, create missing ones, and end outdated ones."""
        if not self._is_forked:
            self._copy_leases()
        self._create_missing_leases(claimed_ms=now_ms)
        self._create_ended_parents(find_missing_parents(self._rows, self._offset))
        ends = [
            Reset(key, self._rows[key].counter, SHARD_END)
            for key in find_outdated_leases(self._rows, self._offset, self._parents_of)
        ]
        for end in ends:
            self._apply(end)
        self._create_children(self._shards)
        # If the listing lacks the children, SHARD_END is not written; the query ends the lease when they are listed.
        holes = self._holes()
        return self._finish([end for end in ends if not _overlaps(self._ranges.get(end.key), holes)])

    def plan_running(self, marks: Mapping[str, TipMark]) -> Recreation:
        """Plan for a query that runs: create the missing leases of its shards, and of the children of vanished ones.

        A vanished shard has left the stream unfinished, so nothing else would create its children's leases. Parents that a merged
        child waits for are created as ended.
        """
        self._create_missing_leases(marks)
        self._create_ended_parents(find_missing_parents(self._rows, self._offset))
        vanished = self._vanished.keys()
        self._create_children(
            [key for key, shard in self._shards.items() if not vanished.isdisjoint(shard.parents)]
        )
        return self._finish([])

    def _apply(self, write: LeaseWrite) -> None:
        outcome = apply_write(self._rows.get(write.key), write)
        assert isinstance(outcome, Applied), f"{write} was planned against another row: {outcome}"
        assert outcome.lease is not None, f"{write} deletes a lease"
        self._rows[write.key] = outcome.lease

    def _write(self, write: LeaseWrite) -> None:
        self._apply(write)
        self._writes.append(write)

    def _last_claim(self, row: Lease | None, key: str) -> BatchClaim | None:
        """Return the row's claim of the last batch; None without a claim that starts at the offset's position."""
        position = self._offset.shards.get(key)
        if row is None or position is None:
            return None
        return claim_of_last_batch(row, self._worker, self._offset, position)

    def _copy_leases(self) -> None:
        """Copy the leases of the earlier table: those of the query and those of workers that share the stream.

        A shard that has a descendant with a lease is done. A lease that the query left in this table before is reset
        to the earlier table's row if that row's checkpoint is ahead, or if only that row has the end of the last batch.
        """
        done = ancestors_of(set(self._rows), self._parents_of)
        for key, row in self._earlier_rows.items():
            current = self._rows.get(key)
            if current is None and key not in done:
                owner = None if row.reader == self._worker else row.reader
                copy = replace(
                    row,
                    owner=owner,
                    checkpoint_owner=None,
                    pending_checkpoint=None,
                    pending_checkpoint_state=None,
                )
                self._write(Create(copy))
            elif current is not None and current.reader in self._own_readers:
                is_ahead = is_forward(current.checkpoint, row.checkpoint)
                claim = row.claim_of(self._worker)
                has_later_end = claim is not None and is_forward(current.checkpoint, claim.end)
                if is_ahead or (has_later_end and self._last_claim(current, key) is None):
                    checkpoint = row.checkpoint if is_ahead else current.checkpoint
                    self._write(
                        Reset(key, current.counter, checkpoint, claim_worker=self._worker, claim=claim)
                    )

    def _create_missing_leases(
        self, marks: Mapping[str, TipMark] = _NO_MARKS, *, claimed_ms: int | None = None
    ) -> None:
        """Create the missing leases of shards in the offset.

        Args:
            marks: As in `plan_lost_leases`.
            claimed_ms: The time of the empty claims of shards in which the last batch's end is unknown; None makes no claims.
        """
        shares, tips = self._offset.shares(), self._offset.tips
        for key, position in find_missing_leases(self._rows, self._offset, self._parents_of).items():
            shard = self._shards.get(key)
            if shard is None:
                self._vanished[key] = position
                continue
            tip = new_tip_mark(position, tips[key]) if key in tips else None
            lease = replace(new_lease(shard, position, self._stream), mark=marks.get(key) or tip)
            claim = self._last_claim(self._earlier_rows.get(key), key)
            if claim is None and claimed_ms is not None and key in shares:
                claim = self._claim_nothing(position, claimed_ms)
                self._claimed_empty.add(key)
            if position == TRIM_HORIZON:  # at its start a shard waits for its parents
                self._create_ended_parents(shard.parents)
            self._write(Create(lease if claim is None else replace(lease, claims=(claim,))))

    def _claim_nothing(self, position: Position, made_ms: int) -> BatchClaim:
        """Return a claim that the last batch holds nothing of a shard."""
        batch, planner = self._offset.batch, self._offset.known_batches.planner_of(self._offset.batch)
        return BatchClaim(
            self._worker, batch, planner or "", position, position, made_ms=made_ms, planned_by=planner
        )

    def _create_children(self, keys: Iterable[str]) -> None:
        """Create the leases of children whose parents are read to their end, if no lease covers their range.

        A merged child whose other parent has no lease is left to the owner of that parent, as at the end of a shard.

        Args:
            keys: Children that may be created.
        """
        ended = self._finished_leases_without_row()
        read = ancestors_of({**self._offset.shards, **self._rows}, self._parents_of)
        read |= ended.keys() - self._vanished.keys()
        start = StartingPosition(TRIM_HORIZON)
        for missing in plan_missing_leases(
            self._rows | ended, list(self._shards.values()), self._holes(), start
        ):
            lease = missing.lease
            if missing.why is not CreationReason.CHILD or lease.key not in keys:
                continue
            self._create_ended_parents(lease.parents & read)
            # A parent that still has no lease belongs to another worker, and nothing shows how far it and its ancestors are
            # read. The hole in the hash range makes the lease coordinator create their leases again. A lease of the child would
            # close that hole, and they would count as read to their end.
            if lease.parents.isdisjoint(self._shards.keys() - self._rows.keys()):
                self._write(Create(replace(lease, stream=self._stream)))

    def _finished_leases_without_row(self) -> dict[str, Lease]:
        """Return finished leases for the ended and the vanished shards that have no lease."""
        ended = {key for key, position in self._offset.shards.items() if position.is_shard_end}
        return {
            key: Lease(
                key,
                checkpoint=SHARD_END,
                parents=frozenset(self._parents_of.get(key, ())),
                stream=self._stream,
            )
            for key in ended | self._vanished.keys()
            if key not in self._rows
        }

    def _create_ended_parents(self, keys: Iterable[str]) -> None:
        """Create the leases of done parents, as ended. Without them workers would read the parents again.

        A parent that has left the stream needs no lease, unless the query still has it in its offset.
        """
        for key in sorted(keys):
            if key in self._rows:
                continue
            shard = self._shards.get(key)
            if shard is not None:
                self._write(Create(new_lease(shard, SHARD_END, self._stream)))
            elif key in self._offset.shards:
                self._write(Create(Lease(key, checkpoint=SHARD_END, stream=self._stream)))

    def _holes(self) -> tuple[HashRange, ...]:
        coverage = find_holes(self._rows.values(), self._ranges)
        return () if coverage.leases_without_range else coverage.holes

    def _finish(self, ends: list[Reset]) -> Recreation:
        """Return the plan, with the shards of the last batch that are read again, and those that go on after it.

        Args:
            ends: Writes of SHARD_END, on leases of shards that the offset has as ended.
        """
        repeated, continued = {}, []
        written = {write.key for write in self._writes}
        for key in self._offset.shares():
            row = self._rows.get(key)
            if row is None or not (key in written or self._has_changed_table):
                continue
            start = self._offset.shards[key]
            has_end = self._last_claim(row, key) is not None and key not in self._claimed_empty
            is_batch_done = has_end or is_checkpoint_past(row, start)
            if not is_batch_done and row.reader in self._own_readers:
                repeated[key] = start
            elif is_batch_done and key in written:
                continued.append(key)
        return Recreation((*self._writes, *ends), repeated, tuple(continued), self._vanished, self._is_forked)


def _overlaps(hash_range: HashRange | None, holes: Iterable[HashRange]) -> bool:
    return hash_range is not None and any(hash_range.overlaps(hole) for hole in holes)
