"""The lease on changing a stream, which one autoscaler at a time holds. Pure.

The row is a lease like that of a shard, in a table of the same format, so every lease store can hold it. Its holder renews it;
another autoscaler takes it when its counter has not changed for the lease's duration.
"""

from __future__ import annotations

from typing import Final

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, Create, Outcome, Release, Renew, Take

AUTOSCALER_PREFIX: Final = "autoscale-"
"""Begins the key of such a lease; the stream's name follows."""
LEASE_S: Final = 90.0
"""A lease whose counter has not changed for this long is taken."""
_SAFE_PART: Final = 0.5
"""The holder acts only within this part of the duration after its last renewal was sent."""


class AutoscalerLease:
    """One autoscaler's view of the lease.

    Args:
        worker: Worker id of this autoscaler.
        duration_s: The lease's duration, the same for all.
    """

    def __init__(self, key: str, worker: str, duration_s: float = LEASE_S) -> None:
        self.key = key
        self._worker = worker
        self._duration_s = duration_s
        self._seen_state: tuple[int, str | None] | None = None  # lease counter and holder
        self._state_seen_s = 0.0
        self._renewed_s: float | None = None
        self.holder: str | None = None
        """The holder when it was last read."""

    def plan_write(self, row: Lease | None, now_s: float) -> Create | Renew | Take | None:
        """Return the write for a row as it was read; None while another autoscaler holds it."""
        self.holder = None if row is None else row.reader
        if row is None:
            return Create(Lease(self.key, counter=1, owner=self._worker))
        if row.reader == self._worker:
            return Renew(self.key, row.counter, self._worker)
        self._renewed_s = None
        state = (row.counter, row.reader)
        if self._seen_state != state:
            self._seen_state, self._state_seen_s = state, now_s
        if row.reader is None or now_s - self._state_seen_s >= self._duration_s:
            return Take(self.key, row.counter, self._worker)
        return None

    def on_outcome(self, outcome: Outcome, sent_s: float) -> None:
        """Handle the outcome of a write that was sent at `sent_s`."""
        self._renewed_s = sent_s if isinstance(outcome, Applied) else None
        if self._renewed_s is not None:
            self.holder = self._worker

    def may_act(self, now_s: float) -> bool:
        """Return whether this autoscaler holds the row for long enough to act."""
        return self._renewed_s is not None and now_s - self._renewed_s < self._duration_s * _SAFE_PART

    def release_of(self, row: Lease | None) -> Release | None:
        """Return the write that releases the row; None if this autoscaler does not hold it."""
        if row is None or row.reader != self._worker:
            return None
        return Release(self.key, row.counter, self._worker)
