"""Limits a worker to one listing of a stream's shards at a time."""

from __future__ import annotations

import math

from penstock.core.leases.coordinator_effects import ListShards
from penstock.core.leases.coordinator_events import ListingPurpose
from penstock.core.leases.turn import Turn


class ListingUnderWay:
    """Begins listings, one at a time: every worker of a fleet may need one, and the rate of `ListShards` is low.

    Args:
        turn: Where effects go.
        stream_id: The stream; empty if the table has one stream.
        pause_s: Pause after a failed listing. While leases move, the table is scanned often, and without a pause each scan
            would list the shards of a stream that is gone.
    """

    def __init__(self, turn: Turn, stream_id: str = "", pause_s: float = 0.0) -> None:
        self._turn = turn
        self._stream_id = stream_id
        self._pause_s = pause_s
        self._purpose: ListingPurpose | None = None
        self._failed_s = -math.inf

    @property
    def is_under_way(self) -> bool:
        """Whether a listing is in flight."""
        return self._purpose is not None

    def may_begin(self, now_s: float) -> bool:
        """Return whether no listing is in flight, and the pause after a failed one is over."""
        return self._purpose is None and now_s >= self._failed_s + self._pause_s

    def begin(
        self, purpose: ListingPurpose, filter_type: str | None = None, timestamp_ms: int | None = None
    ) -> None:
        """List shards. No listing may be in flight."""
        assert self._purpose is None, f"a listing for {purpose} while one for {self._purpose} is under way"
        self._purpose = purpose
        self._turn.emit(ListShards(purpose, filter_type, timestamp_ms, self._stream_id))

    def end(self) -> None:
        """Handle that the listing was answered."""
        self._purpose = None

    def fail(self, now_s: float) -> None:
        """Handle that the listing failed."""
        self._purpose = None
        self._failed_s = now_s
