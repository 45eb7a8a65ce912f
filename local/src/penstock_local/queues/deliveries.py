"""The records of one queue that were received and not acknowledged: in flight, visible again, or dead letters.

Pure given a clock reading. Every step costs O(log n), so that 100,000 records in flight are as fast as ten.

A delivery is an immutable value; a change replaces it. So the heap and the two lines can contain deliveries that have
been replaced; such an entry is skipped when it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

_STALE_MIN = 1000
"""A heap or line with more entries than this is cleared of replaced deliveries, if they are the majority."""


class Delivery(NamedTuple):
    """The delivery state of one record.

    Attributes:
        shard_index: Index of the shard that holds the record.
        ordinal: The record's ordinal in the shard.
        number: Number of the delivery in its queue; a receipt handle is valid for one number only.
        receives: Number of times that the record was received.
        first_ms: When it was first received.
        visible_ms: When it becomes visible; until then it is in flight.
        is_dead: Whether it is a dead letter.
    """

    shard_index: int
    ordinal: int
    number: int
    receives: int
    first_ms: int
    visible_ms: int
    is_dead: bool = False


class Deliveries:
    """The deliveries of one queue.

    Attributes:
        receive_count_max: Receives after which a record becomes a dead letter; None if it never does.
        in_flight: How many records are in flight, dead letters included.
        now_ms: The moment up to which visibility timeouts have been applied.
    """

    def __init__(self, receive_count_max: int | None) -> None:
        self.receive_count_max = receive_count_max
        self.in_flight = 0
        self.now_ms = 0
        self._by_shard: dict[int, dict[int, Delivery]] = {}
        self._flights: list[tuple[int, Delivery]] = []
        self._visible: deque[Delivery] = deque()
        self._dead_letters: deque[Delivery] = deque()
        self._count = 0
        self._first_ordinals: dict[int, int] = {}

    def __iter__(self) -> Iterator[Delivery]:
        for of_shard in self._by_shard.values():
            yield from of_shard.values()

    def __len__(self) -> int:
        return self._count

    def get(self, shard_index: int, ordinal: int) -> Delivery | None:
        """Return the delivery of a record; None if the record was never received or is acknowledged."""
        return self._by_shard.get(shard_index, {}).get(ordinal)

    def is_in_flight(self, delivery: Delivery) -> bool:
        """Return whether a current delivery is in flight."""
        return delivery.visible_ms > self.now_ms

    def settle(self, now_ms: int) -> None:
        """Make visible the records whose visibility timeout is over."""
        self.now_ms = max(self.now_ms, now_ms)
        flights = self._flights
        while flights and flights[0][0] <= self.now_ms:
            delivery = heappop(flights)[1]
            if self._is_current(delivery):
                self.in_flight -= 1
                self._append_to_line(delivery)

    def next_visible_ms(self) -> int | None:
        """Return when the next record in flight becomes visible; None if there is none."""
        flights = self._flights
        while flights and not self._is_current(flights[0][1]):
            heappop(flights)
        return flights[0][0] if flights else None

    def put(self, delivery: Delivery) -> None:
        """Add a delivery; it replaces an earlier one of the same record."""
        of_shard = self._by_shard.setdefault(delivery.shard_index, {})
        earlier = of_shard.get(delivery.ordinal)
        if earlier is None:
            self._count += 1
        elif self.is_in_flight(earlier):
            self.in_flight -= 1
        of_shard[delivery.ordinal] = delivery
        if not self.is_in_flight(delivery):
            self._append_to_line(delivery)
            return
        self.in_flight += 1
        heappush(self._flights, (delivery.visible_ms, delivery))
        if len(self._flights) > max(_STALE_MIN, 2 * self.in_flight):
            self._flights = [(each.visible_ms, each) for each in self if self.is_in_flight(each)]
            heapify(self._flights)

    def remove(self, shard_index: int, ordinal: int) -> None:
        """Forget the delivery of a record: it is acknowledged, or past the retention."""
        of_shard = self._by_shard[shard_index]
        if self.is_in_flight(of_shard.pop(ordinal)):
            self.in_flight -= 1
        self._count -= 1
        if not of_shard:
            del self._by_shard[shard_index]

    def take_visible(self, *, dead: bool) -> Delivery | None:
        """Remove and return the first visible record of its line, or None. The caller must `put` it or `put_back` it."""
        line = self._dead_letters if dead else self._visible
        while line:
            delivery = line.popleft()
            if self._is_current(delivery):
                return delivery
        return None

    def put_back(self, deliveries: Iterable[Delivery], *, dead: bool) -> None:
        """Return records of `take_visible` to the front of their line, in their order."""
        (self._dead_letters if dead else self._visible).extendleft(reversed(list(deliveries)))

    def any_visible(self, *, dead: bool) -> bool:
        """Return whether a record of this kind is visible."""
        line = self._dead_letters if dead else self._visible
        while line and not self._is_current(line[0]):
            line.popleft()
        return bool(line)

    def visible_counts(self) -> tuple[int, int]:
        """Return the number of visible records that were received before, and of visible dead letters."""
        visible = [each for each in self if not self.is_in_flight(each)]
        dead = sum(each.is_dead for each in visible)
        return len(visible) - dead, dead

    def set_receive_count_max(self, receive_count_max: int | None) -> None:
        """Set the number of receives after which a record becomes a dead letter. Visible records received so often become dead letters now."""
        self.receive_count_max = receive_count_max
        line, self._visible = self._visible, deque()
        for delivery in line:
            if self._is_current(delivery):
                self._append_to_line(delivery)

    def forget_before(self, shard_index: int, ordinal: int) -> None:
        """Forget the records of a shard before an ordinal: they are past the retention."""
        if self._first_ordinals.get(shard_index) == ordinal:
            return
        self._first_ordinals[shard_index] = ordinal
        of_shard = self._by_shard.get(shard_index, {})
        for each in [each for each in of_shard if each < ordinal]:
            self.remove(shard_index, each)

    def shards(self) -> list[int]:
        """Return the indexes of the shards that have deliveries."""
        return list(self._by_shard)

    def _is_current(self, delivery: Delivery) -> bool:
        return self.get(delivery.shard_index, delivery.ordinal) is delivery

    def _append_to_line(self, delivery: Delivery) -> None:
        """Append a record that is not in flight to its line: visible, or dead letters."""
        limit = self.receive_count_max
        if not delivery.is_dead and limit is not None and delivery.receives >= limit:
            delivery = delivery._replace(is_dead=True)
            self._by_shard[delivery.shard_index][delivery.ordinal] = delivery
        line = self._dead_letters if delivery.is_dead else self._visible
        line.append(delivery)
        if len(line) > max(_STALE_MIN, 2 * self._count):
            kept = [each for each in line if self._is_current(each)]
            line.clear()
            line.extend(kept)
