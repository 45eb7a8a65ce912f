"""The offset of a query of several streams: one offset for each stream.

Each stream has batches of its own numbers. A batch of the query reads the streams whose offsets it changes. A stream that
the query does not read any more keeps its offset, so that it goes on there when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from penstock.core.batches.offsets import SEVERAL_FORMAT_VERSION, StreamOffset, parse_offset
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
        """Return the ids of the streams that the batch of this offset reads, if the batch before had offset `start`."""
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
