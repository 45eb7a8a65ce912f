"""Subscriptions to shards (enhanced fan-out): when one may begin, when it sends which event, and how it ends.

A subscription is asked for its next step with a reading of the virtual clock (`Subscription.next_step`). `events` carries
the steps out: it sends, and waits for records, for changes of the stream and for the clock. The next event is made when the
client has taken the last one, so a client that reads slowly costs one event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock_local import event_stream, request_model
from penstock_local.quotas import FAN_OUT_BYTES_PER_S, SUBSCRIBE_CALLS_PER_S, Bucket
from penstock_local.service_errors import RequestRefused, in_use, not_found
from penstock_local.shard import Shard
from penstock_local.store import ACCOUNT, Store
from penstock_local.stream import ACTIVE, Consumer, Stream
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.virtual_clock import VirtualClock
from penstock_local.wire import Wire, number_of

LIFETIME_MS = 300_000
TAKE_OVER_MS = 5_000
QUIET_MS_MAX = 5_000
EVENT_BYTES_MAX = 256 * 1024
EVENT_RECORDS_MAX = 10_000


class Step(NamedTuple):
    """A subscription's next step: it sends a frame, ends, or waits.

    Attributes:
        frame: The frame to send.
        is_last: Whether it ends then.
        due_ms: Until when it waits if it sends nothing and nothing happens.
    """

    frame: bytes = b""
    is_last: bool = False
    due_ms: int = 0


@dataclass(slots=True)
class ConsumerShard:
    """A consumer and a shard, across their successive subscriptions.

    Attributes:
        calls: The rate of its calls.
        read_bytes: The rate of the bytes that it reads.
        last_begun_ms: When the last subscription began; None before the first.
        open_subscription: The subscription that is open now; None if there is none.
    """

    stream: Stream
    consumer: Consumer
    shard: Shard
    calls: Bucket = field(default_factory=lambda: Bucket(SUBSCRIBE_CALLS_PER_S))
    read_bytes: Bucket = field(default_factory=lambda: Bucket(FAN_OUT_BYTES_PER_S))
    last_begun_ms: int | None = None
    open_subscription: Subscription | None = None

    def refusal(self) -> RequestRefused:
        """Return the refusal of a second subscription, which also ends one that was taken over."""
        where = f"{ACCOUNT}:{self.stream.name}:{self.shard.id}:{self.consumer.name}"
        return in_use(f"Another active subscription exists for this consumer: {where}")


class Subscriptions:
    """All subscriptions of one server; owned by its loop.

    Args:
        store: Holds the records; this object becomes its listener for changes.
        clock: The server's clock.
        metrics: Count the sent bytes and records.
        limits: Whether rates are enforced, and the pause before a take-over.
    """

    def __init__(self, store: Store, clock: VirtualClock, metrics: StreamMetrics, *, limits: bool) -> None:
        self.store = store
        self.clock = clock
        self.metrics = metrics
        self.limits = limits
        self._pairs: dict[tuple[int, str, str], ConsumerShard] = {}
        self._by_stream: dict[int, dict[str, set[Subscription]]] = {}
        store.on_change = self._on_change

    def pair(self, stream: Stream, consumer: Consumer, shard: Shard) -> ConsumerShard:
        """Return the pair of a consumer and a shard; create it at the first request."""
        key = (stream.uid, consumer.arn(stream.arn), shard.id)
        found = self._pairs.get(key)
        if found is None:
            found = self._pairs[key] = ConsumerShard(stream, consumer, shard)
        return found

    def try_call(self, pair: ConsumerShard, now_ms: int) -> bool:
        """Count a call for a pair against its rate; return False if the rate is used up."""
        return not self.limits or pair.calls.try_call(now_ms)

    def require_free(self, pair: ConsumerShard, now_ms: int) -> None:
        """Refuse a call within five seconds of the last one that succeeded.

        Raises:
            RequestRefused: `ResourceInUseException`.
        """
        if self.limits and pair.last_begun_ms is not None and now_ms - pair.last_begun_ms < TAKE_OVER_MS:
            raise pair.refusal()

    def open(self, pair: ConsumerShard, ordinal: int, wire: Wire, now_ms: int) -> Subscription:
        """Begin a subscription at a record; the one before it fails with a ResourceInUseException."""
        if pair.open_subscription is not None:
            pair.open_subscription.fail(pair.refusal())
        pair.open_subscription, pair.last_begun_ms = Subscription(self, pair, ordinal, wire, now_ms), now_ms
        return pair.open_subscription

    def shards_of(self, stream: Stream, consumer: Consumer) -> list[str]:
        """Return the shards that a consumer is subscribed to, one for each open subscription."""
        arn = consumer.arn(stream.arn)
        found = self._by_stream.get(stream.uid, {})
        return sorted(
            each.shard.id for of_shard in found.values() for each in of_shard if each.consumer_arn == arn
        )

    def wake_all(self) -> None:
        """Wake all subscriptions: the clock was moved."""
        for shards in self._by_stream.values():
            for subscriptions in shards.values():
                for each in subscriptions:
                    each.wake()

    def add(self, subscription: Subscription) -> None:
        """Wake a subscription at every later change of its shard or stream."""
        shards = self._by_stream.setdefault(subscription.stream_uid, {})
        shards.setdefault(subscription.shard.id, set()).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription that is over."""
        shards = self._by_stream[subscription.stream_uid]
        shards[subscription.shard.id].discard(subscription)
        if not shards[subscription.shard.id]:
            del shards[subscription.shard.id]
        if not shards:
            del self._by_stream[subscription.stream_uid]

    def _on_change(self, stream: Stream, shards: Sequence[Shard]) -> None:
        """Wake the subscriptions to these shards; without shards, all subscriptions to the stream, which itself has changed."""
        found = self._by_stream.get(stream.uid, {})
        for name in [shard.id for shard in shards] or list(found):
            for subscription in found.get(name, ()):
                subscription.wake()
        if not shards:
            self._forget_pairs(stream)

    def _forget_pairs(self, stream: Stream) -> None:
        """Forget the pairs of consumers and shards that are gone."""
        consumers = {each.arn(stream.arn) for each in stream.consumers.values()}
        is_gone = stream.uid not in self.store.by_uid
        for key in [key for key in self._pairs if key[0] == stream.uid]:
            if is_gone or key[1] not in consumers or key[2] not in stream.shards:
                del self._pairs[key]


