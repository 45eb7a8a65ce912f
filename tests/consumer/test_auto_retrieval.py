"""Workers that poll, and change to enhanced fan-out for shards that others poll too, in virtual time."""

import logging

import pytest
from tiny_fan_out import TinyFanOut
from virtual_world import HeldPool, World

from penstock.core.aggregation import AggregateBuilder
from penstock.errors import AccessDenied, Throttled
from penstock.ports.fan_out import StreamConsumer

AUTO = {"retrieval": "auto", "fan_out_after_s": 6.0, "polling_after_s": 90.0}
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


@pytest.fixture
def world() -> World:
    world = World(shard_count=2)
    world.fan_out = TinyFanOut(world.kinesis, world.clock)
    return world


def changes(world: World, to: str) -> list[str]:
    """The shards that changed, once for each time."""
    counters = world.metrics.snapshot().counters
    return [
        dict(labels)["shard"]
        for (name, labels), value in sorted(counters.items())
        for _ in range(int(value))
        if name == "retrieval_changes" and dict(labels)["to"] == to
    ]


def open_shards(world: World) -> list[str]:
    return sorted(each.shard_id for each in world.fan_out.streams if each.is_open)


def put_and_run(world: World, duration_s: float, prefix: str) -> list[bytes]:
    """Put a record for each key every five seconds; return them."""
    sent = []
    end_s = world.clock.now_s + duration_s
    while world.clock.now_s < end_s:
        sent += world.put(17, f"{prefix}{len(sent)}-")
        world.run(5.0)
    return sent


def check(worker, sent: list[bytes]) -> None:
    """Each record was delivered once, and each key's in order: the order of the shard is that of the puts."""
    assert sorted(worker.data()) == sorted(sent)
    for shard_id in {shard for _, shard, _ in worker.delivered}:
        got = [data for _, shard, data in worker.delivered if shard == shard_id]
        places = {data: place for place, data in enumerate(sent)}
        assert [places[data] for data in got] == sorted(places[data] for data in got)


def test_a_shard_that_others_poll_too_is_pushed_and_no_other_is(world, caplog):
    caplog.set_level(logging.INFO, "penstock.consumer")
    worker = world.worker("w", **AUTO)
    sent = put_and_run(world, 20.0, "a")
    assert world.fan_out.registrations == 0  # an unneeded registration would cost money
    world.kinesis.contended = {FIRST}
    sent += put_and_run(world, 30.0, "b")
    assert changes(world, "fan-out") == [FIRST]
    assert open_shards(world) == [FIRST]
    assert world.fan_out.registrations == 1
    reads = sum(shard_id == FIRST for _, shard_id in world.kinesis.reads)
    sent += put_and_run(world, 30.0, "c")
    assert sum(shard_id == FIRST for _, shard_id in world.kinesis.reads) == reads
    check(worker, sent)
    assert f"shard {FIRST} is read by enhanced fan-out from here on: reads are refused because" in caplog.text


def test_polling_comes_back_when_the_others_are_gone_and_ends_the_subscription(world):
    worker = world.worker("w", **AUTO)
    world.kinesis.contended = {FIRST}
    sent = put_and_run(world, 30.0, "a")
    assert open_shards(world) == [FIRST]
    world.kinesis.contended = set()
    sent += put_and_run(world, 130.0, "b")
    assert changes(world, "polling") == [FIRST]
    assert changes(world, "fan-out") == [FIRST]
    assert open_shards(world) == []
    check(worker, sent)


def test_while_the_others_stay_trials_grow_rare(world):
    worker = world.worker("w", **AUTO)
    world.kinesis.contended = {FIRST, SECOND}
    sent = put_and_run(world, 420.0, "a")
    assert changes(world, "polling") == [FIRST, FIRST, SECOND, SECOND]  # after 90 s and 180 s, and not 360 s
    assert open_shards(world) == [FIRST, SECOND]
    check(worker, sent)


def aggregate(count: int, prefix: str) -> bytes:
    builder = AggregateBuilder()
    for number in range(count):
        builder.add(f"{prefix}{number}".encode(), "k")
    return builder.build().data


def test_a_change_inside_an_aggregate_loses_and_repeats_nothing(world):
    pool = HeldPool()
    # Room for a part of one aggregate: the rest of it waits, taken apart or not, while the source changes.
    worker = world.worker("w", handler_pool=pool, max_records=3, prefetch_bytes_max=1500, **AUTO)
    sent: list[bytes] = []

    def put(count: int, prefix: str) -> None:
        for number in range(count):
            shard_id = world.kinesis.put("k", aggregate(10, f"{prefix}{number}-"))
            sent.extend(f"{prefix}{number}-{place}".encode() for place in range(10))
            world.kinesis.contended = {shard_id}

    for prefix in "abcdefgh":
        put(3, prefix)
        pool.is_open = False
        world.run(3.0)
        pool.let_go()
        world.run(2.0)
    world.run(60.0, until=lambda: len(worker.data()) >= len(sent))
    assert len(changes(world, "fan-out")) == 1
    assert worker.data() == sent


