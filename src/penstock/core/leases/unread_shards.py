"""Checks that each part of a stream has a living reader; a query that reads the available records and ends waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.shard_syncer import ShardSyncer


def describe_unread(
    view: LeaseView, syncers: Iterable[ShardSyncer], me: str, now_s: float, *, takes_free: bool, is_led: bool
) -> str | None:
    """Return why some part of the stream may have no living reader, or None.

    A worker counts as living once its lease was seen to be renewed: a worker that has just started sees every owner as alive.

    Args:
        view: The last known rows of the lease table.
        syncers: The shard syncers of the streams.
        me: This worker, which reads the leases in its name.
        now_s: Monotonic seconds.
        takes_free: Whether this worker has room for free leases.
        is_led: Whether a leader assigns the leases, including those of dead workers.
    """
    gap = _describe_gap(view, syncers)
    if gap is not None or is_led:
        return gap
    for lease, state, _ in view.with_owner_states(now_s, view.watched):
        if state is OwnerState.ENDED or lease.reader == me:
            continue
        if state is OwnerState.ALIVE:
            if not view.was_renewed(lease.key):
                return f"{lease.reader} has not renewed the lease of shard {lease.key} yet"
        elif takes_free and not view.waits_for_parents(lease):
            return f"shard {lease.key} has no reader yet"
    return None


def _describe_gap(view: LeaseView, syncers: Iterable[ShardSyncer]) -> str | None:
    """Return which part of the stream has no readable lease, or None."""
    for syncer in syncers:
        for hole in syncer.find_open_holes():
            return f"no lease covers the hash keys {hole.start}..{hole.end}"
        for key in view.damaged.keys() & syncer.ranges.keys():
            return f"the row of lease {key} cannot be read: {view.damaged[key]}"
    lacking = view.missing_parents()
    return f"the lease of shard {min(lacking)} is missing, and its child waits for it" if lacking else None
