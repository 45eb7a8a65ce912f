"""Judges shards: the worst problem of each, and the order of rows and applications. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.cli.overview.snapshot import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow


_STATES: Final = {
    "stopped": Trouble.STOPPED,
    "owner silent": Trouble.SILENT,
    "unowned": Trouble.UNOWNED,
    "no lease": Trouble.NO_LEASE,
}
"""States of a lease that are troubles by themselves."""

LAG_STEADY: Final = 0.1
"""A lag that changes by less, in seconds a second, counts as steady."""


@dataclass(frozen=True, slots=True)
class TroubleLimits:
    """Thresholds of problems.

    Args:
        lag_s: Lag above which a shard is in trouble.
        checkpoint_unmoved_s: Time after which a checkpoint that has not moved is trouble, if its shard has a lag.
    """

    lag_s: float = 60.0
    checkpoint_unmoved_s: float = 120.0


def trouble_of(row: ShardRow, limits: TroubleLimits) -> Trouble:
    """Return the worst problem of a shard."""
    if row.state in _STATES:
        return _STATES[row.state]
    if row.state == "ended":
        return Trouble.NONE
    is_behind = row.lag_ms is not None and row.lag_ms > limits.lag_s * 1000
    # A child that waits for its parents is behind because they are.
    if is_behind and not row.waits_for_parents and row.checkpoint_unmoved_s >= limits.checkpoint_unmoved_s:
        return Trouble.CHECKPOINT_UNMOVED
    if row.is_throttled:
        return Trouble.THROTTLED
    if is_behind and not row.waits_for_parents:
        return Trouble.BEHIND
    return Trouble.UNKNOWN if row.why_lag_unknown else Trouble.NONE


def explain_trouble(row: ShardRow, trouble: Trouble) -> str:
    """Return a sentence for people about a problem; empty without one."""
    owner = row.owner or "no worker"
    return {
        Trouble.STOPPED: f"{row.stopped_reason} (more in the log of {owner})",
        Trouble.SILENT: f"{owner} has not renewed the lease for {row.unmoved_s:.0f} s; others take it when it expires",
        Trouble.UNOWNED: "no worker reads it: they have no room, or none is running",
        Trouble.NO_LEASE: "the stream has this shard, and the application has no lease for it yet",
        Trouble.CHECKPOINT_UNMOVED: f"{owner} renews the lease, and the checkpoint has not moved for {row.checkpoint_unmoved_s:.0f} s: "
        "a handler that does not return, or a batch that takes long",
        Trouble.THROTTLED: "the service refuses reads: the five reads a second of the shard are used up",
        Trouble.BEHIND: f"its oldest unread record is {(row.lag_ms or 0) / 1000:.0f} s old{_lag_trend(row)}",
        Trouble.IDLE: "the workers have ended and given their leases back",
        Trouble.UNKNOWN: row.why_lag_unknown,
        Trouble.NONE: "",
    }[trouble]


def _lag_trend(row: ShardRow) -> str:
    change = row.lag_change or 0.0
    if abs(change) < LAG_STEADY:
        return ""
    return ", and the lag grows" if change > 0 else ", and the lag shrinks"


def are_all_leases_released(rows: Iterable[ShardRow]) -> bool:
    """Return whether no unfinished lease has an owner: the workers are done or have stopped. A worker that died is still an owner."""
    return all(row.owner is None or row.state == "ended" for row in rows)


def with_troubles(rows: Iterable[ShardRow], limits: TroubleLimits) -> tuple[ShardRow, ...]:
    """Return the rows with their problems, in display order."""
    rows, judged_rows = tuple(rows), []
    is_idle = are_all_leases_released(rows)
    for row in rows:
        trouble = trouble_of(row, limits)
        if is_idle and trouble in (Trouble.UNOWNED, Trouble.NO_LEASE):
            trouble = Trouble.IDLE
        judged_rows.append(replace(row, trouble=trouble, why=explain_trouble(row, trouble)))
    return tuple(sorted(judged_rows, key=_sort_key))


def _sort_key(row: ShardRow) -> tuple[int, bool, int, str]:
    """Return a row's sort key: shards in trouble first, then those being read, the largest lag first, then ended ones."""
    return (row.trouble.rank, row.state == "ended", -(row.lag_ms or 0), row.shard)


def sort_applications(snapshots: Iterable[ApplicationSnapshot]) -> tuple[ApplicationSnapshot, ...]:
    """Return applications in display order: unreadable ones first, then by their worst shard, then by lag."""
    return tuple(
        sorted(
            snapshots,
            key=lambda snapshot: (
                not snapshot.problems,
                snapshot.worst_trouble.rank,
                -(snapshot.lag_ms or 0),
                snapshot.application,
            ),
        )
    )
