"""The graceful stop of a coordinator: readers finish and leases are released, within a time limit."""

from __future__ import annotations

import math

from penstock.core.leases.acquisitions import Acquisitions
from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, Stopped, Topic
from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.leases.held_leases import HeldLeases
from penstock.core.leases.kcl3_membership import Kcl3Membership


class GracefulStop:
    """The progress of one worker's graceful stop. Not thread-safe."""

    def __init__(
        self,
        context: CoordinatorContext,
        held_leases: HeldLeases,
        acquisitions: Acquisitions,
        membership: Kcl3Membership,
    ) -> None:
        self.options: CoordinatorOptions = context.options
        self._turn = context.turn
        self._writes = context.writes
        self._held_leases = held_leases
        self._acquisitions = acquisitions
        self._membership = membership
        self.is_begun: bool = False
        self.is_done: bool = False
        self.next_wake_s: float = math.inf
        """When `advance` must be called; infinity before the stop begins."""
        self._is_time_up = False  # the stop no longer waits for readers

    def begin(self, now_s: float) -> None:
        """Acquire no more leases, and stop every reader. A second call has no effect."""
        if self.is_begun:
            return
        self.is_begun = True
        self.next_wake_s = now_s + self.options.shutdown_timeout_s
        self._writes.drop_queue()
        self._acquisitions.begin_stop()
        self._membership.leave()
        self._held_leases.release_all(now_s)

    def advance(self, now_s: float) -> None:
        """End the stop when every part has finished.

        At the time limit it no longer waits for readers. The last releases have one more renewal interval.
        """
        if not self.is_begun:
            return
        is_quiet = (
            self._held_leases.is_quiet
            and not self._acquisitions.requested_keys()
            and self._membership.is_quiet
            and self._writes.is_idle()
        )
        if not is_quiet and now_s < self.next_wake_s:
            return
        if not is_quiet and not self._is_time_up:
            self._is_time_up = True
            self._stop_waiting_for_readers(now_s)
            self.next_wake_s = now_s + self.options.renew_interval_s
            return
        self.is_done = True
        keys = sorted(held.key for held in self._held_leases)
        if keys:
            self._turn.report(
                Topic.SHUTDOWN,
                Level.WARNING,
                f"leases {', '.join(keys[:5])} could not be released; they expire after "
                f"{self.options.lease_duration_s} s",
            )
        self._turn.emit(Stopped())

    def _stop_waiting_for_readers(self, now_s: float) -> None:
        keys = self._held_leases.stop_waiting_for_readers(now_s)
        if keys:
            self._turn.report(
                Topic.SHUTDOWN,
                Level.WARNING,
                f"shards {', '.join(sorted(keys)[:5])} did not finish within {self.options.shutdown_timeout_s} s; "
                "their leases are released at what was done",
            )
