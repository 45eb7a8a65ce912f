"""Workers under a virtual clock: both machines and both loops, as in production, without threads."""

import json

import pytest
from virtual_world import HeldPool, World

from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create
from penstock.core.position import TRIM_HORIZON, Position, Sentinel, at_record
from penstock.errors import HandlerFailed, LeaseLost, UsageError

LEASE_S = 9.0
MARGIN_S = LEASE_S / 10
ROUND_S = 0.8 * LEASE_S * 1.2  # the longest a round's interval is drawn


def checkpoints(world: World) -> dict[str, str]:
    return {lease.key: str(lease.checkpoint) for lease in world.table.scan().leases}


# --- delivering -----------------------------------------------------------------------------------------


def test_every_record_is_delivered_once_and_in_order_per_shard(world):
    sent = world.put(500)
    worker = world.worker("a")
    world.run(60)
    assert sorted(worker.data()) == sorted(sent)
    for shard in world.kinesis.shards.values():
        assert [d for _, s, d in worker.delivered if s == shard.shard_id] == [r.data for r in shard.records]


def test_an_application_begins_where_its_user_says_shard_by_shard(world, caplog):
    parent = "shardId-000000000000"
    world.put(170, "before")
    world.kinesis.split(parent)
    world.put(170, "after")
    children = [shard for shard in world.kinesis.shards.values() if parent in shard.parents]
    named, other = sorted(children, key=lambda shard: -len(shard.records))
    place = len(named.records) // 2
    start = {named.shard_id: named.records[place - 1].sequence_number, "shardId-000000000077": "123"}
    worker = world.worker("a", starting_position=json.dumps(start))
    world.run(60)
    expected = [record.data for record in named.records[place:] + other.records]
    for shard in world.kinesis.shards.values():
        if shard not in children and shard.shard_id != parent:
            expected += [record.data for record in shard.records]
    assert place > 0
    assert sorted(worker.data()) == sorted(expected)
    assert "shard shardId-000000000077 is named in the starting position" in caplog.text


def test_checkpoints_follow_the_handler_within_the_interval_or_a_renewal(world):
    world.put(100)
    world.worker("a")
    world.run(60)
    for shard_id, checkpoint in checkpoints(world).items():
        assert checkpoint == f"{world.kinesis.shards[shard_id].records[-1].sequence_number}.0"


def test_a_graceful_stop_checkpoints_everything_and_frees_the_leases_at_once(world):
    sent = world.put(200)
    worker = world.worker("a", checkpoint_interval_s=3600.0)
    world.run(60, until=lambda: len(worker.delivered) == len(sent))
    before_s = world.clock.now_s
    worker.runtime.request_stop()
    world.run(60, until=worker.runtime.has_ended.is_set)
    assert world.clock.now_s - before_s < 0.1
    assert set(world.owners().values()) == {None}
    after = world.worker("b")
    world.run(60)
    assert after.delivered == []


def test_after_a_stop_the_others_have_the_leases_in_one_round():
    world = World(shard_count=12)
    a, b, c = (world.worker(name) for name in "abc")
    world.run(60)
    assert [len(world.held_by(w)) for w in (a, b, c)] == [4, 4, 4]
    b.runtime.request_stop()
    world.run(ROUND_S + 0.5)
    assert [len(world.held_by(w)) for w in (a, b, c)] == [6, 0, 6]


def test_a_fourth_worker_has_its_share_in_one_round_and_nothing_is_delivered_twice():
    world = World(shard_count=12)
    workers = [world.worker(name) for name in "abc"]
    sent = world.put(400)
    world.run(60)
    workers.append(world.worker("d"))
    sent += world.put(400, "n")
    world.run(ROUND_S + 0.5)
    assert [len(world.held_by(w)) for w in workers] == [3, 3, 3, 3]
    sent += world.put(400, "m")
    world.run(30)
    assert sorted(d for w in workers for d in w.data()) == sorted(sent)


