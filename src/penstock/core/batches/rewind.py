"""Plans the reset of leases whose claims a query's checkpoint location has no record of.

The location was restored from a copy, or another driver works, or has worked, from a copy of it. Everything after the
location's positions is read again, so no record is skipped that this location has not passed to Spark. Deleted leases
are created again by `penstock.core.batches.recreation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from penstock.core.batches.claims import find_unknown_claims
from penstock.core.batches.offsets import StreamOffset
from penstock.core.leases.lease import BatchClaim, Lease, new_lease
from penstock.core.leases.lease_writes import Create, LeaseWrite, Reset
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position
from penstock.core.shard import Shard
from penstock.core.shard_graph import ancestors_of


def needs_reset(row: Lease, claim: BatchClaim, offset: StreamOffset) -> bool:
    """Return whether to reset a lease with a claim that the checkpoint location has no record of.

    Leases that other workers read stay as they are. Any other is reset if the claim's batch is later than the location's last
    one, or if the location has a position for the shard and the checkpoint is at or before the claim's end.
    """
    if not (row.is_ended or row.reader in (None, claim.worker)):
        return False
    return claim.batch > offset.batch or (row.key in offset.shards and not claim.end < row.checkpoint)


def plan_rewind(
    rows: Mapping[str, Lease], offset: StreamOffset, worker: str, shards: Mapping[str, Shard], run: str
) -> dict[str, LeaseWrite]:
    """Plan the reset of leases whose claims a checkpoint location has no record of.

    - A shard in the location's offset goes back to its position there.
    - A later shard, one that the offset does not have yet, begins at TRIM_HORIZON after its parents' end.
    - The claim of the location's last batch is kept if a lease still has it: Spark repeats that batch if it was not
      committed. If no lease has it, an empty claim of the previous batch takes its place. Either claim gets the name of this
      run: a driver that was paused during the reset finds a claim that it has not seen, and does not go on.
    - The ancestors of shards in the offset stay done.
    - A shard between the offset's shards and the later ones gets a lease at TRIM_HORIZON, if its lease was deleted.

    Returns:
        Writes by shard, without leases that `needs_reset` leaves alone and without unlisted shards that have no lease. The
        leases with a claim of the latest batch are last: a restart after some of the writes still finds that batch's number.
    """
    parents_of = {key: shard.parents for key, shard in shards.items()}
    done_shards = ancestors_of(offset.shards, parents_of)
    unknown_claims = find_unknown_claims(rows.values(), worker, offset.known_batches)
    to_reset = [(row, claim) for row, claim in unknown_claims if needs_reset(row, claim, offset)]
    later_shards = [row.key for row, _ in to_reset if row.key not in offset.shards]
    starts = {key: position for key, position in offset.shards.items() if not position.is_shard_end}
    starts |= dict.fromkeys(_shards_between(offset, later_shards, parents_of), TRIM_HORIZON)
    writes: dict[str, LeaseWrite] = {
        key: Create(new_lease(shards[key], position))
        for key, position in starts.items()
        if key in shards and key not in rows and key not in done_shards
    }
    previous_batch = offset.batch - 1
    previous_planner = offset.known_batches.planner_of(previous_batch)
    for row, claim in sorted(to_reset, key=lambda found: found[1].batch):
        position = offset.shards.get(row.key, TRIM_HORIZON)
        kept = claim_of_last_batch(row, worker, offset, position)
        if kept is None:
            kept = BatchClaim(worker, previous_batch, run, position, position, planned_by=previous_planner)
        writes[row.key] = Reset(
            row.key,
            row.counter,
            position,
            claim_worker=worker,
            claim=replace(kept, run=run, made_ms=claim.made_ms),
            # The claimed batch ended at a record after the position: if records between have expired since, that is data loss.
            has_later_records=claim.end.is_record and position < claim.end,
        )
    logged_positions = {key: offset.shards[key] for key in writes if key in offset.shards}
    ended = ended_parent_leases(rows, logged_positions, shards)
    return {lease.key: Create(lease) for lease in ended} | writes


def _shards_between(
    offset: StreamOffset, later_shards: Iterable[str], parents_of: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the shards that descend from an offset's shards and are ancestors of some later shards.

    They are read from their beginning. Their leases may have been deleted: without leases for them, the later shards would be
    read first.
    """
    return sorted(
        key
        for key in ancestors_of(later_shards, parents_of) - offset.shards.keys()
        if not offset.shards.keys().isdisjoint(ancestors_of([key], parents_of))
    )


def claim_of_last_batch(
    row: Lease, worker: str, offset: StreamOffset, position: Position
) -> BatchClaim | None:
    """Return the claim of the location's last batch that a row has, also among the earlier ranges of its claim; else None.

    Args:
        position: The last batch's start in the shard.
    """
    claim, planner = row.claim_of(worker), offset.known_batches.planner_of(offset.batch)
    if claim is not None and claim.is_of(offset.batch, planner) and claim.start == position:
        return claim
    end = None if claim is None else claim.end_of(offset.batch, position, planner)
    if claim is None or end is None:
        return None
    return BatchClaim(
        worker, offset.batch, claim.run, position, end, made_ms=claim.made_ms, planned_by=planner
    )


def ended_parent_leases(
    rows: Mapping[str, Lease], positions: Mapping[str, Position], shards: Mapping[str, Shard]
) -> list[Lease]:
    """Return ended leases for the parents of shards that are read from their beginning, if a parent has no lease.

    Workers would read such a parent again, because a parent without a lease counts as unread until its child is begun.

    Args:
        positions: The positions of new leases, by shard. The parents of these shards are read to their end.
    """
    begin = [shards[key] for key, position in positions.items() if position == TRIM_HORIZON and key in shards]
    parents = {
        key: shards[key] for shard in begin for key in shard.parents if key in shards and key not in rows
    }
    return [new_lease(parent, SHARD_END) for parent in parents.values()]
