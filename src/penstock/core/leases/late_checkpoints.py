"""What a reader has done after its lease was gone: kept until it is written, or the lease comes back.

The write is a `LateCheckpoint`: forward only, owner and counter untouched. Losing it costs deliveries that are
repeated, no record, so it is tried again at ease.
"""

from __future__ import annotations

from penstock.core.leases.lease import LateCheckpoint
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.pending_writes import PendingWrites
from penstock.core.position import Position


class LateCheckpoints:
    """The last words of one worker's readers."""

    def __init__(self, view: LeaseView, writes: PendingWrites) -> None:
        self.view = view
        self.writes = writes
        self._kept: dict[str, Position] = {}
        self._due_s = 0.0

    def keep(self, key: str, position: Position | None) -> None:
        """Take in what was done; the furthest word counts."""
        if position is None or not position.is_record:
            return
        known = self._kept.get(key)
        if known is None or known < position:
            self._kept[key] = position

    def keep_again(self, write: LateCheckpoint, retry_s: float) -> None:
        """Take in that a word was not written, or perhaps not: once more at `retry_s`."""
        self._due_s = retry_s
        self.keep(write.key, write.position)

    def take(self, key: str) -> Position | None:
        """Give what was done beyond the row's checkpoint, and forget it; None when there is nothing."""
        position, row = self._kept.pop(key, None), self.view.get(key)
        if position is None or row is None or position <= row.checkpoint:
            return None
        return position

    def write(self, now_s: float) -> None:
        """Write what is kept, where no other write is under way."""
        if not self._kept or now_s < self._due_s:
            return
        for key in [key for key in self._kept if not self.writes.is_busy(key)]:
            position = self.take(key)
            if position is not None:
                self.writes.enqueue(LateCheckpoint(key, position), ("late",))
