"""The low watermark of one shard: the highest position below which everything is acknowledged.

Records are counted in stream order (ordinals). They may be acknowledged in any order; acknowledgements after a gap are
remembered until the gap closes. A part of the delivery machine, kept apart because it is arithmetic only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.core.position import Position, at_record


class LowWatermark:
    """The low watermark, moved by acknowledgements and skips. Not thread-safe.

    Args:
        start: The checkpoint before the first record.
    """

    def __init__(self, start: Position) -> None:
        self.position = start
        self.ordinal = 0  # every record with a lower ordinal is acknowledged
        # Acknowledged records beyond a gap: by ordinal, the sequence and sub-sequence number.
        self._ahead: dict[int, tuple[str, int]] = {}
        # Runs of consecutive records that are not wholly acknowledged: the last record's ordinal and position.
        self._run_ends: deque[tuple[int, Position]] = deque()
        # Skips that the low watermark has not reached: the ordinal of the first delivered record after the skipped ones, and the
        # position of the last skipped one.
        self._skips: deque[tuple[int, Position]] = deque()
        self._skipped_through = start  # the end of the last skip that the low watermark has passed

    @property
    def done_position(self) -> Position:
        """The position up to which every record is acknowledged or skipped."""
        return max(self.position, self._skipped_through)

    @property
    def ahead_count(self) -> int:
        """Number of records that are acknowledged beyond a gap."""
        return len(self._ahead)

    def is_done(self, ordinal: int) -> bool:
        """Whether a record is acknowledged."""
        return ordinal < self.ordinal or ordinal in self._ahead

    def on_run_taken(self, last_ordinal: int, end: Position) -> None:
        """Handle the delivery of a run of consecutive records: the ordinal and the position of the last one."""
        self._run_ends.append((last_ordinal, end))

    def skip(self, ordinal: int, position: Position) -> None:
        """Skip records up to a position: they are not delivered.

        Args:
            ordinal: Of the first delivered record after them. The skip counts when all records before it are acknowledged.
            position: Of the last skipped record.
        """
        if self._skips and self._skips[-1][0] == ordinal:
            self._skips.pop()
        self._skips.append((ordinal, position))
        self._pass_skips()

    def _pass_skips(self) -> None:
        while self._skips and self._skips[0][0] <= self.ordinal:
            self._skipped_through = self._skips.popleft()[1]

    def acknowledge(self, places: Iterable[tuple[int, str, int]]) -> None:
        """Mark records as done, each by its ordinal, sequence number and sub-sequence number."""
        for ordinal, sequence_number, sub_sequence_number in places:
            if ordinal >= self.ordinal:
                self._ahead[ordinal] = (sequence_number, sub_sequence_number)
        self._close_gaps()

    def acknowledge_run(self, ordinals: range, sequence_number: str, sub_sequence_number: int) -> None:
        """Mark consecutive records as done.

        Args:
            ordinals: The records' ordinals. Every earlier record is acknowledged, and at least one of these is not.
            sequence_number: Of the last one.
            sub_sequence_number: Of the last one.
        """
        assert ordinals.start <= self.ordinal < ordinals.stop
        if self._ahead:
            for done in ordinals:
                self._ahead.pop(done, None)
        self._ahead[ordinals[-1]] = (sequence_number, sub_sequence_number)
        self.ordinal = ordinals[-1]
        self._close_gaps()

    def acknowledge_through(self, position: Position, ordinal: int | None) -> None:
        """Mark everything up to a position as done.

        Args:
            position: Not before the present one.
            ordinal: Of the record at the position if it is known. Without it, only delivered runs that
                end at or before the position are counted as done.
        """
        passed = self.ordinal if ordinal is None else ordinal + 1
        while self._run_ends and self._run_ends[0][1] <= position:
            passed = max(passed, self._run_ends.popleft()[0] + 1)
        for done in range(self.ordinal, passed):
            self._ahead.pop(done, None)
        self.ordinal = max(self.ordinal, passed)
        self.position = max(self.position, position)
        self._close_gaps()

    def _close_gaps(self) -> None:
        """Move the low watermark past the acknowledged records that follow it."""
        place: tuple[str, int] | None = None
        while self.ordinal in self._ahead:
            place = self._ahead.pop(self.ordinal)
            self.ordinal += 1
        self._pass_skips()
        if place is None:
            return
        # After `acknowledge_through` without an ordinal the position may be ahead of the count.
        self.position = max(self.position, at_record(*place))
        while self._run_ends and self._run_ends[0][0] < self.ordinal:  # acknowledged as a whole
            self._run_ends.popleft()
