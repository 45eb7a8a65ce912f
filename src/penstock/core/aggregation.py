"""KPL aggregation: reading and writing many user records inside one Kinesis record.

::

    F3 89 9A C2 | protobuf AggregatedRecord | MD5 of the protobuf, 16 bytes

Reading never loses anything: a record that is not a complete, valid aggregate is passed on untouched as one plain record, and
counted with the reason. The message classes are built here from a descriptor, in a separate pool, so they clash
with no other user of protobuf in the process and with no version of protobuf.

A reshard may leave an aggregate in a shard that does not own all of its user records. The KCL drops such an aggregate
as a whole, so its producer has to send all of them again. Our producer does, and promises so with a mark in the
aggregate: a field that other readers of the format skip. Our readers drop a misplaced aggregate that has the mark.
They deliver one without the mark, since its producer did not promise to send it again, unless the KCL's rule is chosen.

Source:
    The aggregation format of the Kinesis Producer Library; the reading rules of the KCL's deaggregator, except that
    a damaged index keeps the whole record instead of dropping the rest of it. Protocol Buffers, "Unknown Fields": a
    parser skips fields that its schema does not name.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count, repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from penstock.core.hash_key import (
    FULL_RANGE,
    HashRange,
    encode_partition_key,
    hash_partition_key,
    parse_hash_key,
)
from penstock.core.put_entry import PutEntry
from penstock.errors import RecordError

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16
OVERHEAD_BYTES: Final = len(MAGIC) + DIGEST_BYTES
OUTER_KEY: Final = "a"
"""Partition key of an aggregate of two or more records, as the KPL writes it. The explicit hash key places it."""

MARK: Final = b"\xf8\x7f\x01"
"""Field 2047 with the value true, the last bytes of a marked aggregate's protobuf: its producer sends all of its records
again when it lands in a shard that does not own them all. 2047 is the highest number whose tag has two bytes, far
from any that the format may use later."""

_KEYS_CHARS_MAX: Final = 64 * 1024 * 1024
"""The largest product of the longest key and the number of records in an aggregate. Each row has a copy of its key, and one
long key in the table may serve thousands of records. With keys of at most 256 characters, the service's limit, the largest
aggregate of the smallest records stays below."""
_HASH_KEY_INDEX: Final = "explicit_hash_key_index"
_MARK_FIELD: Final = "is_resent_when_misplaced"
_FRESH_S: Final = 60.0


@functools.cache
def _message_classes() -> tuple[Any, Any, type[Exception]]:
    """Return the protobuf classes of an aggregate and of a record in it, and protobuf's decoding error."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    file = descriptor_pb2.FileDescriptorProto(
        name="penstock_aggregation.proto", package="penstock", syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    fields: dict[str, list[tuple[str, int, int, int, str]]] = {
        "Tag": [
            ("key", 1, kinds.TYPE_STRING, kinds.LABEL_REQUIRED, ""),
            ("value", 2, kinds.TYPE_STRING, kinds.LABEL_OPTIONAL, ""),
        ],
        "Record": [
            ("partition_key_index", 1, kinds.TYPE_UINT64, kinds.LABEL_REQUIRED, ""),
            (_HASH_KEY_INDEX, 2, kinds.TYPE_UINT64, kinds.LABEL_OPTIONAL, ""),
            ("data", 3, kinds.TYPE_BYTES, kinds.LABEL_REQUIRED, ""),
            ("tags", 4, kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".penstock.Tag"),
        ],
        "AggregatedRecord": [
            ("partition_key_table", 1, kinds.TYPE_STRING, kinds.LABEL_REPEATED, ""),
            ("explicit_hash_key_table", 2, kinds.TYPE_STRING, kinds.LABEL_REPEATED, ""),
            ("records", 3, kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".penstock.Record"),
            (_MARK_FIELD, 2047, kinds.TYPE_BOOL, kinds.LABEL_OPTIONAL, ""),
        ],
    }
    for name, its_fields in fields.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, label, type_name in its_fields:
            message.field.add(
                name=field_name, number=number, type=kind, label=label, type_name=type_name or None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("penstock.AggregatedRecord", "penstock.Record")
    aggregate, record = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return aggregate, record, DecodeError


class Undecodable(Enum):
    """Why a record that begins like an aggregate is passed on as a plain one."""

    TOO_SHORT = "nothing between the magic number and the digest"
    DIGEST = "the digest does not match"
    PROTOBUF = "the content cannot be parsed, lacks a required field, or has a key that is not Unicode text"
    EMPTY = "it holds no records"
    INDEX = "a record points outside the key tables"
    KEYS = "its keys, repeated for each record, are larger than any that the service accepts"


class DecodeCounts(Struct):
    """Counts of records read, for a task, a batch or a shard. Not thread-safe.

    Args:
        aggregates: Whole, valid aggregates.
        undecodable: Records that begin like an aggregate and are none, by reason; each was passed on untouched.
        misplaced_aggregates: Aggregates dropped because they landed in a shard that does not own all their records.
        misplaced_records: The user records in them.
    """

    aggregates: int = 0
    undecodable: dict[Undecodable, int] = field(default_factory=dict)
    misplaced_aggregates: int = 0
    misplaced_records: int = 0

    def on_undecodable(self, reason: Undecodable) -> None:
        """Count one record that was passed on untouched."""
        self.undecodable[reason] = self.undecodable.get(reason, 0) + 1


class UserRecord(NamedTuple):
    """One user record.

    Args:
        partition_key: None only for a plain record of a stream with service-managed keys.
        explicit_hash_key: As the producer set it inside an aggregate; None otherwise.
        sub_sequence_number: Its place inside the aggregate; 0 for a plain record.
    """

    partition_key: str | None
    explicit_hash_key: str | None
    data: bytes
    sub_sequence_number: int


class UserColumns(NamedTuple):
    """The user records of one Kinesis record in order, at least one, as columns: most readers need no object per record.

    Args:
        partition_keys: As in `UserRecord`.
        explicit_hash_keys: As in `UserRecord`; None if no record has one.
    """

    partition_keys: Sequence[str | None]
    explicit_hash_keys: Sequence[str | None] | None
    data: Sequence[bytes]

    def to_records(self) -> list[UserRecord]:
        """Return an object per record."""
        keys, hash_keys, data = self
        # `tuple.__new__` saves half the time of UserRecord(...).
        rows = zip(keys, repeat(None) if hash_keys is None else hash_keys, data, count())
        return list(map(tuple.__new__, repeat(UserRecord), rows))


class Aggregate(NamedTuple):
    """The content of a whole, valid aggregate.

    Args:
        columns: The user records.
        is_marked: Whether its producer promises to send all of them again when it is misplaced.
    """

    columns: UserColumns
    is_marked: bool


def decode(data: bytes) -> Aggregate | Undecodable | None:  # noqa: PLR0911 - one return per answer
    """Decode one blob.

    Returns:
        The aggregate; None if the blob does not begin like one; the reason if it begins like one and is not valid.
    """
    if data[:4] != MAGIC:
        return None
    if len(data) <= OVERHEAD_BYTES:
        return Undecodable.TOO_SHORT
    body = data[4:-DIGEST_BYTES]
    if hashlib.md5(body, usedforsecurity=False).digest() != data[-DIGEST_BYTES:]:
        return Undecodable.DIGEST
    aggregate_class, record_class, decode_error = _message_classes()
    message = aggregate_class()
    try:
        message.ParseFromString(body)
        keys = list(message.partition_key_table)
        hash_keys = list(message.explicit_hash_key_table)
    except (decode_error, UnicodeDecodeError):
        return Undecodable.PROTOBUF
    # The C implementation accepts a missing required field and returns an empty value for it, and returns bytes for a
    # text that is not UTF-8.
    if not message.IsInitialized() or bytes in map(type, keys) or bytes in map(type, hash_keys):
        return Undecodable.PROTOBUF
    longest = max(map(len, (*keys, *hash_keys)), default=0)
    if longest * len(message.records) > _KEYS_CHARS_MAX:
        return Undecodable.KEYS
    try:
        found = _resolve_keys(record_class.HasField, list(message.records), keys, hash_keys)
    except IndexError:
        return Undecodable.INDEX
    return Aggregate(found, message.is_resent_when_misplaced) if found.data else Undecodable.EMPTY


_data_of: Final = attrgetter("data")
_key_index_of: Final = attrgetter("partition_key_index")


def _resolve_keys(
    has_field: Callable[[Any, str], bool], records: list[Any], keys: list[str], hash_keys: list[str]
) -> UserColumns:
    """Return the records with their keys from the key tables; raise IndexError if a record points outside the tables."""
    columns = UserColumns(
        list(map(keys.__getitem__, map(_key_index_of, records))), None, list(map(_data_of, records))
    )
    if True not in map(has_field, records, repeat(_HASH_KEY_INDEX)):  # most aggregates have no hash keys
        return columns
    return columns._replace(
        explicit_hash_keys=[
            hash_keys[record.explicit_hash_key_index] if has_field(record, _HASH_KEY_INDEX) else None
            for record in records
        ]
    )


def deaggregate(data: bytes) -> list[UserRecord] | None:
    """Return the user records of an aggregate; None for a blob that is not a whole, valid one."""
    found = decode(data)
    return found.columns.to_records() if isinstance(found, Aggregate) else None


class MisplacedRule(Struct, frozen=True):
    """Which misplaced aggregates a reader of one shard drops.

    Args:
        fetch_range: Returns the hash range of the shard from a listing that is at most this many seconds old; None if it is unknown.
        drops_unmarked: Drop also aggregates whose producers do not promise to send them again, as the KCL does.
        known_range: The shard's hash range in its lease or its plan. It saves a listing, and is used if the listing does
            not name the shard, because it does not show the last reshard yet.
    """

    fetch_range: Callable[[float], HashRange | None]
    drops_unmarked: bool = False
    known_range: HashRange | None = None

    def drops(self, aggregate: Aggregate) -> bool:
        """Return whether to drop an aggregate: the rule applies to it, and one of its records belongs to another shard."""
        if not (aggregate.is_marked or self.drops_unmarked):
            return False
        hash_range = self.known_range or self.fetch_range(math.inf)
        if hash_range is None or _all_lie_in(aggregate.columns, hash_range):
            return False
        # This range may be of a time before a reshard. So a record is dropped only by a recent listing.
        hash_range = self.fetch_range(_FRESH_S) or self.known_range
        return hash_range is not None and not _all_lie_in(aggregate.columns, hash_range)


class DeaggregatedRecord(NamedTuple):
    """The user records of one Kinesis record.

    Args:
        columns: Its user records; the record itself if it is not an aggregate.
        is_misplaced: Whether they must be left out, because they are sent again to other shards.
    """

    columns: UserColumns
    is_misplaced: bool


def deaggregate_record(
    data: bytes, partition_key: str | None, counts: DecodeCounts, rule: MisplacedRule | None = None
) -> DeaggregatedRecord:
    """Return the user records of one Kinesis record, or the record itself if it is not an aggregate.

    Args:
        partition_key: The Kinesis record's own key.
        rule: Which misplaced aggregates are dropped; None drops none.
    """
    found = decode(data)
    if not isinstance(found, Aggregate):
        if found is not None:
            counts.on_undecodable(found)
        return DeaggregatedRecord(UserColumns((partition_key,), None, (data,)), is_misplaced=False)
    counts.aggregates += 1
    if rule is not None and rule.drops(found):
        counts.misplaced_aggregates += 1
        counts.misplaced_records += len(found.columns.data)
        return DeaggregatedRecord(found.columns, is_misplaced=True)
    return DeaggregatedRecord(found.columns, is_misplaced=False)


def user_records(
    data: bytes, partition_key: str | None, counts: DecodeCounts, rule: MisplacedRule | None = None
) -> list[UserRecord]:
    """Return the user records of one Kinesis record, or none if it is misplaced; arguments as for `deaggregate_record`."""
    taken = deaggregate_record(data, partition_key, counts, rule)
    return [] if taken.is_misplaced else taken.columns.to_records()


def _all_lie_in(columns: UserColumns, hash_range: HashRange) -> bool:
    """Return whether a range has the hash keys of all records whose keys are valid."""
    if hash_range == FULL_RANGE:
        return True
    # Hash keys are compared as 16 bytes, which sorts them as numbers. Nearly all records of an aggregate share a few
    # keys.
    low, high = (end.to_bytes(16, "big") for end in (hash_range.start, hash_range.end))
    md5 = hashlib.md5
    hash_keys = repeat(None) if columns.explicit_hash_keys is None else columns.explicit_hash_keys
    for partition_key, explicit_hash_key in set(zip(columns.partition_keys, hash_keys, strict=False)):
        if explicit_hash_key is None:
            assert partition_key is not None, "only a plain record may have no key"
            if not low <= md5(partition_key.encode(), usedforsecurity=False).digest() <= high:
                return False
            continue
        try:
            if parse_hash_key(explicit_hash_key) not in hash_range:
                return False
        except RecordError:
            continue  # another producer's mistake: the record's shard cannot be known
    return True


# --- writing --------------------------------------------------------------------------------------------------


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + _varint(value >> 7)


def _varint_bytes(value: int) -> int:
    return 1 if value < 0x80 else 2 if value < 0x4000 else (value.bit_length() + 6) // 7


class AggregateBuilder:
    """Packs user records in order, and computes the exact size before a record is added. Not thread-safe.

    The wire bytes are put together here rather than by protobuf: they are known as soon as a record is added, so the
    exact size costs nothing. Their order is that of every protobuf writer, field by field. A builder checks neither
    that its records belong to one shard nor how large it grows; both are up to its owner.

    Args:
        is_marked: Promise that all records are sent again when the aggregate is misplaced. A single record has no mark,
            since it is sent as it is and no reader drops it.
    """

    def __init__(self, *, is_marked: bool = False) -> None:
        self._end = MARK if is_marked else b""
        self._count = 0
        self._first_entry: PutEntry | None = None
        # Partition keys and explicit hash keys by their index in the aggregate's tables, and these tables on the wire.
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}
        self._key_table: list[bytes] = []
        self._hash_key_table: list[bytes] = []
        # A record's bytes before its data, by its two keys.
        self._heads: dict[tuple[str, str | None], bytes] = {}
        self._body: list[bytes] = []  # the records on the wire
        self._body_bytes = 0  # of the tables and the records

    def size_with(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> int:
        """Return the size of the blob if this record were added, in bytes.

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is not Unicode text.
        """
        if not self._count:
            return len(data)
        table_bytes = 0
        head = self._heads.get((partition_key, explicit_hash_key))
        if head is None:
            head, key_entry, hash_key_entry = self._new_head(partition_key, explicit_hash_key)
            table_bytes = len(key_entry) + len(hash_key_entry)
        data_bytes = len(data)
        inner_bytes = len(head) + _varint_bytes(data_bytes) + data_bytes
        record_bytes = 1 + _varint_bytes(inner_bytes) + inner_bytes
        return self._body_bytes + table_bytes + record_bytes + len(self._end) + OVERHEAD_BYTES

    def add(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> None:
        """Add one record after the others.

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is not Unicode text. Nothing was added.
        """
        keys = (partition_key, explicit_hash_key)
        head = self._heads.get(keys)
        if head is None:
            head, key_entry, hash_key_entry = self._new_head(partition_key, explicit_hash_key)
            self._heads[keys] = head
            self._add_to_table(partition_key, key_entry, self._keys, self._key_table)
            if explicit_hash_key is not None:
                self._add_to_table(explicit_hash_key, hash_key_entry, self._hash_keys, self._hash_key_table)
        data_bytes = len(data)
        length = _varint(data_bytes)
        prefix = b"\x1a" + _varint(len(head) + len(length) + data_bytes) + head + length
        self._body.append(prefix)
        self._body.append(data)
        self._body_bytes += len(prefix) + data_bytes
        self._count += 1
        if self._first_entry is None:
            self._first_entry = PutEntry(data, partition_key, explicit_hash_key)

    def _add_to_table(self, key: str, entry: bytes, indexes: dict[str, int], table: list[bytes]) -> None:
        if entry:  # else the table has the key
            indexes[key] = len(indexes)
            table.append(entry)
            self._body_bytes += len(entry)

    def build(self) -> PutEntry:
        """Return the Kinesis record: an aggregate, or a single record as it was added.

        Raises:
            ValueError: Nothing was added.
        """
        first = self._first_entry
        if first is None:
            raise ValueError("an aggregate of no records")
        if self._count == 1:
            return first
        body = b"".join((*self._key_table, *self._hash_key_table, *self._body, self._end))
        blob = b"".join((MAGIC, body, hashlib.md5(body, usedforsecurity=False).digest()))
        assert len(blob) == self._body_bytes + len(self._end) + OVERHEAD_BYTES
        placed_by = first.explicit_hash_key or str(hash_partition_key(first.partition_key))
        return PutEntry(blob, OUTER_KEY, placed_by)

    def _new_head(self, partition_key: str, explicit_hash_key: str | None) -> tuple[bytes, bytes, bytes]:
        """Return the bytes before a record's data, and its entries for the two key tables; an entry is empty if a table has it.

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is not Unicode text.
        """
        key_entry = hash_key_entry = b""
        index = self._keys.get(partition_key)
        if index is None:
            index = len(self._keys)
            text = encode_partition_key(partition_key)
            key_entry = b"\x0a" + _varint(len(text)) + text
        head = b"\x08" + _varint(index)
        if explicit_hash_key is not None:
            index = self._hash_keys.get(explicit_hash_key)
            if index is None:
                index = len(self._hash_keys)
                parse_hash_key(explicit_hash_key)
                hash_key_entry = b"\x12" + _varint(len(explicit_hash_key)) + explicit_hash_key.encode()
            head += b"\x10" + _varint(index)
        return head + b"\x1a", key_entry, hash_key_entry
