"""Whether each part of a stream is in the hands of a worker that lives: what a query asks that reads what is there, and ends."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.shard_syncer import ShardSyncer


def describe_unread(
    view: LeaseView, syncers: Iterable[ShardSyncer], me: str, now_s: float, *, takes_free: bool, is_led: bool
) -> str | None:
    """Return why it is not sure that each part of the stream has a reader, or None.

    A worker counts as living when its lease was seen to be renewed: one that has just begun to look finds each owner alive.

    Args:
        view: The lease table as far as it is known.
        syncers: Those of the streams.
        me: This worker, which reads the leases in its name.
        now_s: Monotonic seconds.
        takes_free: Whether this worker has room for leases that nobody reads.
        is_led: Whether a leader assigns the leases, and sees to those of dead workers.
    """
    gap = _describe_gap(view, syncers)
    if gap is not None or is_led:
        return gap
    for lease, state, _ in view.judged(now_s, view.watched):
        if state is OwnerState.ENDED or lease.reader == me:
            continue
        if state is OwnerState.ALIVE:
            if not view.was_renewed(lease.key):
                return f"{lease.reader} has not renewed the lease of shard {lease.key} yet"
        elif takes_free and not view.waits_for_parents(lease):
            return f"nobody reads shard {lease.key} yet"
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
