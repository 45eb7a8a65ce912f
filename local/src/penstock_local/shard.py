"""One shard: its range, its lineage and its records, each kept as the JSON text that GetRecords will send.

Records are parallel arrays (text, arrival, running size), so that a position is arithmetic, a time is one
binary search, and an answer is one join. No object is kept per record beside its text.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from penstock_local import sequence

_SHARD_ID_DIGITS = 12


def shard_id(index: int) -> str:
    """Return the id of the shard with this index, as the service writes it."""
    return f"shardId-{index:0{_SHARD_ID_DIGITS}d}"


class Shard:
    """Records and lineage of one shard; not thread-safe, owned by the server's loop.

    Attributes:
        index: Number in the stream; `id` is its text.
        parents: Ids of none, one (split) or two (merge) parents.
        children: Ids of the shards that took over its range, once closed.
        hash_start: First hash key of the range.
        hash_end: Last hash key of the range, inclusive.
        created_s: Second that goes into its sequence numbers; always later than the parents'.
        stream_tag: Distinguishes its sequence numbers from those of other streams.
        opened_ms: When it began to take records.
        closed_ms: When it stopped, or None while open.
        first_ordinal: Ordinal of the oldest record that is kept.
        stored_bytes: Bytes of the texts that are kept.
    """

    __slots__ = (
        "_arrivals",
        "_base_bytes",
        "_ends",
        "_texts",
        "children",
        "closed_ms",
        "created_s",
        "first_ordinal",
        "hash_end",
        "hash_start",
        "id",
        "index",
        "opened_ms",
        "parents",
        "stored_bytes",
        "stream_tag",
    )

    def __init__(
        self,
        index: int,
        hash_start: int,
        hash_end: int,
        *,
        created_s: int,
        opened_ms: int,
        parents: Sequence[str] = (),
        stream_tag: int = 0,
    ) -> None:
        self.index = index
        self.id = shard_id(index)
        self.parents = tuple(parents)
        self.children: tuple[str, ...] = ()
        self.hash_start = hash_start
        self.hash_end = hash_end
        self.created_s = created_s
        self.stream_tag = stream_tag
        self.opened_ms = opened_ms
        self.closed_ms: int | None = None
        self.first_ordinal = 1
        self.stored_bytes = 0
        self._texts: list[bytes] = []
        self._arrivals = array("q")
        self._ends = array("q")
        self._base_bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def next_ordinal(self) -> int:
        """Return the ordinal of the next record."""
        return self.first_ordinal + len(self._texts)

    @property
    def starting_number(self) -> int:
        """Return the number just before the shard's first record."""
        return sequence.encode(self.created_s, self.stream_tag, self.index, 0, self.opened_ms // 1000)

    @property
    def ending_number(self) -> int | None:
        """Return a number after every record of a closed shard and before every record of its children."""
        if self.closed_ms is None:
            return None
        return sequence.encode(
            self.created_s, self.stream_tag, self.index, sequence.ORDINAL_END, self.closed_ms // 1000
        )

    @property
    def last_arrival_ms(self) -> int:
        """Return when the newest kept record arrived, in milliseconds; when the shard opened if there is none."""
        return self._arrivals[-1] if self._arrivals else self.opened_ms

    def number_before(self, ordinal: int, at_ms: int) -> int:
        """Return a sequence number between the record before a position and the record at it, also in an empty shard."""
        return sequence.encode(self.created_s, self.stream_tag, self.index, ordinal - 1, at_ms // 1000)

    def next_number(self, arrival_ms: int) -> int:
        """Return the number of the next record; each one after it is larger by `ORDINAL_STEP`."""
        return sequence.encode(
            self.created_s, self.stream_tag, self.index, self.next_ordinal, arrival_ms // 1000
        )

    def extend(self, texts: Sequence[bytes], sizes: Sequence[int], arrival_ms: int) -> int:
        """Append records that arrived together; returns the bytes that they take up.

        Args:
            texts: Their JSON texts, in order.
            sizes: The bytes that each counts for (data and key).
            arrival_ms: The arrival of all of them.
        """
        end = self._ends[-1] if self._ends else self._base_bytes
        self._texts.extend(texts)
        self._arrivals.extend([arrival_ms] * len(texts))
        self._ends.extend(itertools.islice(itertools.accumulate(sizes, initial=end), 1, None))
        added = sum(map(len, texts))
        self.stored_bytes += added
        return added

    def read(self, ordinal: int, count_max: int, bytes_max: int) -> tuple[int, list[bytes], int]:
        """Read records from a position on.

        Args:
            ordinal: The first wanted record. If it is no longer kept, reading begins at the oldest one.
            count_max: Records at most.
            bytes_max: Bytes of data and keys at most; one record is always returned.

        Returns:
            The ordinal after the last returned record, the records' texts, and the bytes that they count for.
        """
        begin = max(ordinal - self.first_ordinal, 0)
        stop_max = min(begin + count_max, len(self._texts))
        if begin >= stop_max:
            return self.first_ordinal + begin, [], 0
        bytes_before = self._ends[begin - 1] if begin else self._base_bytes
        stop = max(bisect_right(self._ends, bytes_before + bytes_max, begin, stop_max), begin + 1)
        return self.first_ordinal + stop, self._texts[begin:stop], self._ends[stop - 1] - bytes_before

    def arrival_ms(self, ordinal: int) -> int | None:
        """Return when the first record at or after a position arrived; None when there is none yet."""
        index = max(ordinal - self.first_ordinal, 0)
        return self._arrivals[index] if index < len(self._arrivals) else None

    def behind_ms(self, ordinal: int, now_ms: int) -> int:
        """Return the age of the first record at or after a position, at least 1 ms; 0 if there is no such record yet."""
        oldest_ms = self.arrival_ms(ordinal)
        # an unread record may have arrived in this very millisecond
        return 0 if oldest_ms is None else max(1, now_ms - oldest_ms)

    def ordinal_at_time(self, at_ms: int) -> int:
        """Return the position of the first record that arrived at or after a moment."""
        return self.first_ordinal + bisect_left(self._arrivals, at_ms)

    def written_since(self, at_ms: int) -> tuple[int, int]:
        """Return the count and the bytes of data and keys of the kept records that arrived at or after a moment."""
        first = bisect_left(self._arrivals, at_ms)
        if first == len(self._arrivals):
            return 0, 0
        bytes_before = self._ends[first - 1] if first else self._base_bytes
        return len(self._arrivals) - first, self._ends[-1] - bytes_before

    def trim(self, horizon_ms: int) -> int:
        """Drop the records that arrived before the horizon; returns the bytes that became free."""
        if not self._arrivals or self._arrivals[0] >= horizon_ms:
            return 0
        return self._drop_oldest(bisect_left(self._arrivals, horizon_ms))

    def forget_before(self, ordinal: int) -> int:
        """Drop the records before a position; returns the bytes that became free."""
        return self._drop_oldest(min(max(ordinal - self.first_ordinal, 0), len(self._texts)))

    def _drop_oldest(self, count: int) -> int:
        if count == 0:
            return 0
        freed = sum(map(len, self._texts[:count]))
        self._base_bytes = self._ends[count - 1]
        del self._texts[:count], self._arrivals[:count], self._ends[:count]
        self.first_ordinal += count
        self.stored_bytes -= freed
        return freed

    def all_records(self) -> tuple[int, list[bytes], list[int], list[int]]:
        """Return all records for the journal: first ordinal, texts, payload bytes and arrivals."""
        sizes = []
        bytes_before = self._base_bytes
        for end in self._ends:
            sizes.append(end - bytes_before)
            bytes_before = end
        return self.first_ordinal, list(self._texts), sizes, list(self._arrivals)

    def restart_at(self, ordinal: int) -> None:
        """Make `ordinal` the first one of an empty shard whose earlier records are gone (when state is loaded)."""
        if not self._texts:
            self.first_ordinal = max(self.first_ordinal, ordinal)
