"""From user records to the entries of a request. Pure.

Records are packed when a request is planned and not before. Until then they wait one by one, so a changed shard map
moves them between queues without taking any aggregate apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from typing import Final

from penstock.core.aggregation import MAGIC, OUTER_KEY, AggregateBuilder
from penstock.core.hash_key import HashRange, effective_hash_key, encode_partition_key, parse_hash_key
from penstock.core.limits import PARTITION_KEY_CHARS_MAX, PARTITION_KEY_CHARS_MIN, RECORD_BYTES_MAX
from penstock.core.put_entry import PutEntry
from penstock.core.writing.flow_control import cost_s
from penstock.errors import RecordError

RECORD_OVERHEAD_BYTES: Final = 320
"""Memory of one pending record beside its data and keys, measured (CPython 3.11, 64 bit, each record with a key of its
own). It is counted, so that a bound on bytes is a bound on memory even if records are tiny."""
_SMALL_BYTES: Final = 1_024
_SMALL_COST_S: Final = cost_s(_SMALL_BYTES)
"""The cost of every smaller record: it counts as one record, however few bytes it has."""
HASH_KEY_BYTES: Final = 88
"""Memory of an explicit hash key, at most."""


class PendingRecord:
    """One user record that is not acknowledged yet.

    Args:
        explicit_hash_key: Decimal text, or None.
    """

    __slots__ = (
        "data",
        "explicit_hash_key",
        "following",
        "is_solo",
        "misplaced_count",
        "number",
        "partition_key",
        "put_s",
        "size_bytes",
    )

    def __init__(self, data: bytes, partition_key: str, explicit_hash_key: str | None) -> None:
        self.data = data
        self.partition_key = partition_key
        self.explicit_hash_key = explicit_hash_key
        self.number = 0
        """Its place in the order of arrival."""
        self.put_s = 0.0
        """When it was put."""
        self.following: PendingRecord | None = None
        """The next record of its key, while it waits in a shard queue that links them."""
        self.is_solo = data.startswith(MAGIC)
        """Whether it is never aggregated. Readers open an aggregate, but none inside another."""
        self.misplaced_count = 0
        """Number of aggregates with this record that landed in a shard whose readers drop them."""
        self.size_bytes = len(data) + (
            len(partition_key) if partition_key.isascii() else key_bytes(partition_key)
        )

    def lies_in(self, hash_range: HashRange) -> bool:
        """Whether its hash key belongs to a range."""
        return effective_hash_key(self.partition_key, self.explicit_hash_key) in hash_range


class PackedEntry(PutEntry):
    """One entry of a request and the user records in it: a single record, or an aggregate of several.

    Args:
        records: The user records in it, in order; at least one.
        shard_id: The predicted shard, or None without a prediction.
        size_bytes: Data and partition key, as the service counts them.
        records_bytes: The sizes of its user records together.
    """

    __slots__ = (
        "attempt_count",
        "cost_s",
        "records",
        "records_bytes",
        "shard_id",
        "size_bytes",
        "unknown_code_count",
    )

    def __init__(  # noqa: PLR0917 - made for every record that is sent alone, and keywords cost time
        self,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | None,
        records: list[PendingRecord],
        shard_id: str | None,
        size_bytes: int,
        records_bytes: int,
    ) -> None:
        self.data = data
        self.partition_key = partition_key
        self.explicit_hash_key = explicit_hash_key
        self.records = records
        self.shard_id = shard_id
        self.size_bytes = size_bytes
        self.records_bytes = records_bytes
        self.cost_s = _SMALL_COST_S if size_bytes < _SMALL_BYTES else cost_s(size_bytes)
        """Seconds of the shard's capacity that it uses."""
        self.attempt_count = 0
        """How often it was sent."""
        self.unknown_code_count = 0
        """How often it was refused with an unknown error code."""

    @property
    def is_aggregate(self) -> bool:
        """Whether it holds several user records."""
        return len(self.records) > 1


