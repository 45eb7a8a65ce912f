"""Makes the rows of shards and workers from leases, listings and measured lags. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.lease_report import WatchedLease, find_circular_leases, state_of, zone_name
from penstock.cli.overview.snapshot import ShardRow, Trouble, WorkerRow
from penstock.cli.overview.trouble import TroubleLimits, with_troubles
from penstock.core.leases.lease_view import waits_for_parents
from penstock.core.leases.required_leases import find_uncovered_shards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.shard_graph import ShardGraph
    from penstock.ports.lease_table import SkippedRow
    from penstock.runtime.shard_lags import ShardLag

_SKIPPED_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class LagWithChange:
    """A measured lag, and how it changed since the measurement before.

    Args:
        change: Seconds by which the lag grows in a second; None if it is unknown.
    """

    lag: ShardLag
    change: float | None = None


def shard_rows(
    watched_leases: Sequence[WatchedLease],
    lags: Mapping[str, LagWithChange],
    checkpoints_unmoved_s: Mapping[str, float],
    graph: ShardGraph,
    limits: TroubleLimits,
) -> tuple[ShardRow, ...]:
    """Return a row for every lease, and for every shard that should have one; trouble first.

    Args:
        watched_leases: Every lease of the table.
        lags: By shard.
        checkpoints_unmoved_s: By shard: seconds for which its checkpoint has not moved.
        graph: The stream's shards; empty if the stream is unknown.
        limits: Thresholds of problems.
    """
    leases = {each.lease.key: each.lease for each in watched_leases}
    circular_leases = find_circular_leases(leases)
    parents = {parent for lease in leases.values() for parent in lease.parents}
    vanished_shards = {parent for parent in parents if parent not in graph} if any(graph) else set()
    rows = [
        _shard_row(
            each,
            state_of(each, leases, vanished_shards, circular_leases),
            waits_for_parents(each.lease, leases, vanished_shards, circular_leases),
            lags.get(each.lease.key),
            checkpoints_unmoved_s.get(each.lease.key, 0.0),
        )
        for each in watched_leases
    ]
    rows += [ShardRow(shard_id, "no lease") for shard_id in find_uncovered_shards(leases, graph)]
    return with_troubles(rows, limits)


_READ_STATES: Final = ("read", "handing over")
"""States of a lease in which its shard is read."""


def _shard_row(
    watched_lease: WatchedLease,
    state: str,
    waits: bool,
    lag: LagWithChange | None,
    checkpoint_unmoved_s: float,
) -> ShardRow:
    lease = watched_lease.lease
    return ShardRow(
        shard=lease.key,
        state=state,
        owner=lease.reader,
        next_owner=lease.next_owner,
        counter=lease.counter,
        unmoved_s=watched_lease.unmoved_s,
        has_moved=watched_lease.has_moved,
        checkpoint=str(lease.checkpoint),
        checkpoint_unmoved_s=checkpoint_unmoved_s,
        lag_ms=None if lag is None else lag.lag.lag_ms,
        lag_change=None if lag is None else lag.change,
        why_lag_unknown="" if lag is None else lag.lag.why_unknown,
        kb_per_s=lease.throughput_kbps if state in _READ_STATES else None,
        is_throttled=lag is not None and lag.lag.refused_count > 0,
        stopped_reason=lease.stopped_reason,
        waits_for_parents=waits,
    )


def worker_rows(rows: Sequence[ShardRow]) -> tuple[WorkerRow, ...]:
    """Return the workers that own unfinished leases, most leases first."""
    rows_by_owner: dict[str, list[ShardRow]] = {}
    for row in rows:
        if row.owner is not None and row.state != "ended":
            rows_by_owner.setdefault(row.owner, []).append(row)
    workers = [
        WorkerRow(
            worker,
            len(owned_rows),
            sum(row.trouble is not Trouble.NONE for row in owned_rows),
            max((row.lag_ms for row in owned_rows if row.lag_ms is not None), default=None),
            zone_name(worker),
        )
        for worker, owned_rows in rows_by_owner.items()
    ]
    return tuple(sorted(workers, key=lambda row: (-row.lease_count, row.worker)))


def skipped_problems(skipped_rows: Sequence[SkippedRow]) -> list[str]:
    """Return the problems that rows without a lease cause, a sentence each."""
    texts = [f"row {row.key} is left out: {row.reason}" for row in skipped_rows[:_SKIPPED_SHOWN_MAX]]
    left = len(skipped_rows) - len(texts)
    return [*texts, f"and {left} more rows, which are not leases either"] if left else texts
