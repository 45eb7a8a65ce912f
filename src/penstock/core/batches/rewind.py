"""How leases come to agree with a checkpoint location that does not know what was claimed.

It was restored from a copy, or another driver works, or has worked, from a copy of it. Everything behind what the location knows
is read again, so nothing is passed over that its own line of history has never given to Spark. How leases are made again that
somebody has deleted: `penstock.core.batches.recreation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.batches.claims import find_unknown_claims
from penstock.core.batches.offsets import StreamOffset
from penstock.core.leases.lease import BatchClaim, Lease, starting_lease
from penstock.core.leases.lease_writes import Create, LeaseWrite, Reset
from penstock.core.position import SHARD_END, TRIM_HORIZON, Position
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity


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
    location's last batch stands where it is still known: that batch is repeated if Spark does not know it as done. What comes
    before a shard that the location knows was read out before it, and stays done. What has come in between, and whose lease was
    cleared away, gets one at its beginning.

    Args:
        rows: The lease table.
        known: The last offset of the location.
        worker: The query's worker id.
        shards: The stream's shards by id, as far as they are listed.

    Returns:
        Writes by shard: leases that `goes_back` leaves alone are left out, and so are shards that nothing is known of. The
        last batch's come last, so that a restart in between still knows its number.
    """
    parents_of = {key: shard.parents for key, shard in shards.items()}
    done = shards_before(known.shards, parents_of)
    unknown = find_unknown_claims(rows.values(), worker, known.known)
    back = [(claim.batch, row) for row, claim in unknown if goes_back(row, claim, known)]
    come_since = [row.key for _, row in back if row.key not in known.shards]
    unfinished = {key: place for key, place in known.shards.items() if not place.is_shard_end}
    places = unfinished | dict.fromkeys(_between(known, come_since, parents_of), TRIM_HORIZON)
    writes: dict[str, LeaseWrite] = {
        key: Create(starting_lease(key, place, shards[key].parents, shards[key].hash_range))
        for key, place in places.items()
        if key in shards and key not in rows and key not in done
    }
    ends = {row.key: claim.end for row, claim in unknown}
    for _, row in sorted(back, key=lambda found: found[0]):
        position = known.shards.get(row.key, TRIM_HORIZON)
        writes[row.key] = Reset(
            row.key,
            row.counter,
            position,
            forget=worker,
            claim=claim_of_last_batch(row, worker, known, position),
            is_followed=ends[row.key].is_record and position < ends[row.key],
        )
    known_positions = {key: known.shards[key] for key in writes if key in known.shards}
    ended = ended_parents(rows, known_positions, shards)
    return {lease.key: Create(lease) for lease in ended} | writes


def _between(known: StreamOffset, later: Iterable[str], parents_of: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the shards after those that an offset knows and before some later ones: all of their records come again.

    Without their leases, which may have been cleared away, the later ones would be read before them.
    """
    return sorted(
        key
        for key in shards_before(later, parents_of) - known.shards.keys()
        if not known.shards.keys().isdisjoint(shards_before([key], parents_of))
    )


def claim_of_last_batch(
    row: Lease, worker: str, known: StreamOffset, position: Position
) -> BatchClaim | None:
    """Return the claim of a location's last batch: the one that stands, or what a later one still knows of it."""
    claim, planner = row.claim_of(worker), known.known.planner_of(known.batch)
    if claim is not None and claim.is_of(known.batch, planner) and claim.start == position:
        return claim
    end = None if claim is None else claim.end_of(known.batch, position, planner)
    if claim is None or end is None:
        return None
    return BatchClaim(
        worker, known.batch, claim.run, position, end, made_ms=claim.made_ms, planned_by=planner
    )


def ended_parents(
    rows: Mapping[str, Lease],
    positions: Mapping[str, Position],
    shards: Mapping[str, Shard],
    stream: StreamIdentity | None = None,
) -> list[Lease]:
    """Return the leases of parents that were cleared away, ended as they were, of shards that begin anew.

    Workers take a parent without a lease, of a shard that nobody has begun, for one that was never read.

    Args:
        rows: The lease table.
        positions: Shards whose parents were read out, and where their own leases are to stand.
        shards: The stream's shards by id, as far as they are listed.
        stream: Whose they are, to be written on the leases; None: nothing is.
    """
    begin = [shards[key] for key, position in positions.items() if position == TRIM_HORIZON and key in shards]
    parents = {
        key: shards[key] for shard in begin for key in shard.parents if key in shards and key not in rows
    }
    return [
        starting_lease(key, SHARD_END, parent.parents, parent.hash_range, stream)
        for key, parent in parents.items()
    ]


def shards_before(keys: Iterable[str], parents_of: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the shards that others come after: their parents, and their parents' parents.

    Args:
        keys: The others' ids.
        parents_of: Shard id to parents' ids, as far as it is known.
    """
    found: set[str] = set()
    todo = [parent for key in keys for parent in parents_of.get(key, ())]
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo.extend(parents_of.get(key, ()))
    return found
