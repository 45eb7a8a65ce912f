"""Estimate when shards were opened and closed, from their numbers and records: the service does not return these moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from penstock.core.recording.metadata import RecordedShard
from penstock.core.shard import Shard

_CREATED_SHIFT: Final = 148
_CREATED_MASK: Final = (1 << 36) - 1
_VERSION_SHIFT: Final = 184
_VERSION: Final = 2


class Arrivals(Struct, frozen=True):
    """The first and the last arrival of a shard's records in the slice, in milliseconds."""

    first_ms: int
    last_ms: int


def parents_first(shards: Iterable[Shard]) -> list[Shard]:
    """Return shards in the order of their sequence numbers, so that parents are before their children."""
    return sorted(shards, key=lambda shard: (int(shard.starting_sequence_number), shard.shard_id))


def describe_shards(
    shards: Iterable[Shard],
    arrivals: Mapping[str, Arrivals],
    from_ms: int,
    recorded_ids: frozenset[str] | None = None,
) -> tuple[RecordedShard, ...]:
    """Return the shards of a recording with the moments at which they were opened and closed, parents first.

    Args:
        arrivals: By shard id; shards without records in the slice are missing.
        from_ms: The beginning of the slice: shards that were opened before have no moment.
        recorded_ids: The shards whose records were to be recorded; None: all.
    """
    ordered = parents_first(shards)
    opened_ms = {shard.shard_id: _opened_ms(shard, arrivals, from_ms) for shard in ordered}
    siblings: dict[tuple[str, ...], list[str]] = {}
    for shard in ordered:
        if shard.parents:
            siblings.setdefault(shard.parents, []).append(shard.shard_id)
    for names in siblings.values():  # the children of a split open together: no hash key is without a shard
        moments = [moment for name in names if (moment := opened_ms[name]) is not None]
        opened_ms.update(dict.fromkeys(names, min(moments, default=None)))
    children_opened: dict[str, list[int | None]] = {}
    for shard in ordered:
        for parent in shard.parents:
            children_opened.setdefault(parent, []).append(opened_ms[shard.shard_id])
    return tuple(
        RecordedShard(
            id=shard.shard_id,
            hash_range=(str(shard.hash_range.start), str(shard.hash_range.end)),
            starting_sequence_number=shard.starting_sequence_number,
            ending_sequence_number=shard.ending_sequence_number,
            parents=shard.parents,
            opened_ms=opened_ms[shard.shard_id],
            closed_ms=_closed_ms(shard, children_opened.get(shard.shard_id, []), arrivals, from_ms),
            is_recorded=recorded_ids is None or shard.shard_id in recorded_ids,
        )
        for shard in ordered
    )


def created_ms_hint(starting_sequence_number: str) -> int | None:
    """Return the second in a shard's first sequence number, in milliseconds; None if the number has another layout.

    The layout is not documented, so the caller must check the moment against the records.
    """
    number = int(starting_sequence_number)
    if number >> _VERSION_SHIFT != _VERSION:
        return None
    return (number >> _CREATED_SHIFT & _CREATED_MASK) * 1000


def _opened_ms(shard: Shard, arrivals: Mapping[str, Arrivals], from_ms: int) -> int | None:
    """Estimate when a shard was opened; None if that was before the slice, or if nothing shows it.

    The estimate is the second that the shard's first sequence number contains. Records contradict it if a parent's record is later, or
    a record of the shard is earlier. In that case, if the parents have records, the estimate is the arrival of the shard's first record. If
    the shard has none, it is the moment after the parents' last record.
    """
    if not shard.parents:
        return None
    last_of_parents = [arrivals[parent].last_ms for parent in shard.parents if parent in arrivals]
    earliest_ms = max(last_of_parents, default=from_ms - 1) + 1
    own = arrivals.get(shard.shard_id)
    hint_ms = created_ms_hint(shard.starting_sequence_number)
    if hint_ms is not None and hint_ms + 1_000 <= from_ms and not last_of_parents:
        return None
    if hint_ms is not None and hint_ms + 1_000 > earliest_ms and (own is None or hint_ms <= own.first_ms):
        return max(hint_ms, earliest_ms)
    if own is not None:
        return max(own.first_ms, earliest_ms) if last_of_parents else None
    return earliest_ms if last_of_parents else None


def _closed_ms(
    shard: Shard, children_opened_ms: list[int | None], arrivals: Mapping[str, Arrivals], from_ms: int
) -> int | None:
    """Estimate when a shard was closed: before its first child opened, after its last record; None if it is open."""
    if shard.is_open:
        return None
    known = [moment for moment in children_opened_ms if moment is not None]
    last_ms = arrivals[shard.shard_id].last_ms if shard.shard_id in arrivals else from_ms - 1
    return max(min(known) - 1, last_ms) if known else last_ms
