"""The service's description of streams and shards, as plain values."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.hash_key import HashRange
from penstock.core.stream_identity import StreamIdentity


class Shard(Struct, frozen=True):
    """One shard in a ListShards answer.

    Args:
        shard_id: The service's name, for instance `shardId-000000000000`.
        hash_range: Hash keys that it owns (or owned), both ends included.
        parents: Parent and adjacent parent, in that order; they may be gone from the listing.
        starting_sequence_number: Where it begins, as text.
        ending_sequence_number: Where it ends, or None while it is open.
    """

    shard_id: str
    hash_range: HashRange
    parents: tuple[str, ...] = ()
    starting_sequence_number: str = "0"
    ending_sequence_number: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether puts may still land in it."""
        return self.ending_sequence_number is None

    @property
    def as_child(self) -> ChildShard:
        """This shard as the last GetRecords answer of a parent names it."""
        return ChildShard(self.shard_id, self.parents, self.hash_range)


class ChildShard(Struct, frozen=True):
    """A child shard in the last GetRecords answer of its parent."""

    shard_id: str
    parents: tuple[str, ...]
    hash_range: HashRange


class StreamSummary(Struct, frozen=True):
    """The answer of DescribeStreamSummary.

    Args:
        created_ms: Creation, milliseconds since the epoch.
        service_managed_keys: True if the service places records itself (record distribution AUTO): then
            aggregation must be off; None if the answer lacks it.
        shard_metrics: Metrics that CloudWatch has by shard: those of enhanced monitoring.
    """

    name: str
    arn: str
    status: str
    created_ms: int
    retention_hours: float = 24
    open_shard_count: int = 0
    record_bytes_max: int = 1024 * 1024
    on_demand: bool = False
    service_managed_keys: bool | None = None
    shard_metrics: tuple[str, ...] = ()

    @property
    def identity(self) -> StreamIdentity:
        """The stream, distinguished from a later one of the same name."""
        return StreamIdentity(self.arn, self.created_ms)

    @property
    def retention_ms(self) -> int:
        """How long the stream keeps a record."""
        return round(self.retention_hours * 3_600_000)
