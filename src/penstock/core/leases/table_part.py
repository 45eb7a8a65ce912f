"""A part of the lease table, which one worker of a large fleet scans in every round."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from msgspec import Struct


class TablePart(Struct, frozen=True):
    """One of several parts that together hold every row once: a segment of a parallel scan.

    A part is read eventually consistent, for half the price: a stale row only causes a later decision or a refused write.

    Args:
        number: From 0 to `count` - 1.
        count: Number of parts; with 1, the part is the whole table.
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        assert 0 <= self.number < self.count, self

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole table."""
        return self.count == 1

    def holds(self, key: str) -> bool:
        """Return whether a row is in this part, for tables in memory. DynamoDB divides by a hash of its own."""
        return number_of_part(key, self.count) == self.number


def number_of_part(key: str, count: int) -> int:
    """Return the number of the part that holds a row, for tables in memory."""
    return crc32(key.encode()) % count


WHOLE_TABLE: Final = TablePart(0, 1)
