"""The payloads of the state folder's frames about queues."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from penstock_local.queues.deliveries import Delivery
from penstock_local.queues.queue import Queue, QueueSettings

QUEUE, QUEUE_DELETED, DELIVERED, ACKNOWLEDGED = b"Q", b"q", b"V", b"v"
_HEAD = struct.Struct(">Qq")
_DELIVERY = struct.Struct(">IQQIqqB")
_PLACE = struct.Struct(">IQ")
_REWRITE_DELIVERIES = 1000


class SavedQueue(msgspec.Struct, frozen=True):
    """A queue without its deliveries."""

    name: str
    id: str
    uid: int
    region: str
    arn: str
    stream_uid: int
    created_ms: int
    start_kind: str
    start_ms: int | None
    settings: QueueSettings
    next_ordinals: dict[int, int]
    number_last: int


def queue_payload(queue: Queue, settings: QueueSettings) -> bytes:
    """Return the payload for a queue with these settings."""
    fields = {name: getattr(queue, name) for name in SavedQueue.__struct_fields__} | {"settings": settings}
    return msgspec.json.encode(SavedQueue(**fields))


def deliveries_payload(queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> bytes:
    """Return the payload for deliveries that are added or replaced."""
    return _HEAD.pack(queue.uid, now_ms) + b"".join(_DELIVERY.pack(*each) for each in deliveries)


def acknowledgement_payload(queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> bytes:
    """Return the payload for records that are forgotten."""
    places = (_PLACE.pack(each.shard_index, each.ordinal) for each in deliveries)
    return _HEAD.pack(queue.uid, now_ms) + b"".join(places)


def deletion_payload(queue: Queue) -> bytes:
    """Return the payload for a queue that is gone."""
    return struct.pack(">Q", queue.uid)


def frames(queue: Queue) -> Iterator[tuple[bytes, bytes]]:
    """Return all frames that a rewritten file has about a queue."""
    yield QUEUE, queue_payload(queue, queue.settings)
    deliveries = list(queue.deliveries)
    for begin in range(0, len(deliveries), _REWRITE_DELIVERIES):
        part = deliveries[begin : begin + _REWRITE_DELIVERIES]
        yield DELIVERED, deliveries_payload(queue, part, queue.created_ms)


class QueueReplay:
    """Builds queues from the frames of a journal.

    Attributes:
        queues: By uid.
        clock_ms: Latest moment in any frame.
    """

    KINDS = (QUEUE, QUEUE_DELETED, DELIVERED, ACKNOWLEDGED)

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.clock_ms = 0

    def apply(self, kind: bytes, payload: bytes) -> None:
        """Apply one frame.

        Raises:
            ValueError: The frame contradicts the frames before it. KeyError, `struct.error` and msgspec's errors mean the same.
        """
        if kind == QUEUE:
            self._apply_queue(msgspec.json.decode(payload, type=SavedQueue))
            return
        if kind == QUEUE_DELETED:
            del self.queues[struct.unpack(">Q", payload)[0]]
            return
        uid, at_ms = _HEAD.unpack_from(payload)
        queue, rest = self.queues[uid], payload[_HEAD.size :]
        self.clock_ms = max(self.clock_ms, at_ms)
        if kind == ACKNOWLEDGED:
            for place in _PLACE.iter_unpack(rest):
                queue.deliveries.remove(*place)
            return
        for *fields, is_dead in _DELIVERY.iter_unpack(rest):
            delivery = Delivery._make((*fields, bool(is_dead)))
            queue.put([delivery])
            next_ordinal = max(queue.next_ordinals.get(delivery.shard_index, 1), delivery.ordinal + 1)
            queue.next_ordinals[delivery.shard_index] = next_ordinal

    def _apply_queue(self, saved: SavedQueue) -> None:
        queue = self.queues.get(saved.uid)
        if queue is not None:
            queue.apply(saved.settings)
            return
        self.queues[saved.uid] = Queue(**msgspec.structs.asdict(saved))
        self.clock_ms = max(self.clock_ms, saved.created_ms)