def test_a_worker_that_takes_over_inside_an_aggregate_goes_on_there_by_fan_out(world):
    shard_id = world.kinesis.put("k", aggregate(10, "a"))
    world.kinesis.contended = {shard_id}

    def checkpoint_inside(batch):
        if any(record.data == b"a4" for record in batch):
            batch.checkpoint(next(record for record in batch if record.data == b"a4"))
            raise RuntimeError("killed here")

    first = world.worker(
        "w1",
        checkpoint_inside,
        checkpointing="manual",
        handler_retries_max=0,
        on_failure="stop_worker",
        **AUTO,
    )
    world.run(60.0, until=first.runtime.has_ended.is_set)
    world.workers.remove(first)
    second = world.worker("w2", **AUTO)
    world.run(60.0)
    assert changes(world, "fan-out") == [shard_id]
    assert second.data() == [f"a{number}".encode() for number in range(5, 10)]


def test_children_of_a_pushed_shard_are_read_behind_it(world):
    worker = world.worker("w", **AUTO)
    world.kinesis.contended = {FIRST}
    sent = put_and_run(world, 30.0, "a")
    assert open_shards(world) == [FIRST]
    world.kinesis.split(FIRST)
    sent += put_and_run(world, 60.0, "b")
    assert sorted(worker.data()) == sorted(sent)
    for key in range(17):
        of_key = [data for data in sent if int(data.rpartition(b"-")[2]) % 17 == key]
        assert [data for data in worker.data() if data in set(of_key)] == of_key
    assert open_shards(world) == []


def test_a_lease_moves_from_a_pushed_shard_and_nothing_comes_twice(world):
    first = world.worker("w1", **AUTO)
    world.kinesis.contended = {FIRST, SECOND}
    sent = put_and_run(world, 30.0, "a")
    assert open_shards(world) == [FIRST, SECOND]
    second = world.worker("w2", **AUTO)
    world.run(60.0, until=lambda: len(open_shards(world)) == 1)
    assert open_shards(world) == world.held_by(first)  # the other one is polled by its new owner first
    sent += put_and_run(world, 30.0, "b")
    assert len(open_shards(world)) == 2
    assert sorted(first.data() + second.data()) == sorted(sent)


def test_a_stream_without_a_free_consumer_is_polled_as_before_and_asked_again_later(world, caplog):
    for number in range(20):
        name = f"c{number}"
        world.fan_out.consumers[name] = StreamConsumer(name, f"arn:{name}", "ACTIVE", 0)
    worker = world.worker("w", idle_time_between_reads_s=3.0, **AUTO)
    world.kinesis.contended = {FIRST, SECOND}
    sent = put_and_run(world, 60.0, "a")
    assert changes(world, "fan-out") == []
    assert worker.runtime.failure is None
    told = [record for record in caplog.records if "shards are polled as before" in record.message]
    assert len(told) == 1  # not once for each read
    assert "has 20 consumers" in told[0].message
    del world.fan_out.consumers["c7"]
    sent += put_and_run(world, 300.0, "b")
    assert open_shards(world) == [FIRST, SECOND]
    check(worker, sent)


def test_a_consumer_that_is_deleted_costs_a_while_of_polling_and_no_record(world):
    worker = world.worker("w", **AUTO)
    world.kinesis.contended = {FIRST}
    sent = put_and_run(world, 30.0, "a")
    world.fan_out.deregister_consumer("arn:orders", "app")
    world.fan_out.break_all()
    sent += put_and_run(world, 30.0, "b")
    check(worker, sent)
    sent += put_and_run(world, 90.0, "c")
    assert open_shards(world) == [FIRST]
    assert world.fan_out.registrations == 2
    check(worker, sent)
    assert counted(world, "shard_stops") == 0


def test_half_open_connections_end_in_polling_and_nothing_is_lost(world):
    worker = world.worker("w", **AUTO)
    world.kinesis.contended = {FIRST}
    sent = put_and_run(world, 30.0, "a")
    world.fan_out.silence_all()
    sent += put_and_run(world, 60.0, "b")
    check(worker, sent)


def test_a_policy_that_forbids_to_subscribe_leaves_the_shard_polled(world):
    world.fan_out.subscribe_errors = [AccessDenied("policy")] * 3
    worker = world.worker("w", **AUTO)
    world.kinesis.contended = {FIRST}
    sent = put_and_run(world, 30.0, "a")
    assert changes(world, "polling")[:1] == [FIRST]
    check(worker, sent)


def test_a_registration_that_fails_in_any_way_is_tried_again(world):
    world.fan_out.register_errors = [ValueError("a defect"), Throttled("slow")]
    worker = world.worker("w", idle_time_between_reads_s=3.0, **AUTO)
    world.kinesis.contended = {FIRST}
    sent = put_and_run(world, 400.0, "a")
    assert open_shards(world) == [FIRST]
    check(worker, sent)


def test_a_step_that_waited_while_its_lease_was_lost_leaves_nothing_behind(world):
    threads = HeldPool()
    first = world.worker("w1", read_pool=threads, **AUTO)
    world.kinesis.contended = {FIRST}
    put_and_run(world, 30.0, "a")
    threads.is_open = False
    first.table.is_cut = True
    put_and_run(world, 30.0, "b")
    while threads.let_go():
        world.run(5.0)
    assert open_shards(world) == []
    assert first.runtime.delivery._streams[""]._fan_out_fetcher._choices == {}


def counted(world: World, name: str) -> float:
    return sum(value for (its, _), value in world.metrics.snapshot().counters.items() if its == name)