def test_the_records_of_children_come_after_those_of_their_parent(world):
    first = world.put(50, "before")
    world.kinesis.split("shardId-000000000000")
    second = world.put(50, "after")
    worker = world.worker("a")
    world.run(60)
    assert sorted(worker.data()) == sorted(first + second)
    shards = [shard for _, shard, _ in worker.delivered]
    last_of_parent = max(i for i, shard in enumerate(shards) if shard == "shardId-000000000000")
    first_of_children = min(
        i for i, shard in enumerate(shards) if shard in ("shardId-000000000004", "shardId-000000000005")
    )
    assert last_of_parent < first_of_children
    assert checkpoints(world).get("shardId-000000000000", "SHARD_END") == "SHARD_END"


def test_a_throttled_stream_is_read_at_most_five_times_a_second_and_shard():
    world = World(shard_count=1)
    world.put(300)
    world.kinesis.throttled_reads = 5
    worker = world.worker("a", max_records=1)
    world.run(30)
    times = [at for at, _ in world.kinesis.reads]
    assert all(times[index + 5] - times[index] > 1.0 for index in range(len(times) - 5))
    assert len(worker.delivered) > 100


def test_one_record_per_read_is_one_record_per_call():
    world = World(shard_count=1)
    sizes = []
    worker = world.worker("a", lambda batch: sizes.append(len(batch)), max_records=1)
    world.put(20)
    world.run(30)
    assert sizes == [1] * 20
    assert len(worker.delivered) == 20


def test_the_process_holds_no_more_than_its_buffer_and_reads_on_when_there_is_room():
    world = World(shard_count=4)
    for index in range(400):
        world.kinesis.put(f"key{index % 17}", b"x" * 1000)
    worker = world.worker("a", buffer_bytes_max=2000, max_records=1)
    world.run(120)
    assert len(worker.delivered) == 400


# --- losing ---------------------------------------------------------------------------------------------


def test_a_worker_that_cannot_renew_stops_delivering_before_its_leases_expire(world):
    worker = world.worker("a")
    other = world.worker("b", max_leases=1)
    world.put(50)
    world.run(60)
    worker.table.is_cut = True
    cut_s = world.clock.now_s
    count = len(worker.delivered)
    for _ in range(30):
        world.put(4, f"t{world.clock.now_s}-")
        world.run(1.0)
    late = [at for at, _, _ in worker.delivered[count:]]
    assert late
    assert max(late) <= cut_s + LEASE_S - MARGIN_S
    assert len(world.held_by(other)) == 1


def test_a_worker_that_wakes_up_after_its_lease_time_delivers_nothing_unchecked():
    world = World(shard_count=2)
    a = world.worker("a")
    world.run(30)
    b = world.worker("b")
    a.is_paused = True
    sent = world.put(20, "while-paused")
    world.run(40, until=lambda: len(world.held_by(b)) == 2)
    world.run(10)
    assert sorted(b.data()) == sorted(sent)
    a.is_paused = False
    count = len(a.delivered)
    for _ in range(50):  # its delivering thread wakes up first, with reads due and records in the stream
        a.runtime.delivery.run_once(world.clock.now_s)
    assert len(a.delivered) == count
    more = world.put(20, "later")
    world.run(60)
    assert len(world.held_by(a)) == 1
    assert sorted(a.data()[count:] + b.data()[20:]) == sorted(more)


def test_a_call_that_waited_for_a_thread_beyond_the_deadline_is_not_begun():
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool)
    world.run(20)
    pool.is_open = False
    sent = world.put(5)
    world.run(2)
    worker.is_paused = True
    world.run(LEASE_S)
    assert pool.let_go() == 1
    assert worker.delivered == []
    worker.is_paused = False
    world.run(30)
    assert worker.data() == sent


def test_a_shard_that_comes_back_is_not_read_before_the_old_call_is_over():
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool)
    world.run(20)
    pool.is_open = False
    sent = world.put(3)
    world.run(2)
    worker.table.is_cut = True
    world.run(2 * LEASE_S)
    worker.table.is_cut = False
    reads = len(world.kinesis.reads)
    world.run(2 * LEASE_S)
    assert world.held_by(worker) == ["shardId-000000000000"]
    assert len(world.kinesis.reads) == reads
    pool.let_go()
    sent += world.put(3, "later")
    world.run(20)
    assert worker.data() == sent


