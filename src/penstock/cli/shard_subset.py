"""A Kinesis port that returns the records of some shards only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import OptionError
from penstock.ports.kinesis import RecordPage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.put_entry import EntryAnswer, PutEntry
    from penstock.core.reading.resume import IteratorStart
    from penstock.core.shard import StreamSummary
    from penstock.ports.kinesis import Kinesis, ShardFilter, ShardListing

_UNREAD_PREFIX: Final = "not read: "


@dataclass(frozen=True, slots=True)
class ShardSubset:
    """A Kinesis port with the records of some shards; the others are skipped: they are listed, but have no records.

    A skipped shard that was closed when it was listed ends at its first read, so that its descendants can be read. Other skipped
    shards return empty pages. Neither costs a call.

    Args:
        shard_ids: The shards to read.
        closed_pages: The only page of each skipped shard that was closed when it was listed.
    """

    inner: Kinesis
    shard_ids: frozenset[str]
    closed_pages: Mapping[str, RecordPage]

    def without_retries(self) -> ShardSubset:
        return ShardSubset(self.inner.without_retries(), self.shard_ids, self.closed_pages)

    def fetch_summary(self, stream: str) -> StreamSummary:
        return self.inner.fetch_summary(stream)

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        return self.inner.fetch_shards(stream, shard_filter)

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        if shard_id in self.shard_ids:
            return self.inner.fetch_iterator(stream, shard_id, start)
        return f"{_UNREAD_PREFIX}{shard_id}"

    def fetch_records(self, stream: str, iterator: str, record_count_max: int = 10_000) -> RecordPage:
        if not iterator.startswith(_UNREAD_PREFIX):
            return self.inner.fetch_records(stream, iterator, record_count_max)
        return self.closed_pages.get(iterator.removeprefix(_UNREAD_PREFIX), RecordPage((), iterator, 0))

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[EntryAnswer]:
        return self.inner.put_records(stream, entries)


def restrict_to_shards(kinesis: Kinesis, stream: str, shard_ids: frozenset[str]) -> ShardSubset:
    """Return a port that reads only these shards.

    Raises:
        OptionError: The stream lacks one of these shards.
    """
    shards = kinesis.fetch_shards(stream).shards
    missing = sorted(shard_ids - {shard.shard_id for shard in shards})
    if missing:
        raise OptionError(
            f"--shard {missing[0]}: stream {stream} has no such shard; `penstock shards {stream}` lists them"
        )
    closed_pages = {
        shard.shard_id: RecordPage(
            (), None, 0, tuple(child.as_child for child in shards if shard.shard_id in child.parents)
        )
        for shard in shards
        if shard.shard_id not in shard_ids and not shard.is_open
    }
    return ShardSubset(kinesis, shard_ids, closed_pages)
