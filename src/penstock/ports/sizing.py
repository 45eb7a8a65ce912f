"""The calls that measure a stream's size and change it.

Implemented by `penstock.aws.cloudwatch_queries` and `penstock.aws.stream_control`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class StreamSums(Protocol):
    """Sums of metrics, by period.

    `sums` has one mapping for each query, from the beginning of a period in milliseconds to its sum; None for a query
    that failed. `problems` has a sentence for each.
    """

    @property
    def sums(self) -> Sequence[Mapping[int, float] | None]:
        """In the order of the queries."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Queries without a whole answer."""


class StreamMetrics(Protocol):
    """Metrics of streams. Thread-safe."""

    def fetch(
        self,
        stream: str,
        queries: Sequence[tuple[str, str | None]],
        began_ms: int,
        ended_ms: int,
        period_s: int = 60,
    ) -> StreamSums:
        """Fetch sums of a stream's metrics.

        Args:
            queries: Name of a metric, and the id of a shard or None for the whole stream.
            began_ms: Any time in the first period.
            ended_ms: Any time in the last period.

        Raises:
            ServiceError: A call failed.
        """


class Resharding(Protocol):
    """Splits and merges; begun when a method returns.

    Raises (every method):
        ResourceBusy: Another change of the stream is under way.
        Rejected: The shard is closed, or has been changed.
        UnknownOutcome: Sent and not answered.
        Throttled, Unavailable, NotFound, AccessDenied: As for every call.
    """

    def split(self, stream: str, shard_id: str, hash_key: int) -> None:
        """Call SplitShard."""

    def merge(self, stream: str, shard_id: str, adjacent_id: str) -> None:
        """Call MergeShards."""
