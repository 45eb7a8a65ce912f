"""The service as a worker of several streams sees it: the consumer's own calls, answered in virtual time."""

from __future__ import annotations

from typing import NoReturn, Protocol

from penstock.consumer.shard_run import ShardRun
from penstock.core.leases.coordinator_events import Problem
from penstock.core.position import LATEST, TRIM_HORIZON, Position, at_record, at_timestamp
from penstock.core.reading.reader_steps import ListedShard
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.shard import Shard, StreamSummary
from penstock.errors import AccessDenied, PenstockError, Throttled
from penstock.ports.kinesis import ShardFilter, ShardListing


class ServedStreams(Protocol):
    """The answers of the service about several streams; implemented by `StreamsWorld`."""

    denial: str

    def fetch_summary(self, name: str) -> StreamSummary:
        """Answer DescribeStreamSummary; raises NotFound or AccessDenied."""

    def list_stream(
        self, name: str, filter_type: str | None, timestamp_ms: int | None
    ) -> PenstockError | Problem | tuple[tuple[Shard, ...], int]:
        """Answer ListShards of one stream."""

    def serve_iterator(self, place: str, position: Position) -> str | PenstockError:
        """Answer GetShardIterator."""


class StreamsService:
    """Calls that are begun and answered at one moment: the caller advances the time.

    Args:
        world: Answers.
    """

    def __init__(self, world: ServedStreams) -> None:
        self._world = world

    def fetch_summary(self, stream: str) -> StreamSummary:
        """Describe a stream."""
        return self._world.fetch_summary(stream)

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        """List a stream's shards."""
        kind, moment_ms = (
            (None, None) if shard_filter is None else (shard_filter.type, shard_filter.timestamp_ms)
        )
        answer = self._world.list_stream(stream, kind, moment_ms)
        if isinstance(answer, PenstockError):
            raise answer
        if answer is Problem.REFUSED:
            raise AccessDenied("access is denied", code=self._world.denial)
        if isinstance(answer, Problem):
            raise Throttled("throttled")
        return ShardListing(*answer)

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        """Open an iterator."""
        answer = self._world.serve_iterator(f"{stream}:{shard_id}", _position_of(start))
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
