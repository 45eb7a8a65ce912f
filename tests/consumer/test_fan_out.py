"""Workers that read by enhanced fan-out, in virtual time: nothing is lost, and each key keeps its order."""

from itertools import pairwise

import pytest
from tiny_fan_out import TinyFanOut
from virtual_world import HeldPool, World

from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
from penstock.consumer.fetching import ShardFetcher
from penstock.errors import (
    NotFound,
    OptionError,
    Rejected,
    ResourceBusy,
    Throttled,
    UnknownOutcome,
    UsageError,
)
from penstock.ports.fan_out import StreamConsumer
from penstock.runtime.consumer_registration import ConsumerRegistration

FAN_OUT = {"retrieval": "fan-out"}


@pytest.fixture
def world() -> World:
    world = World()
    world.fan_out = TinyFanOut(world.kinesis, world.clock)
    return world


def delivered(*workers) -> list[bytes]:
    return [data for worker in workers for data in worker.data()]


def opened(world: World, shard_id: str) -> list[float]:
    return [at_s for at_s, shard, _ in world.fan_out.subscribed if shard == shard_id]


def counted(world: World, name: str) -> float:
    return sum(value for (its, _), value in world.metrics.snapshot().counters.items() if its == name)


def keeps_order(worker, prefix: str) -> bool:
    """Whether the records of each key were delivered in the order of their puts: `World.put` gives record n key n % 17."""
    numbers = [
        int(data.removeprefix(prefix.encode())) for data in worker.data() if data.startswith(prefix.encode())
    ]
    by_key = [[number for number in numbers if number % 17 == key] for key in range(17)]
    return all(found == sorted(found) for found in by_key)


def test_a_stream_is_read_by_subscriptions_alone(world):
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(200)
    world.run(60, until=lambda: sorted(worker.data()) == sorted(sent))
    later = world.put(50, "s")
    began_s = world.clock.now_s
    world.run(60, until=lambda: len(worker.data()) == 250)
    assert sorted(worker.data()) == sorted(sent + later)
    assert world.clock.now_s - began_s < 0.5  # pushed, not polled
    assert keeps_order(worker, "r")
    assert world.kinesis.reads == []


def test_an_idle_stream_costs_one_connection_for_each_shard_and_five_minutes(world):
    worker = world.worker("w", **FAN_OUT)
    world.run(1000)
    assert worker.data() == []
    for shard_id in world.kinesis.shards:
        times = opened(world, shard_id)
        assert len(times) == 4
        assert [b - a for a, b in pairwise(times)] == pytest.approx([300.0] * 3)
    sent = world.put(10)
    world.run(10, until=lambda: len(worker.data()) == 10)
    assert sorted(worker.data()) == sorted(sent)


@pytest.mark.parametrize("options", [FAN_OUT, {"retrieval": "auto", "fan_out_after_s": 6.0}])
def test_a_reader_at_the_trim_horizon_stays_subscribed(options):
    world = World(shard_count=1)
    world.fan_out = TinyFanOut(world.kinesis, world.clock)
    world.kinesis.contended = {"shardId-000000000000"}  # with `auto`, only such a shard is pushed
    # Less than the slack for clocks that differ: unread records may always be about to leave.
    worker = world.worker("w", retention_s=4.0, **options)
    sent: list[bytes] = []
    while not world.fan_out.subscribed:
        sent += world.put(1, f"a{len(sent)}-")
        world.run(1)
    sent += world.put(60)
    world.run(4, until=lambda: len(worker.data()) >= len(sent))
    assert worker.data() == sent
    assert len(world.fan_out.subscribed) == 1


def test_splits_are_followed_and_children_come_behind_their_parent(world):
    worker = world.worker("w", **FAN_OUT)
    before = world.put(100, "a")
    world.run(5)
    for shard_id in ("shardId-000000000000", "shardId-000000000002"):
        world.kinesis.split(shard_id)
    after = world.put(100, "b")
    world.run(60, until=lambda: len(worker.data()) == 200)
    assert sorted(worker.data()) == sorted(before + after)
    for key in range(17):
        assert [d for d in worker.data() if int(d[1:]) % 17 == key] == [
            f"{prefix}{n}".encode() for prefix in "ab" for n in range(100) if n % 17 == key
        ]


