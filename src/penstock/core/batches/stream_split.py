"""Splits a limit of a query over the streams that have something to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.core.batches.offsets import SHARE_BYTES_MIN


class Limits(NamedTuple):
    """The limits of one batch; None: none.

    Args:
        record_count_max: User records.
        bytes_max: Bytes of user data.
    """

    record_count_max: int | None = None
    bytes_max: int | None = None


NO_LIMITS: Final = Limits()


def in_turn(stream_ids: Sequence[str], batch_count: int) -> list[str]:
    """Return the streams in the order in which one batch serves them: each batch begins with another one.

    Args:
        stream_ids: All streams of the query, in a fixed order.
        batch_count: A number that grows with every batch by the number of streams that it reads.
    """
    turn = batch_count % len(stream_ids)
    return [*stream_ids[turn:], *stream_ids[:turn]]


def split_total(total: int | None, waiting: Mapping[str, int], *, least: int = 1) -> dict[str, int | None]:
    """Split a limit over streams in proportion to their shards with records to read; the parts sum up to the limit.

    If the limit is too small for all, the first streams get it and the others wait for a later batch.

    Args:
        total: The limit, or None.
        waiting: For each stream, in the order in which it is served, the number of its shards to read, 1 or more.
        least: The smallest part that is worth a read; the first stream gets the limit even if that is smaller.

    Returns:
        The part of each stream that is served, in the same order.
    """
    if total is None:
        return dict.fromkeys(waiting)
    served = list(waiting)[: max(1, total // least)]
    spare = total - min(least, total) * len(served)
    weight = sum(waiting[stream_id] for stream_id in served)
    parts: dict[str, int | None] = {}
    given = passed = 0
    for stream_id in served:
        # Each boundary is rounded by itself, so the parts sum up exactly and no stream is rounded away.
        passed += waiting[stream_id]
        until = spare * passed // weight
        parts[stream_id] = min(least, total) + until - given
        given = until
    return parts


def split_limits(limits: Limits, waiting: Mapping[str, int]) -> dict[str, Limits]:
    """Split the limits of a batch; return the part of each stream that the batch reads.

    Args:
        limits: Of the batch.
        waiting: As for `split_total`.
    """
    records = split_total(limits.record_count_max, waiting)
    sizes = split_total(
        limits.bytes_max, {stream_id: waiting[stream_id] for stream_id in records}, least=SHARE_BYTES_MIN
    )
    records = split_total(limits.record_count_max, {stream_id: waiting[stream_id] for stream_id in sizes})
    return {stream_id: Limits(records[stream_id], sizes[stream_id]) for stream_id in sizes}
