"""A consumer counts the memory of its records, and takes aggregates apart when there is room."""

import gc
import tracemalloc
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from tiny_fan_out import TinyFanOut
from virtual_world import HeldPool, World

from penstock.aws.data_plane import WireRecord
from penstock.consumer import raw_records
from penstock.consumer.budget import MemoryBudget
from penstock.consumer.raw_records import deaggregate_page, raw_bytes
from penstock.core.aggregation import AggregateBuilder, DecodeCounts
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.core.reading.delivery import ShardDelivery
from penstock.core.reading.delivery_calls import QUEUE_MEMORY_BYTES, DeliveryOptions
from penstock.core.reading.record import Record, memory_bytes_of, record_bytes_of
from penstock.errors import Throttled

SHARD = "shardId-000000000000"


def aggregate(count: int, data: bytes = b"", key_count: int = 1) -> bytes:
    builder = AggregateBuilder()
    for number in range(count):
        builder.add(data, f"k{number % key_count}")
    return builder.build().data


def deaggregated(data: bytes) -> list[Record]:
    return deaggregate_page([WireRecord("7" * 56, data, "a", 1e9)], 1, SHARD, DecodeCounts(), None).records


def test_plain_records_are_deaggregated_the_same_at_once_and_one_by_one(monkeypatch):
    page = [
        WireRecord(str(10**55 + n), b"x" * n, None if n == 2 else f"k{n}", 1e9 + n // 2) for n in range(5)
    ]
    need_bytes = raw_bytes(page)
    rooms = (-1, 0, 1, need_bytes // 2, need_bytes - 1, need_bytes, need_bytes + 1)

    def taken(records, room_bytes):
        return deaggregate_page(records, room_bytes, SHARD, DecodeCounts(), None, stream="s")

    mixed = [*page[:2], WireRecord("7" * 56, aggregate(3), "a", 1e9), *page[2:]]
    at_once = [taken(records, room) for records in ([], page, mixed) for room in rooms]
    monkeypatch.setattr(raw_records, "_plain_records", lambda *_: None)
    assert at_once == [taken(records, room) for records in ([], page, mixed) for room in rooms]
    records = taken(page, need_bytes).records
    assert len(records) == len(page)
    assert memory_bytes_of(records) == sum(record.memory_bytes for record in records)
    assert record_bytes_of(records) == sum(record.record_bytes for record in records)


def empty_records(count):
    return deaggregated(aggregate(count))


def plain_records(count):
    return [
        Record(bytes(20), f"key{n:012d}", f"{n:056d}", 0, None, datetime.fromtimestamp(1e9 + n, UTC), SHARD)
        for n in range(count)
    ]


def keyed_records(count):
    return deaggregated(aggregate(count, b"0123456789", count))


@pytest.mark.parametrize(
    ("make", "concurrency"), [(empty_records, 1), (plain_records, 1), (keyed_records, 1), (keyed_records, 8)]
)
def test_what_a_record_counts_is_about_what_it_costs(make, concurrency):
    make(10)  # objects that are made once
    gc.collect()
    tracemalloc.start()
    try:
        machine = ShardDelivery(SHARD, TRIM_HORIZON, DeliveryOptions(concurrency=concurrency))
        machine.add(make(5000), 0)
        gc.collect()
        cost_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cost_bytes / 1.25 <= machine.waiting_bytes <= 3 * cost_bytes


def test_an_empty_record_counts_and_so_does_a_key_of_its_own():
    machine = ShardDelivery(SHARD, TRIM_HORIZON, DeliveryOptions(concurrency=2))
    first, second = empty_records(2)
    machine.add([first], 0)
    one_bytes = machine.waiting_bytes
    assert one_bytes == first.memory_bytes + QUEUE_MEMORY_BYTES
    machine.add([second], 0)  # the same key: the same queue
    assert machine.waiting_bytes == one_bytes + second.memory_bytes
    while (call := machine.take_call(0.0)) is not None:
        machine.on_returned(call.id, 0.0)
    assert machine.waiting_bytes == 0


@pytest.mark.parametrize("end", ["stop", "on_lease_lost", "fail"])
def test_nothing_counts_when_a_shard_has_left(end):
    options = DeliveryOptions(concurrency=4, retries_max=0, batch_records_max=1)
    machine = ShardDelivery(SHARD, TRIM_HORIZON, options)
    machine.add(keyed_records(6) + empty_records(6), 0)
    calls = [machine.take_call(0.0) for _ in range(4)]
    if end == "fail":
        machine.on_raised(calls.pop().id, ValueError("no"), 0.0, 0.5)
    else:
        getattr(machine, end)()
    for call in calls:
        machine.on_returned(call.id, 0.0)
    assert machine.waiting_bytes == 0


class Opened:
    """Counts the aggregates that were taken apart."""

    def __init__(self, monkeypatch):
        self.count = 0
        self.failures = iter(())
        real = raw_records.user_records

        def counted(*arguments):
            error = next(self.failures, None)
            if error is not None:
                raise error
            self.count += 1
            return real(*arguments)

        monkeypatch.setattr(raw_records, "user_records", counted)


@pytest.fixture
def opened(monkeypatch):
    return Opened(monkeypatch)


def put_aggregates(world, count, size):
    for number in range(count):
        world.kinesis.put("k", aggregate(size, b"%d" % number))
    return [b"%d" % number for number in range(count) for _ in range(size)]


def test_aggregates_wait_unopened_while_the_handler_is_busy_and_all_come_in_order(opened):
    world = World(shard_count=1)
    pool = HeldPool()
    pool.is_open = False
    sent = put_aggregates(world, 40, 100)
    # Room for about two aggregates of a hundred records.
    worker = world.worker("a", handler_pool=pool, prefetch_bytes_max=80_000)
    world.run(20)
    assert 1 <= opened.count <= 3
    pool.let_go()
    world.run(60)
    assert worker.data() == sent
    assert opened.count == 40


def test_a_full_process_still_opens_one_aggregate_of_each_shard(opened):
    world = World(shard_count=1)
    sent = put_aggregates(world, 10, 50)
    worker = world.worker("a", buffer_bytes_max=1)
    world.run(60)
    assert worker.data() == sent


@pytest.mark.parametrize("retrieval", ["polling", "fan-out"])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "handed over"])
def test_reads_that_answer_after_their_shards_have_left_leave_nothing_in_the_budget(retrieval, is_lost):
    world = World(shard_count=4)
    world.fan_out = TinyFanOut(world.kinesis, world.clock)
    pool = HeldPool()
    options = {"retrieval": retrieval, "read_pool": pool, "buffer_bytes_max": 20_000}
    worker = world.worker("a", **options)
    world.run(30)
    assert len(world.held_by(worker)) == 4
    pool.is_open = False
    sent = world.put(200, "under way")
    world.run(3)  # a read of every shard is under way
    if is_lost:
        worker.table.is_cut = True
        world.run(60)
        assert worker.runtime.delivery.runs() == []
        worker.table.is_cut = False
    else:
        world.worker("b", retrieval=retrieval)
        world.run(120, until=lambda: len(world.held_by(worker)) == 2)
        world.run(30)
    assert pool.let_go() >= 4
    world.run(60)
    assert worker.held_bytes() == 0
    sent += world.put(200, "later")
    world.run(120)
    assert sorted(data for each in world.workers for data in each.data()) == sorted(sent)


