"""Queues in memory, for one process: to test programs that consume queues, by the rules of the service's model."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.core.queueing.queue_events import EntryOutcome
from penstock.core.queueing.queue_limits import (
    RECEIVE_COUNT_LIMIT_DEFAULT,
    RECORDS_PER_CALL_MAX,
    VISIBILITY_S_DEFAULT,
)
from penstock.errors import NotFound, Rejected, ResourceBusy
from penstock.ports.clock import Clock
from penstock.ports.queues import (
    DeadLetterRule,
    EntryResult,
    QueueDescription,
    QueueStart,
    QueueSummary,
    ReceivedRecord,
)
from penstock.runtime.system_clock import SystemClock

_ARN: Final = "arn:aws:kinesis:us-east-1:123456789012"
_POLL_S: Final = 0.05
"""A virtual clock may move while a receive waits: it looks again so often."""


class _Stored(Struct):
    record_id: str
    data: bytes
    partition_key: str | None
    arrival_s: float


class _Delivery(Struct):
    record: _Stored
    visible_s: float
    count: int = 0
    first_receive_s: float = 0.0
    handle: str | None = None
    is_dead: bool = False


class _Queue(Struct):
    description: QueueDescription
    deliveries: dict[str, _Delivery] = field(default_factory=dict)


class MemoryQueues:
    """Implements `penstock.ports.queues.Queues`. Safe to use from several threads.

    A queue is ACTIVE at once, and a stream keeps its records for ever.

    Args:
        clock: Its monotonic time counts for visibility.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._changed = threading.Condition()
        self._streams: dict[str, list[_Stored]] = {}
        self._queues: dict[str, _Queue] = {}
        self._numbers = itertools.count(1)

    def create_stream(self, name: str) -> str:
        """Create a stream and return its ARN."""
        arn = f"{_ARN}:stream/{name}"
        with self._changed:
            self._streams.setdefault(arn, [])
        return arn

    def put(self, stream_arn: str, data: bytes, partition_key: str | None = "key") -> str:
        """Put a record into a stream; return its record id."""
        with self._changed:
            stored = _Stored(f"{next(self._numbers):032x}", data, partition_key, self._clock.wall_ms() / 1000)
            self._streams[stream_arn].append(stored)
            for queue in self._queues.values():
                if queue.description.stream_arn == stream_arn:
                    queue.deliveries[stored.record_id] = _Delivery(stored, self._clock.monotonic_s())
            self._changed.notify_all()
            return stored.record_id

    # --- records ---

    def receive(
        self,
        queue_arn: str,
        limit: int,
        wait_s: int,
        visibility_s: int | None = None,
        *,
        is_dead: bool = False,
    ) -> Sequence[ReceivedRecord]:
        """Return visible records; wait for the first one."""
        if not 1 <= limit <= RECORDS_PER_CALL_MAX:
            raise Rejected(
                f"Limit {limit}: expected 1 to {RECORDS_PER_CALL_MAX}", operation="ReceiveQueueRecords"
            )
        until_s = self._clock.monotonic_s() + wait_s
        with self._changed:
            while True:
                found = self._take(self._queue(queue_arn), limit, visibility_s, is_dead=is_dead)
                left_s = until_s - self._clock.monotonic_s()
                if found or left_s <= 0:
                    return found
                self._changed.wait(min(_POLL_S, left_s))

    def _take(
        self, queue: _Queue, limit: int, visibility_s: int | None, *, is_dead: bool
    ) -> list[ReceivedRecord]:
        now_s = self._clock.monotonic_s()
        self._settle(queue, now_s)
        invisible_s = queue.description.visibility_s if visibility_s is None else visibility_s
        found: list[ReceivedRecord] = []
        for delivery in queue.deliveries.values():
            if len(found) == limit:
                break
            if delivery.is_dead != is_dead or delivery.visible_s > now_s:
                continue
            if not delivery.count:
                delivery.first_receive_s = self._clock.wall_ms() / 1000
            if not is_dead:
                delivery.count += 1
            delivery.handle = f"handle-{next(self._numbers)}"
            delivery.visible_s = now_s + invisible_s
            record = delivery.record
            found.append(
                ReceivedRecord(
                    delivery.handle,
                    record.record_id,
                    record.partition_key,
                    record.data,
                    record.arrival_s,
                    delivery.first_receive_s,
                    delivery.count,
                )
            )
        return found

    def _settle(self, queue: _Queue, now_s: float) -> None:
        """Make dead letters of the records that are visible again and were received too often."""
        count_max = queue.description.dead_letters.receive_count_max
        if count_max is None:
            return
        for delivery in queue.deliveries.values():
            if not delivery.is_dead and delivery.count >= count_max and delivery.visible_s <= now_s:
                delivery.is_dead = True
                delivery.handle = None

    def acknowledge(
        self, queue_arn: str, handles: Sequence[str], *, is_dead: bool = False
    ) -> Sequence[EntryResult]:
        """Forget records."""

        def forget(queue: _Queue, delivery: _Delivery, _: int) -> None:
            del queue.deliveries[delivery.record.record_id]

        return self._on_entries(queue_arn, handles, forget, is_dead=is_dead)

    def set_visibility(
        self, queue_arn: str, handles: Sequence[str], seconds: Sequence[int], *, is_dead: bool = False
    ) -> Sequence[EntryResult]:
        """Set when records are visible again."""
        now_s = self._clock.monotonic_s()

        def hide(_: _Queue, delivery: _Delivery, place: int) -> None:
            delivery.visible_s = now_s + seconds[place]

        return self._on_entries(queue_arn, handles, hide, is_dead=is_dead)

    def restore(self, queue_arn: str, handles: Sequence[str]) -> Sequence[EntryResult]:
        """Return dead letters to the queue."""
        now_s = self._clock.monotonic_s()

        def restore(_: _Queue, delivery: _Delivery, __: int) -> None:
            delivery.is_dead, delivery.count, delivery.handle = False, 0, None
            delivery.visible_s = now_s

        return self._on_entries(queue_arn, handles, restore, is_dead=True)

    def _on_entries(
        self,
        queue_arn: str,
        handles: Sequence[str],
        change: Callable[[_Queue, _Delivery, int], None],
        *,
        is_dead: bool,
    ) -> list[EntryResult]:
        if not 1 <= len(handles) <= RECORDS_PER_CALL_MAX:
            raise Rejected(
                f"{len(handles)} entries: expected 1 to {RECORDS_PER_CALL_MAX}", operation="Entries"
            )
        results: list[EntryResult] = []
        with self._changed:
            queue = self._queue(queue_arn)
            self._settle(queue, self._clock.monotonic_s())
            by_handle = {each.handle: each for each in queue.deliveries.values() if each.is_dead == is_dead}
            for place, handle in enumerate(handles):
                delivery = by_handle.get(handle)
                if delivery is None:
                    results.append(
                        EntryResult(EntryOutcome.VOID, "ResourceNotFoundException", "the handle has ended")
                    )
                    continue
                change(queue, delivery, place)
                results.append(EntryResult(EntryOutcome.APPLIED))
            self._changed.notify_all()
        return results

    # --- queues ---

    def create_queue(
        self,
        name: str,
        stream_arn: str,
        start: QueueStart,
        *,
        visibility_s: int | None = None,
        dead_letters: DeadLetterRule | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> QueueDescription:
        """Create a queue."""
        with self._changed:
            if stream_arn not in self._streams:
                raise NotFound(
                    f"CreateQueue on stream {stream_arn}: it does not exist", operation="CreateQueue"
                )
            if any(each.description.name == name for each in self._queues.values()):
                raise ResourceBusy(f"CreateQueue on queue {name}: it exists", operation="CreateQueue")
            arn = f"{_ARN}:queue/{next(self._numbers):016x}"
            now_ms = self._clock.wall_ms()
            queue = _Queue(
                QueueDescription(
                    name=name,
                    arn=arn,
                    status="ACTIVE",
                    created_ms=now_ms,
                    stream_arn=stream_arn,
                    start=start if start.timestamp_ms is not None else QueueStart(start.type, now_ms),
                    visibility_s=VISIBILITY_S_DEFAULT if visibility_s is None else visibility_s,
                    dead_letters=DeadLetterRule(RECEIVE_COUNT_LIMIT_DEFAULT)
                    if dead_letters is None
                    else dead_letters,
                )
            )
            from_s = (start.timestamp_ms or 0) / 1000
            for stored in self._streams[stream_arn]:
                if start.type != "LATEST" and stored.arrival_s >= from_s:
                    queue.deliveries[stored.record_id] = _Delivery(stored, self._clock.monotonic_s())
            self._queues[arn] = queue
            return queue.description

    def describe_queue(self, queue_arn: str) -> QueueDescription:
        """Describe a queue."""
        with self._changed:
            return self._queue(queue_arn).description

    def list_queues(self, stream_arn: str | None = None) -> Collection[QueueSummary]:
        """Return the queues."""
        with self._changed:
            found = [each.description for each in self._queues.values()]
        return [
            QueueSummary(each.name, each.arn, each.status, each.created_ms, each.stream_arn)
            for each in found
            if stream_arn is None or each.stream_arn == stream_arn
        ]

    def update_queue(
        self, queue_arn: str, *, visibility_s: int | None = None, dead_letters: DeadLetterRule | None = None
    ) -> QueueDescription:
        """Change a queue."""
        with self._changed:
            queue = self._queue(queue_arn)
            known = queue.description
            queue.description = replace(
                known,
                visibility_s=known.visibility_s if visibility_s is None else visibility_s,
                dead_letters=known.dead_letters if dead_letters is None else dead_letters,
            )
            return queue.description

    def delete_queue(self, queue_arn: str) -> None:
        """Delete a queue."""
        with self._changed:
            self._queue(queue_arn)
            del self._queues[queue_arn]
            self._changed.notify_all()

    def _queue(self, queue_arn: str) -> _Queue:
        queue = self._queues.get(queue_arn)
        if queue is None:
            raise NotFound(f"queue {queue_arn} does not exist", operation="DescribeQueue", resource=queue_arn)
        return queue
