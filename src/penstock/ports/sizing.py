"""The calls that measure a stream's size and change it.

Implemented by `penstock.aws.cloudwatch_queries` and `penstock.aws.stream_control`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

Sums = Mapping[int, float]
"""The sum of each period that has one; the key is the period's beginning in milliseconds since the epoch."""


class QueryAnswer(Struct, frozen=True):
    """Sums of metrics, by period.

    Args:
        sums: One for each query, in their order; None if the query failed.
        problems: One sentence for each query without an answer or with an incomplete one.
    """

    sums: Sequence[Sums | None]
    problems: tuple[str, ...] = ()


class StreamMetrics(Protocol):
    """Metrics of streams. Thread-safe."""

    def fetch(
        self,
        stream: str,
        queries: Sequence[tuple[str, str | None]],
        began_ms: int,
        ended_ms: int,
        period_s: int = 60,
    ) -> QueryAnswer:
        """Fetch sums of a stream's metrics.

        Args:
            queries: Name of a metric, and the id of a shard or None for the whole stream.
            began_ms: Any time in the first period; milliseconds since the epoch.
            ended_ms: Any time in the last period.

        Raises:
            ServiceError: A call failed.
        """


class Resharding(Protocol):
    """Splits and merges of shards. When a method returns, the change has begun and may not have ended.

    Raises (every method):
        ResourceBusy: Another change of the stream is under way.
        Rejected: The shard is closed, or has been changed.
        UnknownOutcome: The call was sent and not answered.
        Throttled, Unavailable, NotFound, AccessDenied: As for every call.
    """

    def split(self, stream: str, shard_id: str, hash_key: int) -> None:
        """Call SplitShard."""

    def merge(self, stream: str, shard_id: str, adjacent_id: str) -> None:
        """Call MergeShards."""
