"""One queue: its settings and states, and the records that it has delivered or still has to deliver.

Pure given a clock reading. Changes of a queue's settings take effect when they are due.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock_local.queues.deliveries import Deliveries, Delivery
from penstock_local.shard import Shard, shard_id
from penstock_local.stream import Stream

CREATING, ACTIVE, UPDATING, DELETING = "CREATING", "ACTIVE", "UPDATING", "DELETING"
ANSWER_BYTES_MAX = 10 * 1024 * 1024
"""Most bytes of data and partition keys in one receive. A single larger record is delivered nevertheless."""


@dataclass(frozen=True, slots=True)
class QueueAttributes:
    """The attributes that UpdateQueue changes.

    Attributes:
        visibility_s: Visibility timeout of a receive that names none.
        receive_count_max: Receives after which a record becomes a dead letter; None if it never does.
    """

    visibility_s: int = 30
    receive_count_max: int | None = 6


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The part of a queue that control operations change; replaced as a whole.

    Attributes:
        status: `CREATING`, `ACTIVE`, `UPDATING` or `DELETING`.
        due_ms: When a status other than `ACTIVE` ends.
        attributes: The attributes in effect.
        following: The new attributes during `UPDATING`; they take effect at its end.
        effective_ms: Effective starting time; None in `CREATING`.
        policy: Its resource policy, as JSON.
    """

    status: str
    due_ms: int
    attributes: QueueAttributes
    following: QueueAttributes | None = None
    effective_ms: int | None = None
    tags: dict[str, str] = field(default_factory=dict)
    policy: str | None = None

    @property
    def shown_attributes(self) -> QueueAttributes:
        """Return the attributes that descriptions show."""
        return self.following or self.attributes


class ReceivedRecord(NamedTuple):
    """A record that a receive returns: its delivery, and its stored text."""

    delivery: Delivery
    text: bytes


class PickedRecords(NamedTuple):
    """The records that a receive is about to return.

    Attributes:
        received: The records.
        redelivered: Those among them that were delivered before, removed from their line.
        read_to: By shard index, the next undelivered record after this receive.
    """

    received: list[ReceivedRecord]
    redelivered: list[Delivery]
    read_to: dict[int, int]


