"""The answer of GetRecords, in any decoded form."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Protocol

from msgspec import Struct

from penstock.core.aggregation import MAGIC
from penstock.core.position import Position, at_record
from penstock.core.shard import ChildShard

_data_of: Final = attrgetter("data")
_key_of: Final = attrgetter("partition_key")


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


def end_of_kinesis_record(record: RawRecord) -> Position:
    """Return a position at or after all user records of a Kinesis record, without taking an aggregate apart."""
    return at_record(record.sequence_number, len(record.data) if record.data.startswith(MAGIC) else 0)


class RecordPage(Struct, frozen=True):
    """One answer of GetRecords, or one event of a subscription.

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

    @property
    def first_sequence_number(self) -> str | None:
        """Of the first Kinesis record, or None when the page is empty."""
        return self.records[0].sequence_number if self.records else None

    @property
    def end(self) -> Position | None:
        """A position at or after the last user record, inside the last Kinesis record; None when the page is empty."""
        return end_of_kinesis_record(self.records[-1]) if self.records else None

    @property
    def read_bytes(self) -> int:
        """Bytes that the service counts against the quota: data and partition keys."""
        keys = filter(None, map(_key_of, self.records))
        return sum(map(len, map(_data_of, self.records))) + sum(map(len, keys))
