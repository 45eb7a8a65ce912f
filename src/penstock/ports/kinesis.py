"""The stream service, as Penstock needs it.

Implemented by `penstock.aws.kinesis`, which reaches the service or the embedded server over HTTP. The simulator has a world
of its own. tests/contract asks the implementation over a server that misbehaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.core.put_entry import PutAnswer, PutEntry
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.shard import ChildShard, Shard, StreamSummary

# The core decides where an iterator begins and what is put; adapters find these names beside the calls.
__all__ = [
    "IteratorStart",
    "IteratorType",
    "Kinesis",
    "PutAnswer",
    "PutEntry",
    "RawRecord",
    "RecordPage",
    "ShardFilter",
    "ShardListing",
]


class RawRecord(Protocol):
    """A Kinesis record as it lies in the stream: perhaps an aggregate of many user records."""

    @property
    def sequence_number(self) -> str:
        """The service's text."""

    @property
    def data(self) -> bytes:
        """The blob, decoded."""

    @property
    def partition_key(self) -> str | None:
        """None on streams whose record distribution the service manages."""

    @property
    def arrival_s(self) -> float:
        """ApproximateArrivalTimestamp: seconds since the epoch, UTC, to the millisecond."""


@dataclass(frozen=True, slots=True)
class RecordPage:
    """One answer of GetRecords.

    Args:
        records: In sequence order; may be empty although more records follow.
        next_iterator: None when the closed shard is read to its end.
        millis_behind_latest: Milliseconds from now to the oldest unread record; 0 at the tip.
        child_shards: Given with the last page of a closed shard.
        server_ms: The service's time at the answer, from its Date header (whole seconds), or None.
    """

    records: Sequence[RawRecord]
    next_iterator: str | None
    millis_behind_latest: int
    child_shards: tuple[ChildShard, ...] = ()
    server_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """Which shards ListShards gives: AT_LATEST, AT_TRIM_HORIZON, AT_TIMESTAMP (with a moment), ..."""

    type: str
    timestamp_ms: int | None = None
    shard_id: str | None = None


@dataclass(frozen=True, slots=True)
class ShardListing:
    """Every page of one ListShards, with the service's own clock.

    Args:
        server_ms: The service's time at the answer, from its Date header (whole seconds), or None.
    """

    shards: tuple[Shard, ...]
    server_ms: int | None = None


class Kinesis(Protocol):
    """One stream service.

    `stream` is a name or an ARN everywhere. Every method is safe to call from several threads, has a deadline,
    and retries throttling and 5xx with full jitter inside a bound where nothing can have happened twice.

    Raises (every method):
        Throttled, Unavailable: After the bound of retries; nothing happened.
        UnknownOutcome: Only `put_records`: sent, no answer.
        NotFound, AccessDenied, Rejected, ResourceBusy: At once.
    """

    def without_retries(self) -> Kinesis:
        """Return the same service; each call is sent once, for those who decide themselves when to try again."""

    def fetch_summary(self, stream: str) -> StreamSummary:
        """DescribeStreamSummary."""

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        """ListShards, every page."""

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        """GetShardIterator. The answer is good for five minutes."""

    def fetch_records(self, stream: str, iterator: str, record_count_max: int = 10_000) -> RecordPage:
        """GetRecords.

        Throttling is not retried here but raised at once: the reader paces itself.

        Raises:
            ExpiredIterator: Take a new iterator from the last position.
        """

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[PutAnswer]:
        """PutRecords, once: no retry of any kind, since only the caller knows what order allows.

        Args:
            stream: Name or ARN.
            entries: 1 to 500, within the call's byte limit.

        Returns:
            One answer per entry, in order.
        """
