"""How far behind a reader is: the age of the oldest record that is not done.

The service's MillisBehindLatest is another figure: the distance from its page to the tip. It is 0 for a page
that reaches the tip, however old and however unread the records in that page are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.core.aggregation import deaggregate
from penstock.core.position import Position
from penstock.core.reading.resume import is_record_done
from penstock.core.record_page import RawRecord

_SHARED_S: Final = 1.0  # records that arrived within this time share a mark

NEAR_TIP_MS_MAX: Final = 10_000
"""A reader at most this far behind the tip (by MillisBehindLatest) is fast enough without a subscription."""


def age_ms(arrival_s: float, now_ms: int) -> int:
    """Return the age of a record in milliseconds; at least 1, since 0 means that nothing is unread."""
    return max(1, now_ms - round(arrival_s * 1000))


def find_oldest_unread(records: Sequence[RawRecord], position: Position) -> RawRecord | None:
    """Return the first record of a page that is not done, or None.

    Args:
        records: As GetRecords gave them, from an iterator at or after the position.
        position: Everything up to and including it is done. An aggregate is not done if the position is inside it.
    """
    done = None if position.sequence_number is None else int(position.sequence_number)
    for record in records:
        if done is None or int(record.sequence_number) > done:
            return record
        if int(record.sequence_number) < done:
            continue
        user_records = deaggregate(record.data)
        count = 1 if user_records is None else len(user_records)
        if not is_record_done(position, record.sequence_number, count):
            return record
    return None


class ArrivalMarks:
    """The arrival times of the records that are not done yet, to the second. Not thread-safe.

    Records are counted in the order in which they were read. Those that arrived within a second of each other share a
    mark, so that a long queue of small records costs little.
    """

    def __init__(self) -> None:
        # For each mark: the number of records through its last one, and the moment of arrival.
        self._marks: deque[tuple[int, float]] = deque()
        self._count = 0

    def add(self, count: int, arrival_s: float) -> None:
        """Add the next records.

        Args:
            count: How many; they arrived together.
            arrival_s: Seconds since the epoch.
        """
        if count == 0:
            return
        self._count += count
        if self._marks and abs(arrival_s - self._marks[-1][1]) < _SHARED_S:
            self._marks[-1] = (self._count, self._marks[-1][1])
        else:
            self._marks.append((self._count, arrival_s))

    def add_all(self, counts: Sequence[int], arrivals_s: Sequence[float], skipped_count: int = 0) -> None:
        """Add the user records of several Kinesis records.

        Args:
            counts: How many user records each Kinesis record holds.
            skipped_count: How many of these user records to leave out, from the first one on.
        """
        # The moment of a mark, and the records that share it so far. Most passes make no call, which saves time.
        marked_s, shared_count = float("-inf"), 0
        for count, arrival_s in zip(counts, arrivals_s, strict=True):
            if skipped_count:
                left_out = min(count, skipped_count)
                skipped_count -= left_out
                count -= left_out  # noqa: PLW2901 - the rest of it
            if -_SHARED_S < arrival_s - marked_s < _SHARED_S:
                shared_count += count
            elif count:
                self.add(shared_count, marked_s)
                self.add(count, arrival_s)
                marked_s, shared_count = self._marks[-1][1], 0
        self.add(shared_count, marked_s)

    def oldest_arrival_s(self, done_count: int) -> float | None:
        """Return when the oldest record that is not done arrived; None when all are.

        Args:
            done_count: How many records are done, counted from the first one that was added. It never decreases.
        """
        while self._marks and self._marks[0][0] <= done_count:
            self._marks.popleft()
        return self._marks[0][1] if self._marks else None
