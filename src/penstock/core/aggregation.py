"""KPL aggregation: many user records inside one Kinesis record, read and written.

::

    F3 89 9A C2 | protobuf AggregatedRecord | MD5 of the protobuf, 16 bytes

Reading never loses anything: whatever is not a whole, valid aggregate is passed on untouched as one plain record, and
counted with the reason. The message classes are built here from a descriptor in a pool of their own, so they clash
with no other user of protobuf in the process, and with no protobuf version.

Source:
    The aggregation format of the Kinesis Producer Library; the reading rules of the KCL's deaggregator, except that
    a damaged index keeps the whole record instead of dropping the rest of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.core.hash_key import HashRange, hash_partition_key, parse_hash_key
from penstock.errors import RecordError

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16
OVERHEAD_BYTES: Final = len(MAGIC) + DIGEST_BYTES
OUTER_KEY: Final = "a"
"""Partition key of an aggregate of two or more records, as the KPL writes it; the explicit hash key places it."""


_HASH_KEY_INDEX: Final = "explicit_hash_key_index"


def _message_classes() -> tuple[Any, Any]:
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
    whole, single = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return whole, single


_AggregatedRecord, _Record = _message_classes()


class Undecodable(Enum):
    """Why something that begins like an aggregate is passed on as a plain record."""

    TOO_SHORT = "nothing between the magic number and the digest"
    DIGEST = "the digest does not match"
    PROTOBUF = "the content cannot be parsed, lacks a required field, or has a key that is no Unicode text"
    EMPTY = "it holds no records"
    INDEX = "a record points outside the key tables"


@dataclass(slots=True)
class DecodeCounts:
    """What reading met; sums up over a task, a batch or a shard. Not thread-safe.

    Args:
        aggregates: Whole, valid aggregates.
        user_records: User records given out of aggregates.
        plain_records: Records that do not look like an aggregate.
        undecodable: Records that do and are not, by reason; each was passed on untouched.
        out_of_range: User records left out by a hash-range filter.
        unplaced: User records that such a filter kept because their explicit hash key is not one.
    """

    aggregates: int = 0
    user_records: int = 0
    plain_records: int = 0
    undecodable: dict[Undecodable, int] = field(default_factory=dict)
    out_of_range: int = 0
    unplaced: int = 0

    def note_undecodable(self, reason: Undecodable) -> None:
        """Count one record that was passed on untouched."""
        self.undecodable[reason] = self.undecodable.get(reason, 0) + 1


class UserRecord(NamedTuple):
    """One user record.

    Args:
        partition_key: None only for a plain record of a stream with service-managed keys.
        explicit_hash_key: As the producer gave it inside an aggregate; None otherwise.
        data: The payload.
        sub_sequence_number: Place inside the aggregate; 0 for a plain record.
    """

    partition_key: str | None
    explicit_hash_key: str | None
    data: bytes
    sub_sequence_number: int


def decode(data: bytes) -> list[UserRecord] | Undecodable | None:  # noqa: PLR0911 - one return per answer
    """Take one blob apart.

    Returns:
        The user records in order; None when the blob does not look like an aggregate; the reason when it looks like
        one and is not.
    """
    if data[:4] != MAGIC:
        return None
    if len(data) <= OVERHEAD_BYTES:
        return Undecodable.TOO_SHORT
    body = data[4:-DIGEST_BYTES]
    if hashlib.md5(body, usedforsecurity=False).digest() != data[-DIGEST_BYTES:]:
        return Undecodable.DIGEST
    message = _AggregatedRecord()
    try:
        message.ParseFromString(body)
        keys = list(message.partition_key_table)
        hash_keys = list(message.explicit_hash_key_table)
    except (DecodeError, UnicodeDecodeError):
        return Undecodable.PROTOBUF
    # The C implementation accepts a missing required field and gives an empty value for it, and gives bytes for a text
    # that is no UTF-8.
    if not message.IsInitialized() or bytes in map(type, keys) or bytes in map(type, hash_keys):
        return Undecodable.PROTOBUF
    try:
        found = _resolve(list(message.records), keys, hash_keys)
    except IndexError:
        return Undecodable.INDEX
    return found or Undecodable.EMPTY


def _resolve(records: list[Any], keys: list[str], hash_keys: list[str]) -> list[UserRecord]:
    """Look the keys up; IndexError where a record points outside the tables."""
    # One user record costs half a microsecond here: `tuple.__new__` saves a third of what UserRecord(...) costs, and
    # most aggregates have no explicit hash keys to ask for.
    new = tuple.__new__
    if True not in map(_Record.HasField, records, repeat(_HASH_KEY_INDEX)):
        return [
            new(UserRecord, (keys[record.partition_key_index], None, record.data, place))
            for place, record in enumerate(records)
        ]
    return [
        new(
            UserRecord,
            (
                keys[record.partition_key_index],
                hash_keys[record.explicit_hash_key_index] if record.HasField(_HASH_KEY_INDEX) else None,
                record.data,
                place,
            ),
        )
        for place, record in enumerate(records)
    ]


def deaggregate(data: bytes) -> list[UserRecord] | None:
    """Take one blob apart; None for everything that is not a whole, valid aggregate."""
    found = decode(data)
    return found if isinstance(found, list) else None


def user_records(
    data: bytes,
    partition_key: str | None,
    counts: DecodeCounts,
    hash_range: HashRange | None = None,
) -> list[UserRecord]:
    """Give the user records of one Kinesis record, itself where it is no aggregate.

    Args:
        data: The blob.
        partition_key: The Kinesis record's own key.
        counts: Added to.
        hash_range: Leave out the user records of an aggregate whose hash key lies outside, one by one and counted;
            None keeps all. (The KCL drops the whole aggregate instead.)
    """
    found = decode(data)
    if not isinstance(found, list):
        if found is None:
            counts.plain_records += 1
        else:
            counts.note_undecodable(found)
        return [UserRecord(partition_key, None, data, 0)]
    counts.aggregates += 1
    if hash_range is not None:
        found = _within(found, hash_range, counts)
    counts.user_records += len(found)
    return found


def _within(records: list[UserRecord], hash_range: HashRange, counts: DecodeCounts) -> list[UserRecord]:
    # Nearly all records of an aggregate share a few keys.
    hash_keys: dict[tuple[str | None, str | None], int | None] = {}
    kept = []
    for record in records:
        keys = record[:2]
        if keys not in hash_keys:
            hash_keys[keys] = _hash_of(record)
        hash_key = hash_keys[keys]
        if hash_key is None:
            counts.unplaced += 1
            kept.append(record)
        elif hash_key in hash_range:
            kept.append(record)
        else:
            counts.out_of_range += 1
    return kept


def _hash_of(record: UserRecord) -> int | None:
    try:
        if record.explicit_hash_key is not None:
            return parse_hash_key(record.explicit_hash_key)
    except RecordError:
        return None  # another producer's mistake: where the record belongs is not known, so it is not dropped
    return hash_partition_key(record.partition_key or "")


# --- writing --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """One Kinesis record that is ready to be put.

    Args:
        data: The blob.
        partition_key: The user's own for a single record, `OUTER_KEY` for several.
        explicit_hash_key: Decimal text that places the record; None only for a single record that had none.
        user_record_count: How many user records it holds.
    """

    data: bytes
    partition_key: str
    explicit_hash_key: str | None
    user_record_count: int


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
    """Packs user records in order; its size is exact before anything is added. Not thread-safe.

    The wire bytes are put together here rather than by protobuf: they are known as soon as a record is, which makes
    the size exact for nothing. The order is that of every protobuf writer, field by field. What a builder does not do:
    it does not ask whether its records go to one shard, nor how large it may grow; both are its owner's.
    """

    def __init__(self) -> None:
        self._records: list[tuple[str, str | None, bytes]] = []
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}
        self._heads: dict[tuple[str, str | None], bytes] = {}
        self._key_table: list[bytes] = []
        self._hash_key_table: list[bytes] = []
        self._body: list[bytes] = []
        self._body_bytes = 0

    def __len__(self) -> int:
        """Count the user records."""
        return len(self._records)

    @property
    def size_bytes(self) -> int:
        """Bytes of the blob that `build` gives; for a single record the blob is its data alone."""
        if len(self._records) == 1:
            return len(self._records[0][2])
        return 0 if not self._records else self._body_bytes + OVERHEAD_BYTES

    def size_with(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> int:
        """Give the bytes of the blob if this record were added.

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is no Unicode text.
        """
        if not self._records:
            return len(data)
        table_bytes = 0
        head = self._heads.get((partition_key, explicit_hash_key))
        if head is None:
            head, key_entry, hash_key_entry = self._new_head(partition_key, explicit_hash_key)
            table_bytes = len(key_entry) + len(hash_key_entry)
        data_bytes = len(data)
        inner_bytes = len(head) + _varint_bytes(data_bytes) + data_bytes
        record_bytes = 1 + _varint_bytes(inner_bytes) + inner_bytes
        return self._body_bytes + table_bytes + record_bytes + OVERHEAD_BYTES

    def add(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> None:
        """Add one record behind the others.

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is no Unicode text. Nothing was added.
        """
        keys = (partition_key, explicit_hash_key)
        head = self._heads.get(keys)
        if head is None:
            head, key_entry, hash_key_entry = self._new_head(partition_key, explicit_hash_key)
            self._heads[keys] = head
            self._enter(partition_key, key_entry, self._keys, self._key_table)
            if explicit_hash_key is not None:
                self._enter(explicit_hash_key, hash_key_entry, self._hash_keys, self._hash_key_table)
        data_bytes = len(data)
        length = _varint(data_bytes)
        prefix = b"\x1a" + _varint(len(head) + len(length) + data_bytes) + head + length
        self._body.append(prefix)
        self._body.append(data)
        self._body_bytes += len(prefix) + data_bytes
        self._records.append((partition_key, explicit_hash_key, data))

    def _enter(self, key: str, entry: bytes, indexes: dict[str, int], table: list[bytes]) -> None:
        if entry:
            indexes[key] = len(indexes)
            table.append(entry)
            self._body_bytes += len(entry)

    def build(self) -> Packed:
        """Give the Kinesis record.

        Raises:
            ValueError: Nothing was added.
        """
        if not self._records:
            raise ValueError("an aggregate of no records")
        first_key, first_hash_key, first_data = self._records[0]
        if len(self._records) == 1:
            return Packed(first_data, first_key, first_hash_key, 1)
        body = b"".join((*self._key_table, *self._hash_key_table, *self._body))
        blob = b"".join((MAGIC, body, hashlib.md5(body, usedforsecurity=False).digest()))
        placed_by = first_hash_key or str(hash_partition_key(first_key))
        return Packed(blob, OUTER_KEY, placed_by, len(self._records))

    def records(self) -> Sequence[tuple[str, str | None, bytes]]:
        """Give what was added: partition key, explicit hash key, data."""
        return tuple(self._records)

    def _new_head(self, partition_key: str, explicit_hash_key: str | None) -> tuple[bytes, bytes, bytes]:
        """Give what stands before a record's data, and what its keys add to the tables (nothing where they are known).

        Raises:
            RecordError: The explicit hash key is not one, or the partition key is no Unicode text.
        """
        key_entry = hash_key_entry = b""
        index = self._keys.get(partition_key)
        if index is None:
            index = len(self._keys)
            try:
                text = partition_key.encode()
            except UnicodeEncodeError as error:
                raise RecordError(f"partition key {partition_key[:60]!r} is no Unicode text") from error
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
