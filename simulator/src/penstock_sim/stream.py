"""A stream for the simulator: shards with lineage, records with growing sequence numbers, listings by filter."""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Final, NamedTuple

from msgspec import Struct, field

from penstock.core.hash_key import HASH_KEY_MAX, HASH_KEYS, HashRange
from penstock.core.position import LATEST, TRIM_HORIZON, Position, Sentinel, at_record, at_timestamp
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.shard import ChildShard, Shard, StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.ports.kinesis import ShardFilter
from penstock_sim.plan import STREAM

_PLAIN: Final = (b"", "key", 1)


class SimBlob(NamedTuple):
    """A Kinesis record as the service returns it."""

    sequence_number: str
    data: bytes  # the blob, perhaps an aggregate
    partition_key: str | None
    arrival_s: float


class SimShard(Struct):
    """One shard and its records."""

    shard_id: str
    hash_range: HashRange
    parents: tuple[str, ...]
    first_sequence: int
    created_ms: int
    closed_ms: int | None = None
    last_sequence: int | None = None
    children: list[str] = field(default_factory=list)
    # The number of each user record: the sequence number of its Kinesis record plus its place in it.
    sequences: list[int] = field(default_factory=list)
    arrivals_ms: list[int] = field(default_factory=list)  # when each arrived
    # The Kinesis records that are not just one plain user record, by sequence number, and how many user records each holds.
    blobs: dict[int, tuple[bytes, str, int]] = field(default_factory=dict)
    trimmed: int = 0  # so many user records from the first have left the stream
    is_expired: bool = False


