"""The lineage of a stream's shards, made of listings: parents, children, and the hash keys of each.

A listing is paged, in no promised order, may name a shard twice, and misses parents that retention has removed. The
graph accepts all of that; nothing here asks the service. Two values do the work:

- `ShardGraph`: parents, children, ancestors, holes and overlaps, the shards to begin with.
- `HashRouter`: which open shard a record goes to; the only part that runs once per record.

Source:
    Kinesis API reference, ListShards, SplitShard and MergeShards: a shard has at most two parents; its children begin
    when it closes; the open shards cover the hash-key space exactly once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct

from penstock.core.hash_key import HASH_KEY_MAX, HASH_KEYS, HashRange, effective_hash_key
from penstock.core.position import Position, Sentinel
from penstock.core.shard import ChildShard, Shard
from penstock.errors import StreamChanged

_UNKNOWN_START: Final = "0"  # starting number of a Shard that was not made from a listing


# --- coverage ---------------------------------------------------------------------------------------------


class Cover(Struct, frozen=True):
    """How a set of ranges covers the hash-key space.

    Args:
        holes: Hash keys that no range covers, ascending.
        overlaps: Hash keys that more than one range covers, ascending and joined if they touch.
    """

    holes: tuple[HashRange, ...]
    overlaps: tuple[HashRange, ...]


def cover_of(ranges: Iterable[HashRange]) -> Cover:
    """Return the holes and overlaps of ranges, which may be given in any order."""
    holes: list[HashRange] = []
    doubled: list[tuple[int, int]] = []
    reached = 0  # the keys below are covered, or in a hole
    for span in sorted(ranges):
        if span.start > reached:
            holes.append(HashRange(reached, span.start - 1))
        elif span.start < reached:
            _add_span(doubled, span.start, min(span.end, reached - 1))
        reached = max(reached, span.end + 1)
    if reached <= HASH_KEY_MAX:
        holes.append(HashRange(reached, HASH_KEY_MAX))
    return Cover(tuple(holes), tuple(HashRange(start, end) for start, end in doubled))


def covers(ranges: Iterable[HashRange], whole: HashRange) -> bool:
    """Return whether each hash key of the range `whole` is in at least one of `ranges`."""
    return not any(hole.overlaps(whole) for hole in cover_of(ranges).holes)


def find_children(ended_shards: Iterable[str], listing: Iterable[Shard]) -> dict[str, tuple[ChildShard, ...]]:
    """Return the children of ended shards by the shards' ids. A shard is left out while the listing may lack a child of it.

    A listing may lag behind. It has all children of a shard if they cover the shard's hash keys, or if the shard itself is no
    longer listed.
    """
    listed = {shard.shard_id: shard for shard in listing}
    found = {}
    for key in ended_shards:
        children = [shard for shard in listed.values() if key in shard.parents]
        if key not in listed or covers((child.hash_range for child in children), listed[key].hash_range):
            found[key] = tuple(child.as_child for child in children)
    return found


def _add_span(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a span that starts no earlier than the others, joined to the last one if they touch."""
    if spans and start <= spans[-1][1] + 1:
        spans[-1] = (spans[-1][0], max(spans[-1][1], end))
    else:
        spans.append((start, end))


# --- the graph --------------------------------------------------------------------------------------------


