"""A shard of a recording: its records appear when the clock reaches their arrival, and stay in the file until they are read."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from penstock_local.errors import OptionError
from penstock_local.replay.recording_file import RecordedShard, RecordingFile
from penstock_local.service_errors import RequestRefused, invalid_argument
from penstock_local.shard import Shard, shard_id


class ReplayedShard(Shard):
    """Implements `Shard` by a recording. It takes no records, and drops none.

    Args:
        opened_ms: When it opens, for a shard that was there before the slice the slice's beginning.
        now_ms: Reads the clock.

    Raises:
        OptionError: Its id differs from those that the service gives.
    """

    __slots__ = ("_file", "_first_ordinals", "_indexes", "_last_numbers", "_now_ms", "recorded")

    def __init__(
        self, recorded: RecordedShard, file: RecordingFile, opened_ms: int, now_ms: Callable[[], int]
    ) -> None:
        number = recorded.id.rpartition("-")[2]
        if not number.isdecimal() or shard_id(int(number)) != recorded.id:
            raise OptionError(f"{file.path}: shard {recorded.id!r} has no id of the service")
        super().__init__(
            int(number),
            int(recorded.hash_range[0]),
            int(recorded.hash_range[1]),
            created_s=0,
            opened_ms=opened_ms,
            parents=recorded.parents,
        )
        self.recorded = recorded
        self._file = file
        self._now_ms = now_ms
        batches = [(i, batch) for i, batch in enumerate(file.metadata.batches) if batch.shard == recorded.id]
        self._indexes = [i for i, _ in batches]
        self._last_numbers = [int(batch.last_sequence_number) for _, batch in batches]
        self._first_ordinals = list(accumulate((batch.records for _, batch in batches), initial=1))
        # Arrivals of neighbours may differ by milliseconds in the wrong order; none appears before the one before it.
        arrivals = (moment for i in self._indexes for moment in file.arrivals_ms(i))
        self._arrivals = array("q", accumulate(arrivals, max))

    # --- records so far ---

    def __len__(self) -> int:
        return bisect_right(self._arrivals, self._now_ms())

    @property
    def next_ordinal(self) -> int:
        """Return the ordinal of the next record that will appear."""
        return 1 + len(self)

    @property
    def next_arrival_ms(self) -> int | None:
        """Return when the next record will appear; None after the last one."""
        count = len(self)
        return self._arrivals[count] if count < len(self._arrivals) else None

    @property
    def record_count(self) -> int:
        """Return how many records the recording has of this shard."""
        return len(self._arrivals)

    @property
    def last_arrival_ms(self) -> int:
        """Return when the newest record appeared; when the shard opened if there is none."""
        count = len(self)
        return self._arrivals[count - 1] if count else self.opened_ms

    def arrival_ms(self, ordinal: int) -> int | None:
        """Return when the first record at or after a position appeared; None when there is none yet."""
        index = max(ordinal - 1, 0)
        return self._arrivals[index] if index < len(self) else None

    def arrivals_after(self, at_ms: int) -> Sequence[int]:
        """Return the arrivals after a moment."""
        return self._arrivals[bisect_right(self._arrivals, at_ms) :]

    def ordinal_at_time(self, at_ms: int) -> int:
        """Return the position of the first record that arrived at or after a moment."""
        return 1 + bisect_left(self._arrivals, at_ms)

    # --- sequence numbers ---

    @property
    def starting_number(self) -> int:
        """Return the recorded StartingSequenceNumber."""
        return int(self.recorded.starting_sequence_number)

    @property
    def ending_number(self) -> int | None:
        """Return the recorded EndingSequenceNumber of a closed shard."""
        number = self.recorded.ending_sequence_number
        return None if self.closed_ms is None or number is None else int(number)

    def number_before(self, ordinal: int, at_ms: int) -> int:
        """Return a sequence number between the record before a position and the record at it."""
        del at_ms
        before = min(ordinal, self.next_ordinal) - 1
        return self._number_at(before) + 1 if before else self.starting_number

    def ordinal_of(self, number: int, *, is_after: bool) -> int:
        """Return the position of the first record whose number is at least `number`, or with `is_after` larger.

        Raises:
            RequestRefused: The number is of another shard, or of no record that has appeared.
        """
        last = len(self)
        newest = self._number_at(last) + 1 if last else self.starting_number
        if not self.starting_number <= number <= newest and number != self.ending_number:
            raise invalid_argument(
                f"The sequence number {number} used on shard {self.id} is invalid because it did not come from this stream."
            )
        batch = bisect_left(self._last_numbers, number + is_after)
        if batch == len(self._indexes):
            return 1 + self.record_count
        numbers = self._file.rows(self._indexes[batch]).numbers
        return self._first_ordinals[batch] + bisect_left(numbers, number + is_after)

    def _number_at(self, ordinal: int) -> int:
        batch = bisect_right(self._first_ordinals, ordinal) - 1
        return self._file.rows(self._indexes[batch]).numbers[ordinal - self._first_ordinals[batch]]

    # --- reading ---

    def read(self, ordinal: int, count_max: int, bytes_max: int) -> tuple[int, list[bytes], int]:
        """Return the position after the read records, their texts and their bytes.

        It reads row group by row group up to `bytes_max`; the first record is read even if it is larger.
        """
        position = max(ordinal, 1)
        end = min(position + count_max, self.next_ordinal)
        texts: list[bytes] = []
        size_bytes = 0
        while position < end:
            batch = bisect_right(self._first_ordinals, position) - 1
            rows = self._file.rows(self._indexes[batch])
            begin = position - self._first_ordinals[batch]
            stop_max = min(len(rows.texts), begin + end - position)
            bytes_before = rows.ends[begin - 1] if begin else 0
            stop = bisect_right(rows.ends, bytes_before + bytes_max - size_bytes, begin, stop_max)
            if not texts:
                stop = max(stop, begin + 1)
            if stop == begin:
                break
            texts += rows.texts[begin:stop]
            size_bytes += rows.ends[stop - 1] - bytes_before
            position += stop - begin
            if stop < stop_max:
                break
        return position, texts, size_bytes

    # --- a recording does not change ---

    def next_number(self, arrival_ms: int) -> int:
        """Refuse to take a record."""
        del arrival_ms
        raise read_only_error(self._file, f"shard {self.id}")

    def extend(self, texts: Sequence[bytes], sizes: Sequence[int], arrival_ms: int) -> int:
        """Refuse to take records."""
        del texts, sizes
        return self.next_number(arrival_ms)

    def trim(self, horizon_ms: int) -> int:
        """Keep everything: a replay drops no records."""
        del horizon_ms
        return 0

    def forget_before(self, ordinal: int) -> int:
        """Keep everything."""
        del ordinal
        return 0

    def all_records(self) -> tuple[int, list[bytes], list[int], list[int]]:
        """Return no records: the recording has them."""
        return 1, [], [], []


def read_only_error(file: RecordingFile, what: Any) -> RequestRefused:
    """Return the refusal of a change."""
    return invalid_argument(
        f"{what} is replayed from {file.path} and cannot be changed: use another stream for it."
    )
