"""The leases that must exist: first leases, children, missing leases, and finished leases to delete. All pure.

- An empty table gets one snapshot of the stream at the starting position (`plan_named_leases` if the
  user names shards). It must cover the whole hash range exactly once, else nothing is created. LATEST is pinned to the
  moment of the snapshot, in the row.
- Afterwards only children are created, at TRIM_HORIZON, by the worker that has read their parent to its end.
- The safety net: if no unfinished lease covers a part of the hash range for several rounds, a listing shows the missing
  shards. Children of finished shards start at TRIM_HORIZON. Shards that no lease explains start at the moment at which
  the application started (if a row still has it), else at TRIM_HORIZON: reading too much is allowed, missing records
  is not. A descendant of a known shard never starts at LATEST.
- A finished lease is deleted when every child is past its start and its own parents' leases are gone, or when the stream
  does not list its shard any more.

Source:
    The KCL's shard syncer differs: on every synchronisation it creates leases at the initial position for open shards
    without a leased ancestor. Under LATEST that can start a shard at LATEST although another worker sees it as a
    descendant. Here the initial position is only ever used for an empty table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final

from msgspec import Struct, field

from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import Lease, new_lease
from penstock.core.leases.lease_writes import Delete
from penstock.core.position import TRIM_HORIZON, Position, Sentinel
from penstock.core.shard import ChildShard, Shard
from penstock.core.shard_graph import Cover, ShardGraph, ancestors_of, cover_of
from penstock.core.starting import StartingPosition, pin_latest

_NO_SHARDS: Final[frozenset[str]] = frozenset()

# --- the first leases -----------------------------------------------------------------------------------


class BadSnapshot(Struct, frozen=True):
    """A listing that does not cover the hash range exactly once; nothing may be created from it."""

    detail: str


def first_listing_filter(start: StartingPosition) -> tuple[str | None, int | None]:
    """Return the shard filter of the first listing: its type (None for every shard), and the moment of a timestamp filter.

    If the user names shards, every shard is listed that a name could refer to, and the snapshot is chosen from that listing.
    """
    sentinel = start.default.sentinel
    if sentinel is Sentinel.AT_TIMESTAMP:
        return ("FROM_TIMESTAMP" if start.by_shard else "AT_TIMESTAMP", start.default.timestamp_ms)
    if start.by_shard:
        return (None, None)
    return ("AT_LATEST", None) if sentinel is Sentinel.LATEST else ("AT_TRIM_HORIZON", None)


def plan_first_leases(
    shards: Sequence[Shard], start: StartingPosition, moment_ms: int
) -> list[Lease] | BadSnapshot:
    """Plan the first leases of an empty table.

    Args:
        shards: The listing with `first_listing_filter`.
        moment_ms: When the listing was answered, by the service's clock; a start at LATEST is pinned to it.

    Returns:
        Leases in the order of their hash ranges, the same for every worker: the creation of the first one decides which
        worker starts the application. Or the reason why the listing cannot be used.
    """
    if start.by_shard:
        graph = ShardGraph(shards)
        return _find_fault(graph.open_cover()) or plan_named_leases(graph, start, moment_ms)
    position = pin_latest(start.default, moment_ms)
    filtered = _apply_filter(shards, position)
    if isinstance(filtered, BadSnapshot):
        return filtered
    return _find_fault(cover_of(shard.hash_range for shard in filtered)) or [
        new_lease(shard, position) for shard in sorted(filtered, key=lambda shard: shard.hash_range)
    ]


def _apply_filter(shards: Sequence[Shard], position: Position) -> Sequence[Shard] | BadSnapshot:
    """Apply the filter of ListShards to the answer of a server that ignores it, as moto does.

    The service never lists a shard beside its own parent, so its answers are returned unchanged.
    """
    listed = {shard.shard_id for shard in shards}
    if all(listed.isdisjoint(shard.parents) for shard in shards):
        return shards
    if position.sentinel is Sentinel.TRIM_HORIZON:
        return [shard for shard in shards if listed.isdisjoint(shard.parents)]
    if position.sentinel is Sentinel.LATEST:
        return [shard for shard in shards if shard.is_open]
    return BadSnapshot(
        "it has shards beside their own parents, as of a server that ignores the filter, and does not tell which were "
        "open at a moment (start at TRIM_HORIZON or LATEST there)"
    )


def _find_fault(cover: Cover) -> BadSnapshot | None:
    for kind, spans in (("a hole", cover.holes), ("an overlap", cover.overlaps)):
        if spans:
            return BadSnapshot(f"{kind} at hash keys {spans[0].start}..{spans[0].end}")
    return None


def unknown_names(shards: Iterable[Shard], start: StartingPosition) -> tuple[str, ...]:
    """Return the named shards that are not in a listing, sorted: misspelt, or gone with their records."""
    return tuple(sorted(start.by_shard.keys() - {shard.shard_id for shard in shards}))


def plan_named_leases(graph: ShardGraph, start: StartingPosition, moment_ms: int) -> list[Lease]:
    """Plan the first leases if the starting position names shards.

    A named shard starts at its position. Its ancestors count as read, unless they descend from another named shard that starts
    before its end; then some records may be read twice, but none is left out. Its descendants follow when it ends, as usual.
    The rest of the hash range starts at the default position.

    Args:
        graph: Every shard since the default position's moment.
        moment_ms: When the listing was answered, by the service's clock; a start at LATEST is pinned to it.

    Returns:
        Leases in the order of their hash ranges. Names that are not listed are left out: see `unknown_names`.
    """
    starts = {key: position for key, position in start.by_shard.items() if key in graph}
    read_shards = graph.ancestors(starts) - starts.keys()  # or shards that count as read
    read_shards -= graph.descendants(key for key, position in starts.items() if not position.is_shard_end)
    positions = {**starts, **dict.fromkeys(_ready_children(graph, starts, read_shards), TRIM_HORIZON)}
    followed_shards = set(positions)  # has a lease now, or gets one when its parents end
    for shard in graph:  # parents before their children
        if shard.shard_id not in read_shards and any(parent in followed_shards for parent in shard.parents):
            followed_shards.add(shard.shard_id)
    covered = [graph[key].hash_range for key, position in positions.items() if not position.is_shard_end]
    other_shards = graph.snapshot_at(start.default, covered=covered, excluded=read_shards | followed_shards)
    positions |= dict.fromkeys((shard.shard_id for shard in other_shards), start.default)
    if start.default.sentinel is Sentinel.LATEST:
        # A merged shard waits for both its parents, so the parent that is not followed gets a lease too. It is closed, and its
        # reader at LATEST finds the end at once.
        parents = {parent.shard_id for key in followed_shards for parent in graph.parents(key)}
        partners = parents - followed_shards - read_shards
        positions |= dict.fromkeys(sorted(partners), start.default)
    leases = [new_lease(graph[key], pin_latest(position, moment_ms)) for key, position in positions.items()]
    return sorted(leases, key=lambda lease: (graph[lease.key].hash_range, lease.key))


def _ready_children(graph: ShardGraph, starts: Mapping[str, Position], read: AbstractSet[str]) -> list[str]:
    """Return the children of shards that start at SHARD_END, unless another parent of the child is still to be read.

    They need leases now: no worker reads their parents, so none creates the children's leases at a parent's end.
    """
    ended = {key for key, position in starts.items() if position.is_shard_end}
    children = {child.shard_id for key in ended for child in graph.children(key)}
    return sorted(
        child
        for child in children - starts.keys() - read
        if all(parent.shard_id in ended | read for parent in graph.parents(child))
    )


def plan_child_leases(children: Iterable[ChildShard]) -> list[Lease]:
    """Plan the leases of a finished shard's children, always from TRIM_HORIZON."""
    return [new_lease(child, TRIM_HORIZON) for child in children]


