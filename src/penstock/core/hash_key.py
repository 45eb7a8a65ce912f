"""The 128-bit hash-key space: how a partition key finds its shard.

Source:
    Kinesis API reference, PutRecord: MD5 of the partition key, as an unsigned 128-bit integer, falls into
    exactly one open shard's hash-key range; an explicit hash key replaces the MD5.
"""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec import Struct

from penstock.errors import RecordError

HASH_KEYS: Final = 2**128
"""The number of hash keys."""
HASH_KEY_MAX: Final = HASH_KEYS - 1


def hash_partition_key(partition_key: str) -> int:
    """Return the MD5 of a partition key's UTF-8 bytes as an unsigned big-endian integer.

    Raises:
        RecordError: The key is not Unicode text (it holds half of a surrogate pair).
    """
    text = encode_partition_key(partition_key)
    return int.from_bytes(hashlib.md5(text, usedforsecurity=False).digest(), "big")


def encode_partition_key(partition_key: str) -> bytes:
    """Return a partition key's UTF-8 bytes.

    Raises:
        RecordError: The key is not Unicode text (it holds half of a surrogate pair).
    """
    try:
        return partition_key.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"partition key {partition_key[:60]!r} is not Unicode text") from error


def parse_hash_key(text: str) -> int:
    """Parse an explicit hash key.

    Raises:
        RecordError: Not a decimal number from 0 to 2^128-1, or one with superfluous leading zeros.
    """
    is_text = isinstance(text, str)
    if not (
        is_text and text.isascii() and text.isdigit() and len(text) <= 39 and (text == "0" or text[0] != "0")
    ):
        raise RecordError(
            f"explicit hash key {text!r:.60} is not a decimal number from 0 to 2^128-1, given as a str"
        )
    value = int(text)
    if value > HASH_KEY_MAX:
        raise RecordError(f"explicit hash key {text} is over the largest one, 2^128-1")
    return value


def effective_hash_key(partition_key: str, explicit_hash_key: str | None) -> int:
    """Return the hash key that places a record.

    Raises:
        RecordError: The explicit hash key is not one, or the partition key is not Unicode text.
    """
    return (
        hash_partition_key(partition_key) if explicit_hash_key is None else parse_hash_key(explicit_hash_key)
    )


class HashRange(Struct, frozen=True, order=True):
    """A range of hash keys, both ends included.

    Raises:
        ValueError: Not 0 <= start <= end <= 2^128-1.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= HASH_KEY_MAX:
            raise ValueError(f"not a hash-key range: {self.start}..{self.end}")

    def __contains__(self, hash_key: object) -> bool:
        return isinstance(hash_key, int) and self.start <= hash_key <= self.end

    def overlaps(self, other: HashRange) -> bool:
        """Return whether a hash key is in both."""
        return self.start <= other.end and other.start <= self.end

    @property
    def size(self) -> int:
        """The number of hash keys in the range."""
        return self.end - self.start + 1


FULL_RANGE: Final = HashRange(0, HASH_KEY_MAX)