def as_bytes_and_str(stream: str, data: object, partition_key: object) -> tuple[bytes, str]:
    """Return a record's data as bytes, which cannot change while they wait, and its key as a plain `str`.

    A subclass of `str`, as numpy and enumerations have them, may not be encoded, and may differ from the same text in its hash.

    Raises:
        RecordError: Data or key are of another type. Once put, they would fail the records that are sent with them.
    """
    if not isinstance(partition_key, str):
        raise RecordError(
            f"stream {stream}: the partition key is of type {type(partition_key).__name__}, not str"
        )
    if not isinstance(data, bytes | bytearray | memoryview):
        remedy = "; encode it first" if isinstance(data, str) else ""
        raise RecordError(
            f"stream {stream}: the data of the record with key {partition_key[:40]!r} is of type {type(data).__name__}, "
            f"not bytes{remedy}"
        )
    return bytes(data), str.__str__(partition_key)


def check_record(
    stream: str, data: bytes, partition_key: str, explicit_hash_key: str | None, record_bytes_max: int
) -> None:
    """Refuse a record that the service can never accept.

    Raises:
        RecordError: The key, the hash key or the size is not allowed; the message has the values and the way out.
    """
    key_chars = len(partition_key)
    if not PARTITION_KEY_CHARS_MIN <= key_chars <= PARTITION_KEY_CHARS_MAX:
        raise RecordError(
            f"stream {stream}: the partition key has {key_chars} characters; "
            f"{PARTITION_KEY_CHARS_MIN} to {PARTITION_KEY_CHARS_MAX} are allowed"
        )
    try:
        if explicit_hash_key is not None:
            parse_hash_key(explicit_hash_key)
        size_bytes = len(data) + (key_chars if partition_key.isascii() else key_bytes(partition_key))
    except RecordError as error:  # a key alone does not name its stream
        raise RecordError(f"stream {stream}: {error}") from error
    if size_bytes > record_bytes_max:
        remedy = (
            "raise the stream's MaxRecordSize (up to 10 MiB)"
            if size_bytes <= RECORD_BYTES_MAX
            else "compress it, or put it into S3 and its address into the stream: no stream takes more than 10 MiB"
        )
        raise RecordError(
            f"stream {stream}: data and partition key ({partition_key[:40]!r}) have {size_bytes} bytes, and the stream "
            f"takes {record_bytes_max}; split the record, or {remedy}"
        )


def key_bytes(partition_key: str) -> int:
    """Return the bytes of a key as the service counts them.

    Raises:
        RecordError: The key is not Unicode text (it holds half of a surrogate pair).
    """
    return len(encode_partition_key(partition_key))


def pack_one(record: PendingRecord, shard_id: str | None) -> PackedEntry:
    """Return the entry that sends one user record as it is."""
    return PackedEntry(
        record.data,
        record.partition_key,
        record.explicit_hash_key,
        [record],
        shard_id,
        record.size_bytes,
        record.size_bytes,
    )


def take_aggregate(
    records: deque[PendingRecord],
    shard_id: str,
    aggregate_bytes_max: int,
    aggregate_count_max: int,
    taken_keys: AbstractSet[str] = frozenset(),
) -> PackedEntry | None:
    """Take as many records from the front as fit into one aggregate, in order, up to the first one with a taken key.

    A record that is larger than the largest aggregate, or that must be sent alone, becomes a plain entry. Return None if the
    first record has a key of `taken_keys`: the request has records of these keys, which must be stored first.
    """
    if records[0].partition_key in taken_keys:
        return None
    first = records.popleft()
    if first.is_solo or not records or records[0].is_solo:
        return pack_one(first, shard_id)
    builder = AggregateBuilder(is_marked=True)  # misplaced aggregates are sent again
    builder.add(first.data, first.partition_key, first.explicit_hash_key)
    taken = [first]
    records_bytes = first.size_bytes
    while records and len(taken) < aggregate_count_max:
        record = records[0]
        if (
            record.is_solo
            or record.partition_key in taken_keys
            or builder.size_with(record.data, record.partition_key, record.explicit_hash_key)
            > aggregate_bytes_max
        ):
            break
        builder.add(record.data, record.partition_key, record.explicit_hash_key)
        records_bytes += record.size_bytes
        taken.append(records.popleft())
    if len(taken) == 1:
        return pack_one(first, shard_id)
    built = builder.build()
    return PackedEntry(
        built.data,
        built.partition_key,
        built.explicit_hash_key,
        taken,
        shard_id,
        len(built.data) + len(OUTER_KEY),
        records_bytes,
    )
