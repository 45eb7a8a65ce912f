"""Resets of an application's checkpoints: the rows that a reset writes, and those that undo it."""

from __future__ import annotations

from msgspec import Struct, field

from penstock.core.leases.lease import Lease, new_lease
from penstock.core.leases.row_checks import why_foreign
from penstock.core.position import TRIM_HORIZON, Position, Sentinel
from penstock.core.shard import Shard
from penstock.errors import OptionError


class ResetPlan(Struct, frozen=True):
    """The writes of a reset, or of a restore from a backup.

    Args:
        targets: The new checkpoint of each lease that exists, by key.
        created_leases: Leases to create, of shards that have none.
        removed_keys: Leases to delete, of shards that ended before the position: while a parent's lease exists, its child is
            read from its own beginning.
        kept_keys: Leases that are not written, each with the reason.
    """

    targets: dict[str, Position]
    created_leases: tuple[Lease, ...] = ()
    removed_keys: tuple[str, ...] = ()
    kept_keys: dict[str, str] = field(default_factory=dict)


def plan_reset(
    leases: tuple[Lease, ...],
    position: Position,
    shards: tuple[Shard, ...] | None = None,
    snapshot: frozenset[str] = frozenset(),
) -> ResetPlan:
    """Plan a reset.

    Args:
        position: TRIM_HORIZON, or a LATEST or AT_TIMESTAMP with its moment.
        shards: The stream's whole listing, or None if it is unknown.
        snapshot: Ids of the shards that were open at the moment: together they cover the hash range.

    Returns:
        At TRIM_HORIZON every shard is read again, parents before children. At a moment the snapshot's shards start there,
        their descendants start at their beginnings, and shards that ended before the moment are not read.

    Raises:
        OptionError: A lease is not of the listed stream; or the position is a moment in the past and there is no listing to
            show which shards were open then.
    """
    _refuse_other_stream(leases, shards or ())
    if shards is None:
        return _plan_without_listing(leases, position)
    is_trim_horizon = position.sentinel is Sentinel.TRIM_HORIZON
    starts: dict[str, Position] = {}
    # A shard's number is larger than its parents', so this order puts parents first.
    for shard in sorted(shards, key=lambda shard: shard.shard_id):
        if is_trim_horizon or shard.shard_id in snapshot:
            starts[shard.shard_id] = position
        elif any(parent in starts for parent in shard.parents):
            starts[shard.shard_id] = TRIM_HORIZON
    existing = {lease.key for lease in leases}
    return ResetPlan(
        targets={key: start for key, start in starts.items() if key in existing},
        created_leases=tuple(
            new_lease(shard, starts[shard.shard_id])
            for shard in shards
            if shard.shard_id in starts and shard.shard_id not in existing
        ),
        removed_keys=tuple(sorted(existing - set(starts))),
    )


def _refuse_other_stream(leases: tuple[Lease, ...], shards: tuple[Shard, ...]) -> None:
    listed = {shard.shard_id: shard for shard in shards}
    for lease in leases:
        why = why_foreign(lease, listed[lease.key]) if lease.key in listed else None
        if why is not None:
            raise OptionError(
                f"lease {lease.key} belongs to another stream, or to one that was created again ({why}); nothing is reset: name the "
                "application's stream, or delete the table if that stream is gone"
            )


def _plan_without_listing(leases: tuple[Lease, ...], position: Position) -> ResetPlan:
    """Plan a reset from the leases alone.

    At TRIM_HORIZON finished leases are kept: their shards may be gone. At LATEST the open shards are those whose leases have no
    child's lease in the table.
    """
    if position.sentinel is Sentinel.TRIM_HORIZON:
        return ResetPlan(
            targets={lease.key: TRIM_HORIZON for lease in leases if not lease.is_ended},
            kept_keys={lease.key: "it is finished" for lease in leases if lease.is_ended},
        )
    if position.sentinel is not Sentinel.LATEST:
        raise OptionError(
            f"a reset to {position} needs the stream: the table does not show which shards were open at the moment"
        )
    parents = frozenset[str]().union(*(lease.parents for lease in leases))
    return ResetPlan(
        targets={lease.key: position for lease in leases if lease.key not in parents},
        removed_keys=tuple(lease.key for lease in leases if lease.key in parents),
    )


def plan_restore(leases: tuple[Lease, ...], backup: tuple[Lease, ...]) -> ResetPlan:
    """Plan to restore the checkpoints of a backup, and to remove leases that are not in it: the reset has created them.

    Args:
        backup: The rows before the reset.
    """
    existing = {lease.key for lease in leases}
    return ResetPlan(
        targets={lease.key: lease.checkpoint for lease in backup if lease.key in existing},
        created_leases=tuple(lease for lease in backup if lease.key not in existing),
        removed_keys=tuple(sorted(existing - {lease.key for lease in backup})),
    )
