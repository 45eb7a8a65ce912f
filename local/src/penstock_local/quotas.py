"""The service's rates as token buckets over the virtual clock.

Sources: the API reference of each operation, and the developer guide's page on quotas and limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MIB = 1024 * 1024

WRITE_BYTES_PER_S = MIB
WRITE_RECORDS_PER_S = 1000
READ_BYTES_PER_S = 2 * MIB
READ_CALLS_PER_S = 5
ITERATOR_CALLS_PER_S = 5
FAN_OUT_BYTES_PER_S = 2 * MIB
SUBSCRIBE_CALLS_PER_S = 1

ACCOUNT_CALLS_PER_S = {
    "AddTagsToStream": 5,
    "CreateChannel": 5,
    "CreateStream": 5,
    "DecreaseStreamRetentionPeriod": 5,
    "DeleteChannel": 5,
    "DeleteResourcePolicy": 5,
    "DeleteStream": 5,
    "DescribeAccountSettings": 5,
    "DescribeChannel": 5,
    "DescribeLimits": 1,
    "DescribeStream": 10,
    "DescribeStreamSummary": 20,
    "GetResourcePolicy": 5,
    "IncreaseStreamRetentionPeriod": 5,
    "ListChannels": 5,
    "ListStreams": 5,
    "ListTagsForResource": 5,
    "ListTagsForStream": 5,
    "MergeShards": 5,
    "PutResourcePolicy": 5,
    "RegisterStreamConsumer": 5,
    "RemoveTagsFromStream": 5,
    "SplitShard": 5,
    "TagResource": 5,
    "UntagResource": 5,
    "UpdateAccountSettings": 5,
    "UpdateChannel": 5,
    "UpdateMaxRecordSize": 5,
    "UpdateShardCount": 10,
    "UpdateStreamMode": 5,
    "UpdateStreamWarmThroughput": 5,
}
STREAM_CALLS_PER_S = {
    "DeregisterStreamConsumer": 5,
    "DescribeStreamConsumer": 20,
    "ListShards": 1000,
    "ListStreamConsumers": 5,
}
"""Operations whose rate is each stream's own."""
CREATING_STREAMS_MAX = 5
CREATING_CONSUMERS_MAX = 5
CONSUMERS_MAX = 20
COMMITTED_CONSUMERS_MAX = 50
CHANGING_QUEUES_MAX = 5
CHANNELS_PER_STREAM_MAX = 2
"""One to each kind of destination."""
ON_DEMAND_STREAMS_MAX = 50
ENCRYPTION_CHANGES_PER_DAY_MAX = 25
RESCALES_PER_DAY_MAX = 10
MODE_SWITCHES_PER_DAY_MAX = 2
DAY_MS = 24 * 3_600_000


class Bucket:
    """A token bucket that holds one second's worth and may go into debt for one large request.

    Args:
        per_s: Tokens that flow in per virtual second; also its capacity.
    """

    __slots__ = ("_level", "_per_ms", "_stamp_ms", "capacity")

    def __init__(self, per_s: float) -> None:
        self.capacity = float(per_s)
        self._per_ms = per_s / 1000.0
        self._level = self.capacity
        self._stamp_ms = 0

    def level(self, now_ms: int) -> float:
        """Return the tokens that are left; negative while in debt."""
        if now_ms > self._stamp_ms:
            self._level = min(self.capacity, self._level + (now_ms - self._stamp_ms) * self._per_ms)
            self._stamp_ms = now_ms
        return self._level

    def may_take(self, amount: float, now_ms: int) -> bool:
        """Return whether a request of this size fits. A request that is larger than the bucket fits if the bucket is full."""
        return self.level(now_ms) >= min(amount, self.capacity)

    def due_ms(self, amount: float, now_ms: int) -> int:
        """Return when a request of this size may be taken, if no other request is taken before."""
        missing = min(amount, self.capacity) - self.level(now_ms)
        return now_ms if missing <= 0 else now_ms + math.ceil(missing / self._per_ms)

    def take(self, amount: float) -> None:
        """Use tokens up; call `may_take` first. A debt from a large request delays the next requests."""
        self._level -= amount

    def try_call(self, now_ms: int) -> bool:
        """Take the token of one call; return False if there is none."""
        if not self.may_take(1, now_ms):
            return False
        self.take(1)
        return True


