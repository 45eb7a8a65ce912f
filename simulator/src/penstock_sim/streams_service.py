"""The service as a worker of several streams sees it: the consumer's own calls, answered in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from penstock.consumer.shard_run import ShardRun
from penstock.core.leases.coordinator_events import Problem
from penstock.core.position import LATEST, TRIM_HORIZON, Position, at_record, at_timestamp
from penstock.core.reading.reader_steps import ListedShard
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.shard import StreamSummary
from penstock.errors import AccessDenied, PenstockError, Throttled
from penstock.ports.kinesis import ShardFilter, ShardListing

if TYPE_CHECKING:
    from penstock_sim.several_streams import SeveralStreams


class StreamsService:
    """Calls that are begun and answered at one moment: the caller advances the time.

    Args:
        streams: The answers.
    """

    def __init__(self, streams: SeveralStreams) -> None:
        self._streams = streams

    def fetch_summary(self, stream: str) -> StreamSummary:
        """Describe a stream."""
        return self._streams.fetch_summary(stream)

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        """List a stream's shards."""
        kind, moment_ms = (
            (None, None) if shard_filter is None else (shard_filter.type, shard_filter.timestamp_ms)
        )
        answer = self._streams.list_stream(stream, kind, moment_ms)
        if isinstance(answer, PenstockError):
            raise answer
        if answer is Problem.REFUSED:
            raise AccessDenied("access is denied", code=self._streams.world.denial)
        if isinstance(answer, Problem):
            raise Throttled("throttled")
        return ShardListing(*answer)

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        """Open an iterator."""
        answer = self._streams.world.serve_iterator(f"{stream}:{shard_id}", _position_of(start))
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(f"nothing here calls {name}")


def _position_of(start: IteratorStart) -> Position:
    if start.sequence_number is not None:
        return at_record(start.sequence_number)
    if start.timestamp_ms is not None:
        return at_timestamp(start.timestamp_ms)
    return LATEST if start.type is IteratorType.LATEST else TRIM_HORIZON


class AnsweredRun:
    """Takes the place of a run during a step of its reading, and keeps the run's input until the answer arrives."""

    def __init__(self, run: ShardRun) -> None:
        self.key = run.key
        self.shard_id = run.shard_id
        self.hash_range = run.hash_range
        self.iterator: str | None = None
        self.listed: ListedShard | None = None
        self.failure: PenstockError | None = None

    def on_iterator(self, iterator: str) -> None:
        """Keep an iterator."""
        self.iterator = iterator

    def on_listing(self, listed: ListedShard) -> None:
        """Keep the result of a listing."""
        self.listed = listed

    def on_fetch_failed(self, error: PenstockError) -> None:
        """Keep a failure."""
        self.failure = error