def test_a_late_read_does_not_block_the_return_of_its_lost_shard():
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", read_pool=pool)
    world.run(20)
    pool.is_open = False
    world.run(2)
    worker.table.is_cut = True
    world.run(2 * LEASE_S)
    assert pool.let_go() >= 1
    world.run(1)
    worker.table.is_cut = False
    sent = world.put(3)
    world.run(3 * LEASE_S)
    assert worker.data() == sent


def test_a_killed_worker_is_replaced_within_the_lease_time_and_one_round(world):
    a, b = world.worker("a"), world.worker("b")
    world.run(60)
    assert len(world.held_by(a)) == len(world.held_by(b)) == 2
    a.is_paused = True
    world.workers.remove(a)
    world.run(LEASE_S + ROUND_S)
    assert len(world.held_by(b)) == 4


def test_no_checkpoint_ever_goes_back_and_every_record_comes_whatever_is_cut():
    world = World(shard_count=4, seed=3)
    workers = [world.worker(name) for name in "abc"]
    sent, highest = [], {}
    for step in range(40):
        sent += world.put(10, f"s{step}-")
        victim = workers[step % 3]
        if step % 7 == 2:
            victim.table.is_cut = True
        if step % 7 == 6:
            for worker in workers:
                worker.table.is_cut = worker.is_paused = False
        if step % 11 == 5:
            victim.is_paused = True
        if step in (10, 20):
            world.kinesis.split(next(s.shard_id for s in world.kinesis.shards.values() if not s.children))
        for _ in range(4):
            world.run(1.0)
            for lease in world.table.scan().leases:
                assert lease.checkpoint >= highest.get(lease.key, TRIM_HORIZON)
                highest[lease.key] = lease.checkpoint
    for worker in workers:
        worker.table.is_cut = worker.is_paused = False
    world.run(120)
    assert {data for worker in workers for data in worker.data()} == set(sent)


# --- failing --------------------------------------------------------------------------------------------


def poison(word: bytes):
    def handle(batch):
        if any(record.data == word for record in batch):
            raise ValueError("poison")

    return handle


def test_a_failing_handler_stops_its_shard_loudly_and_only_its_shard(world, caplog):
    sent = world.put(100)
    worker = world.worker("a", poison(b"r50"), handler_retries_max=1, handler_backoff_max_s=0.5)
    world.run(30)
    bad = next(s.shard_id for s in world.kinesis.shards.values() if any(r.data == b"r50" for r in s.records))
    assert list(worker.runtime.delivery.stopped.failures) == [bad]
    others = [
        d for s in world.kinesis.shards.values() if s.shard_id != bad for d in (r.data for r in s.records)
    ]
    assert sorted(worker.data()) == sorted(others)
    assert len(others) < len(sent)
    assert world.owners()[bad] == "a"
    said = [r.getMessage() for r in caplog.records if "still stopped" in r.getMessage()]
    world.run(65)
    again = [r.getMessage() for r in caplog.records if "still stopped" in r.getMessage()]
    assert len(again) > len(said)


def test_a_failure_that_stops_the_worker_frees_its_leases_and_is_raised(world):
    world.put(100)
    worker = world.worker("a", poison(b"r50"), handler_retries_max=0, on_failure="stop_worker")
    world.run(30, until=worker.runtime.has_ended.is_set)
    assert isinstance(worker.runtime.failure, HandlerFailed)
    assert set(world.owners().values()) == {None}


def test_a_poisonous_record_goes_to_the_dead_letters_alone(world):
    sent = world.put(100)
    dead = []
    worker = world.worker(
        "a",
        poison(b"r50"),
        handler_retries_max=0,
        on_failure="dead_letter",
        dead_letter=lambda batch, error: dead.append(([r.data for r in batch], str(error))),
    )
    world.run(30)
    assert dead == [([b"r50"], "poison")]
    assert sorted([*worker.data(), b"r50"]) == sorted(sent)


