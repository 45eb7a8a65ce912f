"""How a held lease goes: its children created first when the shard is done; the words to say when it is lost.

The order at a shard's end: every child's lease stands, then SHARD_END and the release in one write, then the children
are taken. A crash in between loses nothing: whoever reads the parent next comes to the same end.
"""

from __future__ import annotations

from collections.abc import Container, Sized
from typing import Final, Protocol

from penstock.core.leases.coordinator_events import CoordinatorOptions, Level, NotDone, Topic, Unknown
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.held_lease import HeldLease, LeasePhase
from penstock.core.leases.lease import Applied, Create, Lease, Refused, Take
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import PendingWrites

_RETRY_MIN_S: Final = 0.2


class _Held(Sized, Container[str], Protocol):
    """The keys of held leases."""


class ShardEnds:
    """Creates and takes the children of finished shards, for one worker."""

    def __init__(self, me: str, options: CoordinatorOptions, view: LeaseView, writes: PendingWrites) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.writes = writes

    def children_stand(self, held: HeldLease) -> bool:
        """Whether every child's lease is known to exist."""
        return not held.to_create

    def create_children(self, held: HeldLease, now_s: float) -> None:
        """Create the leases of a finished shard's children, as far as they may be created now."""
        if not held.to_create or now_s < held.child_retry_s:
            return
        for lease in held.to_create.values():
            if lease.key not in self.view and self._missing_parents(held, lease):
                # It would be read before its other parent. That one comes at its own parent's end, or the
                # syncer finds the hole that it leaves.
                held.child_retry_s = now_s + self.options.interval_s
            else:
                self.writes.enqueue(Create(self.options.own(lease)), ("child", held.key, held.epoch))

    def _missing_parents(self, held: HeldLease, child: Lease) -> set[str]:
        return {
            parent
            for parent in child.parents
            if parent != held.key and parent not in self.view and parent not in self.view.gone
        }

    def lacking_parents(self, held: HeldLease) -> set[str]:
        """Give the shards whose missing leases keep this finished shard from being ended."""
        if held.phase is not LeasePhase.DRAINED or not held.to_create:
            return set()
        return set().union(*(self._missing_parents(held, child) for child in held.to_create.values()))

    def on_answer(
        self,
        key: str,
        parent: str,
        held: HeldLease | None,
        outcome: Applied | Refused | NotDone | Unknown,
        now_s: float,
    ) -> None:
        """Take in the answer to the creation of a child's lease; `held` is the parent's, if still held."""
        if isinstance(outcome, Applied | Refused):
            row = outcome.lease if isinstance(outcome, Applied) else outcome.row
            if row is not None:
                self.view.observe(row, now_s)
            if isinstance(outcome, Applied):
                message = f"lease {key} created, child of {parent}"
                self.writes.report(Topic.CREATED, Level.INFO, message, key, "child")
            if held is not None and held.to_create is not None:
                held.to_create.pop(key, None)
        elif held is not None:
            held.child_retry_s = now_s + _RETRY_MIN_S + self.writes.draw()

    def take_children(self, ended: HeldLease, held: _Held) -> None:
        """Take the children of a shard that this worker has just ended, those that may be read now."""
        room = len(ended.children)
        if self.options.max_leases is not None:
            room = min(room, self.options.max_leases - len(held))
        for child in ended.children:
            key = child.shard_id
            row = self.view.get(key)
            if row is None or row.reader is not None or row.is_ended or key in held:
                continue
            if room > 0 and not self.view.waits_for_parents(row):
                room -= self.writes.enqueue(
                    Take(key, row.counter, self.me, stream=self.options.stream), ("gain", Reason.CHILD)
                )
