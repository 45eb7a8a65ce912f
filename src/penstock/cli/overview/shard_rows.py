"""Makes the rows of shards and workers from leases, listings and measured lags. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.lease_report import Sighting, circular_leases, state_of, zone_name
from penstock.cli.overview.snapshot import ShardRow, Trouble, WorkerRow
from penstock.cli.overview.trouble import TroubleLimits, judge
from penstock.core.leases.lease_view import waits_for_parents
from penstock.core.leases.required_leases import find_uncovered_shards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.shard_graph import ShardGraph
    from penstock.ports.lease_table import SkippedRow
    from penstock.runtime.shard_lags import ShardLag

_SKIPPED_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class KnownLag:
    """A measured lag, and how it changed since the measurement before.

    Args:
        change: Seconds by which the lag grows in a second; None if it is unknown.
    """

    lag: ShardLag
    change: float | None = None


def shard_rows(
    sightings: Sequence[Sighting],
    lags: Mapping[str, KnownLag],
    checkpoints_unmoved_s: Mapping[str, float],
    graph: ShardGraph,
    limits: TroubleLimits,
) -> tuple[ShardRow, ...]:
    """Return a row for every lease, and for every shard that should have one; trouble first.

    Args:
        sightings: The watched leases.
        lags: By shard.
        checkpoints_unmoved_s: By shard: seconds for which its checkpoint has not moved.
        graph: The stream's shards; empty if the stream is unknown.
        limits: Thresholds of problems.
    """
    leases = {sighting.lease.key: sighting.lease for sighting in sightings}
    circular = circular_leases(leases)
    parents = {parent for lease in leases.values() for parent in lease.parents}
    vanished = {parent for parent in parents if parent not in graph} if any(graph) else set()
    rows = [
        _row(
            sighting,
            state_of(sighting, leases, vanished, circular),
            waits_for_parents(sighting.lease, leases, vanished, circular),
            lags.get(sighting.lease.key),
            checkpoints_unmoved_s.get(sighting.lease.key, 0.0),
        )
        for sighting in sightings
    ]
    rows += [ShardRow(shard_id, "no lease") for shard_id in find_uncovered_shards(leases, graph)]
    return judge(rows, limits)


_READ_IN: Final = ("read", "handing over")
"""States of a lease in which its shard is read."""


def _row(
    sighting: Sighting, state: str, waits: bool, known: KnownLag | None, checkpoint_unmoved_s: float
) -> ShardRow:
    lease = sighting.lease
    return ShardRow(
        shard=lease.key,
        state=state,
        owner=lease.reader,
        next_owner=lease.next_owner,
        counter=lease.counter,
        unmoved_s=sighting.unmoved_s,
        has_moved=sighting.has_moved,
        checkpoint=str(lease.checkpoint),
        checkpoint_stands_s=checkpoint_unmoved_s,
        lag_ms=None if known is None else known.lag.lag_ms,
        lag_change=None if known is None else known.change,
        why_lag_unknown="" if known is None else known.lag.why_unknown,
        kb_per_s=lease.throughput_kbps if state in _READ_IN else None,
        is_throttled=known is not None and known.lag.refused_count > 0,
        stopped_reason=lease.stopped_reason,
        waits=waits,
    )


def worker_rows(rows: Sequence[ShardRow]) -> tuple[WorkerRow, ...]:
    """Return the workers that own unfinished leases, most leases first."""
    owned: dict[str, list[ShardRow]] = {}
    for row in rows:
        if row.owner is not None and row.state != "ended":
            owned.setdefault(row.owner, []).append(row)
    found = [
        WorkerRow(
            worker,
            len(mine),
            sum(row.trouble is not Trouble.NONE for row in mine),
            max((row.lag_ms for row in mine if row.lag_ms is not None), default=None),
            zone_name(worker),
        )
        for worker, mine in owned.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.lease_count, row.worker)))


def skipped_problems(skipped: Sequence[SkippedRow]) -> list[str]:
    """Return the problems that rows without a lease cause, a sentence each."""
    texts = [f"row {row.key} is left out: {row.reason}" for row in skipped[:_SKIPPED_SHOWN_MAX]]
    left = len(skipped) - len(texts)
    return [*texts, f"and {left} more rows, which are not leases either"] if left else texts
