"""Figures of a writer, by shard."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ShardCounts:
    """Records that one shard acknowledged."""

    user_record_count: int = 0
    kinesis_record_count: int = 0
    bytes_count: int = 0


@dataclass(slots=True)
class WriteReport:
    """Figures of one writer, or of several together.

    Args:
        user_record_count: Acknowledged user records.
        kinesis_record_count: Acknowledged Kinesis records.
        bytes_count: Bytes of data in the acknowledged records.
        request_count: PutRecords calls.
        refused_count: Entries that were refused and sent again.
        possible_duplicate_count: User records that were sent again after a request without an answer, or to another
            shard after a reshard.
        pause_s: Time in which nothing could be sent because of refusals.
        refused_by_reason: The refused entries by the service's code.
        by_shard: The acknowledged records of each shard.
    """

    user_record_count: int = 0
    kinesis_record_count: int = 0
    bytes_count: int = 0
    request_count: int = 0
    refused_count: int = 0
    possible_duplicate_count: int = 0
    pause_s: float = 0.0
    refused_by_reason: dict[str, int] = field(default_factory=dict)
    by_shard: dict[str, ShardCounts] = field(default_factory=dict)

    def add(self, other: WriteReport) -> None:
        """Add the figures of another writer."""
        self.user_record_count += other.user_record_count
        self.kinesis_record_count += other.kinesis_record_count
        self.bytes_count += other.bytes_count
        self.request_count += other.request_count
        self.refused_count += other.refused_count
        self.possible_duplicate_count += other.possible_duplicate_count
        self.pause_s += other.pause_s
        for reason, count in other.refused_by_reason.items():
            self.refused_by_reason[reason] = self.refused_by_reason.get(reason, 0) + count
        for shard_id, counts in other.by_shard.items():
            self._count(shard_id, counts.user_record_count, counts.kinesis_record_count, counts.bytes_count)

    def on_acknowledged(self, shard_id: str, user_record_count: int, bytes_count: int) -> None:
        """Count one Kinesis record that a shard acknowledged."""
        self.user_record_count += user_record_count
        self.kinesis_record_count += 1
        self.bytes_count += bytes_count
        self._count(shard_id, user_record_count, 1, bytes_count)

    def _count(
        self, shard_id: str, user_record_count: int, kinesis_record_count: int, bytes_count: int
    ) -> None:
        counts = self.by_shard.setdefault(shard_id, ShardCounts())
        counts.user_record_count += user_record_count
        counts.kinesis_record_count += kinesis_record_count
        counts.bytes_count += bytes_count

    def __str__(self) -> str:
        """Sum it up in a line."""
        text = (
            f"{self.user_record_count} records in {self.kinesis_record_count} Kinesis records, {self.bytes_count} bytes, "
            f"{self.request_count} requests, {len(self.by_shard)} shards"
        )
        if self.refused_count:
            text += f", {self.refused_count} refused and sent again, {self.pause_s:.1f} s of pauses"
        if self.possible_duplicate_count:
            text += f", {self.possible_duplicate_count} possibly twice"
        return text
