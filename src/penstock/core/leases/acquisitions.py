"""The leases that one worker is getting: taken, requested from their owners, or reacquired in its own name.

- A **take** follows a decision of the balance, of a part's watchers, or the end of a parent.
- A **request** names this worker as the next owner. The row is fetched until the owner releases the lease to this worker. If
  the owner stops, or does not answer in time, this worker takes the lease.
- A row in this worker's name that it does not hold is **reacquired**: after a restart, a loss or a lost answer, or because a
  leader has assigned the lease.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import FetchLease, Level, Topic
from penstock.core.leases.coordinator_events import Unknown, WriteOutcome, row_of
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.fleet_view import Acquisition, Reason
from penstock.core.leases.held_leases import HeldLeases, LateCheckpoints
from penstock.core.leases.kcl3_membership import Kcl3Membership
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import (
    Applied,
    LeaseWrite,
    Refused,
    Release,
    Renew,
    RequestHandover,
    Take,
)
from penstock.core.leases.pending_writes import ForAcquisition, PendingWrite
from penstock.core.leases.row_checks import LaterRuns, StreamCheck
from penstock.core.position import LATEST

HANDOVER_POLL_S: Final = 1.5
"""Mean time between two reads of a lease that is being handed over."""
_LEFT_TO_OTHERS_DURATIONS: Final = 10  # lease durations for which a shard that failed here is left to others


class _Request(Struct):
    """A hand-over for which this worker waits."""

    since_s: float  # when it began to wait
    fetch_due_s: float  # when the lease's row is fetched next
    is_fetching: bool = False


class Acquisitions:
    """The acquisitions of one worker. Not thread-safe."""

    def __init__(  # noqa: PLR0917 - the parts of one coordinator
        self,
        context: CoordinatorContext,
        held_leases: HeldLeases,
        late_checkpoints: LateCheckpoints,
        stream_check: StreamCheck,
        membership: Kcl3Membership,
        later_runs: LaterRuns,
    ) -> None:
        self.me: str = context.me
        self.options: CoordinatorOptions = context.options
        self.view: LeaseView = context.view
        self.take_counts: dict[str, int] = {}
        """Number of acquired leases since the start, by reason."""
        self._turn = context.turn
        self._writes = context.writes
        self._scans = context.scans
        self._held_leases = held_leases
        self._late_checkpoints = late_checkpoints
        self._stream_check = stream_check
        self._membership = membership
        self._later_runs = later_runs
        self._is_stopping = False
        # By lease whose reader failed here: until when this worker does not take it.
        self._left_to_others_until_s: dict[str, float] = {}
        self._requests: dict[str, _Request] = {}  # by lease
        # Leases that named this worker as the reader when they were last read, although it did not hold them.
        self._own_leases_not_held: set[str] = set()

    def begin_stop(self) -> None:
        """Handle the stop of this worker: a lease that is handed over to it from now on is released at once."""
        self._is_stopping = True

    # --- taking -------------------------------------------------------------------------------------------

    def leave_to_others(self, key: str, now_s: float) -> None:
        """Do not take a lease for ten lease durations: its reader failed here, and another worker's reader may succeed."""
        self._left_to_others_until_s = {
            key: until_s for key, until_s in self._left_to_others_until_s.items() if until_s > now_s
        }
        self._left_to_others_until_s[key] = now_s + _LEFT_TO_OTHERS_DURATIONS * self.options.lease_duration_s

    def begin(self, acquisition: Acquisition, now_s: float) -> None:
        """Send the write of an acquisition, unless the lease is held, requested or left to others."""
        write = acquisition.write
        is_left = self._left_to_others_until_s.get(write.key, -math.inf) > now_s
        if write.key in self._held_leases or write.key in self._requests or is_left:
            return
        if isinstance(write, Take):
            write = self._stream_check.complete_take(write, now_s)
        self._writes.enqueue(write, ForAcquisition(acquisition.reason))

    def on_answer(self, pending: PendingWrite, reason: Reason, outcome: WriteOutcome, now_s: float) -> bool:
        """Handle the answer to a write that acquires a lease, or requests one; the view has the row already.

        Returns:
            Whether a hand-over request was refused, since another worker changed the lease before.
        """
        row, write = row_of(outcome), pending.write
        if isinstance(write, RequestHandover):
            if isinstance(outcome, Applied) and row is not None:
                self._wait_for_release(write.key, now_s)
            return isinstance(outcome, Refused)
        if isinstance(write, Take | Renew):
            if isinstance(outcome, Applied) and row is not None:
                self._on_acquired(row, reason, pending.sent_s, now_s)
            else:
                self._on_not_acquired(write.key, row, outcome, now_s)
        return False

    def _on_not_acquired(self, key: str, row: Lease | None, outcome: WriteOutcome, now_s: float) -> None:
        if row is None or row.reader in (None, self.me):
            self._scans.on_owner_unknown(key, now_s)  # the lease may be free, or this worker's
        may_be_own = isinstance(outcome, Unknown) or (row is not None and row.reader == self.me)
        if may_be_own and self._scans.part is None:
            # If the take was applied, no other worker takes the lease for a lease duration. The next scan finds the row in this
            # worker's name, as after a restart.
            self._scans.request_whole_scan_by(now_s + 0.1 * self.options.interval_s)

    def _on_acquired(self, row: Lease, reason: Reason, sent_s: float, now_s: float) -> None:
        self._requests.pop(row.key, None)
        if row.key in self._held_leases or row.is_ended or row.reader != self.me:
            return
        why = reason.value
        self.take_counts[why] = self.take_counts.get(why, 0) + 1
        message = f"lease {row.key} taken at {row.checkpoint} ({why})"
        self._turn.report(Topic.TAKEN, Level.INFO, message, row.key, why)
        self._held_leases.begin_holding(row, sent_s, now_s)

    # --- hand-over requests -------------------------------------------------------------------------------

    def requested_keys(self) -> Collection[str]:
        """Return the keys of the leases that this worker has requested and waits for."""
        return self._requests.keys()

    @property
    def next_fetch_s(self) -> float:
        """When the row of a requested lease is fetched next; infinity without such a lease."""
        moments = (request.fetch_due_s for request in self._requests.values() if not request.is_fetching)
        return min(moments, default=math.inf)

    def _wait_for_release(self, key: str, now_s: float) -> None:
        if key not in self._requests:
            self._requests[key] = _Request(now_s, now_s + self._poll_delay_s())

    def begin_due_fetches(self, now_s: float) -> None:
        """Fetch the rows of requested leases whose fetch is due."""
        for key, request in self._requests.items():
            if not request.is_fetching and now_s >= request.fetch_due_s:
                request.is_fetching = True
                self._turn.emit(FetchLease(key))

    def on_fetch_ended(self, key: str, now_s: float, *, is_read: bool) -> None:
        """Handle the end of a fetch: go on waiting for a requested lease, or take it, or stop waiting.

        Args:
            is_read: Whether the fetch has read the row. The view has it then; otherwise the view has an earlier row.
        """
        request = self._requests.get(key)
        if request is None or not request.is_fetching:
            return
        request.is_fetching = False
        request.fetch_due_s = now_s + self._poll_delay_s()
        row = self.view.get(key)
        is_over = row is None or row.is_ended or row.owner != self.me or key in self._held_leases
        if row is None or is_over or self._later_runs.may_hold(row, now_s):
            del self._requests[key]
        elif row.checkpoint_owner is None:
            self._on_handed_over(row)
        elif not self._is_take_due(row, request, now_s, is_read=is_read):
            return
        elif self._is_stopping:
            del self._requests[key]  # another worker takes the lease when it has expired
        else:
            # The reader may have written a Release or a renewal just now. Then this take, with the counter as read before, is
            # refused, and the next fetch shows the new row.
            take = self._stream_check.complete_take(Take(key, row.counter, self.me), now_s)
            self._writes.enqueue(take, ForAcquisition(Reason.HANDOVER_OVERDUE))

    def _on_handed_over(self, row: Lease) -> None:
        write: Release | Renew
        if self._is_stopping:
            # The reader has released the lease to this worker, which stops. Without this release the lease would be unread
            # until it expires in this worker's name.
            write = Release(row.key, row.counter, self.me)
            del self._requests[row.key]
        else:
            # The reader has released the lease to this worker. This renewal has the counter of that release: it is refused if
            # another worker has taken the lease in between.
            write = Renew(row.key, row.counter, self.me, stream=self._stream_check.stream_to_write(row))
        self._writes.enqueue(write, ForAcquisition(Reason.HANDED_OVER))

    def _is_take_due(self, row: Lease, request: _Request, now_s: float, *, is_read: bool) -> bool:
        """Return whether to take a requested lease now, without its release by the reader.

        A reader that has renewed through the whole hand-over time counts from now on as one that ignores requests.

        Args:
            is_read: Whether the fetch that has just ended has read the row.
        """
        if self._membership.has_leader:
            return False  # the leader requested it, and ends a hand-over that lasts too long
        if self.view.owner_state(row.key, now_s) is OwnerState.EXPIRED:
            return True
        is_overdue = now_s >= request.since_s + self.options.handover_timeout_s
        if is_overdue and is_read:  # else the reader may have answered, and this worker could not read it
            self.view.handovers.on_request_unanswered(row, now_s)
        return is_overdue or self.view.handovers.ignores_handovers(row.checkpoint_owner, now_s)

    def _poll_delay_s(self) -> float:
        return self._turn.jittered(HANDOVER_POLL_S, 0.5)

    # --- reacquiring --------------------------------------------------------------------------------------

    def are_own_leases_held(self) -> bool:
        """Return whether this worker holds every lease that names it as the reader, as far as rows were read."""
        rows = (self.view.get(key) for key in self._own_leases_not_held if key not in self._held_leases)
        return not any(row is not None and not row.is_ended and row.reader == self.me for row in rows)

    def on_rows(self, rows: Iterable[Lease], now_s: float) -> None:
        """Handle rows that were read: reacquire the leases in this worker's name."""
        for lease in rows:
            self._own_leases_not_held.discard(lease.key)
            if self.me in (lease.owner, lease.checkpoint_owner):
                self._on_own_row(lease, now_s)

    def _on_own_row(self, lease: Lease, now_s: float) -> None:
        """Reacquire or release a lease in this worker's name that it does not hold, unless another worker still reads it."""
        key = lease.key
        if lease.is_ended or key in self._held_leases:
            return
        if lease.reader == self.me:
            self._own_leases_not_held.add(key)
        may_write = self.view.is_usable(key) and not self._writes.is_busy(key)
        if not may_write or self._later_runs.may_hold(lease, now_s):
            return
        if lease.reader != self.me:
            self._wait_for_release(key, now_s)
        else:
            reason = Reason.ASSIGNED if self._membership.has_leader else Reason.OWN
            if key in self._requests:
                reason = Reason.HANDED_OVER
            self._writes.enqueue(self._reacquiring_write(lease, now_s), ForAcquisition(reason))

    def _reacquiring_write(self, lease: Lease, now_s: float) -> LeaseWrite:
        """Return the write that reacquires a lease in this worker's name, or completes its hand-over to another worker."""
        key = lease.key
        is_leaving = lease.owner != self.me  # it was being handed over when this worker stopped
        # A query first repeats its interrupted batch, so it renews.
        if is_leaving and not self.options.keeps_claims:
            late = self._late_checkpoints.pop(key)
            position = None if late is None else late.position
            return Release(key, lease.counter, self.me, position, lease.owner)
        if lease.checkpoint == LATEST and not is_leaving:
            return self._stream_check.complete_take(Take(key, lease.counter, self.me), now_s)
        stream = self._stream_check.stream_to_write(lease)
        return Renew(key, lease.counter, self.me, during_handover=is_leaving, stream=stream)