@dataclass(slots=True, eq=False)
class Queue:
    """A queue on one stream; not thread-safe, owned by the server's loop.

    Attributes:
        name: Its name, unique in the region.
        id: Resource identifier in the ARN.
        uid: Its number in receipt handles; never used again in this store.
        stream_uid: The `uid` of its stream.
        start_kind: `LATEST`, `TRIM_HORIZON` or `AT_TIMESTAMP`.
        start_ms: The timestamp of `AT_TIMESTAMP`; None for other kinds.
        settings: The settings that control operations change.
        next_ordinals: By shard index, the first record that was not delivered yet; 1 for a missing shard.
        deliveries: The records that were delivered and are not acknowledged.
        number_last: Number of the last delivery.
        _unread_shards: Indexes of the shards that have undelivered records, the next to read first; an ordered set.
        _begins_unread: Whether the last receive began with undelivered records.
    """

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
    next_ordinals: dict[int, int] = field(default_factory=dict)
    deliveries: Deliveries = field(default_factory=lambda: Deliveries(None))
    number_last: int = 0
    _unread_shards: dict[int, None] = field(default_factory=dict)
    _begins_unread: bool = True

    def __post_init__(self) -> None:
        self.deliveries.receive_count_max = self.settings.attributes.receive_count_max

    # -- states ---------------------------------------------------------------------------------------------

    @property
    def may_deliver(self) -> bool:
        """Return whether its state allows receives and acknowledgements."""
        return self.settings.status in (ACTIVE, UPDATING)

    def next_settings(self, stream: Stream, now_ms: int) -> QueueSettings | None:
        """Return the settings after the due change; None if no change is due. At the end of `DELETING` the caller removes the queue."""
        settings = self.settings
        if settings.status in (ACTIVE, DELETING) or settings.due_ms > now_ms:
            return None
        if settings.status == CREATING:
            earliest_ms = max(stream.created_ms, settings.due_ms - stream.retention_ms)
            effective_ms = {
                "LATEST": self.created_ms,
                "TRIM_HORIZON": earliest_ms,
                "AT_TIMESTAMP": max(self.start_ms or 0, earliest_ms),
            }[self.start_kind]
            return replace(settings, status=ACTIVE, effective_ms=effective_ms)
        return replace(settings, status=ACTIVE, attributes=settings.shown_attributes, following=None)

    def apply(self, settings: QueueSettings) -> None:
        """Put settings into effect."""
        self.settings = settings
        limit = settings.attributes.receive_count_max
        if self.deliveries.receive_count_max != limit:
            self.deliveries.set_receive_count_max(limit)

    def set_start(self, stream: Stream) -> None:
        """Set the starting position from the current records of the stream."""
        for shard in stream.shards.values():
            if self.start_kind == "LATEST":
                self.next_ordinals[shard.index] = shard.next_ordinal
            elif self.start_kind == "AT_TIMESTAMP":
                self.next_ordinals[shard.index] = shard.ordinal_at_time(self.start_ms or 0)
        self.on_records(stream.shards.values())

    # -- records --------------------------------------------------------------------------------------------

    def on_records(self, shards: Iterable[Shard]) -> None:
        """Handle new records in shards: the next receives read these shards."""
        self._unread_shards.update(dict.fromkeys(shard.index for shard in shards))

    def any_visible(self, *, dead: bool) -> bool:
        """Return whether a receive may return a record."""
        return self.deliveries.any_visible(dead=dead) or (not dead and bool(self._unread_shards))

    def counts(self, stream: Stream, now_ms: int) -> dict[str, int]:
        """Return how many records are visible, in flight, and visible as dead letters."""
        self.deliveries.settle(now_ms)
        unread = sum(
            shard.next_ordinal - self._first_unread(stream, shard, now_ms)
            for shard in stream.shards.values()
            if shard.index in self._unread_shards
        )
        visible, dead = self.deliveries.visible_counts()
        return {"visible": unread + visible, "in_flight": self.deliveries.in_flight, "dead_letters": dead}

    def pick(
        self, stream: Stream, now_ms: int, limit: int, in_flight_max: int | None, *, dead: bool
    ) -> PickedRecords:
        """Choose the records of a receive; then `commit` them, or `undo_pick`.

        Successive receives begin in turn with new records and with records that are visible again, so that neither starves.

        Args:
            stream: The queue's stream.
            limit: The most records to choose.
            in_flight_max: The most records in flight; None for no limit.
            dead: Whether to choose dead letters.
        """
        self.deliveries.settle(now_ms)
        if in_flight_max is not None:
            limit = min(limit, in_flight_max - self.deliveries.in_flight)
        picked = PickedRecords([], [], {})
        self._begins_unread = not self._begins_unread
        room_bytes = ANSWER_BYTES_MAX
        if self._begins_unread and not dead:
            room_bytes -= self._pick_unread(picked, stream, now_ms, limit, room_bytes)
        room_bytes -= self._pick_visible_again(picked, stream, now_ms, limit, room_bytes, dead=dead)
        if not self._begins_unread and not dead:
            self._pick_unread(picked, stream, now_ms, limit, room_bytes)
        return picked

    def _pick_visible_again(
        self, picked: PickedRecords, stream: Stream, now_ms: int, limit: int, room_bytes: int, *, dead: bool
    ) -> int:
        """Choose records that are visible again; return their bytes."""
        taken_bytes = 0
        while len(picked.received) < limit:
            delivery = self.deliveries.take_visible(dead=dead)
            if delivery is None:
                break
            found = self.record(stream, delivery, now_ms)
            if found is None:
                self.deliveries.remove(delivery.shard_index, delivery.ordinal)
                continue
            text, size_bytes = found
            if picked.received and taken_bytes + size_bytes > room_bytes:
                self.deliveries.put_back([delivery], dead=dead)
                break
            taken_bytes += size_bytes
            picked.redelivered.append(delivery)
            picked.received.append(ReceivedRecord(delivery, text))
        return taken_bytes

    def _pick_unread(
        self, picked: PickedRecords, stream: Stream, now_ms: int, limit: int, room_bytes: int
    ) -> int:
        """Choose records that were not delivered yet; return their bytes.

        Reads each unread shard once. One with more records becomes the last, so that the shards take turns.
        """
        taken_bytes = 0
        for _ in range(len(self._unread_shards)):
            wanted = limit - len(picked.received)
            if wanted <= 0:
                break
            index = next(iter(self._unread_shards))
            del self._unread_shards[index]
            shard = stream.shards.get(shard_id(index))
            if shard is None:
                continue
            begin = self._first_unread(stream, shard, now_ms)
            following, texts, size_bytes = shard.read(begin, wanted, max(room_bytes - taken_bytes, 0))
            # A shard returns a first record of any size: only a receive without others may return it.
            has_room = not picked.received or taken_bytes + size_bytes <= room_bytes
            if not has_room or following < shard.next_ordinal:
                self._unread_shards[index] = None
            if not has_room:
                break
            taken_bytes += size_bytes
            if texts:
                picked.read_to[index] = following
            first = following - len(texts)
            picked.received.extend(
                ReceivedRecord(Delivery(index, first + i, 0, 0, now_ms, now_ms), text)
                for i, text in enumerate(texts)
            )
        return taken_bytes

    def _first_unread(self, stream: Stream, shard: Shard, now_ms: int) -> int:
        """Return the first record of a shard that was not delivered yet and is within the retention."""
        ordinal = max(self.next_ordinals.get(shard.index, 1), shard.first_ordinal)
        arrival_ms = shard.arrival_ms(ordinal)
        horizon_ms = now_ms - stream.retention_ms
        if arrival_ms is not None and arrival_ms < horizon_ms:
            return max(ordinal, shard.ordinal_at_time(horizon_ms))
        return ordinal

    def new_deliveries(self, picked: PickedRecords, now_ms: int, visibility_ms: int) -> list[ReceivedRecord]:
        """Return the picked records with their new deliveries. `commit` makes them current."""
        return [
            ReceivedRecord(
                before._replace(
                    number=self.number_last + i,
                    receives=before.receives + 1,
                    first_ms=before.first_ms if before.number else now_ms,
                    visible_ms=now_ms + visibility_ms,
                ),
                text,
            )
            for i, (before, text) in enumerate(picked.received, 1)
        ]

    def commit(self, picked: PickedRecords, received: Sequence[ReceivedRecord]) -> None:
        """Store the deliveries of a receive, and remember the records that it has read."""
        self.next_ordinals.update(picked.read_to)
        self.put([each.delivery for each in received])

    def put(self, deliveries: Iterable[Delivery]) -> None:
        """Add deliveries, or replace those of the same records."""
        for delivery in deliveries:
            self.number_last = max(self.number_last, delivery.number)
            self.deliveries.put(delivery)

    def undo_pick(self, picked: PickedRecords, *, dead: bool) -> None:
        """Make the picked records available again."""
        self.deliveries.put_back(picked.redelivered, dead=dead)
        self._unread_shards.update(dict.fromkeys(picked.read_to))

    def record(self, stream: Stream, delivery: Delivery, now_ms: int) -> tuple[bytes, int] | None:
        """Return the text and the bytes of a delivered record; None if it is past the retention."""
        shard = stream.shards.get(shard_id(delivery.shard_index))
        if shard is None or delivery.ordinal < shard.first_ordinal:
            return None
        if (shard.arrival_ms(delivery.ordinal) or 0) < now_ms - stream.retention_ms:
            return None
        _, texts, size_bytes = shard.read(delivery.ordinal, 1, ANSWER_BYTES_MAX)
        return texts[0], size_bytes

    def forget_expired(self, stream: Stream) -> None:
        """Forget the deliveries of records that the stream has dropped."""
        for index in self.deliveries.shards():
            shard = stream.shards.get(shard_id(index))
            self.deliveries.forget_before(index, sys.maxsize if shard is None else shard.first_ordinal)
        if len(self.next_ordinals) > 2 * len(stream.shards):
            present_indexes = {shard.index for shard in stream.shards.values()}
            self.next_ordinals = {i: at for i, at in self.next_ordinals.items() if i in present_indexes}