def start_reading_at(lease: Lease, has_parent_lease: bool) -> Position:
    """Return where reading starts when a lease is acquired.

    Args:
        has_parent_lease: Whether a lease of one of its parents is in the table.

    Returns:
        The checkpoint; TRIM_HORIZON if the row has LATEST or a moment although this application reads (or has read) a
        parent. Two workers that start an application while its stream splits can leave such a row, and reading it from
        later than its beginning would lose records.
    """
    # One worker lists the shards before a split and creates the parent at LATEST; another lists them after it and creates the
    # child at LATEST. No worker would read the records that were put between the two moments.
    starts_late = lease.checkpoint.sentinel in (Sentinel.LATEST, Sentinel.AT_TIMESTAMP)
    return TRIM_HORIZON if starts_late and has_parent_lease else lease.checkpoint


def earliest_start(leases: Iterable[Lease]) -> Position | None:
    """Return the earliest of the checkpoints that are still a starting position with a moment; None if there is none."""
    pinned = [
        lease.checkpoint
        for lease in leases
        if lease.checkpoint.timestamp_ms is not None and lease.checkpoint.sentinel is not None
    ]
    return min(pinned, key=lambda position: position.timestamp_ms or 0, default=None)


# --- holes ----------------------------------------------------------------------------------------------


