"""The steps of a subscription, without a server: rates, sizes, and waits."""

from __future__ import annotations

import json

import pytest

from fan_out import messages_of
from penstock_local.sequence import ORDINAL_STEP
from penstock_local.store import Store, StoreOptions
from penstock_local.stream import Consumer
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.subscriptions import Subscription, Subscriptions
from penstock_local.virtual_clock import VirtualClock
from penstock_local.wire import CBOR, JSON, Wire, arrival_text, record_text

START_MS = 1_800_000_000_000
KIB = 1024


class World:
    """A stream of one shard with a consumer, and a stopped clock."""

    def __init__(self, *, limits: bool = True) -> None:
        self.store = Store(StoreOptions(settle_ms=0))
        self.clock = VirtualClock(0, START_MS)
        self.subscriptions = Subscriptions(self.store, self.clock, StreamMetrics(), limits=limits)
        self.stream = self.store.create_active("s", 1, START_MS)
        self.shard = next(iter(self.stream.shards.values()))
        self.consumer = Consumer("c", START_MS // 1000, "ACTIVE", START_MS)
        self.store.put_consumer(self.stream, self.consumer, START_MS)

    def put(self, size_bytes: int, count: int = 1) -> None:
        base = self.shard.next_number(self.clock.now_ms())
        arrival = arrival_text(self.clock.now_ms())
        texts = [record_text(str(base + i * ORDINAL_STEP), arrival, b'""', "k") for i in range(count)]
        self.store.add_records(self.stream, [(self.shard, texts, [size_bytes] * count)], self.clock.now_ms())

    def open(self, wire: Wire = JSON) -> Subscription:
        pair = self.subscriptions.pair(self.stream, self.consumer, self.shard)
        return self.subscriptions.open(pair, 0, wire, self.clock.now_ms())

    def counts(self, subscription: Subscription) -> list[int]:
        """Records of each event at this moment."""
        found = []
        while frame := subscription.next_step(self.clock.now_ms()).frame:
            (message,) = messages_of(frame)
            found.append(len(json.loads(message.payload)["Records"]))
        return found


def test_a_shard_is_pushed_at_two_mib_a_second():
    world = World()
    world.put(128 * KIB, 40)
    subscription = world.open()
    # the bucket is full at first
    assert world.counts(subscription) == [2] * 8
    assert subscription.next_step(START_MS).due_ms == START_MS + 125
    world.clock.advance(0.125)
    assert world.counts(subscription) == [2]
    world.clock.advance(0.5)
    assert world.counts(subscription) == [2] * 4


def test_the_rate_is_the_consumers_whatever_subscription_it_has():
    world = World()
    world.put(128 * KIB, 40)
    world.counts(world.open())
    assert world.counts(world.open()) == [0]


def test_a_large_record_comes_alone_and_is_paid_off():
    world = World()
    world.put(10 * 1024 * KIB)
    world.put(1)
    subscription = world.open()
    assert world.counts(subscription) == [1]
    # the sign of life does not wait for records that do
    assert subscription.next_step(START_MS).due_ms == START_MS + 4001
    world.clock.advance(4.001)
    assert world.counts(subscription) == [1]


def test_without_limits_everything_comes_at_once():
    world = World(limits=False)
    world.put(128 * KIB, 100)
    assert world.counts(world.open()) == [2] * 50


def test_it_waits_for_what_comes_first():
    world = World()
    subscription = world.open()
    assert world.counts(subscription) == [0]
    assert subscription.next_step(START_MS).due_ms == START_MS + 5000
    assert world.counts(subscription) == []
    world.clock.advance(299)
    assert world.counts(subscription) == [0]
    step = subscription.next_step(world.clock.now_ms())
    assert (step.due_ms, step.is_last) == (START_MS + 300_000, False)
    world.clock.advance(1)
    assert subscription.next_step(world.clock.now_ms()).is_last


def test_a_split_that_is_under_way_is_waited_for():
    world = World()
    subscription = world.open()
    world.counts(subscription)
    world.store.options = StoreOptions(settle_ms=700)
    world.store.begin_change(world.stream, "split", (0, 2**127), "UPDATING", START_MS)
    assert subscription.next_step(START_MS).due_ms == START_MS + 700
    assert subscription.next_step(START_MS + 700).is_last


def test_events_are_as_old_as_their_first_unread_record():
    world = World()
    world.put(200 * KIB, 3)
    world.clock.advance(7)
    subscription = world.open()
    behind = []
    for _ in range(3):
        (message,) = messages_of(subscription.next_step(world.clock.now_ms()).frame)
        behind.append(json.loads(message.payload)["MillisBehindLatest"])
    assert behind == [7000, 7000, 0]


@pytest.mark.parametrize(("wire", "kind"), [(JSON, "json"), (CBOR, "cbor")])
def test_frames_name_their_kind_and_encoding(wire, kind):
    subscription = World().open(wire)
    (first,) = messages_of(subscription.initial_response())
    (event,) = messages_of(subscription.next_step(START_MS).frame)
    (modelled,) = messages_of(subscription.exception("KMSDisabledException", "why"))
    (other,) = messages_of(subscription.exception("Nonsense", "why"))
    content_type = f"application/x-amz-{kind}-1.1"
    assert first.headers == {
        ":event-type": "initial-response",
        ":content-type": content_type,
        ":message-type": "event",
    }
    assert event.headers == {**first.headers, ":event-type": "SubscribeToShardEvent"}
    assert modelled.headers == {
        ":exception-type": "KMSDisabledException",
        ":content-type": content_type,
        ":message-type": "exception",
    }
    assert wire.decode(modelled.payload) == {"message": "why"}
    assert other.headers == {":error-code": "Nonsense", ":error-message": "why", ":message-type": "error"}
    assert (wire.decode(first.payload), other.payload) == ({}, b"")
