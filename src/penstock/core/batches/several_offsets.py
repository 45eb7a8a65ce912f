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


class MultiStreamOffset(Struct, frozen=True):
    """Where one batch of a query of several streams starts.

    Args:
        by_stream: The offset of each stream by its id (`account:stream:epoch`); none for a stream before its first batch.
    """

    by_stream: Mapping[str, StreamOffset] = field(default_factory=dict)

    def offset_of(self, stream_id: str) -> StreamOffset:
        """Return the offset of one stream; an empty one before the stream's first batch."""
        return self.by_stream.get(stream_id, StreamOffset())

    @property
    def worker(self) -> str:
        """The query's worker id; empty before the first batch."""
        return next((offset.worker for offset in self.by_stream.values() if offset.worker), "")

    @property
    def batch_count(self) -> int:
        """A number that grows with every batch."""
        return sum(offset.batch for offset in self.by_stream.values())

    def streams_read_since(self, previous: MultiStreamOffset) -> tuple[str, ...]:
        """Return the ids of the streams that this offset's batch reads: their offsets differ from those of the previous batch."""
        return tuple(
            stream_id
            for stream_id, offset in sorted(self.by_stream.items())
            if offset != previous.offset_of(stream_id) and offset.batch > 0
        )

    def with_plans(self, next_offsets: Mapping[str, StreamOffset]) -> MultiStreamOffset:
        """Return the offset of the next batch, which reads the streams of these offsets."""
        return MultiStreamOffset({**self.by_stream, **next_offsets})

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

    def without_streams(self, stream_ids: Iterable[str]) -> MultiStreamOffset:
        """Return this offset without these streams."""
        gone = frozenset(stream_ids)
        return MultiStreamOffset({key: offset for key, offset in self.by_stream.items() if key not in gone})

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form: the same offset is always the same text."""
        return {
            "streams": {key: self.by_stream[key].to_json() for key in sorted(self.by_stream)},
            "v": SEVERAL_FORMAT_VERSION,
        }


INITIAL_MULTI_STREAM_OFFSET: Final = MultiStreamOffset()


def parse_multi_stream_offset(document: Any) -> MultiStreamOffset:
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
            return INITIAL_MULTI_STREAM_OFFSET
        identity = StreamIdentity(offset.stream_arn, offset.stream_created_ms)
        return MultiStreamOffset({identity.stream_id: offset})
    streams = document.get("streams")
    if not isinstance(streams, Mapping) or not all(isinstance(key, str) for key in streams):
        raise PositionError(f"the checkpoint holds an offset that cannot be read: {document!r:.300}")
    return MultiStreamOffset({key: parse_offset(offset) for key, offset in sorted(streams.items())})


# --- limits ---------------------------------------------------------------------------------------------------


def serving_order(ids: Sequence[str], batch_count: int) -> list[str]:
    """Return streams or shards in the order in which a batch serves them: after each batch another one is first.

    Args:
        ids: In a fixed order.
        batch_count: A number that grows with every batch.
    """
    first = batch_count % len(ids)
    return [*ids[first:], *ids[:first]]


def split_total(
    total: int | None, shard_counts: Mapping[str, int], *, least: int = 1
) -> dict[str, int | None]:
    """Split a limit over streams in proportion to their shards with records to read; the parts sum up to the limit.

    If the limit is too small for all streams, the first ones share it and the others wait for a later batch.

    Args:
        shard_counts: For each stream, in the order in which it is served, the number of its shards to read, 1 or more.
        least: The smallest part that is worth a read; a limit below it goes to the first stream as a whole.

    Returns:
        The part of each stream that is served, in the same order.
    """
    if total is None:
        return dict.fromkeys(shard_counts)
    served = list(shard_counts)[: max(1, total // least)]
    spare = total - min(least, total) * len(served)
    weight = sum(shard_counts[stream_id] for stream_id in served)
    parts: dict[str, int | None] = {}
    given = passed = 0
    for stream_id in served:
        # Each boundary is rounded by itself, so the parts sum up exactly and no stream is rounded away.
        passed += shard_counts[stream_id]
        until = spare * passed // weight
        parts[stream_id] = min(least, total) + until - given
        given = until
    return parts


def split_limits(limits: Limits, shard_counts: Mapping[str, int]) -> dict[str, Limits]:
    """Split the limits of a batch; return the part of each stream that the batch reads.

    Args:
        shard_counts: As for `split_total`.
    """
    records = split_total(limits.record_count_max, shard_counts)
    sizes = split_total(
        limits.bytes_max, {stream_id: shard_counts[stream_id] for stream_id in records}, least=SHARE_BYTES_MIN
    )
    # The batch reads only streams that have a part of both limits, so these share the records.
    records = split_total(
        limits.record_count_max, {stream_id: shard_counts[stream_id] for stream_id in sizes}
    )
    return {stream_id: Limits(records[stream_id], sizes[stream_id]) for stream_id in sizes}