class LeaseCoverage(Struct, frozen=True):
    """How the unfinished leases cover the hash range.

    Args:
        holes: The hash keys that no unfinished lease covers.
        leases_without_range: Unfinished leases of unknown range (rows of old writers); with any, `holes` means nothing.
    """

    holes: tuple[HashRange, ...]
    leases_without_range: tuple[str, ...] = ()


def find_holes(leases: Iterable[Lease], ranges: Mapping[str, HashRange]) -> LeaseCoverage:
    """Find the parts of the hash range that no unfinished lease covers.

    Args:
        ranges: Ranges from a listing, for rows without one.
    """
    covered: list[HashRange] = []
    without_range: list[str] = []
    for lease in leases:
        if lease.is_ended:
            continue
        hash_range = lease.hash_range or ranges.get(lease.key)
        if hash_range is None:
            without_range.append(lease.key)
        else:
            covered.append(hash_range)
    return LeaseCoverage(cover_of(covered).holes, tuple(sorted(without_range)))


def find_uncovered_shards(leases: Mapping[str, Lease], shards: Iterable[Shard]) -> list[str]:
    """Return the open shards that have no lease, and whose hash keys no unfinished lease covers.

    Args:
        leases: Every row, by shard id. In an empty table no shard counts as missing, since no worker has started.
        shards: A listing without a filter.
    """
    listed = list(shards)
    holes = find_holes(leases.values(), {shard.shard_id: shard.hash_range for shard in listed}).holes
    return [
        shard.shard_id
        for shard in listed
        if leases
        and shard.is_open
        and shard.shard_id not in leases
        and any(shard.hash_range.overlaps(hole) for hole in holes)
    ]


class HoleCounts(Struct):
    """Counts for how many rounds in a row a hole was seen; holes that move or shrink keep their count.

    Args:
        confirmed_after_rounds: A hole that was seen in this many rounds is confirmed.
    """

    confirmed_after_rounds: int
    _rounds: dict[HashRange, int] = field(default_factory=dict)

    def on_round(self, holes: Iterable[HashRange]) -> list[HashRange]:
        """Handle one round's holes and return those that are confirmed."""
        rounds = {}
        for hole in holes:
            before = [count for old, count in self._rounds.items() if old.overlaps(hole)]
            rounds[hole] = 1 + max(before, default=0)
        self._rounds = rounds
        return [hole for hole, count in rounds.items() if count >= self.confirmed_after_rounds]


class CreationReason(Enum):
    """Why a missing lease is created."""

    FIRST = "first"
    CHILD = "child"  # of a finished shard
    UNEXPLAINED = "unexplained"  # by any lease: it starts at the application's start, or at its own beginning
    RESTORED = "restored"


class MissingLease(Struct, frozen=True):
    """A lease to create."""

    lease: Lease
    why: CreationReason


def hole_listing_filter(leases: Iterable[Lease], start: StartingPosition) -> tuple[str | None, int | None]:
    """Return the shard filter of a listing that searches for a hole, as `first_listing_filter`: shards since the start.

    Every shard is listed, (None, None), if no lease shows when the application started.
    """
    moment_ms = (earliest_start(leases) or start.default).timestamp_ms
    return (None, None) if moment_ms is None else ("FROM_TIMESTAMP", moment_ms)


