"""Pausing a consumer or a shard, in virtual time: leases stay, calls that have begun end, and nothing is read."""

import threading

import pytest
from tiny_fan_out import TinyFanOut
from virtual_world import HeldPool, TinyKinesis, World

from penstock.consumer import Consumer, ConsumerPorts
from penstock.core.shard import StreamSummary
from penstock.errors import UsageError
from penstock.runtime.memory_lease_table import MemoryLeaseTable

LEASE_S = 9.0
LONG_S = 10 * LEASE_S
DEADLINE_S = 60.0
FIRST = "shardId-000000000000"


def pause(worker, *shard_ids):
    worker.runtime.delivery.set_paused(shard_ids, is_paused=True)


def resume(worker, *shard_ids):
    worker.runtime.delivery.set_paused(shard_ids, is_paused=False)


def states(worker):
    return {shard.shard_id: shard.state for shard in worker.runtime.health("app").shards}


def gauge(world, name):
    return world.metrics.snapshot().gauges[name, ()]


@pytest.mark.parametrize("options", [{}, {"retrieval": "fan-out"}, {"concurrency": 4}], ids=str)
def test_a_paused_worker_keeps_its_leases_and_delivers_nothing_until_it_goes_on(world, options):
    world.fan_out = TinyFanOut(world.kinesis, world.clock)
    sent = world.put(100)
    worker = world.worker("a", **options)
    world.run(LONG_S)
    assert sorted(worker.data()) == sorted(sent)
    pause(worker)
    world.run(1)
    later, reads = world.put(100, "later"), len(world.kinesis.reads)
    other = world.worker("b", max_leases=1, **options)
    pause(other)
    world.run(LONG_S)
    assert sorted(worker.data() + other.data()) == sorted(sent)
    assert len(world.kinesis.reads) == reads
    assert len(world.held_by(worker)) == 3
    assert set(states(worker).values()) == {"paused"}
    health = worker.runtime.health("app")
    assert health.is_healthy
    assert health.lag_ms >= LONG_S * 1000
    assert gauge(world, "paused_shards") in (3, 1)  # of the worker that reported last
    resume(worker)
    resume(other)
    world.run(LONG_S)
    assert sorted(worker.data() + other.data()) == sorted(sent + later)
    assert set(states(worker).values()) == {"reading"}
    assert gauge(world, "paused_shards") == 0


def test_one_shard_is_paused_and_the_others_go_on(world):
    worker = world.worker("a")
    world.run(30)
    pause(worker, FIRST)
    sent = world.put(200)
    world.run(LONG_S)
    kept = {record.data for record in world.kinesis.shards[FIRST].records}
    assert kept
    assert set(worker.data()) == set(sent) - kept
    assert [shard for shard, state in states(worker).items() if state == "paused"] == [FIRST]
    resume(worker, FIRST)
    world.run(30)
    assert sorted(worker.data()) == sorted(sent)


def test_a_shard_that_comes_after_the_pause_is_paused_too():
    world = World(shard_count=1)
    worker = world.worker("a")
    pause(worker)
    sent = world.put(20)
    world.run(LONG_S)
    assert worker.data() == []
    assert world.held_by(worker) == [FIRST]
    resume(worker)
    world.run(30)
    assert worker.data() == sent


def test_a_call_that_waits_for_a_thread_waits_for_the_end_of_the_pause():
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool)
    world.run(20)
    pool.is_open = False
    sent = world.put(5)
    world.run(2)
    pause(worker)
    assert pool.let_go() == 1
    world.run(LONG_S)
    assert worker.data() == []
    resume(worker)
    world.run(5)
    assert worker.data() == sent


def test_a_call_that_failed_is_not_repeated_before_the_end_of_the_pause():
    world = World(shard_count=1)
    calls = []

    def fail_once(batch):
        calls.append(batch.attempt)
        if len(calls) == 1:
            pause(worker)
            raise ValueError("once")

    worker = world.worker("a", handler=fail_once, handler_backoff_min_s=1.0)
    sent = world.put(5)
    world.run(LONG_S)
    assert calls == [1]
    resume(worker)
    world.run(30)
    assert calls == [1, 2]
    assert worker.data() == sent


