"""How leases go back to a checkpoint location that does not know what was claimed on them.

The location was restored from a copy, or another driver works, or has worked, from a copy of it. Everything behind what the
location knows is read again, so nothing is passed over that its own line of history has never given to Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.batches.claims import find_unknown_claims
from penstock.core.batches.offsets import StreamOffset
from penstock.core.leases.lease import BatchClaim, Lease, starting_lease
from penstock.core.leases.lease_writes import Create, LeaseWrite, Reset
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.shard import Shard


def goes_back(row: Lease, claim: BatchClaim, known: StreamOffset) -> bool:
    """Whether a lease goes back whose claim a checkpoint location does not know.

    Leases that another worker holds stay as they are. So does one with a claim that is no later than the location's last
    batch where that knows no place to go back to, or where somebody has read on behind the claim since.

    Args:
        row: The lease.
        claim: The query's claim on it.
        known: The location's last offset.
    """
    if not (row.is_ended or row.reader in (None, claim.worker)):
        return False
    return claim.batch > known.batch or (row.key in known.shards and not claim.end < row.checkpoint)


def plan_rewind(
    rows: Mapping[str, Lease], known: StreamOffset, worker: str, shards: Mapping[str, Shard]
) -> dict[str, LeaseWrite]:
    """Plan how leases go back to where a checkpoint location stands that does not know their claims.

    Shards that have come since begin where their parents end, so they are read from their beginning. The claim of the
    location's last batch stands where it is still known: that batch is repeated if Spark does not know it as done.

    Args:
        rows: The lease table.
        known: The last offset of the location.
        worker: The query's worker id.
        shards: The stream's shards by id, as far as they are listed.

    Returns:
        Writes by shard: leases that `goes_back` leaves alone are left out, and so are shards that nothing is known of. The
        last batch's come last, so that a restart in between still knows its number.
    """
    writes: dict[str, LeaseWrite] = {}
    for key, position in known.shards.items():
        shard = shards.get(key)
        if key not in rows and shard is not None and not position.is_shard_end:
            writes[key] = Create(starting_lease(key, position, shard.parents, shard.hash_range))
    unknown = find_unknown_claims(rows.values(), worker, known.known)
    back = [(claim.batch, row) for row, claim in unknown if goes_back(row, claim, known)]
    ends = {row.key: claim.end for row, claim in unknown}
    for _, row in sorted(back, key=lambda found: found[0]):
        position = known.shards.get(row.key, TRIM_HORIZON)
        writes[row.key] = Reset(
            row.key,
            row.counter,
            position,
            forget=worker,
            claim=_claim_of_last_batch(row, worker, known, position),
            is_followed=ends[row.key].is_record and position < ends[row.key],
        )
    return writes


def _claim_of_last_batch(
    row: Lease, worker: str, known: StreamOffset, position: Position
) -> BatchClaim | None:
    """Return the claim of a location's last batch, as far as the claim that came after it still knows its end."""
    claim, planner = row.claim_of(worker), known.known.planner_of(known.batch)
    end = None if claim is None else claim.end_of(known.batch, position, planner)
    if claim is None or end is None:
        return None
    return BatchClaim(
        worker, known.batch, claim.run, position, end, made_ms=claim.made_ms, planned_by=planner
    )