def test_a_lease_moves_and_the_connection_ends_before_the_next_owner_begins(world):
    first = world.worker("w1", **FAN_OUT)
    sent = world.put(100)
    world.run(20)
    second = world.worker("w2", **FAN_OUT)
    world.run(60, until=lambda: len(world.held_by(second)) == 2)
    sent += world.put(100, "s")
    world.run(60, until=lambda: len(delivered(first, second)) >= 200)
    assert sorted(delivered(first, second)) == sorted(sent)  # nothing twice: the move was graceful
    assert second.data()
    assert counted(world, "subscriptions_taken_over") == 0


def test_the_shards_of_a_worker_that_died_are_taken_over(world):
    first, second = world.worker("w1", **FAN_OUT), world.worker("w2", **FAN_OUT)
    sent = world.put(100)
    world.run(40, until=lambda: len(delivered(first, second)) == 100 and len(world.held_by(second)) == 2)
    world.run(5)  # done records are checkpointed
    first.is_paused = True  # its connections stay open and are not read
    sent += world.put(100, "s")
    world.run(60, until=lambda: len(world.held_by(second)) == 4)
    world.run(30, until=lambda: len(delivered(first, second)) == 200)
    assert sorted(delivered(first, second)) == sorted(sent)


def test_a_worker_whose_lease_is_another_ones_does_not_wrestle_for_the_subscription(world):
    first = world.worker("w1", **FAN_OUT)
    world.run(20)
    first.table.is_cut = True
    second = world.worker("w2", **FAN_OUT)
    world.run(60, until=lambda: len(world.held_by(second)) == 4)
    world.run(20)
    count = len(world.fan_out.subscribed)
    sent = world.put(50)
    world.run(60)
    assert sorted(second.data()) == sorted(sent)
    assert first.data() == []
    assert len(world.fan_out.subscribed) == count  # no subscription is taken over any more


def test_each_connection_that_ends_early_is_begun_again_behind_its_last_event(world):
    world.fan_out.events_per_connection = 2
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(120)
    world.run(600, until=lambda: len(worker.data()) >= 120)
    assert sorted(worker.data()) == sorted(sent)
    assert keeps_order(worker, "r")
    for shard_id in world.kinesis.shards:
        times = opened(world, shard_id)
        assert all(b - a >= 5.0 for a, b in pairwise(times))


def test_an_event_that_comes_twice_is_delivered_once(world):
    world.fan_out.is_each_event_sent_twice = True
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(120)
    world.run(60, until=lambda: len(worker.data()) >= 120)
    world.run(20)
    assert sorted(worker.data()) == sorted(sent)
    assert keeps_order(worker, "r")


def test_lost_connections_are_begun_again_at_once(world):
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(30)
    world.run(60, until=lambda: len(worker.data()) == 30)
    world.run(20)
    world.fan_out.break_all()
    sent += world.put(30, "s")
    world.run(5, until=lambda: len(worker.data()) == 60)
    assert sorted(worker.data()) == sorted(sent)


def test_half_open_connections_are_given_up_and_nothing_is_lost(world):
    worker = world.worker("w", **FAN_OUT)
    world.run(20)
    world.fan_out.silence_all()
    sent = world.put(30)
    world.run(60, until=lambda: len(worker.data()) == 30)
    assert sorted(worker.data()) == sorted(sent)
    assert world.held_by(worker) == sorted(world.kinesis.shards)  # the leases were renewed meanwhile


def test_a_stalled_handler_holds_up_its_own_events_and_breaks_no_connection(world):
    pool = HeldPool()
    worker = world.worker("w", handler_pool=pool, prefetch_bytes_max=1, **FAN_OUT)
    sent = world.put(40)
    pool.is_open = False
    world.run(200)
    assert worker.data() == []
    assert all(
        len(opened(world, shard_id)) == 1 for shard_id in world.kinesis.shards
    )  # a stall is not a failure
    pool.let_go()
    world.run(60, until=lambda: len(worker.data()) == 40)
    assert sorted(worker.data()) == sorted(sent)
    assert counted(world, "read_failures") == 0


