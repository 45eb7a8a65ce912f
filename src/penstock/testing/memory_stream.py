"""A stream of one shard in memory, with the records of one run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import attrgetter

from msgspec import Struct

from penstock.core.aggregation import AggregateBuilder
from penstock.core.hash_key import HASH_KEY_MAX, HASH_KEYS, HashRange
from penstock.core.position import TRIM_HORIZON, Position, at_record
from penstock.core.reading.record import Record
from penstock.core.shard import ChildShard, Shard, StreamSummary
from penstock.errors import UsageError
from penstock.ports.kinesis import (
    EntryAnswer,
    IteratorStart,
    IteratorType,
    Kinesis,
    PutEntry,
    RecordPage,
    ShardFilter,
    ShardListing,
)
from penstock.testing.made_records import ARRIVAL, SHARD_ID, STREAM

WHOLE_RANGE = HashRange(0, HASH_KEY_MAX)
HALF_RANGES = (HashRange(0, HASH_KEYS // 2 - 1), HashRange(HASH_KEYS // 2, HASH_KEY_MAX))


class StoredRecord(Struct, frozen=True):
    """A Kinesis record as it is in the stream. Implements `penstock.ports.kinesis.RawRecord`."""

    sequence_number: str
    data: bytes
    partition_key: str | None
    arrival_s: float


class MemoryStream:
    """Implements `penstock.ports.kinesis.Kinesis` for consumers, without quotas.

    Args:
        records: User records of one shard, in order.
        is_closed: Whether the shard was split after the records.
        stored: The Kinesis records that hold the user records; None makes them.

    Raises:
        UsageError: The records cannot be in one shard in this order.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        is_closed: bool,
        stored: Sequence[StoredRecord] | None = None,
    ) -> None:
        for each in records:
            if not isinstance(each, Record):
                raise UsageError(f"{each!r} is not a record; penstock.testing.records(...) makes records")
        first = records[0] if records else None
        self.shard_id: str = first.shard_id if first else SHARD_ID
        self.name: str = (first.stream if first else "") or STREAM
        for record in records:
            if (record.shard_id, record.stream or STREAM) != (self.shard_id, self.name):
                raise UsageError(
                    f"records of {self.name}/{self.shard_id} and of {record.stream}/{record.shard_id}: a run is about one "
                    "shard; run the handler once for each"
                )
        self._stored: Sequence[StoredRecord] = _stored_records(records) if stored is None else stored
        self.start: Position = _start_of(first)
        newest = max((record.approximate_arrival_timestamp for record in records), default=ARRIVAL)
        self.newest_ms: int = round(newest.timestamp() * 1000)
        number = int(self.shard_id.rpartition("-")[2]) if self.shard_id[-12:].isdigit() else 0
        self.children: tuple[ChildShard, ...] | tuple[()] = (
            tuple(
                ChildShard(f"shardId-{number + 1 + place:012d}", (self.shard_id,), half)
                for place, half in enumerate(HALF_RANGES)
            )
            if is_closed
            else ()
        )
        self.is_read: bool = False
        """Whether everything was read."""

    def without_retries(self) -> Kinesis:
        return self

    def fetch_summary(self, stream: str) -> StreamSummary:
        arn = (
            stream if stream.startswith("arn:") else f"arn:aws:kinesis:us-east-1:000000000000:stream/{stream}"
        )
        return StreamSummary(stream, arn, "ACTIVE", 1, open_shard_count=len(self.children) or 1)

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        del stream
        shards = [Shard(self.shard_id, WHOLE_RANGE, (), "0", "1" if self.children else None)]
        if shard_filter is None:
            shards += [Shard(child.shard_id, child.hash_range, child.parents) for child in self.children]
        return ShardListing(tuple(shards))

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        """Return the place of the first record."""
        del stream
        if shard_id != self.shard_id or start.type is not IteratorType.AT_SEQUENCE_NUMBER:
            return "0"
        wanted = int(start.sequence_number or 0)
        return str(sum(int(record.sequence_number) < wanted for record in self._stored))

    def fetch_records(self, stream: str, iterator: str, record_count_max: int = 10_000) -> RecordPage:
        del stream
        begin = int(iterator)
        found = self._stored[begin : begin + record_count_max]
        end = begin + len(found)
        self.is_read = end == len(self._stored)
        if not self.is_read:
            behind_ms = round((self._stored[-1].arrival_s - self._stored[end].arrival_s) * 1000)
            return RecordPage(found, str(end), max(behind_ms, 1))
        return RecordPage(found, None if self.children else str(end), 0, self.children)

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[EntryAnswer]:
        """Refuse: a consumer puts nothing."""
        raise NotImplementedError(f"{stream} is only read; {len(entries)} entries were put")


def _stored_records(records: Sequence[Record]) -> list[StoredRecord]:
    for before, record in pairwise(records):
        if record.position <= before.position:
            raise UsageError(
                f"record {record.position} follows {before.position}: sequence numbers of a shard grow; join records with +"
            )
    stored: list[StoredRecord] = []
    for number, group in groupby(records, attrgetter("sequence_number")):
        parts = list(group)
        first = parts[0].sub_sequence_number
        if [part.sub_sequence_number for part in parts] != list(range(first, first + len(parts))) or (
            first and stored
        ):
            raise UsageError(
                f"the records of aggregate {number} are numbered {[part.sub_sequence_number for part in parts]}: expected 0, "
                "1, 2 and so on; only the first aggregate may lack what was done before"
            )
        stored.append(_stored_record(parts))
    return stored


def _stored_record(parts: Sequence[Record]) -> StoredRecord:
    last = parts[-1]
    arrival_s = last.approximate_arrival_timestamp.timestamp()
    if last.sub_sequence_number == 0:
        if last.explicit_hash_key is not None:
            raise UsageError(
                f"record {last.sequence_number} has an explicit hash key: the service returns it only for records of an aggregate"
            )
        return StoredRecord(last.sequence_number, last.data, last.partition_key, arrival_s)
    builder = AggregateBuilder()
    for _ in range(parts[0].sub_sequence_number):
        builder.add(b"", "done before")
    for part in parts:
        if part.partition_key is None:
            raise UsageError(f"record {part.position} of an aggregate has no partition key")
        builder.add(part.data, part.partition_key, part.explicit_hash_key)
    entry = builder.build()
    return StoredRecord(last.sequence_number, entry.data, entry.partition_key, arrival_s)


def _start_of(first: Record | None) -> Position:
    """Return the checkpoint before the first record. If that is inside an aggregate, the checkpoint is the user record before."""
    if first is None or first.sub_sequence_number == 0:
        return TRIM_HORIZON
    return at_record(first.sequence_number, first.sub_sequence_number - 1)
