"""Counts of like answers in a row to the calls for one shard."""

from __future__ import annotations

from msgspec import Struct


class AnswersInARow(Struct):
    """How often in a row a shard's reader received each kind of answer.

    Args:
        failures: Failed calls.
        failing_since_s: Start of the first of them, or None.
        stubborn: Failures that repetition alone does not cure: refusals, and a listing that contradicts the reads.
        unclear_ends: Empty pages at a place that must have a record.
        unconfirmed_ends: Last pages that name no children.
        unlisted: Listings without the shard.
        empty_rereads: Empty answers although the driver knows that a record follows.
        quiet: Pages without records at the tip.
    """

    failures: int = 0
    failing_since_s: float | None = None
    stubborn: int = 0
    unclear_ends: int = 0
    unconfirmed_ends: int = 0
    unlisted: int = 0
    empty_rereads: int = 0
    quiet: int = 0

    def on_page(self) -> None:
        """Handle a page: the calls work."""
        self.failures = 0
        self.failing_since_s = None

    def on_progress(self) -> None:
        """Handle a page that leads further: the shard can be read."""
        self.stubborn = self.unlisted = 0

    def on_failure(self, started_s: float) -> float:
        """Handle a failed call; return when the first failure in a row began."""
        self.failures += 1
        if self.failing_since_s is None:
            self.failing_since_s = started_s
        return self.failing_since_s

    def on_last_page(self, *, is_progress: bool) -> None:
        """Handle a last page without children."""
        self.unconfirmed_ends = 1 if is_progress else self.unconfirmed_ends + 1

    def on_listed(self) -> None:
        """Handle a listing that has the shard, although reads failed or ended."""
        self.unlisted = self.unconfirmed_ends = 0
        self.stubborn += 1

    def on_other_source(self) -> None:
        """Handle a change of the source of pages: its failures do not count for the next one."""
        self.failures = self.quiet = self.unclear_ends = 0
        self.failing_since_s = None
