"""The one listing of the stream's shards that a worker may have under way."""

from __future__ import annotations

import math

from penstock.core.leases.coordinator_effects import ListShards
from penstock.core.leases.coordinator_events import ListingPurpose
from penstock.core.leases.turn import Turn


class ListingUnderWay:
    """Begins listings, one at a time: every worker of a fleet may want one, and `ListShards` is a scarce call.

    Args:
        turn: Where effects go.
        stream_id: Whose shards; empty where the table has one stream.
        pause_s: How long after a listing that failed none is begun. While something moves, the lease table is looked at again
            and again, and each look would ask anew for the shards of a stream that is gone.
    """

    def __init__(self, turn: Turn, stream_id: str = "", pause_s: float = 0.0) -> None:
        self._turn = turn
        self._stream_id = stream_id
        self._pause_s = pause_s
        self._purpose: ListingPurpose | None = None
        self._failed_s = -math.inf

    @property
    def is_under_way(self) -> bool:
        """Whether the answer to a listing is awaited."""
        return self._purpose is not None

    def may_begin(self, now_s: float) -> bool:
        """Whether none is under way, and the last one did not fail just now."""
        return self._purpose is None and now_s >= self._failed_s + self._pause_s

    def begin(
        self, purpose: ListingPurpose, filter_type: str | None = None, timestamp_ms: int | None = None
    ) -> None:
        """List shards. No listing may be under way."""
        assert self._purpose is None, f"a listing for {purpose} while one for {self._purpose} is under way"
        self._purpose = purpose
        self._turn.emit(ListShards(purpose, filter_type, timestamp_ms, self._stream_id))

    def end(self) -> None:
        """Observe that the listing was answered."""
        self._purpose = None

    def fail(self, now_s: float) -> None:
        """Observe that the listing failed."""
        self._purpose = None
        self._failed_s = now_s
