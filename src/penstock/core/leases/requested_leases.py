"""Leases that this worker has requested: fetched until their owner releases them or the request is overdue."""

from __future__ import annotations

from collections.abc import Collection, Container

from msgspec import Struct

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import FetchLease
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.kcl3_membership import Kcl3Membership
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import OwnerState
from penstock.core.leases.lease_writes import Release, Renew, Take
from penstock.core.leases.pending_writes import ForAcquisition
from penstock.core.leases.stream_check import StreamCheck
from penstock.core.leases.twin_watch import TwinWatch


class _Request(Struct):
    since_s: float
    fetch_s: float
    is_fetching: bool = False


class RequestedLeases:
    """The hand-over requests of one worker. Not thread-safe.

    Args:
        context: Shared by the parts of the coordinator.
        stream_check: The coordinator's.
        membership: The coordinator's.
        twins: The coordinator's.
    """

    def __init__(
        self,
        context: CoordinatorContext,
        stream_check: StreamCheck,
        membership: Kcl3Membership,
        twins: TwinWatch,
    ) -> None:
        self.me = context.me
        self.options = context.options
        self.view = context.view
        self._turn = context.turn
        self._writes = context.writes
        self.stream_check = stream_check
        self.membership = membership
        self._twins = twins
        self._is_stopping = False
        self._requests: dict[str, _Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, key: object) -> bool:
        return key in self._requests

    def keys(self) -> Collection[str]:
        """Return the keys of the requested leases."""
        return self._requests.keys()

    @property
    def next_fetch_s(self) -> float:
        """When the next fetch is due; infinity for never."""
        return min(
            (request.fetch_s for request in self._requests.values() if not request.is_fetching),
            default=float("inf"),
        )

    def add(self, key: str, now_s: float) -> None:
        """Begin to wait for a requested lease; a second call has no effect."""
        if key not in self._requests:
            self._requests[key] = _Request(now_s, now_s + self._poll_s())

    def drop(self, key: str) -> None:
        """Forget a request: the lease is held, or will not be."""
        self._requests.pop(key, None)

    def stop(self) -> None:
        """Handle that this worker stops: a lease that is handed over from now on is released at once."""
        self._is_stopping = True

    def fetch_due(self, now_s: float) -> None:
        """Begin the fetches that are due."""
        for key, request in self._requests.items():
            if not request.is_fetching and now_s >= request.fetch_s:
                request.is_fetching = True
                self._turn.emit(FetchLease(key))

    def on_answer(self, key: str, held: Container[str], now_s: float) -> None:
        """Handle that a fetch has ended, with or without a row; the row is in the view."""
        request = self._requests.get(key)
        if request is None or not request.is_fetching:
            return
        request.is_fetching = False
        request.fetch_s = now_s + self._poll_s()
        row = self.view.get(key)
        is_gone = row is None or row.is_ended or row.owner != self.me or key in held
        if row is None or is_gone or self._twins.leaves_alone(row, now_s):
            del self._requests[key]
        elif row.checkpoint_owner is None:
            self._on_given(row)
        elif not self._is_overdue(row, request, now_s):
            return
        elif self._is_stopping:
            del self._requests[key]  # another worker takes the lease when it has expired
        else:
            # The reader may have written a Release or a renewal just now. Then this take, with the counter as read before, is
            # refused, and the next fetch shows the new row.
            take = self.stream_check.for_this_stream(Take(key, row.counter, self.me), now_s)
            self._writes.enqueue(take, ForAcquisition(Reason.HANDOVER_OVERDUE))

    def _on_given(self, row: Lease) -> None:
        if self._is_stopping:
            # This worker: RequestHandover, then a graceful stop. The reader: Release for this worker. No other worker takes
            # the lease before it expires in this worker's name, so it is released at once.
            self._writes.enqueue(Release(row.key, row.counter, self.me), ForAcquisition(Reason.HANDED_OVER))
            del self._requests[row.key]
        else:
            # The reader: Release for this worker. This worker: a renewal with the counter of that release, which is refused
            # if another worker has taken the lease in between.
            write = Renew(row.key, row.counter, self.me, stream=self.stream_check.stream_to_write(row))
            self._writes.enqueue(write, ForAcquisition(Reason.HANDED_OVER))

    def _is_overdue(self, row: Lease, request: _Request, now_s: float) -> bool:
        if self.membership.is_led:
            return False  # the leader requested it, and ends a hand-over that lasts too long
        if self.view.owner_state(row.key, now_s) is OwnerState.EXPIRED:
            return True
        is_overdue = now_s >= request.since_s + self.options.handover_timeout_s
        if is_overdue:
            self.view.handovers.on_unanswered(row, now_s)
        return is_overdue or self.view.handovers.ignores_handovers(row.checkpoint_owner, now_s)

    def _poll_s(self) -> float:
        return self.options.handover_poll_s * (0.5 + self._turn.draw())
