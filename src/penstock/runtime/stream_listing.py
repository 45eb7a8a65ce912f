"""The listing of a stream's shards, as the lease coordinator asks for it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.leases.coordinator_effects import ListShards
from penstock.core.leases.coordinator_events import ListingDone, ListingFailed, Problem
from penstock.core.leases.lease import keyed_shard
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.runtime.call_problems import detail_of, problem_of
from penstock.runtime.known_stream import KnownStream


def list_shards(
    effect: ListShards, name: str, kinesis: Kinesis, known: KnownStream | None, wall_ms: Callable[[], int]
) -> ListingDone | ListingFailed:
    """List the shards of one stream under their lease keys; return the result or the problem as an event.

    Args:
        effect: The listing.
        name: Name or ARN.
        kinesis: The service.
        known: Checks whether the name still means this stream; None: no check.
        wall_ms: The local time, if the service's answer has none.
    """
    shard_filter = (
        None if effect.filter_type is None else ShardFilter(effect.filter_type, effect.timestamp_ms)
    )
    try:
        listing = kinesis.fetch_shards(name, shard_filter)
        if known is not None:
            known.check()  # or another stream's shards would get this one's leases
    except Exception as error:  # noqa: BLE001 - every call gives one event, however it ends
        problem = problem_of(error, missing=Problem.STREAM_MISSING)
        return ListingFailed(effect.purpose, problem, detail_of(error), effect.stream_id)
    moment_ms = wall_ms() if listing.server_ms is None else listing.server_ms
    shards = tuple(keyed_shard(effect.stream_id, shard) for shard in listing.shards)
    return ListingDone(effect.purpose, shards, moment_ms, effect.stream_id)