class ShardGraph:
    """The shards of one stream and their lineage. Immutable.

    Args:
        shards: Of one or several listings, in any order. Several descriptions of a shard are joined: a shard that any listing
            shows closed is closed, since no shard opens again.

    Raises:
        StreamChanged: Two listings contradict each other: they are of two streams of the same name.
        ValueError: A shard descends from itself.
    """

    def __init__(self, shards: Iterable[Shard] = ()) -> None:
        known: dict[str, Shard] = {}
        for shard in shards:
            before = known.get(shard.shard_id)
            known[shard.shard_id] = shard if before is None else _join(before, shard)
        self._children: dict[str, list[str]] = {}
        for shard in known.values():
            for parent in dict.fromkeys(shard.parents):
                self._children.setdefault(parent, []).append(shard.shard_id)
        self._shards = {shard_id: known[shard_id] for shard_id in self._sort_by_lineage(known)}
        for children in self._children.values():
            children.sort(key=lambda child: self._shards[child].hash_range)

    def _sort_by_lineage(self, known: dict[str, Shard]) -> list[str]:
        """Return the ids of the shards: parents before children, older before younger."""
        waits_for = {
            shard_id: sum(parent in known for parent in set(shard.parents))
            for shard_id, shard in known.items()
        }
        ready = [_age(known[shard_id]) for shard_id, count in waits_for.items() if count == 0]
        heapq.heapify(ready)
        ordered: list[str] = []
        while ready:
            _, shard_id = heapq.heappop(ready)
            ordered.append(shard_id)
            for child in self._children.get(shard_id, ()):
                waits_for[child] -= 1
                if waits_for[child] == 0:
                    heapq.heappush(ready, _age(known[child]))
        if len(ordered) < len(known):
            circle = sorted(known.keys() - set(ordered))
            raise ValueError(f"the listing is broken: {', '.join(circle[:4])} descend from themselves")
        return ordered

    # --- single shards ---

    def __contains__(self, shard_id: object) -> bool:
        return shard_id in self._shards

    def __iter__(self) -> Iterator[Shard]:
        """Go through the shards, parents before children, older before younger."""
        return iter(self._shards.values())

    def __getitem__(self, shard_id: str) -> Shard:
        """Return a listed shard; KeyError if it is not listed."""
        return self._shards[shard_id]

    def parents(self, shard_id: str) -> tuple[Shard, ...]:
        """Return the listed parents of a listed shard; those that are gone are left out."""
        named = dict.fromkeys(self._shards[shard_id].parents)
        return tuple(self._shards[parent] for parent in named if parent in self._shards)

    def children(self, shard_id: str) -> tuple[Shard, ...]:
        """Return the shards that continue this one, in the order of their hash ranges. This shard need not be listed."""
        return tuple(self._shards[child] for child in self._children.get(shard_id, ()))

    def ancestors(self, shard_ids: Iterable[str]) -> set[str]:
        """Return every listed shard that one of these descends from."""
        return (
            ancestors_of(shard_ids, {shard.shard_id: shard.parents for shard in self}) & self._shards.keys()
        )

    def descendants(self, shard_ids: Iterable[str]) -> set[str]:
        """Return every listed shard that descends from one of these."""
        return ancestors_of(shard_ids, self._children)

    # --- the whole ---

    @property
    def open_shards(self) -> tuple[Shard, ...]:
        """Shards that puts may land in, in the order of their hash ranges.

        A shard with listed children counts as closed, even if a page from before the change has it open.
        """
        found = [shard for shard in self if shard.is_open and shard.shard_id not in self._children]
        return tuple(sorted(found, key=lambda shard: shard.hash_range))

    def open_cover(self) -> Cover:
        """Return how the open shards cover the hash keys: exactly once, in every complete listing."""
        return cover_of(shard.hash_range for shard in self.open_shards)

    def snapshot_at(
        self,
        position: Position,
        covered: Iterable[HashRange] = (),
        excluded: Collection[str] = frozenset(),
    ) -> tuple[Shard, ...]:
        """Return the shards that an application begins with when it has no lease yet, in the order of their hash ranges.

        If two of them overlap, one descends from the other and waits for it.

        Args:
            position: LATEST begins with the open shards. TRIM_HORIZON and AT_TIMESTAMP begin with the oldest listed
                shards that together cover the hash-key space. If one of them had ended before the moment, reading it there
                returns no record, and its children are read from their beginning. (A listing with the filter AT_TIMESTAMP or
                FROM_TIMESTAMP has only the shards that were open then, or later; see `ShardFilter`.)
            covered: Hash keys that need no shard.
            excluded: Ids of shards that are not chosen whatever they cover.

        Raises:
            ValueError: A record's position or SHARD_END does not determine the shards to begin with.
        """
        if position.is_in_shard:
            raise ValueError(f"{position} is not a position to begin a stream at")
        is_latest = position.sentinel is Sentinel.LATEST
        holes = [(0, HASH_KEY_MAX)]
        for span in covered:
            _remove_from_holes(holes, span)
        chosen = [
            shard
            for shard in (self.open_shards if is_latest else self)
            if shard.shard_id not in excluded and (_remove_from_holes(holes, shard.hash_range) or is_latest)
        ]
        return tuple(sorted(chosen, key=lambda shard: shard.hash_range))


def _age(shard: Shard) -> tuple[int, str]:
    return (int(shard.starting_sequence_number), shard.shard_id)


def _remove_from_holes(holes: list[tuple[int, int]], span: HashRange) -> bool:
    """Take a range out of a sorted list of holes; return whether any hole had a key of it."""
    low = bisect_left(holes, span.start, key=lambda hole: hole[1])
    high = bisect_right(holes, span.end, key=lambda hole: hole[0])
    if low >= high:
        return False
    first, last = holes[low][0], holes[high - 1][1]
    left = [(first, span.start - 1)] if first < span.start else []
    right = [(span.end + 1, last)] if last > span.end else []
    holes[low:high] = left + right
    return True


