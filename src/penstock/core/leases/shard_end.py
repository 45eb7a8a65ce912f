"""How a held lease goes: its children created first when the shard is done; the words to say when it is lost.

The order at a shard's end: every child's lease stands, then SHARD_END and the release in one write, then the children
are taken. A crash in between loses nothing: whoever reads the parent next comes to the same end.
"""

from __future__ import annotations

from collections.abc import Container, Sized
from typing import Final, Protocol

from penstock.core.leases.coordinator_events import CoordinatorOptions, Level, NotDone, Topic, Unknown
from penstock.core.leases.fleet_view import Reason
from penstock.core.leases.held_lease import Holding, Phase
from penstock.core.leases.lease import Applied, Create, Lease, Refused, Take
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import Outbox

_RETRY_MIN_S: Final = 0.2


class _Held(Sized, Container[str], Protocol):
    """The keys of held leases."""


class ShardEnds:
    """Creates and takes the children of finished shards, for one worker."""

    def __init__(self, me: str, options: CoordinatorOptions, view: LeaseView, outbox: Outbox) -> None:
        self.me = me
        self.options = options
        self.view = view
        self.outbox = outbox

    def children_stand(self, holding: Holding) -> bool:
        """Whether every child's lease is known to exist."""
        return not holding.to_create

    def create_children(self, holding: Holding, now_s: float) -> None:
        """Create the leases of a finished shard's children, as far as they may be created now."""
        if not holding.to_create or now_s < holding.child_retry_s:
            return
        for lease in holding.to_create.values():
            if lease.key not in self.view and self._missing_parents(holding, lease):
                # It would be read before its other parent. That one comes at its own parent's end, or the
                # caretaker finds the hole that it leaves.
                holding.child_retry_s = now_s + self.options.interval_s
            else:
                self.outbox.enqueue(Create(self.options.own(lease)), ("child", holding.key, holding.epoch))

    def _missing_parents(self, holding: Holding, child: Lease) -> set[str]:
        return {
            parent
            for parent in child.parents
            if parent != holding.key and parent not in self.view and parent not in self.view.gone
        }

    def lacking_parents(self, holding: Holding) -> set[str]:
        """Give the shards whose missing leases keep this finished shard from being ended."""
        if holding.phase is not Phase.DRAINED or not holding.to_create:
            return set()
        return set().union(*(self._missing_parents(holding, child) for child in holding.to_create.values()))

    def on_answer(
        self,
        key: str,
        parent: str,
        holding: Holding | None,
        outcome: Applied | Refused | NotDone | Unknown,
        now_s: float,
    ) -> None:
        """Take in the answer to the creation of a child's lease; `holding` is the parent's, if still held."""
        if isinstance(outcome, Applied | Refused):
            row = outcome.lease if isinstance(outcome, Applied) else outcome.row
            if row is not None:
                self.view.observe(row, now_s)
            if isinstance(outcome, Applied):
                message = f"lease {key} created, child of {parent}"
                self.outbox.report(Topic.CREATED, Level.INFO, message, key, "child")
            if holding is not None and holding.to_create is not None:
                holding.to_create.pop(key, None)
        elif holding is not None:
            holding.child_retry_s = now_s + _RETRY_MIN_S + self.outbox.draw()

    def take_children(self, holding: Holding, held: _Held) -> None:
        """Take the children of a shard that this worker has just ended, those that may be read now."""
        room = len(holding.children)
        if self.options.max_leases is not None:
            room = min(room, self.options.max_leases - len(held))
        for child in holding.children:
            key = child.shard_id
            row = self.view.get(key)
            if row is None or row.reader is not None or row.is_ended or key in held:
                continue
            if room > 0 and not self.view.waits_for_parents(row):
                room -= self.outbox.enqueue(
                    Take(key, row.counter, self.me, stream=self.options.stream), ("gain", Reason.CHILD)
                )
