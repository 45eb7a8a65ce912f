"""Which leases a new application starts with: one snapshot of the stream that covers every hash key."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.lease import Lease, starting_lease
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position, Sentinel
from penstock.core.shard import Shard
from penstock.core.starting import StartingPosition, pin_latest
from penstock.ports.kinesis import ShardFilter


def snapshot_filter(starting: StartingPosition) -> ShardFilter:
    """Say which shards the service shall list to begin with: those that were open at the starting moment."""
    default = starting.default
    if default.sentinel is Sentinel.LATEST:
        return ShardFilter("AT_LATEST")
    if default.timestamp_ms is not None:
        return ShardFilter("AT_TIMESTAMP", timestamp_ms=default.timestamp_ms)
    return ShardFilter("AT_TRIM_HORIZON")


def plan_first_leases(
    shards: Iterable[Shard], snapshot: Iterable[Shard], starting: StartingPosition, now_ms: int
) -> list[Lease]:
    """Choose the shards to begin with and where.

    Args:
        shards: The whole listing.
        snapshot: The listing with `snapshot_filter`: the shards that were open at the starting moment. From a
            server that ignores the filter, only the oldest shards of it are taken.
        starting: What the user asked for. Shards that it names begin where it says; their ancestors are left
            out, their descendants follow when they end.
        now_ms: The service's time: what LATEST means from now on.
    """
    listed = {shard.shard_id: shard for shard in shards}
    named = {key: position for key, position in starting.by_shard.items() if key in listed}
    around = _ancestors(named, listed) | _descendants(named, listed) | named.keys()
    leases = [_lease(listed[key], pin_latest(position, now_ms)) for key, position in sorted(named.items())]
    leases += [_lease(listed[child], TRIM_HORIZON) for child in sorted(_ready_children(named, listed))]
    default = pin_latest(starting.default, now_ms)
    only_open = default.sentinel is Sentinel.LATEST
    rest = {
        shard.shard_id: shard
        for shard in snapshot
        if shard.shard_id not in around and (shard.is_open or not only_open)
    }
    for key, shard in sorted(rest.items()):
        if not rest.keys() & _ancestors([key], listed):
            leases.append(_lease(shard, default))
    return leases


def _lease(shard: Shard, position: Position) -> Lease:
    return starting_lease(shard.shard_id, position, shard.parents, shard.hash_range)


def _ancestors(keys: Iterable[str], listed: dict[str, Shard]) -> set[str]:
    found: set[str] = set()
    todo = [parent for key in keys if key in listed for parent in listed[key].parents]
    while todo:
        key = todo.pop()
        if key in listed and key not in found:
            found.add(key)
            todo.extend(listed[key].parents)
    return found


def _descendants(keys: Iterable[str], listed: dict[str, Shard]) -> set[str]:
    found: set[str] = set()
    todo = set(keys)
    while todo:
        todo = {
            key
            for key, shard in listed.items()
            if key not in found and any(parent in todo for parent in shard.parents)
        }
        found |= todo
    return found


def _ready_children(named: dict[str, Position], listed: dict[str, Shard]) -> list[str]:
    """Children that nobody would create later, since all their parents begin at their end."""
    return [
        key
        for key, shard in listed.items()
        if key not in named
        and shard.parents
        and any(named.get(parent) == SHARD_END for parent in shard.parents)
        and all(named.get(parent) == SHARD_END for parent in shard.parents if parent in listed)
    ]
