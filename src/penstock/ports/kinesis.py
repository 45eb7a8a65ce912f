"""The stream service that Penstock needs.

Implemented by `penstock.aws.kinesis`, for the service and the embedded server over HTTP. The simulator has its own.
tests/contract checks the implementation with a server that misbehaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from penstock.core.put_entry import EntryAnswer, PutEntry
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.record_page import RawRecord, RecordPage
from penstock.core.shard import Shard, StreamSummary

# Some of these types are defined in the core. They are exported here too, beside the calls that use them.
__all__ = [
    "EntryAnswer",
    "IteratorStart",
    "IteratorType",
    "Kinesis",
    "PutEntry",
    "RawRecord",
    "RecordPage",
    "ShardFilter",
    "ShardListing",
]


class ShardFilter(Struct, frozen=True):
    """Which shards ListShards returns: AT_LATEST, AT_TRIM_HORIZON, AT_TIMESTAMP or FROM_TIMESTAMP (with a moment), AFTER_SHARD_ID (with a shard)."""

    type: str
    timestamp_ms: int | None = None
    shard_id: str | None = None


class ShardListing(Struct, frozen=True):
    """All pages of one ListShards, with the time of the service.

    Args:
        server_ms: The service's time at the answer, from its Date header (whole seconds), or None.
    """

    shards: tuple[Shard, ...]
    server_ms: int | None = None


class Kinesis(Protocol):
    """The stream service.

    `stream` is always a name or an ARN. Every method is safe to call from several threads and has a deadline. Reads retry
    throttling and 5xx, with full jitter and a bound.

    Raises (every method):
        Throttled, Unavailable: After the last retry; nothing happened.
        UnknownOutcome: Only `put_records`: the call was sent and not answered.
        NotFound, AccessDenied, Rejected, ResourceBusy: At once.
    """

    def without_retries(self) -> Kinesis:
        """Return the same service without retries, for callers that retry by themselves."""

    def fetch_summary(self, stream: str) -> StreamSummary:
        """Call DescribeStreamSummary."""

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        """Call ListShards for every page."""

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        """Call GetShardIterator. The answer is valid for five minutes."""

    def fetch_records(self, stream: str, iterator: str, record_count_max: int = 10_000) -> RecordPage:
        """Call GetRecords.

        Throttling is not retried but raised at once: the reader sets its own pace.

        Raises:
            ExpiredIterator: Fetch a new iterator at the last position.
        """

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[EntryAnswer]:
        """Call PutRecords once, without any retry: only the caller can keep the order.

        Args:
            stream: Name or ARN.
            entries: 1 to 500, within the call's byte limit.

        Returns:
            One answer per entry, in order.
        """
