"""The deletion of finished leases.

One of the live workers is responsible for each deletion (`chosen_worker`). If it does not delete the lease, a later round
plans the deletion again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_effects import Level, Topic
from penstock.core.leases.coordinator_events import ListingPurpose, WriteOutcome
from penstock.core.leases.fleet_view import chosen_worker
from penstock.core.leases.lease_writes import Applied
from penstock.core.leases.listing_under_way import ListingUnderWay
from penstock.core.leases.required_leases import DeletionReason, find_vanished, plan_deletions
from penstock.core.leases.stream_rows import Rows
from penstock.core.leases.write_purposes import ForCleanup
from penstock.core.shard import Shard

_REST_DURATIONS: Final = 3  # lease durations that a finished lease is kept unchanged
_DELETIONS_PER_ROUND: Final = 100


class LeaseCleanup:
    """Deletes leases that are not needed any more. Not thread-safe.

    Args:
        context: Shared by the parts of the coordinator.
        view: The last known rows of the stream.
        listing: Shared with the shard syncer.
    """

    def __init__(self, context: CoordinatorContext, view: Rows, listing: ListingUnderWay) -> None:
        self.me = context.me
        self.options = context.options
        self.view = view
        self._turn = context.turn
        self._writes = context.writes
        self._listing = listing
        self._vanished_before: frozenset[str] | None = None
        self._vanished: frozenset[str] = frozenset()
        self._listing_due_s: float | None = None

    def on_round(self, now_s: float, workers: Sequence[str]) -> None:
        """Begin this worker's deletions, and from time to time a listing that shows which shards have left the stream.

        Args:
            now_s: Monotonic seconds.
            workers: Live workers, this one included.
        """
        if not self.options.cleanup:
            return
        begun = 0
        for deletion in plan_deletions(self.view.rows(), self._vanished):
            key = deletion.write.key
            # One worker: Create, no answer. Another one: the shard's end, then this deletion. If the Create is still in flight,
            # it brings the row back.
            if self.view.unchanged_s(key, now_s) < _REST_DURATIONS * self.options.lease_duration_s:
                continue
            if begun < _DELETIONS_PER_ROUND and chosen_worker(workers, key) == self.me:
                begun += self._writes.enqueue(deletion.write, ForCleanup(deletion.why))
        if self._listing_due_s is None:
            self._listing_due_s = now_s + self.options.garbage_interval_s * self._turn.draw()
        if now_s >= self._listing_due_s and self._listing.may_begin(now_s):
            self._listing_due_s = now_s + self.options.garbage_interval_s
            if self._has_old_leases(now_s):
                self._listing.begin(ListingPurpose.FIND_VANISHED)

    def _has_old_leases(self, now_s: float) -> bool:
        return any(
            row.is_ended and self.view.unchanged_s(key, now_s) >= self.options.garbage_interval_s
            for key, row in self.view.rows().items()
        )

    def on_listing(self, shards: Sequence[Shard], now_s: float) -> None:
        """Handle a listing of every shard of the stream."""
        self._vanished_before, self._vanished = find_vanished(self.view.rows(), shards, self._vanished_before)
        self._listing_due_s = now_s + self.options.garbage_interval_s * (0.8 + 0.4 * self._turn.draw())

    def on_deleted(self, key: str, why: DeletionReason, outcome: WriteOutcome) -> None:
        """Handle the answer to a deletion."""
        if isinstance(outcome, Applied):
            self.view.forget(key)
            message = f"lease {key} deleted: {why.value}"
            self._turn.report(Topic.DELETED, Level.INFO, message, key, why.name.lower())
