"""One entry of PutRecords, and the service's answer to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


class EntryAnswer(Protocol):
    """The answer to one entry, in any decoded form; `PutAnswer` is one."""

    @property
    def sequence_number(self) -> str | None:
        """Set when the entry was accepted."""

    @property
    def shard_id(self) -> str | None:
        """Set when the entry was accepted."""

    @property
    def error_code(self) -> str | None:
        """Set when the entry was refused."""

    @property
    def error_message(self) -> str | None:
        """The service's message about the refusal."""


class PutAnswer(NamedTuple):
    """The answer to one entry."""

    sequence_number: str | None = None
    shard_id: str | None = None
    error_code: str | None = None
    error_message: str = ""