class Subscription:
    """One subscription of a consumer to a shard.

    Args:
        registry: The server's subscriptions.
        pair: Its consumer and shard.
        ordinal: First record to send.
        wire: Encoding of the events.
        now_ms: When it begins.

    Attributes:
        stream_uid: The stream's.
        consumer_arn: The consumer's.
    """

    def __init__(
        self, registry: Subscriptions, pair: ConsumerShard, ordinal: int, wire: Wire, now_ms: int
    ) -> None:
        self._registry = registry
        self._pair = pair
        self.stream_uid = pair.stream.uid
        self.consumer_arn = pair.consumer.arn(pair.stream.arn)
        self.shard = shard = pair.shard
        self._wire = wire
        # a position before the oldest record means that record, one after the end of a closed shard its end
        self._ordinal = min(max(ordinal, shard.first_ordinal), shard.next_ordinal)
        self._ends_ms = now_ms + LIFETIME_MS
        self._quiet_until_ms = now_ms
        self._failure: RequestRefused | None = None
        self._wake_event = asyncio.Event()

    def initial_response(self) -> bytes:
        """Return the first frame: the operation's answer, which has no members."""
        return event_stream.event("initial-response", self._wire.content_type, self._wire.encode({}))

    def wake(self) -> None:
        """Wake `events`, so that it takes its next step now."""
        self._wake_event.set()

    def fail(self, failure: RequestRefused) -> None:
        """End the subscription with this error."""
        self._failure = failure
        self.wake()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Send its frames when they are due, until it ends."""
        self._registry.add(self)
        try:
            while True:
                self._wake_event.clear()
                step = self.next_step(self._registry.clock.now_ms())
                if step.frame:
                    yield step.frame
                if step.is_last:
                    return
                if not step.frame:
                    await self._registry.clock.wait(self._wake_event, step.due_ms)
        finally:
            self._registry.remove(self)
            if self._pair.open_subscription is self:
                self._pair.open_subscription = None

    def next_step(self, now_ms: int) -> Step:
        """Return its step at this moment; a returned frame counts as sent."""
        stream = self._readable_stream(now_ms)
        if self._failure is not None or stream is None:
            name = self._pair.consumer.name
            failure = self._failure or not_found(
                f"Consumer {name} under stream {self._pair.stream.name} not found for account {ACCOUNT}."
            )
            return Step(self.exception(failure.code, failure.message), is_last=True)
        if now_ms >= self._ends_ms:
            return Step(is_last=True)
        self._registry.store.trim(stream, self.shard, now_ms)
        next_ordinal, texts, size_bytes = self.shard.read(self._ordinal, EVENT_RECORDS_MAX, EVENT_BYTES_MAX)
        if texts:
            due_ms = self._pair.read_bytes.due_ms(size_bytes, now_ms) if self._registry.limits else now_ms
            if due_ms <= now_ms:
                self._pair.read_bytes.take(size_bytes)
                self._registry.metrics.add_event(stream, self.shard.id, len(texts), size_bytes, now_ms)
                return Step(self._event(next_ordinal, texts, now_ms))
        elif self.shard.closed_ms is not None:
            return Step(self._last_event(stream, now_ms), is_last=True)
        else:
            due_ms = self._ends_ms
        if now_ms >= self._quiet_until_ms:
            return Step(self._event(max(self._ordinal, self.shard.first_ordinal), (), now_ms))
        due_ms = min(due_ms, self._quiet_until_ms, self._ends_ms)
        # a split that is due now closes the shard
        change = stream.change
        return Step(
            due_ms=due_ms if change is None or change.due_ms <= now_ms else min(due_ms, change.due_ms)
        )

    def _readable_stream(self, now_ms: int) -> Stream | None:
        """Return the stream after applying its due changes; None if it or the consumer is gone."""
        store = self._registry.store
        stream = store.by_uid.get(self.stream_uid)
        if stream is not None:
            store.settle(stream, now_ms)
        if stream is None or self.stream_uid not in store.by_uid:
            return None
        subscriber = self._pair.consumer
        consumer = stream.consumers.get(subscriber.name)
        is_there = consumer is not None and (consumer.created_s, consumer.status) == (
            subscriber.created_s,
            ACTIVE,
        )
        return stream if is_there else None

    def _event(self, next_ordinal: int, texts: Sequence[bytes], now_ms: int) -> bytes:
        self._ordinal = next_ordinal
        behind_ms = self.shard.behind_ms(next_ordinal, now_ms)
        # the last record's own number, if there is one, as on the service
        number = self.shard.number_before(next_ordinal, now_ms)
        rest = {
            "ContinuationSequenceNumber": number_of(texts[-1]) if texts else str(number),
            "MillisBehindLatest": behind_ms,
        }
        return self._event_frame(texts, rest, now_ms)

    def _last_event(self, stream: Stream, now_ms: int) -> bytes:
        """Return the event at the end of the shard; it has no continuation."""
        rest = {"MillisBehindLatest": 0, "ChildShards": stream.describe_children(self.shard)}
        return self._event_frame((), rest, now_ms)

    def _event_frame(self, texts: Sequence[bytes], rest: dict[str, object], now_ms: int) -> bytes:
        self._quiet_until_ms = now_ms + QUIET_MS_MAX
        payload = self._wire.get_records_answer(texts, rest)
        return event_stream.event("SubscribeToShardEvent", self._wire.content_type, payload)

    def exception(self, code: str, message: str) -> bytes:
        """Return the frame that ends a subscription with an error."""
        if code not in request_model.shape("SubscribeToShardEventStream").members:
            return event_stream.error(code, message)
        return event_stream.exception(code, self._wire.content_type, self._wire.encode({"message": message}))