class SimStream:
    """The stream. Times are milliseconds of the service's clock.

    Args:
        retention_s: How long it keeps a record; None is for ever.
        stream_id: The prefix of its shards' ids in lease keys; empty if the table has one stream.
        number_min: Its sequence numbers are greater: those of a stream that had its name before.
    """

    def __init__(
        self,
        chance: random.Random,
        shard_count: int,
        now_ms: int,
        *,
        identity: StreamIdentity = STREAM,
        retention_s: float | None = None,
        stream_id: str = "",
        number_min: int = 0,
    ) -> None:
        self._chance = chance
        self.identity = identity
        self.retention_s = retention_s
        self.stream_id = stream_id
        self._horizon_ms = now_ms
        self.shards: dict[str, SimShard] = {}
        # Numbers that soon get a digit more: comparing them as text is wrong then.
        self._sequence: int = 10 ** chance.randint(2, 5) - chance.randint(1, 60)
        while self._sequence <= number_min:
            self._sequence *= 10
        self._before_first = self._sequence
        step = HASH_KEYS // shard_count
        for place in range(shard_count):
            end = HASH_KEY_MAX if place == shard_count - 1 else (place + 1) * step - 1
            self._add(HashRange(place * step, end), (), now_ms)

    def _add(self, hash_range: HashRange, parents: tuple[str, ...], now_ms: int) -> SimShard:
        self._sequence += self._chance.randint(1, 3)
        shard_id = f"shardId-{len(self.shards):012d}"
        shard = SimShard(shard_id, hash_range, parents, self._sequence, now_ms)
        self.shards[shard_id] = shard
        for parent in parents:
            self.shards[parent].children.append(shard_id)
        return shard

    @property
    def last_number(self) -> int:
        return self._sequence

    def summary(self, name: str) -> StreamSummary:
        """Return the stream's description under the name that a caller gives it; a seed's hours are short."""
        return StreamSummary(
            name,
            self.identity.arn,
            "ACTIVE",
            self.identity.created_ms,
            retention_hours=24 if self.retention_s is None else self.retention_s / 3600,
            open_shard_count=len(self.open_shards()),
        )

    def key_of(self, shard_id: str) -> str:
        return f"{self.stream_id}:{shard_id}" if self.stream_id else shard_id

    def has_given(self, number: int) -> bool:
        return self._before_first < number <= self._sequence

    def open_shards(self) -> list[SimShard]:
        """Return the shards that accept puts, in the order of their hash ranges."""
        found = [shard for shard in self.shards.values() if shard.closed_ms is None]
        return sorted(found, key=lambda shard: shard.hash_range)

    def draw_open_shard(self) -> SimShard:
        return self._chance.choice([shard for shard in self.shards.values() if shard.closed_ms is None])

    def put_into(self, shard: SimShard, now_ms: int) -> int:
        self._sequence += self._chance.randint(1, 3)
        shard.sequences.append(self._sequence)
        shard.arrivals_ms.append(now_ms)
        return self._sequence

    def put_blob(
        self, shard: SimShard, data: bytes, partition_key: str, count: int, now_ms: int
    ) -> list[int]:
        """Put a Kinesis record of so many user records; return the number of each."""
        sequence = self.put_into(shard, now_ms)
        shard.blobs[sequence] = (data, partition_key, count)
        # User records are numbered from their Kinesis record's number on, so the next one must leave room.
        self._sequence += count - 1
        shard.sequences.extend(range(sequence + 1, sequence + count))
        shard.arrivals_ms.extend([now_ms] * (count - 1))
        return list(range(sequence, sequence + count))

    def count_in(self, shard_id: str, sequence: int) -> int:
        return self.shards[shard_id].blobs.get(sequence, _PLAIN)[2]

    def read(self, shard: SimShard, index: int, count_max: int) -> tuple[list[SimBlob], int]:
        """Return whole Kinesis records from an index on, and the index after them."""
        records: list[SimBlob] = []
        while index < len(shard.sequences) and len(records) < count_max:
            number = shard.sequences[index]
            data, key, count = shard.blobs.get(number, _PLAIN)
            arrival_s = shard.arrivals_ms[index] / 1000
            records.append(SimBlob(str(number), data or str(number).encode(), key, arrival_s))
            index += count
        return records, index

    def trim(self, before_ms: int) -> tuple[list[SimShard], list[SimShard]]:
        """Drop records older than a moment; return the shards that lost records, and those that left the stream."""
        self._horizon_ms = max(self._horizon_ms, before_ms)
        shortened, gone = [], []
        for shard in self.shards.values():
            if shard.is_expired:
                continue
            trimmed = bisect_left(shard.arrivals_ms, before_ms)
            if trimmed > shard.trimmed:
                shard.trimmed = trimmed
                shortened.append(shard)
            if shard.closed_ms is not None and shard.closed_ms < before_ms:
                shard.is_expired = True
                gone.append(shard)
        return shortened, gone

    def _close(self, shard: SimShard, now_ms: int) -> None:
        self._sequence += 1
        shard.closed_ms = now_ms
        shard.last_sequence = self._sequence

    def split(self, shard: SimShard, now_ms: int) -> list[str]:
        """Split an open shard somewhere; return the ids of the children, none if its range is too small."""
        span = shard.hash_range
        if span.end - span.start < 16:
            return []
        middle = span.start + (span.end - span.start) * self._chance.randint(1, 3) // 4
        self._close(shard, now_ms)
        pair = (HashRange(span.start, middle), HashRange(middle + 1, span.end))
        return [self._add(part, (shard.shard_id,), now_ms).shard_id for part in pair]

    def merge(self, one: SimShard, other: SimShard, now_ms: int) -> list[str]:
        """Merge two open neighbours; return the child's id."""
        self._close(one, now_ms)
        self._close(other, now_ms)
        whole = HashRange(
            min(one.hash_range.start, other.hash_range.start), max(one.hash_range.end, other.hash_range.end)
        )
        return [self._add(whole, (one.shard_id, other.shard_id), now_ms).shard_id]

    def list_shards(self, shard_filter: ShardFilter | None) -> list[Shard]:
        found = [shard for shard in self.shards.values() if not shard.is_expired]
        if shard_filter is not None:
            found = [shard for shard in found if _passes(shard, shard_filter, self._horizon_ms)]
        return [self.describe(shard) for shard in found]

    def describe(self, shard: SimShard) -> Shard:
        """Return a shard as a listing shows it."""
        end = None if shard.last_sequence is None else str(shard.last_sequence)
        return Shard(shard.shard_id, shard.hash_range, shard.parents, str(shard.first_sequence), end)

    def children_of(self, shard: SimShard) -> tuple[ChildShard, ...]:
        """Return a shard's children as its last page shows them."""
        found = (self.shards[child] for child in shard.children)
        return tuple(ChildShard(child.shard_id, child.parents, child.hash_range) for child in found)

    def seek(self, shard: SimShard, position: Position) -> int:
        """Return the index of the first record at or after a position that has not left the stream."""
        return max(shard.trimmed, self._seek(shard, position))

    def _seek(self, shard: SimShard, position: Position) -> int:
        if position.sequence_number is not None:
            return bisect_left(shard.sequences, int(position.sequence_number))
        if position.sentinel is Sentinel.LATEST:
            return len(shard.sequences)
        if position.sentinel is Sentinel.AT_TIMESTAMP:
            return bisect_left(shard.arrivals_ms, position.timestamp_ms or 0)
        return 0


def position_of(start: IteratorStart) -> Position:
    """Return the position at which an iterator begins; of the record itself if it begins after that record."""
    if start.sequence_number is not None:
        return at_record(start.sequence_number)
    if start.timestamp_ms is not None:
        return at_timestamp(start.timestamp_ms)
    return TRIM_HORIZON if start.type is IteratorType.TRIM_HORIZON else LATEST


def _passes(shard: SimShard, shard_filter: ShardFilter, horizon_ms: int) -> bool:
    timestamp_ms = shard_filter.timestamp_ms or 0
    moment_ms = max(timestamp_ms, horizon_ms)
    match shard_filter.type:
        case "FROM_TRIM_HORIZON":
            return True
        case "AT_LATEST":
            return shard.closed_ms is None
        case "AT_TRIM_HORIZON" | "AT_TIMESTAMP":
            born = shard.created_ms <= moment_ms or not shard.parents
            return born and (shard.closed_ms is None or shard.closed_ms > moment_ms)
        case "FROM_TIMESTAMP":
            return shard.closed_ms is None or shard.closed_ms > timestamp_ms
    raise ValueError(f"unknown shard filter {shard_filter.type}")
