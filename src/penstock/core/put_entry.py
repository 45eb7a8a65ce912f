"""One entry of PutRecords, and the service's answer to it."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct


@dataclass(slots=True)
class PutEntry:
    """One Kinesis record that is ready to be put.

    Args:
        data: The blob; together with the key at most the stream's record limit.
        partition_key: 1 to 256 characters.
        explicit_hash_key: Decimal text that places the record, or None.
    """

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None


class EntryAnswer(Struct, gc=False, rename="pascal"):
    """The service's answer to one entry, with the names of its JSON.

    Args:
        sequence_number: Set when the entry was accepted.
        shard_id: Set when the entry was accepted.
        error_code: Set when the entry was refused.
        error_message: The service's message about the refusal.
    """

    sequence_number: str | None = None
    shard_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None