def test_a_failing_record_is_repeated_before_anything_after_it():
    world = World(shard_count=1)
    failures = iter([True, True, False])
    seen = []

    def flaky(batch):
        seen.append([record.data for record in batch])
        if batch[0].data == b"r1" and next(failures):
            raise ValueError("not yet")

    worker = world.worker("a", flaky, max_records=1)
    world.put(3)
    world.run(30)
    assert seen == [[b"r0"], [b"r1"], [b"r1"], [b"r1"], [b"r2"]]
    assert worker.data() == [b"r0", b"r1", b"r2"]


def test_a_trimmed_position_stops_the_shard_and_says_what_to_do():
    world = World(shard_count=1)
    world.put(3)
    a = world.worker("a")
    world.run(20)
    a.runtime.request_stop()
    world.run(20, until=a.runtime.has_ended.is_set)
    world.put(3, "lost")
    world.clock.now_s += 86_400.0
    world.put(3, "kept")
    world.kinesis.trim("shardId-000000000000", 6)
    strict = world.worker("b")
    world.run(20)
    assert "on_data_loss='warn'" in str(strict.runtime.delivery.stopped.failures["shardId-000000000000"])
    strict.runtime.request_stop()
    world.run(20, until=strict.runtime.has_ended.is_set)
    lenient = world.worker("c", on_data_loss="warn")
    world.run(20)
    assert (strict.data(), lenient.data()) == ([], [b"kept0", b"kept1", b"kept2"])
    counted = world.metrics.snapshot().counters
    assert counted[("possible_data_loss", (("shard", "shardId-000000000000"),))] == 2


def test_an_expired_iterator_is_replaced_and_nothing_is_lost_or_repeated():
    world = World(shard_count=1)
    worker = world.worker("a")
    sent = world.put(3)
    world.run(20)
    fetch = world.kinesis.fetch_records
    expiries = iter([True, True])

    def expired_twice(stream, iterator, record_count_max=10_000):
        return fetch(
            stream, "shardId-000000000000|expired" if next(expiries, False) else iterator, record_count_max
        )

    world.kinesis.fetch_records = expired_twice
    sent += world.put(3, "later")
    world.run(20)
    assert worker.data() == sent


@pytest.mark.parametrize(
    ("start", "expected"),
    [("AT_TIMESTAMP:1700000003000", [b"new0", b"new1"]), ("LATEST", [b"old0", b"old1", b"new0", b"new1"])],
)
def test_a_moment_known_only_to_java_is_taken_from_our_options_or_all_is_read(start, expected):
    world = World(shard_count=1)
    world.clock.now_s = 1_700_000_000.0
    world.put(2, "old")
    world.clock.now_s += 5.0
    world.put(2, "new")
    checkpoint = Position(sentinel=Sentinel.AT_TIMESTAMP)
    world.table.write(Create(Lease("shardId-000000000000", checkpoint=checkpoint, hash_range=FULL_RANGE)))
    worker = world.worker("a", starting_position=start)
    world.run(20)
    assert worker.data() == expected


# --- checkpoints by hand --------------------------------------------------------------------------------


def test_batch_checkpoint_is_durable_when_it_returns():
    world = World(shard_count=1)
    stood = []

    def handle(batch):
        batch.checkpoint(batch[1])
        stood.append((checkpoints(world)["shardId-000000000000"], batch[1].sequence_number))

    world.put(4)
    world.worker("a", handle, checkpointing="manual")
    world.run(30)
    assert stood
    assert all(checkpoint == f"{number}.0" for checkpoint, number in stood)


