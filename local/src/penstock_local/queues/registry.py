"""The queues of a store: finds, creates and changes them, and delivers their records. Each change is journalled first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import md5

from penstock_local.queues.deliveries import Delivery
from penstock_local.queues.queue import (
    DELETING,
    UPDATING,
    Queue,
    QueueAttributes,
    QueueSettings,
    ReceivedRecord,
)
from penstock_local.service_errors import RequestRefused
from penstock_local.shard import Shard
from penstock_local.stream import Stream

IN_FLIGHT_MAX = 120_000
"""Source: the developer guide's quotas for queues."""

log = logging.getLogger("penstock_local")


class QueueJournal:
    """Records every change of a queue before it takes effect.

    Each method raises `RequestRefused` if the change cannot be stored; then it does not take effect.
    """

    def queue_changed(self, queue: Queue, settings: QueueSettings) -> None:
        """Record the settings that a queue, new or known, is about to have."""

    def queue_deleted(self, queue: Queue) -> None:
        """Record that this queue is gone."""

    def deliveries_changed(self, queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> None:
        """Record deliveries that are about to be added or replaced."""

    def deliveries_acknowledged(self, queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> None:
        """Record that these records are about to be forgotten."""


class Queues:
    """All queues of one store; not thread-safe, owned by the server's loop.

    Args:
        streams: The store's streams by uid.
        journal: Receives every change.
        settle_ms: How long CREATING, UPDATING and DELETING last, in virtual milliseconds.

    Attributes:
        by_id: The queues by the resource identifier in their ARN.
        on_visible: Called with a queue when it may have a record to receive.
        on_change: Called with a queue when its state has changed.
    """

    def __init__(self, streams: Mapping[int, Stream], journal: QueueJournal, settle_ms: int) -> None:
        self.by_id: dict[str, Queue] = {}
        self.on_visible: Callable[[Queue], None] = lambda _: None
        self.on_change: Callable[[Queue], None] = lambda _: None
        self._streams = streams
        self._journal = journal
        self._settle_ms = settle_ms
        self._by_stream: dict[int, dict[str, Queue]] = {}

    # -- finding --------------------------------------------------------------------------------------------

    def get(self, queue_id: str, now_ms: int) -> Queue | None:
        """Return a queue by its identifier after applying its due changes; None if there is none."""
        queue = self.by_id.get(queue_id)
        if queue is not None:
            self.settle(queue, now_ms)
        return self.by_id.get(queue_id)

    def of_region(self, region: str, now_ms: int) -> list[Queue]:
        """Return the queues of a region by name, after applying their due changes."""
        for queue in list(self.by_id.values()):
            self.settle(queue, now_ms)
        return sorted((q for q in self.by_id.values() if q.region == region), key=lambda queue: queue.name)

    def of_stream(self, stream: Stream, now_ms: int) -> list[Queue]:
        """Return the queues of a stream after applying their due changes."""
        for queue in list(self._by_stream.get(stream.uid, {}).values()):
            self.settle(queue, now_ms)
        return list(self._by_stream.get(stream.uid, {}).values())

    def stream_of(self, queue: Queue) -> Stream:
        """Return a queue's stream."""
        return self._streams[queue.stream_uid]

    # -- settings -------------------------------------------------------------------------------------------

    def settle(self, queue: Queue, now_ms: int) -> None:
        """Apply the due change of a queue's state; a deleted queue is removed.

        No caller waits for this change. If the journal cannot store it, it stays due and is tried again.
        """
        settings = queue.settings
        try:
            if settings.status == DELETING and settings.due_ms <= now_ms:
                self._journal.queue_deleted(queue)
                self._remove(queue)
                return
            following = queue.next_settings(self.stream_of(queue), now_ms)
            if following is None:
                return
            if settings.status == UPDATING:
                # the new limit of receives would judge the records differently after a restart: store the dead letters now
                queue.deliveries.settle(now_ms)
                dead = [delivery for delivery in queue.deliveries if delivery.is_dead]
                self._journal.deliveries_changed(queue, dead, now_ms)
            self._journal.queue_changed(queue, following)
        except RequestRefused as refusal:
            log.debug("the change of queue %s stays due: %s", queue.name, refusal)
            return
        queue.apply(following)
        self.on_change(queue)

    def settle_all(self, now_ms: int) -> None:
        """Apply the due changes of all queues, and forget the records that their streams have dropped."""
        for queue in list(self.by_id.values()):
            self.settle(queue, now_ms)
            queue.deliveries.settle(now_ms)
            queue.forget_expired(self.stream_of(queue))

    def create(
        self,
        name: str,
        stream: Stream,
        uid: int,
        now_ms: int,
        *,
        start: tuple[str, int | None],
        attributes: QueueAttributes,
        tags: dict[str, str],
    ) -> Queue:
        """Begin to create a queue.

        Args:
            name: Its name, unused in the region.
            uid: Its number, never used before in the store.
            start: Kind and timestamp of its starting position.
        """
        identity = md5(f"{stream.arn} {name} {uid}".encode(), usedforsecurity=False).hexdigest()
        queue = Queue(
            name=name,
            id=identity,
            uid=uid,
            region=stream.region,
            arn=stream.arn.partition(":stream/")[0] + f":queue/{identity}",
            stream_uid=stream.uid,
            created_ms=now_ms,
            start_kind=start[0],
            start_ms=start[1],
            settings=QueueSettings("CREATING", now_ms + self._settle_ms, attributes, tags=tags),
        )
        queue.set_start(stream)
        self._journal.queue_changed(queue, queue.settings)
        self.adopt(queue)
        self.settle(queue, now_ms)
        return queue

    def update(self, queue: Queue, attributes: QueueAttributes, now_ms: int) -> None:
        """Begin to change a queue's attributes."""
        self._begin_change(queue, replace(queue.settings, status=UPDATING, following=attributes), now_ms)

    def delete(self, queue: Queue, now_ms: int) -> None:
        """Begin to delete a queue."""
        self._begin_change(queue, replace(queue.settings, status=DELETING), now_ms)

    def put_settings(self, queue: Queue, settings: QueueSettings) -> None:
        """Replace a queue's tags or policy."""
        self._journal.queue_changed(queue, settings)
        queue.apply(settings)

    def _begin_change(self, queue: Queue, settings: QueueSettings, now_ms: int) -> None:
        settings = replace(settings, due_ms=now_ms + self._settle_ms)
        self._journal.queue_changed(queue, settings)
        queue.apply(settings)
        self.on_change(queue)
        self.settle(queue, now_ms)

    def adopt(self, queue: Queue) -> None:
        """Add a queue that is new, or was loaded from a state folder."""
        self.by_id[queue.id] = queue
        self._by_stream.setdefault(queue.stream_uid, {})[queue.id] = queue
        queue.on_records(self.stream_of(queue).shards.values())

    def _remove(self, queue: Queue) -> None:
        del self.by_id[queue.id]
        of_stream = self._by_stream[queue.stream_uid]
        del of_stream[queue.id]
        if not of_stream:
            del self._by_stream[queue.stream_uid]
        self.on_change(queue)

    # -- records --------------------------------------------------------------------------------------------

    def on_stream_change(self, stream: Stream, shards: Sequence[Shard]) -> None:
        """Handle new records in shards of a stream: its queues may deliver them."""
        for queue in self._by_stream.get(stream.uid, {}).values():
            queue.on_records(shards)
            if shards:
                self.on_visible(queue)

    def receive(
        self,
        queue: Queue,
        now_ms: int,
        limit: int,
        visibility_s: int | None,
        *,
        dead: bool,
        in_flight_max: int | None,
    ) -> list[ReceivedRecord]:
        """Deliver up to `limit` records that are visible now."""
        picked = queue.pick(self.stream_of(queue), now_ms, limit, in_flight_max, dead=dead)
        if not picked.received:
            return []
        seconds = queue.settings.attributes.visibility_s if visibility_s is None else visibility_s
        received = queue.new_deliveries(picked, now_ms, seconds * 1000)
        try:
            self._journal.deliveries_changed(queue, [each.delivery for each in received], now_ms)
        except RequestRefused:
            queue.undo_pick(picked, dead=dead)
            raise
        queue.commit(picked, received)
        if queue.any_visible(dead=dead):
            self.on_visible(queue)
        return received

    def acknowledge(self, queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> None:
        """Remove records whose processing is done. The deliveries must be current."""
        self._journal.deliveries_acknowledged(queue, deliveries, now_ms)
        for delivery in deliveries:
            queue.deliveries.remove(delivery.shard_index, delivery.ordinal)
        if queue.any_visible(dead=False):
            # a receive that waits because too many records were in flight has room now
            self.on_visible(queue)

    def change(self, queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> None:
        """Replace the deliveries of records that were received and are not acknowledged."""
        self._journal.deliveries_changed(queue, deliveries, now_ms)
        queue.put(deliveries)
        self.on_visible(queue)
