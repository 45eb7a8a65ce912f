"""A query that reads the existing records and ends: no record is left without a reader."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from penstock.core.leases.lease_writes import Release
from penstock_sim.checker import Broken, Checker
from penstock_sim.events import leases, processes, queries, streams
from penstock_sim.events.base import name_of
from penstock_sim.plan import EPOCH_MS

_EXTRAS: Final = "z/"
"""Name prefix of the workers that join and leave beside the fleet."""
_BOUND_SLACK_MS: Final = 3000  # a driver's estimate of the service's clock is off by up to two seconds
_DEPARTED_LEASE_DURATIONS: Final = 3
"""So many lease durations after its end a worker may still count as living."""


class EndsWhenAllIsRead(Checker):
    """Q10: a query that reads the existing records ends when each of them is done, or is read by another live worker.

    Nothing is owed if two drivers share one checkpoint location, an answer reported the tip too early, an action left a batch
    unread, or a lease was deleted while the query ran.
    """

    invariant = "Q10"

    def _begin(self) -> None:
        self._up_s: dict[str, float] = {}
        self._down_s: dict[str, float] = {}
        self._excused: set[str] = set()
        self._excused_shards: set[str] = set()
        self._disturbed_s = float("-inf")
        self._handed_s: dict[str, float] = {}

    def _on_process_started(self, event: processes.ProcessStarted) -> None:
        """Record its start: earlier records are owed."""
        self._up_s[event.who] = self.history.now

    def _on_batch_unread(self, event: queries.BatchUnread) -> None:
        """Excuse a query whose user left records out, since no later event may show it."""
        self._excused.add(event.query)

    def _on_tip_reported_early(self, event: streams.TipReportedEarly | streams.EmptyPageReturned) -> None:
        self._excused_shards.add(event.key)

    def _on_table_dropped(self, event: leases.TableDropped | leases.LeaseDeleted) -> None:
        self._disturbed_s = self.history.now

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        write = event.write
        self._handed_s.pop(write.key, None)
        next_owner = None if event.after is None else event.after.owner
        if isinstance(write, Release) and next_owner not in (None, name_of(event.who)):
            self._handed_s[write.key] = self.history.now

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        who = event.who
        self._down_s[name_of(who)] = self.history.now
        up_s = self._up_s.get(who, 0.0)
        is_excused = (
            name_of(who) in self._excused
            or self.history.is_query_exempt(name_of(who))
            or name_of(who).startswith(_EXTRAS)
        )
        is_owed = event.how == "done" and not is_excused and self._disturbed_s < up_s
        if not is_owed or self.history.leaders:
            return
        for key, shard in self.history.shards.items():
            if key in self._excused_shards or shard.is_expired or shard.trimmed:
                continue
            came = bisect_left(shard.arrivals_ms, EPOCH_MS + int(up_s * 1000) - _BOUND_SLACK_MS)
            undone = self.history.first_undone(key, came)
            if undone is not None and not self._is_read(key, name_of(who)):
                raise Broken(f"{who} has ended, and no worker reads {undone} of {key}, put before that")

    def _is_read(self, key: str, me: str) -> bool:
        row, now_s = self.history.rows.get(key), self.history.now
        alive = {name_of(who) for who in self.history.alive} - {me}
        departed_s = _DEPARTED_LEASE_DURATIONS * self.options.lease_duration_s
        if row is None or row.reader is None:
            if alive and now_s - self.history.changed_s.get(key, float("-inf")) < departed_s:
                return True  # it was made, or released, a moment ago
            parents = self.history.shards[key].parents
            return any(not self._is_ended(parent) and self._is_read(parent, me) for parent in parents)
        if row.reader.startswith(_EXTRAS) or now_s - self._handed_s.get(key, float("-inf")) < departed_s:
            return True
        down_s = self._down_s.get(row.reader, float("-inf"))
        return row.reader != me and (row.reader in alive or now_s - down_s < departed_s)

    def _is_ended(self, key: str) -> bool:
        row = self.history.rows.get(key)
        return row is not None and row.is_ended
