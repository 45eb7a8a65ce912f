"""A writer's view of its stream's shards, and when they are listed again. Pure; part of `batcher`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from penstock.core.backoff import Backoff
from penstock.core.hash_key import HashRange
from penstock.core.shard import Shard
from penstock.core.shard_graph import HashRouter
from penstock.core.writing.batcher_steps import FetchShards, NoProgress, WaitUntil

_PAUSES: Final = Backoff(base_s=0.2, cap_s=30.0)
_UNEXPLAINED_MAX: Final = 4
"""A listing may not show a reshard yet. It is repeated this often, for three seconds in all, until it has the shard that
accepted an aggregate; then the aggregate counts as misplaced."""


class ShardMap:
    """The shards as they were listed last.

    Args:
        predicts: Whether the shard of a record can be predicted; then the shards are listed before the first request.
        age_max_s: After this long the shards are listed again.
        deadline_s: Writing fails when a needed listing has failed for this long.
    """

    def __init__(self, *, predicts: bool, age_max_s: float, deadline_s: float) -> None:
        self.predicts = predicts
        self.router: HashRouter | None = None
        self.ranges: dict[str, HashRange] = {}
        """Every shard that was ever listed, closed ones too."""
        self._age_max_s = age_max_s
        self._deadline_s = deadline_s
        self._due_listing: FetchShards | None = (
            FetchShards("no shard map yet", with_closed=False) if predicts else None
        )
        self._is_listing = False  # a listing is under way
        self._listed_s = float("-inf")
        self._ready_s = float("-inf")  # the earliest next listing
        self._failure_count = 0  # listings in a row that failed, or did not show a shard that had answered
        self._failing_since_s: float | None = None
        self._failed_s = 0.0  # the last failure
        self._last_error = ""
        self._unlisted: set[str] = set()  # shards that answered for others and are in no listing yet
        self._unexplained_count = 0  # listings repeated for them

    def plan_listing(
        self, now_s: float, in_flight_count: int, *, is_needed: bool
    ) -> FetchShards | WaitUntil | NoProgress | None:
        """Plan the next listing; None when requests may be sent first.

        Args:
            in_flight_count: Requests that are not answered.
            is_needed: Whether nothing can go on without a new listing.
        """
        if self._due_listing is None and self.predicts and now_s - self._listed_s > self._age_max_s:
            self._due_listing = FetchShards("the shard map is old", with_closed=False)
        if self._due_listing is None:
            return None
        if self._is_listing:
            return WaitUntil(None, "the shards are being listed")
        is_needed = is_needed or self.router is None
        # Counted to the last failure, not to now: a process that was paused tries once again before it fails.
        failing_s = 0.0 if self._failing_since_s is None else self._failed_s - self._failing_since_s
        if is_needed and failing_s > self._deadline_s:
            return NoProgress(
                f"the shards could not be listed for {failing_s:.0f} s; last: {self._last_error}"
            )
        if now_s < self._ready_s:
            return WaitUntil(self._ready_s, "the shards are listed again later") if is_needed else None
        # A request was packed by the old map. If it were answered after a new listing, its records would have to be put before
        # later records of their keys, which may have left for another shard: so its answer is awaited first.
        if in_flight_count:
            return WaitUntil(None, "the shard map changes when nothing is in flight")
        self._is_listing = True
        return self._due_listing

    def on_misrouted(self, shard_id: str, predicted_id: str | None) -> None:
        """Handle a record that was accepted by a shard other than the predicted one: the shards are listed again."""
        if self._due_listing is None:
            self._due_listing = FetchShards(
                f"shard {shard_id} answered for {predicted_id or 'an unknown one'}", with_closed=True
            )
        self._unlisted.add(shard_id)

    def on_shards(self, shards: Iterable[Shard], now_s: float, misrouted_ids: Collection[str]) -> bool:
        """Handle a listing.

        Args:
            shards: As listed; closed ones may be among them.
            misrouted_ids: Shards that accepted aggregates meant for others.

        Returns:
            Whether to use the map now: it has all of these shards, or no further listing is made for them.
        """
        listed = list(shards)
        self.ranges.update((shard.shard_id, shard.hash_range) for shard in listed)
        self.router = HashRouter(shard for shard in listed if shard.is_open)
        self._listed_s = now_s
        self._is_listing = False
        self._due_listing = None
        self._failing_since_s = None
        self._unlisted.update(misrouted_ids)
        self._unlisted -= self.ranges.keys()
        # If a shard that has accepted records is not listed yet, as after a split, it is listed again, ever more rarely.
        self._failure_count = self._failure_count + 1 if self._unlisted else 0
        if self._unlisted:
            self._ready_s = now_s + _PAUSES.bound_s(self._failure_count)
            self._unlisted.clear()
        unlisted = next((shard_id for shard_id in misrouted_ids if shard_id not in self.ranges), None)
        if unlisted is not None and self._unexplained_count < _UNEXPLAINED_MAX:
            self._unexplained_count += 1
            self._due_listing = FetchShards(f"shard {unlisted} is in no listing yet", with_closed=True)
            return False
        self._unexplained_count = 0
        return True

    def on_listing_failed(self, why: str, now_s: float, chance: float) -> None:
        """Handle a failed listing of the shards; they are listed again after a pause."""
        self._is_listing = False
        self._failure_count += 1
        self._failing_since_s = now_s if self._failing_since_s is None else self._failing_since_s
        self._failed_s = now_s
        self._last_error = why
        self._ready_s = now_s + _PAUSES.delay_s(self._failure_count, chance)

    def on_listing_denied(self) -> None:
        """Handle a listing that is not permitted: shards are not predicted any more."""
        self.predicts = self._is_listing = False
        self.router = self._due_listing = None
