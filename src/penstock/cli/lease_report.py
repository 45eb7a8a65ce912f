"""What a lease table looks like to an observer: states, ages, shares. Pure but for the watching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.leases.lease import Lease

if TYPE_CHECKING:
    from penstock.ports.clock import Clock
    from penstock.ports.lease_table import LeaseScan, LeaseTable

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Sighting:
    """One lease, watched for a while.

    Args:
        lease: As seen last.
        unmoved_s: Seconds in which the counter stood still, up to the end of the watching.
        has_moved: Whether the counter was seen to change: its owner lives.
    """

    lease: Lease
    unmoved_s: float
    has_moved: bool


def watch(table: LeaseTable, clock: Clock, observe_s: float) -> tuple[list[Sighting], LeaseScan]:
    """Watch a table until every owned lease was seen to move, or the time is over.

    A counter's age cannot be read from one look; it is a difference between two.
    """
    began_s = clock.monotonic_s()
    scan = table.scan()
    first = {lease.key: lease for lease in scan.leases}
    changed_s = dict.fromkeys(first, began_s)
    moved: set[str] = set()
    latest = first
    while True:
        now_s = clock.monotonic_s()
        left = [
            lease
            for lease in latest.values()
            if lease.owner and not lease.is_ended and lease.key not in moved
        ]
        if not left or now_s - began_s >= observe_s:
            break
        clock.sleep(min(_LOOK_EVERY_S, observe_s))
        scan = table.scan()
        now_s = clock.monotonic_s()
        for lease in scan.leases:
            before = latest.get(lease.key)
            if before is not None and before.counter != lease.counter:
                moved.add(lease.key)
                changed_s[lease.key] = now_s
            changed_s.setdefault(lease.key, now_s)
        latest = {lease.key: lease for lease in scan.leases}
    end_s = clock.monotonic_s()
    return [
        Sighting(lease, end_s - changed_s[key], key in moved) for key, lease in sorted(latest.items())
    ], scan


def state_of(sighting: Sighting, leases: Mapping[str, Lease], observe_s: float) -> str:
    """Return the state of a lease, in a word or two."""
    lease = sighting.lease
    if lease.is_ended:
        return "ended"
    if lease.checkpoint_owner is not None:
        return "handing over"
    waits = any(parent in leases and not leases[parent].is_ended for parent in lease.parents)
    if lease.owner is None:
        return "waits for parents" if waits else "unowned"
    if not sighting.has_moved and sighting.unmoved_s >= observe_s:
        return "owner silent"
    if lease.stopped_reason is not None:
        return "stopped"
    return "owned, waits" if waits else "read"


def zone_of(worker: str) -> str:
    """Return the zone of a worker's id: the text before the first slash, or `-`."""
    zone, slash, _ = worker.partition("/")
    return zone if slash else "-"


def shares(sightings: list[Sighting], name_of: Callable[[str], str]) -> dict[str, int]:
    """Count unfinished leases per worker, or per whatever `name_of` makes of it; most first."""
    counted = Counter(
        name_of(sighting.lease.owner)
        for sighting in sightings
        if sighting.lease.owner is not None and not sighting.lease.is_ended
    )
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def live_owners(sightings: list[Sighting]) -> list[str]:
    """Return the workers that were seen to be alive."""
    return sorted(
        {sighting.lease.owner for sighting in sightings if sighting.has_moved and sighting.lease.owner}
    )
