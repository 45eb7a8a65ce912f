"""What people, logs and metrics hear of the leases that a worker holds."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.leases.coordinator_events import Level, NotDone, ReaderFailed, StopWhy, Topic
from penstock.core.leases.held_lease import HeldLease, LeasePhase
from penstock.core.leases.lease import Lease
from penstock.core.leases.pending_writes import PendingWrites


def report_release(writes: PendingWrites, row: Lease) -> None:
    """Say that a lease was given up, and for whom.

    Args:
        writes: Where the report goes.
        row: What stands in the table now.
    """
    writes.report(
        Topic.RELEASED if row.owner is None else Topic.HANDED_OVER,
        Level.INFO,
        f"lease {row.key} released at {row.checkpoint} for {row.owner or 'anybody'}",
        row.key,
    )


def report_end(writes: PendingWrites, held: HeldLease) -> None:
    """Say that a shard is done, and what follows it."""
    names = ", ".join(child.shard_id for child in held.children) or "no children"
    writes.report(Topic.ENDED, Level.INFO, f"shard {held.key} is done; {names} follow", held.key)


def report_refused_call(writes: PendingWrites, held: HeldLease, outcome: NotDone) -> None:
    """Say that the service does not take this worker's writes."""
    writes.report(
        Topic.CALL_FAILED,
        Level.ERROR,
        f"lease {held.key}: the table refuses to be written ({outcome.detail}); the lease will be lost",
        held.key,
        "refused",
    )


def report_failed_reader(writes: PendingWrites, event: ReaderFailed, *, is_freed: bool) -> None:
    """Say that a shard is not delivered any more, and what becomes of its lease."""
    what = "freed" if is_freed else "kept, and nothing of it is read until a restart"
    writes.report(
        Topic.STOPPED_SHARD,
        Level.ERROR,
        f"shard {event.key} has stopped: {event.reason}. Its lease is {what}.",
        event.key,
    )


def report_stalls(
    writes: PendingWrites, held_leases: Iterable[HeldLease], stall_after_s: float, now_s: float
) -> None:
    """Say which shards are behind and stand still, or are still stopped; again after the same time."""
    for held in held_leases:
        still_s = now_s - held.progress_s
        if still_s < stall_after_s:
            continue
        if held.phase is LeasePhase.READING and held.behind_ms != 0:
            held.progress_s = now_s
            writes.report(
                Topic.STALLED,
                Level.ERROR,
                f"shard {held.key} is {held.behind_ms} ms behind and has not moved for {still_s:.0f} s",
                held.key,
            )
        elif held.phase is LeasePhase.PARKED:
            held.progress_s = now_s
            writes.report(
                Topic.STOPPED_SHARD,
                Level.ERROR,
                f"shard {held.key} is still stopped after a failure",
                held.key,
            )


def report_loss(
    writes: PendingWrites, me: str, key: str, why: StopWhy, row: Lease | None, *, row_gone: bool
) -> None:
    """Say how a lease was lost.

    Args:
        writes: Where the report goes.
        me: The worker that held it.
        key: The lease.
        why: LOST or EXPIRED.
        row: What stands in the table, if known.
        row_gone: Whether the row was deleted.
    """
    if row_gone:
        writes.report(
            Topic.ROW_GONE,
            Level.ERROR,
            f"lease {key} was deleted while this worker held it. It is not brought back; if its part of the hash "
            "range stays without a lease, the shard is started again from its beginning",
            key,
        )
    elif why is StopWhy.EXPIRED:
        message = (
            f"lease {key} could not be renewed in time; delivery has stopped before another worker may begin"
        )
        writes.report(Topic.LOST, Level.WARNING, message, key, "expired")
    elif row is not None and row.owner == me:
        message = (
            f"lease {key} was renewed under this worker's name, {me}, but not by this worker: is another process "
            "running under the same worker id?"
        )
        writes.report(Topic.LOST, Level.ERROR, message, key, "same_name")
    else:
        owner = "nobody" if row is None else row.owner
        writes.report(Topic.LOST, Level.WARNING, f"lease {key} belongs to {owner} now", key, "taken")