def _join(one: Shard, other: Shard) -> Shard:
    """Join two descriptions of a shard."""
    starts = {one.starting_sequence_number, other.starting_sequence_number} - {_UNKNOWN_START}
    if one.hash_range != other.hash_range or len(starts) > 1:
        raise StreamChanged(
            f"shard {one.shard_id} begins at {one.starting_sequence_number} with hash keys "
            f"{one.hash_range.start}..{one.hash_range.end} in one listing, and at {other.starting_sequence_number} with "
            f"{other.hash_range.start}..{other.hash_range.end} in another: the stream was deleted and created again "
            "between them; list it again"
        )
    ending = other.ending_sequence_number or one.ending_sequence_number
    return Shard(
        one.shard_id,
        one.hash_range,
        # A listing may leave out a parent that has gone; none ever adds a wrong one.
        max(other.parents, one.parents, key=len),
        starts.pop() if starts else _UNKNOWN_START,
        ending,
    )


# --- ancestors --------------------------------------------------------------------------------------------


def ancestors_of(keys: Iterable[str], parents_of: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the ancestors of some shards.

    Args:
        parents_of: Shard id to parents' ids, for known shards.
    """
    found: set[str] = set()
    todo = [parent for key in keys for parent in parents_of.get(key, ())]
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo.extend(parents_of.get(key, ()))
    return found


def find_cycles(parents_of: Mapping[str, AbstractSet[str]]) -> frozenset[str]:
    """Find the shards that are their own ancestors.

    Args:
        parents_of: By shard, the parents that it waits for.

    Returns:
        Every member of a cycle, and the shards between two cycles.
    """
    children_of: dict[str, set[str]] = {}
    for shard_id, parents in parents_of.items():
        for parent in parents & parents_of.keys():
            children_of.setdefault(parent, set()).add(shard_id)
    left = _remove_roots(set(parents_of), parents_of, children_of)
    return frozenset(_remove_roots(left, children_of, parents_of))


def _remove_roots(
    nodes: set[str], before: Mapping[str, AbstractSet[str]], after: Mapping[str, AbstractSet[str]]
) -> set[str]:
    """Remove nodes without predecessors, repeatedly, until each remaining node has one; return the remaining nodes."""
    none: frozenset[str] = frozenset()
    counts = {node: len(before.get(node, none) & nodes) for node in nodes}
    bare = [node for node, count in counts.items() if not count]
    left = set(nodes)
    while bare:
        node = bare.pop()
        left.remove(node)
        for other in after.get(node, none):
            if other in left:
                counts[other] -= 1
                if not counts[other]:
                    bare.append(other)
    return left


# --- routing ----------------------------------------------------------------------------------------------


class HashRouter:
    """Predicts which shard a record goes to. Immutable, safe to use from several threads.

    Args:
        shards: The open shards. For hash keys that none or several of them own the prediction is None.
    """

    __slots__ = ("_owners", "_starts")

    def __init__(self, shards: Iterable[Shard]) -> None:
        # A sweep over the ends of all ranges: between two of them, either exactly one shard owns the keys or none does.
        edges: dict[int, list[tuple[bool, str]]] = {0: []}
        for shard in shards:
            edges.setdefault(shard.hash_range.start, []).append((True, shard.shard_id))
            edges.setdefault(shard.hash_range.end + 1, []).append((False, shard.shard_id))
        edges.pop(HASH_KEYS, None)
        self._starts: list[int] = []
        self._owners: list[str | None] = []
        inside: set[str] = set()
        for edge in sorted(edges):
            for is_start, shard_id in edges[edge]:
                if is_start:
                    inside.add(shard_id)
                else:
                    inside.discard(shard_id)
            self._starts.append(edge)
            self._owners.append(next(iter(inside)) if len(inside) == 1 else None)

    @property
    def shard_ids(self) -> tuple[str, ...]:
        """The shards that own at least one hash key alone, in the order of their ranges."""
        return tuple(dict.fromkeys(owner for owner in self._owners if owner is not None))

    def predict_shard(self, partition_key: str, explicit_hash_key: str | None = None) -> str | None:
        """Return the shard that a record goes to, or None if the listing does not show it.

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is not Unicode text.
        """
        hash_key = effective_hash_key(partition_key, explicit_hash_key)
        return self._owners[bisect_right(self._starts, hash_key) - 1]
