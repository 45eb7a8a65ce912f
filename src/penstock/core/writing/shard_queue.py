"""The records that wait for one predicted shard, in an order that refusals cannot break. Pure; part of `batcher`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from penstock.core.writing.flow_control import ShardFlow
from penstock.core.writing.packing import PackedEntry, PendingRecord, pack_one, take_aggregate


class ShardQueue:
    """The records of one shard.

    `_returned` holds entries that were refused; they are sent first. Behind them, records wait in one queue. Only with
    order per key and without aggregates, the records of each key are linked to one another instead, and `_ready` names
    the keys whose first record may be in the next request. (A queue for each key would take more memory than most keys'
    records.) `_followers` is a heap of when those came that were behind another one of their key; what is no longer first
    is dropped when it comes to its top.

    Args:
        shard_id: The predicted shard; empty where there is no prediction.
        flow: How fast it may be written.
        aggregates: Whether records are packed into aggregates.
        keeps_key_order: Whether a request takes only what may be accepted in any order.
        aggregate_bytes_max: Size of one aggregate.
        aggregate_count_max: User records in one aggregate.
    """

    __slots__ = (
        "_aggregate_bytes_max",
        "_aggregate_count_max",
        "_followers",
        "_heads",
        "_keeps_key_order",
        "_queue",
        "_ready",
        "_returned",
        "_tails",
        "aggregates",
        "count",
        "failed_s",
        "flow",
        "in_flight",
        "shard_id",
        "size_bytes",
        "tried_s",
        "waits_since_s",
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
        """When something was last refused, or stayed without an answer."""
        self.waits_since_s = float("-inf")
        self.size_bytes = 0
        self.count = 0
        self._keeps_key_order = keeps_key_order
        self._aggregate_bytes_max = aggregate_bytes_max
        self._aggregate_count_max = aggregate_count_max
        self._queue: deque[PendingRecord] = deque()
        self._followers: list[tuple[float, str]] = []
        self._heads: dict[str, PendingRecord] = {}
        self._tails: dict[str, PendingRecord] = {}
        self._ready: deque[str] = deque()
        self._returned: deque[PackedEntry] = deque()

    def __bool__(self) -> bool:
        """Whether any record waits. Those in flight do not."""
        return self.count > 0

    @property
    def failing_s(self) -> float:
        """Seconds from the first try to the last one, since the last acknowledgement."""
        # Not up to now: records may wait for others before they are sent, and whoever stood still knows nothing of the shard
        # until it has tried again.
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

    def due_s(self, now_s: float, linger_s: float, *, takes_all: bool) -> float:
        """Return the moment from which records may be taken; `now_s` or earlier means now."""
        lingers = not takes_all and not self._returned and not (self.aggregates and self.is_full)
        return max(self.flow.ready_s, self.waits_since_s + linger_s if lingers else now_s)

    def note_taken(self, now_s: float) -> None:
        """Count a request that holds records of this shard; what it left behind waits on."""
        self.in_flight += 1
        if self.tried_s is None:
            self.tried_s = now_s
        self._wait_on()

    def _wait_on(self) -> None:
        """Let what a request left behind go on waiting: since it came, not since the request was planned."""
        # Many records of one key wait, and each request takes one: if every one of them lingered anew, the last would wait
        # for all of these times together. The key whose turn is next may have a younger record than one behind it.
        if self._queue:
            self.waits_since_s = self._queue[0].came_s
        elif self._ready:
            self.waits_since_s = min(self._heads[self._ready[0]].came_s, self._oldest_follower_s())

    def _oldest_follower_s(self) -> float:
        # A key that was new goes to the end of `_ready`, behind those that were waiting by then: so only a record that was
        # behind another one can be older than the one in front.
        while self._followers:
            came_s, key = self._followers[0]
            if key in self._heads and self._heads[key].came_s == came_s:
                return came_s
            heapq.heappop(self._followers)
        return float("inf")

    # --- in -----------------------------------------------------------------------------------------------

    def add(self, record: PendingRecord) -> None:
        """Add a record behind the others."""
        self.size_bytes += record.size_bytes
        self.count += 1
        if self.aggregates or not self._keeps_key_order:
            self._queue.append(record)
            return
        key = record.partition_key
        tail = self._tails.get(key)
        if tail is None:
            self._heads[key] = record
            self._ready.append(key)
        else:
            tail.following = record
        self._tails[key] = record

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
        taken: list[PackedEntry] = []
        taken_keys: set[str] = set()
        cost_max_s = self.flow.request_cost_max_s
        cost_s = 0.0
        size_bytes = 0
        while len(taken) < count_max:
            entry = self._next(taken_keys)
            if entry is None:
                break
            if size_bytes + entry.size_bytes > bytes_max or (taken and cost_s + entry.cost_s > cost_max_s):
                self._returned.appendleft(entry)  # it was not sent
                break
            entry.attempt_count += 1
            taken.append(entry)
            if self._keeps_key_order:
                taken_keys.update([record.partition_key for record in entry.records])
            cost_s += entry.cost_s
            size_bytes += entry.size_bytes
            self.count -= len(entry.records)
            self.size_bytes -= entry.records_bytes
            if self.aggregates and not (self.is_full or self._returned):
                break
        assert self.count >= 0
        assert self.size_bytes >= 0
        return taken

    def _next(self, taken_keys: set[str]) -> PackedEntry | None:
        """Take the next entry that shares no key with those of the request, where order matters."""
        if self._returned:
            entry = self._returned.popleft()
            # Entries that wait here share no key. Those that were refused were in one request, which is over before the next
            # one takes any; and one that was not sent was packed without the keys of the request that had no room for it.
            assert not any(record.partition_key in taken_keys for record in entry.records), (
                "a key is refused twice"
            )
            return entry
        if self._keeps_key_order and not self.aggregates:
            return self._next_of_ready(taken_keys)
        if not self._queue:
            return None
        if self.aggregates:
            return take_aggregate(
                self._queue, self.shard_id, self._aggregate_bytes_max, self._aggregate_count_max, taken_keys
            )
        return pack_one(self._queue.popleft(), self.shard_id)

    def _next_of_ready(self, taken_keys: set[str]) -> PackedEntry | None:
        """Take the first record of the next key that has none in this request yet."""
        # PutRecords accepts and refuses entry by entry. Of two records of one key in a request the second could be
        # accepted and the first refused: so the second waits for the next request.
        for _ in range(len(self._ready)):
            key = self._ready.popleft()
            if key in taken_keys:
                self._ready.append(key)
                continue
            record = self._heads[key]
            if record.following is not None:
                self._heads[key] = record.following
                self._ready.append(key)
                heapq.heappush(self._followers, (record.following.came_s, key))
                record.following = None
            else:
                del self._heads[key], self._tails[key]
            return pack_one(record, self.shard_id)
        return None

    def drain(self) -> list[PendingRecord]:
        """Remove and return every record that waits, in no order."""
        records = [record for entry in self._returned for record in entry.records]
        records += self._queue
        for head in self._heads.values():
            record: PendingRecord | None = head
            while record is not None:
                records.append(record)
                record.following, record = None, record.following
        self._returned.clear()
        self._queue.clear()
        self._heads.clear()
        self._tails.clear()
        self._ready.clear()
        self._followers.clear()
        self.count = 0
        self.size_bytes = 0
        return records