def plan_missing_leases(
    leases: Mapping[str, Lease],
    shards: Sequence[Shard],
    holes: Sequence[HashRange],
    start: StartingPosition,
    needed_parents: AbstractSet[str] = _NO_SHARDS,
) -> list[MissingLease]:
    """Plan which leases fill confirmed holes.

    Args:
        shards: The listing with `hole_listing_filter`.
        holes: The hash keys that no unfinished lease covers.
        needed_parents: Shards that must have a lease although others cover their range: unfinished parents of shards
            whose leases exist already.

    Returns:
        Leases to create one after the other, parents before children. A shard whose parent is unfinished, or needs a lease
        itself, is left out: its lease is created at its parent's end.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    unleased_ancestors = _unleased_ancestors(leases, by_id)
    wanted: dict[str, CreationReason] = {}
    for shard in shards:
        if shard.shard_id in leases:
            continue
        if shard.shard_id not in needed_parents and (
            shard.shard_id in unleased_ancestors or not any(shard.hash_range.overlaps(hole) for hole in holes)
        ):
            continue
        why = _why_missing(shard, leases, by_id, unleased_ancestors)
        if why is not None:
            wanted[shard.shard_id] = why
    position = earliest_start(leases.values()) or start.default
    if position.sentinel is Sentinel.LATEST and position.timestamp_ms is None:
        position = TRIM_HORIZON  # the moment at which the application started is not known any more
    plan = []
    for shard_id in sorted(wanted, key=lambda key: (int(by_id[key].starting_sequence_number), key)):
        shard = by_id[shard_id]
        at = (
            TRIM_HORIZON
            if wanted[shard_id] is CreationReason.CHILD
            else start.by_shard.get(shard_id, position)
        )
        plan.append(MissingLease(new_lease(shard, at), wanted[shard_id]))
    return plan


def _why_missing(
    shard: Shard, leases: Mapping[str, Lease], by_id: Mapping[str, Shard], unleased_ancestors: set[str]
) -> CreationReason | None:
    """Return why a shard without a lease needs one now; None if it needs none yet.

    Args:
        unleased_ancestors: Shards without a lease from which a leased one descends: they were read before.
    """
    rows = [leases[parent] for parent in shard.parents if parent in leases]
    if any(row.is_ended for row in rows):
        return CreationReason.CHILD
    if rows:
        return None  # its lease is created at the parent's end
    unleased = [parent for parent in shard.parents if parent in by_id and parent not in unleased_ancestors]
    if unleased:
        return None  # the parent is missing too and is created first
    if any(parent in unleased_ancestors for parent in shard.parents):
        return CreationReason.CHILD  # a sibling has a lease, so the parent was read before
    return CreationReason.UNEXPLAINED


def _unleased_ancestors(leases: Mapping[str, Lease], by_id: Mapping[str, Shard]) -> set[str]:
    """Return the shards without a lease that have a descendant with one: they were read before, or never needed."""
    # Rows have their parents too: a listing may lack the shards in between.
    parents_of = {key: shard.parents for key, shard in by_id.items()} | {
        key: tuple(lease.parents) for key, lease in leases.items()
    }
    return (ancestors_of(leases, parents_of) & by_id.keys()) - leases.keys()


# --- deletion -------------------------------------------------------------------------------------------


class DeletionReason(Enum):
    """Why a finished lease may be deleted."""

    CHILDREN_UNDER_WAY = "every child is past its start"
    VANISHED = "the stream does not list the shard any more"


class Deletion(Struct, frozen=True):
    """A lease to delete, as it was read."""

    write: Delete
    why: DeletionReason


def plan_deletions(leases: Mapping[str, Lease], vanished: frozenset[str] = _NO_SHARDS) -> list[Deletion]:
    """Plan the deletion of finished leases.

    A lease with a query's claim is kept until its shard has left the stream: the claim's batch may be repeated as long as
    its records are there.

    Args:
        vanished: Shards that two listings in a row lacked; see `find_unlisted_leases`.
    """
    children_of: dict[str, set[str]] = {}
    for lease in leases.values():
        for parent in lease.parents:
            children_of.setdefault(parent, set()).add(lease.key)
    plan = []
    for lease in leases.values():
        if not lease.is_ended or any(parent in leases for parent in lease.parents):
            continue  # parents are deleted first: a gap in the lineage would look like a missing shard
        delete = Delete(lease.key, lease.counter, lease.checkpoint)
        children = lease.children | children_of.get(lease.key, set())
        rows = [leases.get(child) for child in children]
        if rows and not lease.claims and all(row is not None and _is_past_start(row) for row in rows):
            plan.append(Deletion(delete, DeletionReason.CHILDREN_UNDER_WAY))
        elif lease.key in vanished and all(row is not None for row in rows):
            plan.append(Deletion(delete, DeletionReason.VANISHED))
    return plan


def _is_past_start(lease: Lease) -> bool:
    return lease.checkpoint.is_record or lease.checkpoint.is_shard_end


def find_unlisted_leases(leases: Mapping[str, Lease], shards: Sequence[Shard]) -> frozenset[str]:
    """Return the keys of finished leases whose shards are not in a listing, which may be incomplete.

    A lease is left out if its shard has a listed child without a lease.

    Args:
        shards: A listing without a filter.
    """
    listed = {shard.shard_id for shard in shards}
    needed = {parent for shard in shards if shard.shard_id not in leases for parent in shard.parents}
    ended = {lease.key for lease in leases.values() if lease.is_ended}
    return frozenset(ended - listed - needed)
