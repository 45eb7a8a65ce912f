"""Reacquires leases that name this worker as owner although it does not hold them.

The reason is a restart, a loss, a lost answer, or a leader that assigned the lease.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.held_leases import HeldLeases, LateCheckpoints
from penstock.core.leases.kcl3_membership import Kcl3Membership
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import LeaseWrite, Release, Renew, Take
from penstock.core.leases.pending_writes import ForAcquisition
from penstock.core.leases.requested_leases import RequestedLeases
from penstock.core.leases.stream_check import StreamCheck
from penstock.core.leases.twin_watch import TwinWatch
from penstock.core.position import LATEST


class Reacquisition:
    """Reacquires one worker's own leases. Not thread-safe.

    Args:
        context: Shared by the parts of the coordinator.
        held_leases: The leases that this worker holds.
        requested: The leases that it has requested.
        late_checkpoints: The last positions in shards whose leases were lost.
        stream_check: The coordinator's.
        membership: The coordinator's.
        twins: The coordinator's.
    """

    def __init__(  # noqa: PLR0917 - the parts of one coordinator
        self,
        context: CoordinatorContext,
        held_leases: HeldLeases,
        requested: RequestedLeases,
        late_checkpoints: LateCheckpoints,
        stream_check: StreamCheck,
        membership: Kcl3Membership,
        twins: TwinWatch,
    ) -> None:
        self.me = context.me
        self.options = context.options
        self.view = context.view
        self._writes = context.writes
        self._held_leases = held_leases
        self._requested = requested
        self._late_checkpoints = late_checkpoints
        self._stream_check = stream_check
        self._membership = membership
        self._twins = twins
        self._unheld: set[str] = set()

    def are_all_held(self) -> bool:
        """Return whether this worker holds every lease that was seen in its name, or another worker owns it by now."""
        return not any(self._is_unheld(key) for key in self._unheld)

    def _is_unheld(self, key: str) -> bool:
        row = self.view.get(key)
        return key not in self._held_leases and row is not None and not row.is_ended and row.reader == self.me

    def forget(self, keys: Iterable[str] | None = None) -> None:
        """Forget all leases that were seen, or some of them: they have been read again."""
        if keys is None:
            self._unheld.clear()
        else:
            self._unheld.difference_update(keys)

    def on_rows(self, rows: Iterable[Lease], now_s: float) -> None:
        """Reacquire leases in this worker's name among rows that were read."""
        for lease in rows:
            if self.me in (lease.owner, lease.checkpoint_owner):
                self._on_row(lease, now_s)

    def _on_row(self, lease: Lease, now_s: float) -> None:
        key = lease.key
        if lease.is_ended or key in self._held_leases:
            return
        if lease.reader == self.me:
            self._unheld.add(key)
        if self._writes.is_busy(key) or not self.view.is_usable(key):
            return
        if self._twins.leaves_alone(lease, now_s):
            return
        if lease.owner == self.me and lease.checkpoint_owner not in (None, self.me):
            self._requested.add(key, now_s)
        else:
            own = Reason.ASSIGNED if self._membership.is_led else Reason.OWN
            reason = Reason.HANDED_OVER if key in self._requested else own
            self._writes.enqueue(self._write_for(lease, now_s), ForAcquisition(reason))

    def _write_for(self, lease: Lease, now_s: float) -> LeaseWrite:
        """Return the write that makes a row in this worker's name a held lease, or completes its hand-over."""
        key = lease.key
        is_leaving = lease.owner != self.me  # it was being handed over when this worker stopped
        if is_leaving and not self.options.keeps_claims:
            return Release(key, lease.counter, self.me, self._late_checkpoints.take(key), lease.owner)
        if lease.checkpoint == LATEST and not is_leaving:
            return self._stream_check.for_this_stream(Take(key, lease.counter, self.me), now_s)
        stream = self._stream_check.stream_to_write(lease)
        return Renew(key, lease.counter, self.me, during_handover=is_leaving, stream=stream)