def test_a_first_call_that_is_refused_or_fails_is_made_again(world):
    world.fan_out.subscribe_errors = [
        ResourceBusy("young"),
        Throttled("slow"),
        NotFound("shard?"),
        ResourceBusy("young"),
    ]
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(40)
    world.run(60, until=lambda: len(worker.data()) == 40)
    assert sorted(worker.data()) == sorted(sent)


def test_a_deregistered_consumer_is_registered_again_and_no_shard_counts_as_ended(world):
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(20)
    world.run(60, until=lambda: len(worker.data()) == 20)
    world.fan_out.deregister_consumer("arn:orders", "app")
    world.fan_out.break_all()
    sent += world.put(20, "s")
    world.run(60, until=lambda: len(worker.data()) == 40)
    assert sorted(worker.data()) == sorted(sent)
    assert world.fan_out.registrations == 2


@pytest.fixture
def crowded(world) -> World:
    """The worker's consumer was deleted, and 20 others have the stream's places."""
    worker = world.worker("w", **FAN_OUT)
    world.put(20)
    world.run(60, until=lambda: len(worker.data()) == 20)
    world.fan_out.deregister_consumer("arn:orders", "app")
    for number in range(20):
        name = f"c{number}"
        world.fan_out.consumers[name] = StreamConsumer(name, f"arn:{name}", "ACTIVE", 0)
    world.fan_out.break_all()
    world.put(20, "s")
    world.run(20)
    assert len(worker.data()) == 20
    return world


def test_a_consumer_whose_place_others_took_goes_on_when_there_is_one_again(crowded):
    (worker,) = crowded.workers
    del crowded.fan_out.consumers["c7"]
    crowded.run(60, until=lambda: len(worker.data()) == 40)
    assert len(set(worker.data())) == 40
    assert counted(crowded, "shard_stops") == 0


def test_a_consumer_whose_place_others_keep_stops_its_shards_and_says_why(crowded):
    (worker,) = crowded.workers
    crowded.run(600, until=worker.runtime.has_ended.is_set)
    assert "arn:orders has 20 consumers (c0, c1," in str(worker.runtime.failure)
    assert "refuses position" not in str(worker.runtime.failure)


def test_a_worker_that_stops_leaves_no_connection_open(world):
    worker = world.worker("w", **FAN_OUT)
    world.put(20)
    world.run(30, until=lambda: len(worker.data()) == 20)
    worker.runtime.request_stop()
    world.run(30, until=worker.runtime.has_ended.is_set)
    assert not [each for each in world.fan_out.streams if each.is_open]


def test_a_step_that_waited_while_its_lease_was_lost_leaves_no_connection_open(world):
    threads = HeldPool()
    threads.is_open = False
    first = world.worker("w1", read_pool=threads, **FAN_OUT)
    world.run(20, until=lambda: len(world.held_by(first)) == 4)
    first.table.is_cut = True
    world.run(30)  # the leases run out, and no worker has subscribed yet
    assert world.fan_out.subscribed == []
    while threads.let_go():
        world.run(5)
    assert not [each for each in world.fan_out.streams if each.is_open]


def test_an_event_that_cannot_be_taken_is_read_again(world, monkeypatch, caplog):
    on_page, failures = ShardFetcher.on_page, [ZeroDivisionError("a defect")]

    def fail_once(*arguments):
        if failures:
            raise failures.pop()
        on_page(*arguments)

    monkeypatch.setattr(ShardFetcher, "on_page", fail_once)
    worker = world.worker("w", **FAN_OUT)
    sent = world.put(20, "a")
    world.run(60, until=lambda: len(worker.data()) >= 20)
    assert sorted(worker.data()) == sorted(sent)
    assert "an event could not be taken" in caplog.text


# --- the registered consumer ------------------------------------------------------------------------------


