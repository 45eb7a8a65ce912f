"""The first leases of an application whose starting position names shards. Pure.

A named shard starts at its position. Its ancestors count as read, unless they descend from another named shard that is not at
its end: records are rather read again than left out. Its descendants follow when it ends, as usual. The rest of the hash
range starts at the default position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from penstock.core.leases.lease import Lease, starting_lease
from penstock.core.position import TRIM_HORIZON, Position, Sentinel
from penstock.core.shard import Shard
from penstock.core.shard_graph import ShardGraph
from penstock.core.starting import StartingPosition, pin_latest


def unknown_names(shards: Iterable[Shard], start: StartingPosition) -> tuple[str, ...]:
    """Return the named shards that are not in a listing, sorted: misspelt, or gone with their records."""
    return tuple(sorted(start.by_shard.keys() - {shard.shard_id for shard in shards}))


def plan_named_leases(graph: ShardGraph, start: StartingPosition, moment_ms: int) -> list[Lease]:
    """Choose the shards to begin with, and where.

    Args:
        graph: Every shard since the default position's moment.
        start: The user's starting position.
        moment_ms: When the listing was answered, by the service's clock; LATEST means this moment from now on.

    Returns:
        Leases in the order of their hash ranges. Names that are not listed are left out: see `unknown_names`.
    """
    named = {key: position for key, position in start.by_shard.items() if key in graph}
    done = {ancestor for key in named for ancestor in graph.ancestors(key)} - named.keys()
    for key, position in named.items():
        if not position.is_shard_end:
            done -= graph.descendants(key)
    positions = {**named, **dict.fromkeys(_ready_children(graph, named, done), TRIM_HORIZON)}
    followed = set(positions)
    for shard in graph:  # parents before their children
        if shard.shard_id not in done and any(parent in followed for parent in shard.parents):
            followed.add(shard.shard_id)
    covered = [graph[key].hash_range for key, position in positions.items() if not position.is_shard_end]
    rest = graph.snapshot_at(start.default, covered=covered, without=done | followed).shards
    positions |= dict.fromkeys((shard.shard_id for shard in rest), start.default)
    if start.default.sentinel is Sentinel.LATEST:
        # A merged shard waits for both its parents: an unwanted parent gets a lease too, and ends at once.
        partners = {parent.shard_id for key in followed for parent in graph.parents(key)} - followed - done
        positions |= dict.fromkeys(sorted(partners), start.default)
    leases = [_lease(graph[key], pin_latest(position, moment_ms)) for key, position in positions.items()]
    return sorted(leases, key=lambda lease: (graph[lease.key].hash_range, lease.key))


def _lease(shard: Shard, position: Position) -> Lease:
    return starting_lease(shard.shard_id, position, shard.parents, shard.hash_range)


def _ready_children(graph: ShardGraph, named: Mapping[str, Position], done: AbstractSet[str]) -> list[str]:
    """Return the children whose parents are all at their end. They need leases now, since no parent is read to its end later."""
    ended = {key for key, position in named.items() if position.is_shard_end}
    children = {child.shard_id for key in ended for child in graph.children(key)}
    return sorted(
        child
        for child in children - named.keys() - done
        if all(parent.shard_id in ended | done for parent in graph.parents(child))
    )
