"""A batcher's settings, the steps that it plans, and the outcomes of entries. Plain values."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field

from penstock.core.limits import PUT_RECORDS_BYTES_MAX, PUT_RECORDS_COUNT_MAX
from penstock.core.writing.packing import PackedEntry


class BatcherSettings(Struct, frozen=True):
    """How a batcher works. The values were checked as options.

    Args:
        rate_max: Share of each shard's capacity to use at most; None for no limit set in advance.
        request_record_count_max: Kinesis records in one request.
        aggregate_count_max: User records in one aggregate.
        request_bytes_max: Data and keys of one request.
        linger_s: How long a record waits at most for others to share a request with.
        is_brief: The writer has a bounded number of records: after a refusal its rate recovers within seconds.
        gather_s: Longest wait of a request after the one before, while some shards pause and the others do not fill it.
        map_age_max_s: After this long the shards are listed again.
        no_progress_deadline_s: A queue has failed when its tries have failed for this long, and nothing was acknowledged.
    """

    aggregates: bool = False
    keeps_key_order: bool = True
    rate_max: float | None = None
    request_record_count_max: int = PUT_RECORDS_COUNT_MAX
    request_bytes_max: int = PUT_RECORDS_BYTES_MAX
    aggregate_bytes_max: int = 51_200
    aggregate_count_max: int = 2**32 - 1
    linger_s: float = 0.1
    gather_s: float = 0.0
    is_brief: bool = False
    map_age_max_s: float = 300.0
    no_progress_deadline_s: float = 600.0


# --- steps ----------------------------------------------------------------------------------------------------


class PutRequest(Struct, eq=False):
    """Send these entries in one PutRecords, then call `on_answers`, `on_failed_call` or `drop_request`.

    Args:
        is_ended: Whether one of these was called.
    """

    entries: list[PackedEntry]
    planned_s: float
    is_ended: bool = False

    @property
    def user_record_count(self) -> int:
        """How many user records it holds."""
        return sum(len(entry.records) for entry in self.entries)


class FetchShards(Struct, frozen=True):
    """List the open shards, or all (`with_closed`), then call `on_shards`, `on_listing_failed` or `on_listing_denied`."""

    why: str
    with_closed: bool


class WaitUntil(Struct, frozen=True):
    """Do nothing before `until_s`; if it is None, nothing before an answer, a listing or a new record."""

    until_s: float | None
    why: str


class NoProgress(Struct, frozen=True):
    """Fail the waiting records: a queue, or the listing of the shards, made no progress for too long."""

    why: str


Step: TypeAlias = PutRequest | FetchShards | WaitUntil | NoProgress


class RequestFailure(Enum):
    """Why a request has no answer for its entries."""

    THROTTLED = "refused for the rate"
    UNAVAILABLE = "not taken: nothing happened"
    UNKNOWN = "sent, no answer"


# --- outcomes -----------------------------------------------------------------------------------------------------


class DeliveredEntry(NamedTuple):
    """An entry that the service acknowledged, and its place."""

    entry: PackedEntry
    shard_id: str
    sequence_number: str


class RefusedEntry(NamedTuple):
    """An entry that the service refused finally."""

    entry: PackedEntry
    why: str


class PutResult(Struct):
    """Outcomes of entries.

    Args:
        delivered_entries: Acknowledged; readers see all of their records.
        refused_entries: Refused finally; not sent again.
        retry_counts: How many entries are sent again, by reason.
        pauses: The pause of each shard that refused, seconds.
        possible_duplicate_count: User records that may be in the stream twice.
    """

    delivered_entries: list[DeliveredEntry] = field(default_factory=list)
    refused_entries: list[RefusedEntry] = field(default_factory=list)
    retry_counts: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, float] = field(default_factory=dict)
    possible_duplicate_count: int = 0
