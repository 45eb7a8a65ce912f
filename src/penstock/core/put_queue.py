"""What waits to be put, in lanes that keep their order: a pure queue between packing and PutRecords.

PutRecords may accept the entries of one request in any order and refuse any of them. So a request takes at most one
entry of each lane, and a lane's next entry waits until the one before it is acknowledged: what is refused holds back
what comes after it. With order per key the lane is the partition key, or for aggregates the shard; without order every
entry is a lane of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.core.aggregation import Packed

_GROWTH: Final = 1.1


@dataclass(slots=True)
class Waiting:
    """One Kinesis record that is not acknowledged yet.

    Args:
        packed: What is sent.
        lane: Entries of one lane are acknowledged in order.
        predicted_shard: Where it should land, or None when that does not matter.
        user_records: Partition key, explicit hash key and data of each user record of an aggregate; empty for a
            plain record.
        attempt_count: How often it was sent.
    """

    packed: Packed
    lane: str
    predicted_shard: str | None = None
    user_records: tuple[tuple[str, str | None, bytes], ...] = ()
    attempt_count: int = 0

    @property
    def size_bytes(self) -> int:
        """What the service counts: data and partition key."""
        return len(self.packed.data) + len(self.packed.partition_key.encode())


@dataclass(slots=True)
class PutQueue:
    """Entries in their lanes.

    Args:
        entry_count_max: Entries in one request.
        call_bytes_max: Bytes of data and keys in one request.
    """

    entry_count_max: int
    call_bytes_max: int
    size_bytes: int = 0
    entry_count: int = 0
    _lanes: dict[str, deque[Waiting]] = field(default_factory=dict)
    _ready: deque[str] = field(default_factory=deque)
    _batch_max: float = 0.0

    def __post_init__(self) -> None:
        self._batch_max = float(self.entry_count_max)

    def __len__(self) -> int:
        """Count the entries that are not acknowledged."""
        return self.entry_count

    @property
    def ready_count(self) -> int:
        """Entries that a request could take now."""
        return len(self._ready)

    @property
    def batch_max(self) -> int:
        """Entries that the next request may hold: falls when the service refuses, grows back when it does not."""
        return max(1, int(self._batch_max))

    def add(self, entry: Waiting) -> None:
        """Put an entry behind the others of its lane."""
        lane = self._lanes.get(entry.lane)
        if lane is None:
            self._lanes[entry.lane] = deque([entry])
            self._ready.append(entry.lane)
        else:
            lane.append(entry)
        self.size_bytes += entry.size_bytes
        self.entry_count += 1

    def next_request(self) -> list[Waiting]:
        """Take the heads of lanes, oldest first, up to the limits; they stay in the queue until they are settled."""
        taken: list[Waiting] = []
        size = 0
        while self._ready and len(taken) < self.batch_max:
            head = self._lanes[self._ready[0]][0]
            if taken and size + head.size_bytes > self.call_bytes_max:
                break
            self._ready.popleft()
            head.attempt_count += 1
            size += head.size_bytes
            taken.append(head)
        return taken

    def acknowledge(self, entry: Waiting) -> None:
        """Let an entry of the last request go; the next of its lane becomes ready."""
        lane = self._lanes[entry.lane]
        if lane.popleft() is not entry:
            raise AssertionError("only the head of a lane is ever in flight")
        self.size_bytes -= entry.size_bytes
        self.entry_count -= 1
        if lane:
            self._ready.append(entry.lane)
        else:
            del self._lanes[entry.lane]

    def return_refused(self, entries: Iterable[Waiting]) -> None:
        """Let refused entries of the last request go first in the next one, in their order."""
        self._ready.extendleft(reversed([entry.lane for entry in entries]))

    def note_answer(self, *, refused: bool) -> None:
        """Learn from an answer: half as many entries after a refusal, a tenth more after none."""
        factor = 0.5 if refused else _GROWTH
        self._batch_max = min(float(self.entry_count_max), max(1.0, self._batch_max * factor))
