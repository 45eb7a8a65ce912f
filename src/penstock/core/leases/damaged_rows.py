"""Reports about rows of the lease table that are not leases, cannot be read, or are inconsistent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.core.leases.coordinator_effects import Level, Topic
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.turn import Turn

SKIPPED_REPORTS_MAX: Final = 20
"""The most rows that are reported one by one: a prefix of a bucket may hold thousands of other objects."""


class DamagedRows:
    """Reports each damaged lease once, and the first `SKIPPED_REPORTS_MAX` rows that are not leases.

    Args:
        view: The coordinator's.
        turn: Where reports go.
    """

    def __init__(self, view: LeaseView, turn: Turn) -> None:
        self.view = view
        self._turn = turn
        self._reported: set[tuple[str, str]] = set()
        self._skipped_count = 0

    def report_new(self, shard_ids: Iterable[str] = ()) -> None:
        """Report the damaged rows of the last scan that were not reported before.

        Args:
            shard_ids: Shards of a listing, whose rows count as damaged leases.
        """
        listed = set(shard_ids)
        for key, why in self.view.damaged.items():
            if key in self.view or key in listed:
                self._report_damaged(key, why)
            elif self._skipped_count <= SKIPPED_REPORTS_MAX and self._is_new(key, why):
                self._report_skipped(key, why)
        for key in sorted(self.view.circular):
            if self._is_new(key, "circular"):
                row = self.view.get(key)
                parents = "" if row is None else ", ".join(sorted(row.parents))
                self._turn.report(
                    Topic.ROW_DAMAGED,
                    Level.ERROR,
                    f"lease {key} descends from itself by its parentShardId ({parents}): its row is damaged. The "
                    "shard is read without waiting for these parents; repair parentShardId",
                    key,
                    "circular",
                )

    def _report_skipped(self, key: str, why: str) -> None:
        self._skipped_count += 1
        if self._skipped_count <= SKIPPED_REPORTS_MAX:
            message = f"row {key!r} of the lease table is left alone: {why}"
            self._turn.report(Topic.ROW_SKIPPED, Level.WARNING, message, key)
            return
        # `report_new` skips further rows once this report has been made.
        self._turn.report(
            Topic.ROW_SKIPPED,
            Level.WARNING,
            f"more than {SKIPPED_REPORTS_MAX} rows of the lease table are not leases. Further ones are left alone without a report",
        )

    def _report_damaged(self, key: str, why: str) -> None:
        if self._is_new(key, f"damaged {why}"):
            self._turn.report(
                Topic.ROW_DAMAGED,
                Level.ERROR,
                f"the row of lease {key} is in the lease table and cannot be read as a lease: {why}. No worker can take or "
                "renew it, so the shard is not read until the row is repaired; if it is deleted, it is created again and the "
                "shard is read from its beginning",
                key,
                "unreadable",
            )

    def _is_new(self, key: str, why: str) -> bool:
        is_new = (key, why) not in self._reported
        self._reported.add((key, why))
        return is_new
