"""From user records to Kinesis records: what waits, and what one entry of a request is made of. Pure.

Records are packed when a request is made and not before: until then they wait as they came, so that a changed shard map
moves them without taking anything apart.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Protocol

from penstock.core.aggregation import OUTER_KEY, AggregateBuilder
from penstock.core.hash_key import HashRange, effective_hash_key, parse_hash_key
from penstock.core.limits import PARTITION_KEY_CHARS_MAX, PARTITION_KEY_CHARS_MIN
from penstock.core.writing.flow_control import cost_s
from penstock.errors import RecordError

RECORD_OVERHEAD_BYTES: Final = 320
"""What one waiting record takes in memory beside its data and keys, measured (CPython 3.11, 64 bit, a key of its own for
each record) and counted, so that a bound on bytes is a bound on memory also where records are tiny."""
HASH_KEY_BYTES: Final = 88
"""What an explicit hash key takes in memory at most."""


class PutEntryLike(Protocol):
    """What is sent as one Kinesis record: an aggregate that was built, or a user record as it is."""

    @property
    def data(self) -> bytes:
        """The blob."""

    @property
    def partition_key(self) -> str:
        """The key that the service sees."""

    @property
    def explicit_hash_key(self) -> str | None:
        """Decimal text that places it, or None."""


class PendingRecord:
    """One user record that is not acknowledged; it is also the entry that is sent when it goes alone.

    Args:
        data: The payload.
        partition_key: The user's key.
        explicit_hash_key: Decimal text, or None.
        number: Its place in the order of arrival.
        came_s: When it came.
        ticket: Whatever the caller wants back with the acknowledgement.
    """

    __slots__ = (
        "came_s",
        "data",
        "explicit_hash_key",
        "following",
        "is_solo",
        "misplaced_count",
        "number",
        "partition_key",
        "size_bytes",
        "ticket",
    )

    def __init__(  # noqa: PLR0917 - made once per record, and names cost time
        self,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | None,
        number: int,
        came_s: float = 0.0,
        ticket: Any = None,
    ) -> None:
        self.data = data
        self.partition_key = partition_key
        self.explicit_hash_key = explicit_hash_key
        self.number = number
        self.came_s = came_s
        self.ticket = ticket
        self.following: PendingRecord | None = None
        """The next record of its key, while it waits in a queue that links them."""
        self.is_solo = False
        self.misplaced_count = 0
        self.size_bytes = len(data) + key_bytes(partition_key)

    @property
    def memory_bytes(self) -> int:
        """What it counts against a bound on memory, without its ticket."""
        hash_key_bytes = 0 if self.explicit_hash_key is None else HASH_KEY_BYTES
        return self.size_bytes + RECORD_OVERHEAD_BYTES + hash_key_bytes

    def lies_in(self, hash_range: HashRange) -> bool:
        """Whether its hash key belongs to a range."""
        return effective_hash_key(self.partition_key, self.explicit_hash_key) in hash_range


class PackedEntry:
    """One entry of a request: a plain record, or an aggregate of several.

    Args:
        packed: What is sent.
        records: The user records in it, in order; at least one.
        shard_id: Where it should land; None where that cannot be predicted.
        size_bytes: What the service counts: data and partition key, UTF-8.
        waiting_bytes: The sizes of its user records together.
    """

    __slots__ = (
        "attempt_count",
        "cost_s",
        "packed",
        "records",
        "shard_id",
        "size_bytes",
        "unknown_code_count",
        "waiting_bytes",
    )

    def __init__(
        self,
        packed: PutEntryLike,
        records: list[PendingRecord],
        shard_id: str | None,
        size_bytes: int,
        waiting_bytes: int,
    ) -> None:
        self.packed = packed
        self.records = records
        self.shard_id = shard_id
        self.size_bytes = size_bytes
        self.waiting_bytes = waiting_bytes
        self.cost_s = cost_s(size_bytes)
        """Seconds of the shard's capacity that it uses."""
        self.attempt_count = 0
        """How often it was sent."""
        self.unknown_code_count = 0
        """How often it was refused with a code that nobody has heard of."""

    @property
    def is_aggregate(self) -> bool:
        """Whether it holds several user records."""
        return len(self.records) > 1


def check_record(
    stream: str, data: bytes, partition_key: str, explicit_hash_key: str | None, record_bytes_max: int
) -> None:
    """Refuse what the service can never accept.

    Raises:
        RecordError: Key, hash key or size; names the values and the way out.
    """
    if not PARTITION_KEY_CHARS_MIN <= len(partition_key) <= PARTITION_KEY_CHARS_MAX:
        raise RecordError(
            f"stream {stream}: the partition key has {len(partition_key)} characters; "
            f"{PARTITION_KEY_CHARS_MIN} to {PARTITION_KEY_CHARS_MAX} are allowed"
        )
    if explicit_hash_key is not None:
        parse_hash_key(explicit_hash_key)
    size_bytes = len(data) + key_bytes(partition_key)
    if size_bytes > record_bytes_max:
        raise RecordError(
            f"stream {stream}: data and partition key ({partition_key[:40]!r}) have {size_bytes} bytes, and the stream "
            f"takes {record_bytes_max}; split the record, or raise the stream's MaxRecordSize (up to 10 MiB)"
        )


def key_bytes(partition_key: str) -> int:
    """Give the bytes of a key as the service counts them.

    Raises:
        RecordError: No Unicode text (it holds half of a surrogate pair).
    """
    if partition_key.isascii():
        return len(partition_key)
    try:
        return len(partition_key.encode())
    except UnicodeEncodeError as error:
        raise RecordError(f"partition key {partition_key[:60]!r} is no Unicode text") from error


def pack_one(record: PendingRecord, shard_id: str | None) -> PackedEntry:
    """Make a plain Kinesis record of one user record."""
    return PackedEntry(record, [record], shard_id, record.size_bytes, record.size_bytes)


def take_aggregate(
    waiting: deque[PendingRecord], shard_id: str, aggregate_bytes_max: int, aggregate_count_max: int
) -> PackedEntry:
    """Take as many records from the front as one aggregate may hold: at least one, in order.

    A record that is larger than an aggregate may be, or that must go alone, becomes a plain record.
    """
    first = waiting.popleft()
    if first.is_solo or not waiting or waiting[0].is_solo:
        return pack_one(first, shard_id)
    builder = AggregateBuilder(is_marked=True)
    builder.add(first.data, first.partition_key, first.explicit_hash_key)
    taken = [first]
    waiting_bytes = first.size_bytes
    while waiting and len(taken) < aggregate_count_max:
        record = waiting[0]
        if (
            record.is_solo
            or builder.size_with(record.data, record.partition_key, record.explicit_hash_key)
            > aggregate_bytes_max
        ):
            break
        builder.add(record.data, record.partition_key, record.explicit_hash_key)
        waiting_bytes += record.size_bytes
        taken.append(waiting.popleft())
    if len(taken) == 1:
        return pack_one(first, shard_id)
    packed = builder.build()
    return PackedEntry(packed, taken, shard_id, len(packed.data) + len(OUTER_KEY), waiting_bytes)
