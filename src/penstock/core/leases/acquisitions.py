"""Acquisitions: from the decision to take or request a lease to the held lease."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, Topic
from penstock.core.leases.coordinator_events import Unknown, WriteOutcome, row_of
from penstock.core.leases.fleet_view import Acquisition, Reason
from penstock.core.leases.held_leases import HeldLeases
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, Refused, Renew, RequestHandover, Take
from penstock.core.leases.pending_writes import ForAcquisition, PendingWrite
from penstock.core.leases.requested_leases import RequestedLeases
from penstock.core.leases.stream_check import StreamCheck

_LEFT_DURATIONS: Final = 10  # lease durations for which a shard that failed here is left to others


class Acquisitions:
    """The acquisitions of one worker. Not thread-safe.

    Args:
        context: Shared by the parts of the coordinator.
        held_leases: The leases that this worker holds.
        requested: The leases that it has requested.
        stream_check: The coordinator's.
    """

    def __init__(
        self,
        context: CoordinatorContext,
        held_leases: HeldLeases,
        requested: RequestedLeases,
        stream_check: StreamCheck,
    ) -> None:
        self.me = context.me
        self.options = context.options
        self._turn = context.turn
        self._writes = context.writes
        self._scans = context.scans
        self._held_leases = held_leases
        self._requested = requested
        self._stream_check = stream_check
        self._left_to_others: dict[str, float] = {}
        self._takes: dict[str, int] = {}

    @property
    def takes(self) -> Mapping[str, int]:
        """Number of acquired leases since the start, by reason."""
        return self._takes

    def leave_to_others(self, key: str, now_s: float) -> None:
        """Leave a lease to others for a while: its shard failed here."""
        self._left_to_others = {
            key: until_s for key, until_s in self._left_to_others.items() if until_s > now_s
        }
        self._left_to_others[key] = now_s + _LEFT_DURATIONS * self.options.lease_duration_s

    def begin(self, acquisition: Acquisition, now_s: float) -> None:
        """Send the write of an acquisition, unless the lease is held, requested or left to others."""
        write = acquisition.write
        key = write.key
        if (
            key in self._held_leases
            or key in self._requested
            or self._left_to_others.get(key, -math.inf) > now_s
        ):
            return
        if isinstance(write, Take):
            write = self._stream_check.for_this_stream(write, now_s)
        self._writes.enqueue(write, ForAcquisition(acquisition.reason))

    def on_answer(self, pending: PendingWrite, reason: Reason, outcome: WriteOutcome, now_s: float) -> bool:
        """Handle the answer to a write that acquires a lease; the row is in the view.

        Returns:
            Whether another worker has changed the lease before this one could request its hand-over.
        """
        row = row_of(outcome)
        write = pending.write
        if isinstance(write, RequestHandover):
            if isinstance(outcome, Applied) and row is not None:
                self._requested.add(write.key, now_s)
            return isinstance(outcome, Refused)
        if isinstance(write, Take | Renew):
            if isinstance(outcome, Applied) and row is not None:
                self._hold(row, reason, pending.sent_s, now_s)
            else:
                self._on_not_acquired(write.key, row, outcome, now_s)
        return False

    def _on_not_acquired(self, key: str, row: Lease | None, outcome: WriteOutcome, now_s: float) -> None:
        if row is None or row.reader in (None, self.me):
            self._scans.on_owner_unknown(key, now_s)  # the lease may be free, or this worker's
        may_be_own = isinstance(outcome, Unknown) or (row is not None and row.reader == self.me)
        if may_be_own and self._scans.part is None:
            # This worker: Take, applied, and the answer is lost. No other worker takes the lease for a lease duration. The next
            # scan finds the row in this worker's name, as after a restart.
            self._scans.request_by(now_s + 0.1 * self.options.interval_s)

    def _hold(self, row: Lease, reason: Reason, sent_s: float, now_s: float) -> None:
        self._requested.drop(row.key)
        if row.key in self._held_leases or row.is_ended or row.reader != self.me:
            return
        self._takes[reason.value] = self._takes.get(reason.value, 0) + 1
        self._turn.report(
            Topic.TAKEN,
            Level.INFO,
            f"lease {row.key} taken at {row.checkpoint} ({reason.value})",
            row.key,
            reason.value,
        )
        self._held_leases.acquire(row, sent_s, now_s)
