"""A report on a lease table: states, ages, shares, streams. Pure, except for `watch_leases`, which scans the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.leases.fleet_view import zone_of
from penstock.core.leases.kcl3_fleet import FleetModeDetector, Kcl3Rows
from penstock.core.leases.lease import Lease, stream_id_of, stream_name_of
from penstock.core.leases.lease_view import (
    LeaseView,
    OwnerState,
    parents_of_unfinished_leases,
    waits_for_parents,
)
from penstock.core.shard_graph import find_cycles
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.ports.clock import Clock
    from penstock.ports.lease_table import LeaseScan, LeaseTable

_SCAN_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class WatchedLease:
    """One lease, and the changes of its row between several scans.

    Args:
        lease: As last read.
        owner_state: The state of the owner: expired if the row did not change between the scans.
        unmoved_s: Seconds for which the row has not changed, up to the last scan.
        has_moved: Whether the counter changed between scans, which shows that the owner is alive.
    """

    lease: Lease
    owner_state: OwnerState
    unmoved_s: float = 0.0
    has_moved: bool = False


def watch_leases(table: LeaseTable, clock: Clock, observe_s: float) -> tuple[list[WatchedLease], LeaseScan]:
    """Scan a table until the counter of every owned lease has changed, or `observe_s` is over: one scan shows no change.

    Returns:
        The leases, sorted by key, and the last scan.
    """
    view = LeaseView(observe_s)
    began_s = clock.monotonic_s()
    scan = table.scan()
    view.on_scan(scan.leases, began_s)
    while clock.monotonic_s() - began_s < observe_s and any(
        lease.owner and not lease.is_ended and not view.was_renewed(lease.key) for lease in view
    ):
        clock.sleep(min(_SCAN_EVERY_S, observe_s))
        scan = table.scan()
        view.on_scan(scan.leases, clock.monotonic_s())
    watched_leases = [
        WatchedLease(lease, owner_state, unmoved_s, view.was_renewed(lease.key))
        for lease, owner_state, unmoved_s in view.with_owner_states(clock.monotonic_s())
    ]
    return sorted(watched_leases, key=lambda each: each.lease.key), scan


def find_circular_leases(leases: Mapping[str, Lease]) -> frozenset[str]:
    """Return the leases that are their own ancestors by the parents in the rows. Such leases do not wait for each other."""
    return find_cycles(parents_of_unfinished_leases(leases.values()))


def state_of(
    watched_lease: WatchedLease,
    leases: Mapping[str, Lease],
    vanished_shards: Container[str] = (),
    circular_leases: Container[str] = (),
) -> str:
    """Return the state of a lease, in a word or two.

    Args:
        vanished_shards: Shards that the stream does not list any more.
        circular_leases: Leases that are their own ancestors by the parents in the rows.
    """
    lease = watched_lease.lease
    if watched_lease.owner_state is OwnerState.ENDED:
        return "ended"
    is_silent = watched_lease.owner_state is OwnerState.EXPIRED and not watched_lease.has_moved
    if lease.checkpoint_owner is not None and not is_silent:
        return "handing over"
    waits = waits_for_parents(lease, leases, vanished_shards, circular_leases)
    if watched_lease.owner_state is OwnerState.UNOWNED:
        return "waits for parents" if waits else "unowned"
    if is_silent:
        return "owner silent"
    if lease.stopped_reason is not None:
        return "stopped"
    return "owned, waits" if waits else "read"


def zone_name(worker: str) -> str:
    """Return the zone of a worker's id, or `-`."""
    return zone_of(worker) or "-"


def count_leases_by(watched_leases: list[WatchedLease], name_of: Callable[[str], str]) -> dict[str, int]:
    """Count the unfinished leases of each group of workers, the largest count first; `name_of` returns a worker's group."""
    counts = Counter(
        name_of(each.lease.reader)
        for each in watched_leases
        if each.lease.reader is not None and not each.lease.is_ended
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def live_owners(watched_leases: list[WatchedLease]) -> list[str]:
    """Return the owners of leases whose counters changed between scans."""
    return sorted({each.lease.reader for each in watched_leases if each.has_moved and each.lease.reader})


def describe_fleet(rows: Kcl3Rows, wall_s: float) -> dict[str, Any]:
    """Return the state of a fleet with KCL 3 workers as a JSON document; `wall_s` is the time of day."""
    mode = FleetModeDetector("").detect(rows, 0.0, wall_s)
    return {
        "state": rows.version,
        "mode": mode.name.lower(),
        "mode_text": mode.value,
        "leader": None if rows.leader is None else rows.leader.owner,
        "reports": [
            {
                "worker": stats.worker,
                "library": "penstock" if stats.is_penstock else "KCL",
                "age_s": round(wall_s - stats.reported_s, 1),
                "is_fresh": stats.is_fresh(wall_s),
                "metrics": {name: samples[-1] for name, samples in stats.samples.items() if samples},
            }
            for stats in sorted(rows.workers, key=lambda stats: stats.worker)
        ],
    }


# --- the streams of a table: one, or several that share it ----------------------------------------------------


def streams_of(leases: Sequence[Lease], named: str | None) -> dict[str, str]:
    """Return the name or ARN of each stream that has leases, by the prefix of its lease keys.

    Args:
        leases: Of one table.
        named: Name or ARN to use if no lease names the stream; None leaves this stream out. Not used if several streams
            share the table, since their lease keys have the names.
    """
    found: dict[str, str] = {}
    for lease in leases:
        stream_id = stream_id_of(lease.key)
        if lease.stream is not None:
            found.setdefault(stream_id, lease.stream.arn)
    for stream_id in {stream_id_of(lease.key) for lease in leases} - found.keys():
        name = stream_name_of(stream_id) or named
        if name is not None:
            found[stream_id] = name
    return found


def choose_stream(leases: Sequence[Lease], named: str) -> tuple[str, tuple[Lease, ...]]:
    """Return the named stream's prefix of lease keys, and its leases.

    Args:
        leases: Of one table.
        named: Name, ARN, or `account:stream:epoch`.

    Raises:
        OptionError: `named` matches none of the table's streams, or more than one.
    """
    streams = streams_of(leases, named)
    if not streams:
        return "", ()
    matching_ids = [
        stream_id
        for stream_id, stream in streams.items()
        if named in (stream_id, stream, stream.rpartition("/")[2])
    ]
    if len(matching_ids) != 1:
        stream_names = ", ".join(sorted(stream_id or stream for stream_id, stream in streams.items()))
        raise OptionError(
            f"--stream {named}: the table has leases of {stream_names}; name one of them"
            + (" with account and epoch" if matching_ids else "")
        )
    return matching_ids[0], tuple(lease for lease in leases if stream_id_of(lease.key) == matching_ids[0])
