"""A query of several streams: its offset has one offset for each stream, and a batch's limits are split over the streams.

Each stream has batches of its own numbers. A batch of the query reads the streams whose offsets it changes. A stream that
the query does not read any more keeps its offset, so that it goes on there when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from penstock.core.batches.offsets import (
    SEVERAL_FORMAT_VERSION,
    SHARE_BYTES_MIN,
    Limits,
    StreamOffset,
    parse_offset,
)
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import PositionError


class SeveralOffset(Struct, frozen=True):
    """Where one batch of a query of several streams starts.

    Args:
        by_stream: The offset of each stream by its id (`account:stream:epoch`); none for a stream before its first batch.
    """

    by_stream: Mapping[str, StreamOffset] = field(default_factory=dict)

    def of(self, stream_id: str) -> StreamOffset:
        """Return the offset of one stream."""
        return self.by_stream.get(stream_id, StreamOffset())

    @property
    def worker(self) -> str:
        """The query's worker id; empty before the first batch."""
        return next((offset.worker for offset in self.by_stream.values() if offset.worker), "")

    @property
    def batch_count(self) -> int:
        """A number that grows with every batch."""
        return sum(offset.batch for offset in self.by_stream.values())

    def read_between(self, start: SeveralOffset) -> tuple[str, ...]:
        """Return the ids of the streams that this offset's batch reads; `start` is the offset of the previous batch."""
        return tuple(
            stream_id
            for stream_id, offset in sorted(self.by_stream.items())
            if offset != start.of(stream_id) and offset.batch > 0
        )

    def with_plans(self, planned: Mapping[str, StreamOffset]) -> SeveralOffset:
        """Return the offset of the next batch, which reads these streams."""
        return SeveralOffset({**self.by_stream, **planned})

    def earlier_id_of(self, stream: StreamIdentity) -> str | None:
        """Return the id of an earlier stream of the same name that has an offset here, or None."""
        return next(
            (
                stream_id
                for stream_id, offset in sorted(self.by_stream.items())
                if offset.stream_arn == stream.arn and offset.stream_created_ms != stream.created_ms
            ),
            None,
        )

    def without(self, stream_ids: Iterable[str]) -> SeveralOffset:
        """Return this offset without these streams."""
        gone = frozenset(stream_ids)
        return SeveralOffset({key: offset for key, offset in self.by_stream.items() if key not in gone})

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form: the same offset is always the same text."""
        return {
            "streams": {key: self.by_stream[key].to_json() for key in sorted(self.by_stream)},
            "v": SEVERAL_FORMAT_VERSION,
        }


INITIAL_SEVERAL: Final = SeveralOffset()


def parse_several(document: Any) -> SeveralOffset:
    """Parse an offset that an earlier run logged: of several streams, or of the one stream that the query read before.

    Raises:
        PositionError: Not an offset of this source, or one of a later format.
    """
    if not isinstance(document, Mapping) or document.get("v") != SEVERAL_FORMAT_VERSION:
        offset = parse_offset(document)
        if not offset.stream_arn:
            if offset.batch:
                raise PositionError(
                    "the checkpoint holds an offset of an early version, which does not name its stream: start the query once with "
                    "that stream alone, and then with several"
                )
            return INITIAL_SEVERAL
        identity = StreamIdentity(offset.stream_arn, offset.stream_created_ms)
        return SeveralOffset({identity.stream_id: offset})
    streams = document.get("streams")
    if not isinstance(streams, Mapping) or not all(isinstance(key, str) for key in streams):
        raise PositionError(f"the checkpoint holds an offset that cannot be read: {document!r:.300}")
    return SeveralOffset({key: parse_offset(offset) for key, offset in sorted(streams.items())})


# --- limits ---------------------------------------------------------------------------------------------------


def in_turn(stream_ids: Sequence[str], batch_count: int) -> list[str]:
    """Return the streams in the order in which a batch serves them.

    After a batch that left streams out, another stream is first.

    Args:
        stream_ids: All streams of the query, in a fixed order.
        batch_count: A number that every batch increases by the number of streams that it reads.
    """
    turn = batch_count % len(stream_ids)
    return [*stream_ids[turn:], *stream_ids[:turn]]


def split_total(total: int | None, waiting: Mapping[str, int], *, least: int = 1) -> dict[str, int | None]:
    """Split a limit over streams in proportion to their shards with records to read; the parts sum up to the limit.

    If the limit is too small for all, the first streams get it and the others wait for a later batch.

    Args:
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
        waiting: As for `split_total`.
    """
    records = split_total(limits.record_count_max, waiting)
    sizes = split_total(
        limits.bytes_max, {stream_id: waiting[stream_id] for stream_id in records}, least=SHARE_BYTES_MIN
    )
    # The batch reads only streams that have a part of both limits, so these share the records.
    records = split_total(limits.record_count_max, {stream_id: waiting[stream_id] for stream_id in sizes})
    return {stream_id: Limits(records[stream_id], sizes[stream_id]) for stream_id in sizes}
