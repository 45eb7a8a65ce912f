"""The one listing of the stream's shards that a worker may have under way."""

from __future__ import annotations

from penstock.core.leases.coordinator_effects import ListShards
from penstock.core.leases.coordinator_events import ListingPurpose
from penstock.core.leases.turn import Turn


class ListingUnderWay:
    """Begins listings, one at a time: every worker of a fleet may want one, and `ListShards` is a scarce call.

    Args:
        turn: Where effects go.
        stream_id: Whose shards; empty where the table has one stream.
    """

    def __init__(self, turn: Turn, stream_id: str = "") -> None:
        self._turn = turn
        self._stream_id = stream_id
        self._purpose: ListingPurpose | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the answer to a listing is awaited."""
        return self._purpose is not None

    def begin(
        self, purpose: ListingPurpose, filter_type: str | None = None, timestamp_ms: int | None = None
    ) -> None:
        """List shards. No listing may be under way."""
        assert self._purpose is None, f"a listing for {purpose} while one for {self._purpose} is under way"
        self._purpose = purpose
        self._turn.emit(ListShards(purpose, filter_type, timestamp_ms, self._stream_id))

    def end(self) -> None:
        """Observe that the listing was answered, or failed."""
        self._purpose = None