class HoldingRun:
    is_paused = False
    waiting_bytes = 60


def test_a_run_that_is_forgotten_is_not_booked_again():
    budget = MemoryBudget(100)
    staying, gone = HoldingRun(), HoldingRun()
    for run in (staying, gone):
        budget.add(run)
        budget.update(run)
    assert (budget.total_bytes, budget.has_room) == (120, False)
    budget.remove(gone)
    budget.update(gone)  # by a thread that was on its way
    assert (budget.total_bytes, budget.has_room) == (60, True)


def test_a_start_inside_an_aggregate_leaves_out_what_is_done(opened):
    world = World(shard_count=1)
    world.kinesis.put("k", aggregate(3, b"x"))
    number = world.kinesis.shards[SHARD].records[0].sequence_number
    world.worker("a", lambda batch: batch.checkpoint(batch[1]), checkpointing="manual")
    world.run(20)
    world.workers[0].runtime.request_stop()
    world.run(20, until=world.workers[0].runtime.has_ended.is_set)
    (lease,) = world.table.scan().leases
    assert lease.checkpoint == at_record(number, 1)
    after = world.worker("b")
    world.run(20)
    assert after.data() == [b"x"]


def test_an_aggregate_that_cannot_be_judged_now_is_deaggregated_later(opened):
    world = World(shard_count=1)
    sent = put_aggregates(world, 5, 10)
    opened.failures = iter([None, Throttled("slowly", operation="ListShards"), Throttled("slowly")])
    worker = world.worker("a")
    world.run(30)
    assert worker.data() == sent


def test_a_defect_in_taking_apart_is_retried_after_longer_pauses_without_loss(opened):
    world = World(shard_count=1)
    sent = put_aggregates(world, 5, 10)
    met_s = []

    def defects():
        for _ in range(12):
            met_s.append(world.clock.now_s)
            yield ZeroDivisionError("a defect")

    opened.failures = defects()
    worker = world.worker("a")
    world.run(400)
    assert worker.data() == sent
    pauses_s = [later_s - sooner_s for sooner_s, later_s in pairwise(met_s)]
    assert len(pauses_s) == 11
    assert min(pauses_s) >= 0.2
    assert max(pauses_s) > 2


def test_the_end_of_a_shard_waits_for_what_is_not_deaggregated_yet(opened):
    world = World(shard_count=1)
    sent = put_aggregates(world, 20, 50)
    world.kinesis.split(SHARD)
    worker = world.worker("a", prefetch_bytes_max=30_000)
    world.run(60)
    assert worker.data() == sent
    ended = [lease.key for lease in world.table.scan().leases if not lease.is_ended]
    assert sorted(ended) == ["shardId-000000000001", "shardId-000000000002"]
