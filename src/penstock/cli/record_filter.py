"""Which records `tail` shows: those of a shard, of a key, or whose data a pattern finds."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.consumer import Record
    from penstock.ports.queues import ReceivedRecord


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Decides which records are shown; a field that is None lets all records pass.

    Args:
        pattern: Only records in whose data the pattern is found.
        until_ms: Only records that arrived before this moment, milliseconds since the epoch.
    """

    shard_ids: frozenset[str] | None = None
    key: str | None = None
    pattern: re.Pattern[bytes] | None = None
    until_ms: int | None = None

    def accepts(self, record: Record) -> bool:
        """Return whether a record is shown."""
        if self.shard_ids is not None and record.shard_id not in self.shard_ids:
            return False
        if not matches(record, self.key, self.pattern):
            return False
        arrival_ms = round(record.approximate_arrival_timestamp.timestamp() * 1000)
        return self.until_ms is None or arrival_ms < self.until_ms


def matches(record: Record | ReceivedRecord, key: str | None, pattern: re.Pattern[bytes] | None) -> bool:
    """Return whether a record has this partition key, and data in which the pattern is found; None matches all."""
    has_key = key is None or record.partition_key == key
    return has_key and (pattern is None or pattern.search(record.data) is not None)


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--shard`, `--key` and `--grep`."""
    group = parser.add_argument_group("which records", "all records of the shards are read, these are shown")
    group.add_argument(
        "--shard", action="append", metavar="ID", help="of this shard: its id or its number; may be repeated"
    )
    group.add_argument("--key", metavar="TEXT", help="with this partition key")
    group.add_argument("--grep", metavar="REGEX", help="whose data, as UTF-8, this finds")


def filter_of(args: argparse.Namespace) -> RecordFilter:
    """Return the filter that the options describe.

    Raises:
        OptionError: The pattern is not a regular expression.
    """
    shards = None if args.shard is None else frozenset(map(shard_id_of, args.shard))
    return RecordFilter(shards, args.key, pattern_of(args))


def pattern_of(args: argparse.Namespace) -> re.Pattern[bytes] | None:
    """Return the pattern of `--grep`, None without it. Bytes of the argument that are not UTF-8 find the same bytes.

    Raises:
        OptionError: The argument is not a regular expression.
    """
    try:
        return None if args.grep is None else re.compile(args.grep.encode("utf-8", "surrogateescape"))
    except re.error as error:
        raise OptionError(f"--grep {args.grep!r}: {error}") from error


def shard_id_of(text: str) -> str:
    """Return the id of a shard that was named by its id or its number."""
    return f"shardId-{int(text):012d}" if text.isascii() and text.isdecimal() else text