def registration(world: World) -> ConsumerRegistration:
    return ConsumerRegistration(world.fan_out, "arn:orders", "billing", world.clock, world.chance)


def test_a_consumer_is_registered_once_and_waited_for(world):
    mine, others = registration(world), registration(world)
    arn = mine.fetch_arn()
    assert world.fan_out.fetch_consumer("arn:orders", "billing").status == "ACTIVE"
    assert others.fetch_arn() == mine.fetch_arn() == arn
    assert world.fan_out.registrations == 1


@pytest.mark.parametrize(
    "error", [ResourceBusy("another worker was first"), UnknownOutcome("no answer"), Throttled("slow")]
)
def test_a_registration_that_did_not_succeed_is_looked_for_and_made_again(world, error):
    world.fan_out.register_errors = [error]
    assert registration(world).fetch_arn().endswith("billing:1")


def test_a_stream_with_all_its_consumers_says_which_and_what_to_do(world):
    for number in range(20):
        name = f"c{number}"
        world.fan_out.consumers[name] = StreamConsumer(name, f"arn:{name}", "ACTIVE", 0)
    with pytest.raises(Rejected, match=r"billing.*arn:orders has 20 consumers \(c0, c1,.*--deregister NAME"):
        registration(world).fetch_arn()


def test_a_consumer_that_stays_in_creation_is_an_error_after_a_minute(world):
    world.fan_out.consumers["billing"] = StreamConsumer("billing", "arn:b", "CREATING", 10**15)
    began_s = world.clock.now_s
    with pytest.raises(ResourceBusy, match=r"billing of stream arn:orders is CREATING"):
        registration(world).fetch_arn()
    assert 60 <= world.clock.now_s - began_s < 70


def test_who_asks_while_another_thread_is_looking_does_not_wait(world, monkeypatch):
    world.fan_out.consumers["billing"] = StreamConsumer("billing", "arn:b", "CREATING", 10**15)
    mine, refusals = registration(world), []
    sleep = world.clock.sleep

    def ask_meanwhile(duration_s):
        with pytest.raises(ResourceBusy, match="is being found or registered") as raised:
            mine.fetch_arn()
        refusals.append(raised.value)
        world.fan_out.consumers["billing"] = StreamConsumer("billing", "arn:b", "ACTIVE", 0)
        sleep(duration_s)

    monkeypatch.setattr(world.clock, "sleep", ask_meanwhile)
    assert mine.fetch_arn() == "arn:b"
    assert len(refusals) == 1


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retrieval": "push"}, "retrieval='push': expected 'polling', 'fan-out' or 'auto'"),
        ({"consumer_name": "billing"}, "has no effect with retrieval='polling'"),
        (
            {"fan_out_after_s": 5},
            "fan_out_after_s=5 has no effect with retrieval='polling': set retrieval='auto'",
        ),
        (
            {"retrieval": "fan-out", "polling_after_s": 5},
            "polling_after_s=5 has no effect with retrieval='fan-out'",
        ),
        ({"retrieval": "fan-out", "consumer_name": "a b"}, "1 to 128 letters"),
        ({"retrieval": "auto", "fan_out_after_s": 0}, "fan_out_after_s=0: expected more than 0"),
        ({"retrieval": "auto", "polling_after_s": -1}, "polling_after_s=-1: expected more than 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        ConsumerOptions(**options)


def test_an_applications_name_that_no_consumer_can_have_asks_for_one(world):
    ports = ConsumerPorts(world.kinesis, world.table, fan_out=world.fan_out)
    with pytest.raises(OptionError, match=r"give one as consumer_name"):
        Consumer("orders", "billing app", print, ports=ports, retrieval="fan-out")


@pytest.mark.parametrize("retrieval", ["fan-out", "auto"])
def test_ports_without_fan_out_are_refused(world, retrieval):
    with pytest.raises(UsageError, match=r"fan_out=\.\.\."):
        Consumer("orders", "app", print, ports=ConsumerPorts(world.kinesis, world.table), retrieval=retrieval)