def test_a_checkpoint_that_is_due_is_written_during_the_pause():
    world = World(shard_count=1)
    worker = world.worker("a", handler=lambda _: pause(worker), checkpoint_interval_s=30.0)
    world.put(5)
    world.run(LONG_S)
    (lease,) = world.table.scan().leases
    assert lease.checkpoint.sequence_number == world.kinesis.shards[FIRST].records[-1].sequence_number


def test_a_paused_worker_stops_gracefully_and_another_one_goes_on_where_it_stood():
    world = World(shard_count=1)
    worker = world.worker("a", max_records=10, handler=lambda _: pause(worker))
    sent = world.put(30)
    world.run(LONG_S)
    done = worker.data()
    assert 0 < len(done) < len(sent)
    worker.runtime.request_stop()
    world.run(60, until=worker.runtime.has_ended.is_set)
    assert set(world.owners().values()) == {None}
    after = world.worker("b")
    world.run(30)
    assert done + after.data() == sent


def test_what_a_paused_shard_holds_does_not_keep_the_others_from_reading():
    world = World(shard_count=2)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool, buffer_bytes_max=1)
    world.run(30)
    pool.is_open = False
    for _ in range(10):
        world.kinesis.put("key1", b"kept")
    (full,) = {shard.shard_id for shard in world.kinesis.shards.values() if shard.records}
    world.run(5)
    pause(worker, full)
    pool.let_go()
    sent = world.put(50)
    world.run(60)
    assert set(worker.data()) == {data for data in sent if data not in held(world, full)}


def held(world, shard_id):
    return {record.data for record in world.kinesis.shards[shard_id].records}


def test_a_consumer_is_paused_only_while_it_runs(world):
    consumer = Consumer(
        "orders", "app", print, ports=ConsumerPorts(TinyKinesis(world.clock, 1), MemoryLeaseTable("app"))
    )
    for call in (consumer.pause, consumer.resume):
        with pytest.raises(UsageError, match="was not started"):
            call()


ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
KEY = f"123456789012:orders:1700000000:{FIRST}"


@pytest.mark.parametrize(
    ("stream", "right", "wrong"),
    [
        ("orders", FIRST, ["shardId-3", "shard-000000000000", f"{FIRST}0", KEY, ""]),
        (["orders"], KEY, [FIRST, KEY.replace("orders", "order"), KEY[:-1], ""]),
    ],
)
def test_a_name_that_can_be_no_shards_is_refused(world, stream, right, wrong):
    kinesis = TinyKinesis(world.clock, 1)
    kinesis.fetch_summary = lambda name: StreamSummary(
        name, ARN, "ACTIVE", 1_700_000_000_000, open_shard_count=1
    )
    consumer = Consumer(stream, "app", print, ports=ConsumerPorts(kinesis, MemoryLeaseTable("app")))
    with consumer:
        consumer.pause(right)
        for name in wrong:
            for call in (consumer.pause, consumer.resume):
                with pytest.raises(
                    UsageError, match=r"names no shard of stream orders: expected .*shardId-<"
                ):
                    call(right, name)


def test_a_consumer_is_paused_and_resumed_from_any_thread(world):
    is_first, is_second = threading.Event(), threading.Event()
    seen = []

    def handle(batch):
        seen.extend(record.data for record in batch)
        is_first.set()
        if b"second" in seen:
            is_second.set()

    stream = TinyKinesis(world.clock, 1)
    stream.put("key", b"first")
    consumer = Consumer(
        "orders",
        "app",
        handle,
        ports=ConsumerPorts(stream, MemoryLeaseTable("app")),
        starting_position="TRIM_HORIZON",
        cold_start_jitter_s=0.0,
    )
    with consumer:
        assert is_first.wait(DEADLINE_S)
        consumer.pause(FIRST)
        (shard,) = consumer.health().shards
        assert shard.state == "paused"
        stream.put("key", b"second")
        consumer.resume()
        assert is_second.wait(DEADLINE_S)
    assert seen == [b"first", b"second"]