def test_in_manual_mode_what_is_not_acknowledged_comes_again():
    world = World(shard_count=1)
    a = world.worker("a", lambda batch: batch.acknowledge(*batch[:2]), checkpointing="manual")
    world.put(5)
    world.run(30)
    assert a.data() == [b"r0", b"r1", b"r2", b"r3", b"r4"]
    a.runtime.request_stop()
    world.run(30, until=a.runtime.has_ended.is_set)
    b = world.worker("b", lambda batch: batch.checkpoint(), checkpointing="manual")
    world.run(30)
    assert b.data() == [b"r2", b"r3", b"r4"]


def test_a_checkpoint_after_the_lease_is_lost_says_so():
    world = World(shard_count=1)
    world.put(3)
    kept = []
    a = world.worker("a", kept.append, checkpointing="manual")
    world.run(30)
    a.table.is_cut = True
    world.worker("b", lambda batch: batch.checkpoint(), checkpointing="manual")
    world.run(40)
    with pytest.raises(LeaseLost, match="is delivered again by the shard's next reader"):
        kept[0].checkpoint()
    assert not kept[0].is_owned


def test_a_record_of_another_batch_is_refused():
    world = World(shard_count=1)
    kept = []
    world.worker("a", kept.append, max_records=1)
    world.put(2)
    world.run(30)
    with pytest.raises(UsageError, match="not of this batch"):
        kept[0].checkpoint(kept[1][0])
    with pytest.raises(UsageError, match="' is not a record: give one of this batch of shard"):
        kept[0].checkpoint(kept[0][0].sequence_number)  # as the KCL's checkpointer takes it


def test_keys_are_checkpointed_at_the_low_water_mark():
    world = World(shard_count=1)
    order = []

    def handle(batch):
        order.append([record.data for record in batch])
        assert len({record.partition_key for record in batch}) == 1

    worker = world.worker("a", handle, concurrency=4)
    sent = world.put(60)
    world.run(30)
    assert sorted(worker.data()) == sorted(sent)
    last = world.kinesis.shards["shardId-000000000000"].records[-1]
    assert checkpoints(world) == {"shardId-000000000000": str(at_record(last.sequence_number))}


# --- figures --------------------------------------------------------------------------------------------


def test_the_figures_that_are_promised_are_measured(world):
    sent = world.put(100)
    world.worker("a")
    world.run(60)
    seen = world.metrics.snapshot()
    assert sum(v for (name, _), v in seen.counters.items() if name == "records") == 100
    assert sum(v for (name, _), v in seen.counters.items() if name == "bytes") == sum(
        len(data) + len(f"key{index % 17}") for index, data in enumerate(sent)
    )
    assert seen.counters[("takes", (("reason", "unowned"),))] == 4
    assert {
        name: seen.gauges[(name, ())]
        for name in ("total_leases", "total_shards", "unclaimed_leases", "worker_leases")
    } == {
        "total_leases": 4,
        "total_shards": 4,
        "unclaimed_leases": 0,
        "worker_leases": 4,
    }
    shards = [labels for name, labels in seen.gauges if name == "millis_behind_latest"]
    assert sorted(shards) == [(("shard", f"shardId-{n:012d}"),) for n in range(4)]
    assert any(name == "checkpoint_latency_s" for name, _ in seen.distributions)


def lag_of(world, shard_id="shardId-000000000000"):
    return world.metrics.snapshot().gauges.get(("millis_behind_latest", (("shard", shard_id),)))


def test_records_that_wait_for_a_busy_handler_are_lag_although_the_tip_was_read():
    world = World(shard_count=1)
    pool = HeldPool()
    world.worker("a", handler_pool=pool)
    world.run(20)
    assert lag_of(world) == 0
    pool.is_open = False
    world.put(3)
    world.run(60)
    assert 50_000 < lag_of(world) <= 61_000
    pool.let_go()
    world.run(20)
    assert lag_of(world) == 0


def test_records_that_are_not_acknowledged_are_lag():
    world = World(shard_count=1)
    kept = []
    world.worker("a", kept.append, checkpointing="manual", max_records=1)
    world.put(2)
    world.run(60)
    assert 50_000 < lag_of(world) <= 61_000
    kept[0].acknowledge()
    kept[1].acknowledge()
    world.run(20)
    assert lag_of(world) == 0
