"""How leases that are gone are made again where a query's offset says: the table was deleted, emptied, restored or renamed.

An offset knows where each shard of the query stands, and which ones are read to their end. The stream's listing fills what the
offset leaves open: the children of what was read to its end. A part of the hash range that neither explains was another worker's;
the lease coordinator fills it, if that worker does not come back first.

The end of the last batch is not in the offset but in the claims. Where the query has got another table since, the leases of the
table before are taken over as they stand, claims and all, and nothing is read again. If claims of the query are there that the
offset does not know, that table is still in use (the checkpoint location was copied): then only the end of the offset's own last
batch is taken from it, as far as it is still known there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.claims import find_unknown_claims
from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.rewind import claim_of_last_batch, shards_before
from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import BatchClaim, Lease, TipMark, starting_lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Create, LeaseWrite, Reset, is_forward
from penstock.core.leases.required_leases import MissingReason, find_holes, plan_missing
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position
from penstock.core.shard import Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity

_NO_MARKS: Final[Mapping[str, TipMark]] = {}


class Recreation(Struct, frozen=True):
    """How a table comes to agree with an offset.

    Args:
        writes: In this order: parents before their children, and what is set to its end after its children.
        repeated: Shards of the last batch that are read once more from its start, since nothing shows where it ended.
        carried: Shards of the last batch that go on behind it, as the table before shows.
        vanished: Shards without a lease that have left the stream unfinished, and where the query stood.
        is_forked: The table before is still used, by a query that has gone on from another copy of the checkpoint location.
    """

    writes: tuple[LeaseWrite, ...]
    repeated: Mapping[str, Position]
    carried: tuple[str, ...]
    vanished: Mapping[str, Position]
    is_forked: bool


def find_missing(
    rows: Mapping[str, Lease], known: StreamOffset, parents_of: Mapping[str, Iterable[str]]
) -> dict[str, Position]:
    """Return the unfinished shards that an offset knows and the table does not, and where they stand.

    A shard is done whose child, or child's child, has a lease or is known to the offset: its own lease was cleared away.

    Args:
        rows: The lease table.
        known: The offset.
        parents_of: Shard id to parents' ids, as far as it is known; rows know their own parents.
    """
    followed = _followed(rows, parents_of) | shards_before(known.shards, parents_of)
    unfinished = ((key, position) for key, position in known.shards.items() if not position.is_shard_end)
    return {key: position for key, position in unfinished if key not in rows and key not in followed}


def find_lacking_ends(rows: Mapping[str, Lease], known: StreamOffset) -> set[str]:
    """Return the shards that an offset knows as ended and whose missing leases keep a merged child from being read.

    A child at its start that has the row of one parent only waits for the other one.

    Args:
        rows: The lease table.
        known: The offset.
    """
    lacking = set()
    for row in rows.values():
        absent = row.parents - rows.keys()
        if absent and absent != row.parents and row.checkpoint == TRIM_HORIZON:
            lacking |= {key for key in absent if key in known.shards and known.shards[key].is_shard_end}
    return lacking


def find_passed_over(rows: Mapping[str, Lease], known: StreamOffset) -> dict[str, Position]:
    """Return the shards that an offset knows as unfinished, and whose leases were cleared away since.

    The shards that follow them have leases, so they count as done; nothing shows who read the rest.

    Args:
        rows: The lease table.
        known: The offset.
    """
    followed = _followed(rows, {})
    unfinished = ((key, position) for key, position in known.shards.items() if not position.is_shard_end)
    return {key: position for key, position in unfinished if key not in rows and key in followed}


def _followed(rows: Mapping[str, Lease], parents_of: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the shards that come before one with a lease."""
    begun = {parent for row in rows.values() for parent in row.parents}
    return begun | shards_before(begun, parents_of)