class ReadBucket:
    """Bytes read from one shard: 2 MiB/s. One answer may have 10 MiB, and delays the next one until it is paid off.

    The service documents that a 10 MiB answer is followed by five seconds of refusals.
    """

    __slots__ = ("_blocked_until_ms", "_bucket")

    def __init__(self) -> None:
        self._bucket = Bucket(READ_BYTES_PER_S)
        self._blocked_until_ms = 0

    def may_read(self, now_ms: int) -> bool:
        """Return whether a read may start now; its size is not known yet."""
        return now_ms >= self._blocked_until_ms and self._bucket.level(now_ms) > 0

    def take(self, size_bytes: int, now_ms: int) -> None:
        """Count an answer of this many bytes of data and keys."""
        self._bucket.take(size_bytes)
        if size_bytes > READ_BYTES_PER_S:
            self._blocked_until_ms = now_ms + -(-size_bytes * 1000 // READ_BYTES_PER_S)


@dataclass(slots=True)
class ShardQuota:
    """The five rates of one shard."""

    write_bytes: Bucket = field(default_factory=lambda: Bucket(WRITE_BYTES_PER_S))
    write_records: Bucket = field(default_factory=lambda: Bucket(WRITE_RECORDS_PER_S))
    read_calls: Bucket = field(default_factory=lambda: Bucket(READ_CALLS_PER_S))
    iterator_calls: Bucket = field(default_factory=lambda: Bucket(ITERATOR_CALLS_PER_S))
    read_bytes: ReadBucket = field(default_factory=ReadBucket)

    def try_write(self, size_bytes: int, now_ms: int) -> bool:
        """Take the tokens of one record if both rates allow it. Return False, and take nothing, if not."""
        if not self.write_records.may_take(1, now_ms) or not self.write_bytes.may_take(size_bytes, now_ms):
            return False
        self.write_records.take(1)
        self.write_bytes.take(size_bytes)
        return True


class Quotas:
    """All buckets of one server.

    Args:
        enforced: Whether rates are enforced. If False, everything is let through and nothing is counted.
    """

    def __init__(self, *, enforced: bool = True) -> None:
        self.enforced = enforced
        self._shards: dict[tuple[int, int], ShardQuota] = {}
        self._calls: dict[tuple[str, int | str], Bucket] = {}

    def shard(self, stream_uid: int, shard_index: int) -> ShardQuota:
        """Return the buckets of one shard."""
        key = (stream_uid, shard_index)
        found = self._shards.get(key)
        if found is None:
            found = self._shards[key] = ShardQuota()
        return found

    def try_call(self, operation: str, now_ms: int, owner: int | str) -> bool:
        """Count one call of an operation against its rate; return False if the rate is used up.

        Args:
            owner: The owner of the rate: the stream's uid for operations in `STREAM_CALLS_PER_S`, otherwise the region.
        """
        if not self.enforced:
            return True
        per_s = STREAM_CALLS_PER_S.get(operation) or ACCOUNT_CALLS_PER_S.get(operation)
        if per_s is None:
            return True
        key = (operation, owner)
        bucket = self._calls.get(key)
        if bucket is None:
            bucket = self._calls[key] = Bucket(per_s)
        return bucket.try_call(now_ms)

    def forget(self, stream_uid: int) -> None:
        """Drop the buckets of a deleted stream."""
        self._shards = {key: quota for key, quota in self._shards.items() if key[0] != stream_uid}
        self._calls = {key: bucket for key, bucket in self._calls.items() if key[1] != stream_uid}
