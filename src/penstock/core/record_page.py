"""The answer of GetRecords, in any decoded form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from penstock.core.shard import ChildShard


class RawRecord(Protocol):
    """A Kinesis record as it is in the stream: perhaps an aggregate of many user records."""

    @property
    def sequence_number(self) -> str:
        """The sequence number as the service's text."""

    @property
    def data(self) -> bytes:
        """The blob, decoded."""

    @property
    def partition_key(self) -> str | None:
        """None on streams whose record distribution the service manages."""

    @property
    def arrival_s(self) -> float:
        """ApproximateArrivalTimestamp: seconds since the epoch, UTC, to the millisecond."""


class RecordPage(Struct, frozen=True):
    """One answer of GetRecords.

    Args:
        records: In sequence order; may be empty although more records follow.
        next_iterator: None when a closed shard is read to its end.
        millis_behind_latest: Milliseconds from now to the oldest unread record; 0 at the tip.
        child_shards: Set on the last page of a closed shard.
        server_ms: The service's time at the answer, from its Date header (whole seconds), or None.
    """

    records: Sequence[RawRecord]
    next_iterator: str | None
    millis_behind_latest: int
    child_shards: tuple[ChildShard, ...] = ()
    server_ms: int | None = None
