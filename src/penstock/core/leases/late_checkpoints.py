"""The last positions of readers whose leases were lost: kept until they are written, or the lease is held again.

The write is a `LateCheckpoint`: forward only, owner and counter untouched. Losing this write only causes redelivery,
never loss, so retries are not urgent.
"""

from __future__ import annotations

from penstock.core.leases.coordinator_context import CoordinatorContext
from penstock.core.leases.coordinator_events import NotDone, Unknown, WriteOutcome
from penstock.core.leases.lease_writes import LateCheckpoint
from penstock.core.leases.write_purposes import ForLateCheckpoint
from penstock.core.position import Position


class LateCheckpoints:
    """The late checkpoints of one worker's readers. Not thread-safe.

    Args:
        context: Shared by the parts of the coordinator.
    """

    def __init__(self, context: CoordinatorContext) -> None:
        self.options = context.options
        self.view = context.view
        self._turn = context.turn
        self._writes = context.writes
        self._kept: dict[str, Position] = {}
        self._due_s = 0.0

    def keep(self, key: str, position: Position | None) -> None:
        """Keep a position; an earlier one than the kept one changes nothing."""
        if position is None or not position.is_record:
            return
        known = self._kept.get(key)
        if known is None or known < position:
            self._kept[key] = position

    def take(self, key: str) -> Position | None:
        """Return and forget the position if it is beyond the row's checkpoint, else None."""
        position, row = self._kept.pop(key, None), self.view.get(key)
        if position is None or row is None or position <= row.checkpoint:
            return None
        return position

    def write(self, now_s: float) -> None:
        """Write the kept positions of leases without another write in flight."""
        if not self._kept or now_s < self._due_s:
            return
        for key in [key for key in self._kept if not self._writes.is_busy(key)]:
            position = self.take(key)
            if position is not None:
                self._writes.enqueue(LateCheckpoint(key, position), ForLateCheckpoint(position))

    def on_answer(self, key: str, position: Position, outcome: WriteOutcome, now_s: float) -> None:
        """Handle the answer to a late checkpoint: it is tried again if it failed or its outcome is unknown."""
        if isinstance(outcome, NotDone | Unknown):
            self._due_s = now_s + self.options.renew_interval_s * self._turn.draw()
            self.keep(key, position)
