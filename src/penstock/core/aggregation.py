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
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.core.hash_key import HashRange, effective_hash_key

MAGIC: Final = b"\xf3\x89\x9a\xc2"
DIGEST_BYTES: Final = 16
OVERHEAD_BYTES: Final = len(MAGIC) + DIGEST_BYTES
OUTER_KEY: Final = "a"
"""Partition key of an aggregate of two or more records, as the KPL writes it; the explicit hash key places it."""


def _message_class() -> Any:
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
            ("explicit_hash_key_index", 2, kinds.TYPE_UINT64, kinds.LABEL_OPTIONAL, ""),
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
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("penstock.AggregatedRecord"))


_AggregatedRecord: Final = _message_class()


class Undecodable(Enum):
    """Why something that begins like an aggregate is passed on as a plain record."""

    TOO_SHORT = "nothing between the magic number and the digest"
    DIGEST = "the digest does not match"
    PROTOBUF = "the content cannot be parsed, or lacks a required field"
    EMPTY = "it holds no records"
    INDEX = "a record points outside the key tables"


@dataclass(slots=True)
class DecodeCounts:
    """What reading met; sums up over a task, a batch or a shard.

    Args:
        aggregates: Whole, valid aggregates.
        user_records: User records given out of aggregates.
        plain_records: Records that do not look like an aggregate.
        undecodable: Records that do and are not, by reason; each was passed on untouched.
        out_of_range: User records left out by a hash-range filter.
    """

    aggregates: int = 0
    user_records: int = 0
    plain_records: int = 0
    undecodable: dict[Undecodable, int] = field(default_factory=dict)
    out_of_range: int = 0

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


def decode(data: bytes) -> list[UserRecord] | Undecodable | None:
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
    except DecodeError:
        return Undecodable.PROTOBUF
    # The C implementation accepts a missing required field and gives an empty value for it.
    if not message.IsInitialized():
        return Undecodable.PROTOBUF
    return _user_records(message)


def _user_records(message: Any) -> list[UserRecord] | Undecodable:
    keys = list(message.partition_key_table)
    hash_keys = list(message.explicit_hash_key_table)
    try:
        if hash_keys:
            found = [
                UserRecord(
                    keys[record.partition_key_index],
                    hash_keys[record.explicit_hash_key_index]
                    if record.HasField("explicit_hash_key_index")
                    else None,
                    record.data,
                    place,
                )
                for place, record in enumerate(message.records)
            ]
        else:
            found = []
            for place, record in enumerate(message.records):
                if record.HasField("explicit_hash_key_index"):
                    return Undecodable.INDEX
                found.append(UserRecord(keys[record.partition_key_index], None, record.data, place))
    except IndexError:
        return Undecodable.INDEX
    return found or Undecodable.EMPTY


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
        kept = [record for record in found if _hash_of(record) in hash_range]
        counts.out_of_range += len(found) - len(kept)
        found = kept
    counts.user_records += len(found)
    return found


def _hash_of(record: UserRecord) -> int:
    return effective_hash_key(record.partition_key or "", record.explicit_hash_key)


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


def _varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


class AggregateBuilder:
    """Packs user records in order; its size is exact before anything is added."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}
        self._records: list[tuple[str, str | None, bytes]] = []
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
        """Give the bytes of the blob if this record were added."""
        if not self._records:
            return len(data)
        return self._body_bytes + self._growth(data, partition_key, explicit_hash_key) + OVERHEAD_BYTES

    def add(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> None:
        """Add one record behind the others."""
        self._body_bytes += self._growth(data, partition_key, explicit_hash_key)
        self._keys.setdefault(partition_key, len(self._keys))
        if explicit_hash_key is not None:
            self._hash_keys.setdefault(explicit_hash_key, len(self._hash_keys))
        self._records.append((partition_key, explicit_hash_key, data))

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
        message = _AggregatedRecord()
        message.partition_key_table.extend(self._keys)
        message.explicit_hash_key_table.extend(self._hash_keys)
        for key, hash_key, data in self._records:
            record = message.records.add()
            record.partition_key_index = self._keys[key]
            if hash_key is not None:
                record.explicit_hash_key_index = self._hash_keys[hash_key]
            record.data = data
        body = message.SerializeToString()
        blob = MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()
        return Packed(blob, OUTER_KEY, str(effective_hash_key(first_key, first_hash_key)), len(self._records))

    def records(self) -> Sequence[tuple[str, str | None, bytes]]:
        """Give what was added: partition key, explicit hash key, data."""
        return tuple(self._records)

    def _growth(self, data: bytes, partition_key: str, explicit_hash_key: str | None) -> int:
        growth = 0
        key_index = self._keys.get(partition_key)
        if key_index is None:
            key_index = len(self._keys)
            key_bytes = len(partition_key.encode())
            growth += 1 + _varint_bytes(key_bytes) + key_bytes
        inner = 1 + _varint_bytes(key_index)
        if explicit_hash_key is not None:
            hash_index = self._hash_keys.get(explicit_hash_key)
            if hash_index is None:
                hash_index = len(self._hash_keys)
                growth += 1 + _varint_bytes(len(explicit_hash_key)) + len(explicit_hash_key)
            inner += 1 + _varint_bytes(hash_index)
        inner += 1 + _varint_bytes(len(data)) + len(data)
        return growth + 1 + _varint_bytes(inner) + inner