def find_behind(
    rows: Mapping[str, Lease], known: StreamOffset, parents_of: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the unfinished leases of shards that an offset knows as read to their end: the table is older than the offset.

    Leases that another worker has are left out.

    Args:
        rows: The lease table.
        known: The offset.
        parents_of: Shard id to parents' ids, as far as it is known.
    """
    ended = {key for key, position in known.shards.items() if position.is_shard_end}
    ended |= shards_before(known.shards, parents_of)
    own = (None, known.worker)
    return sorted(key for key, row in rows.items() if key in ended and not row.is_ended and row.reader in own)


def is_agreed(rows: Mapping[str, Lease], known: StreamOffset) -> bool:
    """Whether a table has all that an offset asks for, as far as that can be told without a listing."""
    coverage = find_holes(rows.values(), {})
    has_holes = bool(coverage.holes) and not coverage.unknown
    lineage = {key: row.parents for key, row in rows.items()}
    return not (
        find_missing(rows, known, {})
        or has_holes
        or find_lacking_ends(rows, known)
        or find_behind(rows, known, lineage)
    )


def plan_recreation(
    rows: Mapping[str, Lease],
    known: StreamOffset,
    shards: Mapping[str, Shard],
    stream: StreamIdentity,
    before: Mapping[str, Lease] | None = None,
) -> Recreation:
    """Plan how a table comes to agree with an offset, when the query begins.

    Args:
        rows: The lease table.
        known: The offset.
        shards: Every listed shard, by id.
        stream: Whose they are.
        before: The leases of the table that the offset was written under, where the query has another one now; None where
            it has the same, or that one cannot be read.
    """
    return _Plan(rows, known, shards, stream, before).of_start()


def plan_lost(
    rows: Mapping[str, Lease],
    known: StreamOffset,
    shards: Mapping[str, Shard],
    stream: StreamIdentity,
    marks: Mapping[str, TipMark] = _NO_MARKS,
) -> Recreation:
    """Plan the leases that were lost while the query runs: those that the offset knows, and what follows vanished ones.

    The lease coordinator brings back the others.

    Args:
        rows: The lease table.
        known: The offset.
        shards: Every listed shard, by id.
        stream: Whose they are.
        marks: Where the query stands in some of the shards, and when nothing was left to read there.
    """
    return _Plan(rows, known, shards, stream, None).of_running(marks)


class _Plan:
    """A plan in the making: each step looks at the table as the steps before leave it."""

    def __init__(
        self,
        rows: Mapping[str, Lease],
        known: StreamOffset,
        shards: Mapping[str, Shard],
        stream: StreamIdentity,
        before: Mapping[str, Lease] | None,
    ) -> None:
        self._known = known
        self._worker = known.worker
        self._own = (None, known.worker)
        self._shards = shards
        self._stream = stream
        self._is_moved = before is not None
        self._before = {key: row for key, row in (before or {}).items() if row.stream == stream}
        self._is_forked = bool(find_unknown_claims(self._before.values(), self._worker, known.known))
        self._standing = dict(rows)
        self._parents_of = {
            **{key: row.parents for table in (self._before, rows) for key, row in table.items()},
            **{key: shard.parents for key, shard in shards.items()},
        }
        self._ranges = {key: shard.hash_range for key, shard in shards.items()}
        self._vanished: dict[str, Position] = {}
        self._writes: list[LeaseWrite] = []

    def of_start(self) -> Recreation:
        if not self._is_forked:
            self._copy()
        self._make_known()
        self._end_parents(find_lacking_ends(self._standing, self._known))
        ends = [
            Reset(key, self._standing[key].counter, SHARD_END)
            for key in find_behind(self._standing, self._known, self._parents_of)
        ]
        for end in ends:
            self._see(end)
        self._follow(self._shards)
        # Where a listing lacks children the lease stays: the query ends it when they are listed.
        holes = self._holes()
        return self._finish([end for end in ends if not _overlaps(self._ranges.get(end.key), holes)])

    def of_running(self, marks: Mapping[str, TipMark]) -> Recreation:
        self._make_known(marks)
        self._end_parents(find_lacking_ends(self._standing, self._known))
        vanished = self._vanished.keys()
        self._follow([key for key, shard in self._shards.items() if not vanished.isdisjoint(shard.parents)])
        return self._finish([])

    def _see(self, write: LeaseWrite) -> None:
        outcome = apply_write(self._standing.get(write.key), write)
        assert isinstance(outcome, Applied), f"{write} was planned against another row: {outcome}"
        assert outcome.lease is not None, f"{write} deletes a lease"
        self._standing[write.key] = outcome.lease

    def _write(self, write: LeaseWrite) -> None:
        self._see(write)
        self._writes.append(write)

    def _claim(self, row: Lease | None, key: str) -> BatchClaim | None:
        """Return what a row knows of the last batch, which began where the offset says."""
        position = self._known.shards.get(key)
        if row is None or position is None:
            return None
        return claim_of_last_batch(row, self._worker, self._known, position)

    def _copy(self) -> None:
        """Take over the leases of the table before: they are the query's own, and those that it shared the stream with.

        What comes before a shard with a lease is done. A lease that the query has had here at an earlier time is set forward.
        """
        past = shards_before(set(self._standing), self._parents_of)
        for key, row in self._before.items():
            stands = self._standing.get(key)
            if stands is None and key not in past:
                reader = None if row.reader == self._worker else row.reader
                self._write(
                    Create(
                        replace(row, owner=reader, checkpoint_owner=None, pending=None, pending_state=None)
                    )
                )
            elif stands is not None and stands.reader in self._own:
                is_ahead = is_forward(stands.checkpoint, row.checkpoint)
                claim = row.claim_of(self._worker)
                knows_end = claim is not None and is_forward(stands.checkpoint, claim.end)
                if is_ahead or (knows_end and self._claim(stands, key) is None):
                    place = row.checkpoint if is_ahead else stands.checkpoint
                    self._write(Reset(key, stands.counter, place, forget=self._worker, claim=claim))

    def _make_known(self, marks: Mapping[str, TipMark] = _NO_MARKS) -> None:
        """Make the leases that the offset knows."""
        known = self._known
        tips = {
            key: TipMark(place, known.tips[key]) for key, place in known.shards.items() if key in known.tips
        }
        marks = {**{key: mark for key, mark in tips.items() if mark.position.is_record}, **marks}
        for key, position in find_missing(self._standing, self._known, self._parents_of).items():
            shard = self._shards.get(key)
            if shard is None:
                self._vanished[key] = position
                continue
            lease = starting_lease(key, position, shard.parents, shard.hash_range, self._stream)
            lease = replace(lease, mark=marks.get(key))
            claim = self._claim(self._before.get(key), key)
            if position == TRIM_HORIZON:
                self._end_parents(shard.parents)
            self._write(Create(lease if claim is None else replace(lease, claims=(claim,))))

    def _follow(self, keys: Iterable[str]) -> None:
        """Make the leases of children whose parents are read to their end, where no lease covers their range."""
        ended = self._ended_elsewhere()
        missing = plan_missing(
            self._standing | ended, list(self._shards.values()), self._holes(), StartingPosition(TRIM_HORIZON)
        )
        done = shards_before({**self._known.shards, **self._standing}, self._parents_of)
        done |= ended.keys() - self._vanished.keys()
        for lease in (
            each.lease for each in missing if each.why is MissingReason.CHILD and each.lease.key in keys
        ):
            self._end_parents(lease.parents & done)
            self._write(Create(replace(lease, stream=self._stream)))

    def _ended_elsewhere(self) -> dict[str, Lease]:
        """Return leases as those of ended shards would be that have none."""
        ended = {key for key, position in self._known.shards.items() if position.is_shard_end}
        return {
            key: starting_lease(key, SHARD_END, tuple(self._parents_of.get(key, ())), None, self._stream)
            for key in ended | self._vanished.keys()
            if key not in self._standing
        }

    def _end_parents(self, keys: Iterable[str]) -> None:
        """Make the leases of done parents, as ended: workers would take them for shards that were never read."""
        for key in sorted(keys):
            shard = self._shards.get(key)
            if key not in self._standing and (shard is not None or key in self._known.shards):
                parents, hash_range = ((), None) if shard is None else (shard.parents, shard.hash_range)
                self._write(Create(starting_lease(key, SHARD_END, parents, hash_range, self._stream)))

    def _holes(self) -> tuple[HashRange, ...]:
        coverage = find_holes(self._standing.values(), self._ranges)
        return () if coverage.unknown else coverage.holes

    def _finish(self, ends: list[Reset]) -> Recreation:
        repeated, carried = {}, []
        written = {write.key for write in self._writes}
        for key in self._known.shares():
            row = self._standing.get(key)
            if row is None or not (key in written or self._is_moved):
                continue
            if self._claim(row, key) is not None or self._is_passed(key, row):
                carried += [key] if key in written else []
            elif row.reader in self._own:
                repeated[key] = self._known.shards[key]
        return Recreation((*self._writes, *ends), repeated, tuple(carried), self._vanished, self._is_forked)

    def _is_passed(self, key: str, row: Lease) -> bool:
        return row.checkpoint.is_in_shard and self._known.shards[key] < row.checkpoint


def _overlaps(hash_range: HashRange | None, holes: Iterable[HashRange]) -> bool:
    return hash_range is not None and any(
        hash_range.start <= hole.end and hole.start <= hash_range.end for hole in holes
    )
