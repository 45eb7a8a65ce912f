"""The records that wait for one predicted shard, in an order that refusals cannot break. Pure; part of `batcher`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from penstock.core.writing.flow_control import ShardFlow, cost_s
from penstock.core.writing.packing import PackedEntry, PendingRecord, pack_one, take_aggregate


class ShardQueue:
    """The records of one shard.

    `_returned` holds entries that were refused; they are sent first. New records wait in one queue, unless the order
    per key is kept without aggregates. In that case the records of each key are linked to one another: `_ready` holds the
    first record of each key, which may be in the next request, and `_tails` holds the last one. (A queue for each key
    would take more memory than most keys' records.)

    Args:
        shard_id: The predicted shard; empty if there is no prediction.
    """

    __slots__ = (
        "_aggregate_bytes_max",
        "_aggregate_count_max",
        "_keeps_key_order",
        "_queue",
        "_ready",
        "_returned",
        "_tails",
        "_waits_since_s",
        "aggregates",
        "count",
        "failed_s",
        "flow",
        "in_flight",
        "shard_id",
        "size_bytes",
        "tried_s",
    )

    def __init__(
        self,
        shard_id: str,
        flow: ShardFlow,
        *,
        aggregates: bool,
        keeps_key_order: bool,
        aggregate_bytes_max: int,
        aggregate_count_max: int,
    ) -> None:
        self.shard_id = shard_id
        self.flow = flow
        self.aggregates = aggregates
        self.in_flight = 0
        self.tried_s: float | None = None
        """When something was first sent since the last acknowledgement; None when nothing was."""
        self.failed_s = float("-inf")
        """When the last request was planned that was refused, or stayed without an answer."""
        self._waits_since_s: float | None = None  # of the oldest record; None until it is computed
        self.size_bytes = 0
        self.count = 0
        self._keeps_key_order = keeps_key_order
        self._aggregate_bytes_max = aggregate_bytes_max
        self._aggregate_count_max = aggregate_count_max
        self._queue: deque[PendingRecord] = deque()
        self._tails: dict[str, PendingRecord] = {}
        self._ready: deque[PendingRecord] = deque()
        self._returned: deque[PackedEntry] = deque()

    def __bool__(self) -> bool:
        """Whether any record waits. Those in flight do not."""
        return self.count > 0

    @property
    def failing_s(self) -> float:
        """Seconds from the first try to the last one, since the last acknowledgement."""
        # The time since the last try does not count: records may wait for others before they are sent, and a process that was
        # paused, also in the middle of a request, must try again before the shard counts as failing for longer.
        return 0.0 if self.tried_s is None else self.failed_s - self.tried_s

    @property
    def is_full(self) -> bool:
        """Whether the records fill an aggregate; without aggregation, whether there are any."""
        if not self.aggregates:
            return self.count > 0
        return self.size_bytes >= self._aggregate_bytes_max or self.count >= self._aggregate_count_max

    @property
    def ready_count(self) -> int:
        """How many records a request could take now; only for queues without aggregation."""
        if self.in_flight and self._keeps_key_order:
            return 0
        return len(self._returned) + (len(self._ready) if self._keeps_key_order else len(self._queue))

    def estimate_next_take(self) -> tuple[float, float]:
        """Estimate how many entries and bytes a request would take now, by the rate and the mean size of the records."""
        if not self.count or (self.in_flight and self._keeps_key_order):
            return 0.0, 0.0
        record_bytes = self.size_bytes / self.count
        ready: float
        entry_bytes: float
        if self.aggregates:
            entry_bytes = min(self._aggregate_bytes_max, self.size_bytes)
            ready = len(self._returned) + self.size_bytes / self._aggregate_bytes_max
        else:
            entry_bytes, ready = record_bytes, float(self.ready_count)
        count = min(ready, max(1.0, self.flow.request_cost_max_s / cost_s(int(entry_bytes))))
        return count, count * entry_bytes

    def due_s(self, now_s: float, linger_s: float, *, takes_all: bool) -> float:
        """Return the moment from which records may be taken; it is at most `now_s` if they may be taken now."""
        lingers = not takes_all and not self._returned and not (self.aggregates and self.is_full)
        return max(self.flow.ready_s, self.waits_since_s + linger_s if lingers else now_s)

    @property
    def waits_since_s(self) -> float:
        """Put time of the oldest unsent record that the next request may take; minus infinity if there is none."""
        if self._waits_since_s is None:
            if self._queue:
                self._waits_since_s = self._queue[0].put_s
            else:
                # The first record of the next key may have been put later than the first record of another key. While
                # records linger there are fewer of them than a request holds, so this search is quick.
                self._waits_since_s = min([record.put_s for record in self._ready], default=float("-inf"))
        return self._waits_since_s

    @waits_since_s.setter
    def waits_since_s(self, moment_s: float) -> None:
        self._waits_since_s = moment_s

    def on_taken(self, now_s: float) -> None:
        """Handle a request that took records of this shard; the remaining ones go on lingering."""
        self.in_flight += 1
        if self.tried_s is None:
            self.tried_s = now_s
        # The remaining records linger from when they were put, not from when the request was planned. Many records of one key
        # wait, and each request takes one: if every one of them lingered again, the last would wait for all of these times.
        self._waits_since_s = None

    # --- in -----------------------------------------------------------------------------------------------

    def add(self, record: PendingRecord) -> None:
        """Add a record after the others."""
        self.size_bytes += record.size_bytes
        self.count += 1
        if self.aggregates or not self._keeps_key_order:
            self._queue.append(record)
            return
        key = record.partition_key
        tails = self._tails
        tail = tails.get(key)
        if tail is None:
            self._ready.append(record)
        else:
            tail.following = record
        tails[key] = record

    def put_back(self, entries: Iterable[PackedEntry]) -> None:
        """Put refused entries back to the front, in their order."""
        listed = list(entries)
        self._returned.extendleft(reversed(listed))
        for entry in listed:
            self.count += len(entry.records)
            self.size_bytes += entry.records_bytes

    # --- out ----------------------------------------------------------------------------------------------

    def take(self, count_max: int, bytes_max: int) -> list[PackedEntry]:
        """Take the entries that the next request may hold of this shard, refused ones first.

        Args:
            count_max: How many entries the request has room for.
            bytes_max: How many bytes it has room for.
        """
        assert not (self.in_flight and self._keeps_key_order), "a key is in one request at a time"
        if not count_max:
            return []
        taken: list[PackedEntry] = []
        taken_keys: set[str] = set()
        cost_max_s = self.flow.request_cost_max_s
        cost_s = 0.0
        size_bytes = 0
        for entry in self._entries(taken_keys):
            size_bytes += entry.size_bytes
            cost_s += entry.cost_s
            if size_bytes > bytes_max or (taken and cost_s > cost_max_s):
                self._returned.appendleft(entry)  # it was not sent
                break
            entry.attempt_count += 1
            taken.append(entry)
            self.count -= len(entry.records)
            self.size_bytes -= entry.records_bytes
            if len(taken) == count_max:
                break
        assert self.count >= 0
        assert self.size_bytes >= 0
        return taken

    def _entries(self, taken_keys: set[str]) -> Iterator[PackedEntry]:
        """Yield the entries of one request, refused ones first. The caller takes each entry, or puts it back and stops.

        Args:
            taken_keys: Empty at first. The keys of refused entries and of aggregates are added to it.
        """
        if self._returned:
            yield from self._returned_entries(taken_keys)
            if self.aggregates and not self.is_full:
                return
        if self.aggregates:
            yield from self._aggregates(taken_keys)
        elif self._keeps_key_order:
            yield from self._ready_entries(taken_keys)
        else:
            while self._queue:
                yield pack_one(self._queue.popleft(), self.shard_id)

    def _returned_entries(self, taken_keys: set[str]) -> Iterator[PackedEntry]:
        while self._returned:
            entry = self._returned.popleft()
            if self._keeps_key_order:
                keys = [record.partition_key for record in entry.records]
                # No two of these entries have a key in common. The refused ones were in one request, and the next request
                # takes records only after it has ended. An entry for which that request had no room has none of the
                # request's keys.
                assert taken_keys.isdisjoint(keys), "a key is refused twice"
                taken_keys.update(keys)
            yield entry

    def _aggregates(self, taken_keys: set[str]) -> Iterator[PackedEntry]:
        """Yield one aggregate, and further ones as long as the remaining records fill one."""
        bytes_max, count_max = self._aggregate_bytes_max, self._aggregate_count_max
        while self._queue:
            entry = take_aggregate(self._queue, self.shard_id, bytes_max, count_max, taken_keys)
            if entry is None:
                return
            if self._keeps_key_order:
                taken_keys.update([record.partition_key for record in entry.records])
            yield entry
            if not self.is_full:
                return

    def _ready_entries(self, taken_keys: set[str]) -> Iterator[PackedEntry]:
        """Yield the first record of each key that has none in this request yet."""
        # PutRecords accepts and refuses entry by entry. Of two records of one key in a request the second could be
        # accepted and the first refused: so the second waits for the next request.
        ready, shard_id = self._ready, self.shard_id
        for _ in range(len(ready)):
            record = ready.popleft()
            if record.partition_key in taken_keys:
                ready.append(record)
                continue
            following = record.following
            if following is None:
                del self._tails[record.partition_key]
            else:
                record.following = None
                ready.append(following)
            yield pack_one(record, shard_id)

    def drain(self) -> list[PendingRecord]:
        """Remove and return every record that waits, in no order."""
        records = [record for entry in self._returned for record in entry.records]
        records += self._queue
        for head in self._ready:
            record: PendingRecord | None = head
            while record is not None:
                records.append(record)
                record.following, record = None, record.following
        self._returned.clear()
        self._queue.clear()
        self._tails.clear()
        self._ready.clear()
        self.count = 0
        self.size_bytes = 0
        return records
