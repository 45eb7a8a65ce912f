"""A worker whose shards have stopped: its reports, its metrics, and how it ends."""

import pytest
from real_threads import FAST, tiny_stream
from virtual_world import HeldPool, World

from penstock.consumer import Consumer, ConsumerPorts
from penstock.consumer.health import Health, judge_health
from penstock.consumer.kclpy import RecordProcessorBase, consumer_for
from penstock.core.leases.lease_writes import Take
from penstock.core.position import TRIM_HORIZON
from penstock.errors import AccessDenied, HandlerFailed, NotFound, Rejected, ShardsStopped
from penstock.runtime.lease_loop import LeaseSnapshot
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.wiring import open_lease_table
from waiting import wait_until

SHARD = "shardId-000000000000"
LEASE_S = 9.0
ROUND_S = 0.8 * LEASE_S


def poison(batch):
    raise ValueError("poison")


def poison_some(word):
    def handle(batch):
        if any(record.data == word for record in batch):
            raise ValueError("poison")

    return handle


def health(worker) -> Health:
    return worker.runtime.health("app")


def gauges(world, name) -> dict[tuple, float]:
    return {labels: value for (its, labels), value in world.metrics.snapshot().gauges.items() if its == name}


STAY = {"handler_retries_max": 0, "on_all_stopped": "stay"}


# --- ending ---------------------------------------------------------------------------------------------


def test_a_worker_whose_only_shard_stopped_ends_with_the_reason_and_frees_the_lease():
    world = World(shard_count=1)
    world.put(3)
    worker = world.worker("a", poison, handler_retries_max=0)
    world.run(10 * ROUND_S, until=worker.runtime.has_ended.is_set)
    failure = worker.runtime.failure
    assert isinstance(failure, ShardsStopped)
    assert isinstance(failure.failures[SHARD], HandlerFailed)
    assert "every shard that worker a held has stopped" in str(failure)
    assert "ValueError: poison" in str(failure)
    assert world.owners() == {SHARD: None}


def test_a_worker_goes_on_while_one_shard_can():
    world = World(shard_count=2)
    world.put(100)
    worker = world.worker("a", poison_some(b"r50"), handler_retries_max=0)
    world.run(20 * ROUND_S)
    assert not worker.runtime.has_ended.is_set()
    assert len(health(worker).stopped) == 1


def test_a_worker_that_ends_for_its_only_shard_leaves_the_others_at_work():
    world = World(shard_count=2)
    first = world.worker("a")
    world.run(30)
    second = world.worker("b", poison, handler_retries_max=0, on_all_stopped="stop_worker")
    world.run(10 * ROUND_S)  # it asks for a lease at once, and gets it when the other one has finished
    world.put(40)
    world.run(20 * ROUND_S, until=second.runtime.has_ended.is_set)
    assert isinstance(second.runtime.failure, ShardsStopped)
    assert not first.runtime.has_ended.is_set()


def test_children_that_wait_for_the_stopped_shard_keep_nobody_alive():
    world = World(shard_count=1)
    world.put(3)
    world.kinesis.split(SHARD)
    worker = world.worker("a", poison, handler_retries_max=0)
    world.run(10 * ROUND_S, until=worker.runtime.has_ended.is_set)
    assert isinstance(worker.runtime.failure, ShardsStopped)


def test_a_worker_that_is_to_stay_stays_and_stops_without_an_error():
    world = World(shard_count=1)
    world.put(3)
    worker = world.worker("a", poison, **STAY)
    world.run(20 * ROUND_S)
    assert not worker.runtime.has_ended.is_set()
    worker.runtime.request_stop()
    world.run(20, until=worker.runtime.has_ended.is_set)
    assert worker.runtime.failure is None


def test_a_stop_that_comes_before_the_end_is_noticed_tells_it_all_the_same():
    world = World(shard_count=1)
    world.put(3)
    worker = world.worker("a", poison, handler_retries_max=0)
    world.run(20, until=lambda: bool(worker.runtime.delivery.stopped))
    worker.runtime.request_stop()
    world.run(20, until=worker.runtime.has_ended.is_set)
    assert isinstance(worker.runtime.failure, ShardsStopped)


@pytest.fixture
def stream():
    return tiny_stream(1)


def consumer(stream, handler=None, table=None, **options):
    ports = ConsumerPorts(stream, table or MemoryLeaseTable("app"))
    return Consumer("orders", "app", handler, ports=ports, **FAST, **options)


def gone(*_):
    raise NotFound("the stream does not exist", operation="GetRecords")


def test_run_raises_when_every_shard_has_stopped(stream):
    stream.put("k", b"x")
    running = consumer(stream, poison, handler_retries_max=0)
    with pytest.raises(ShardsStopped, match="ValueError: poison") as caught:
        running.run()
    assert isinstance(caught.value.__cause__, HandlerFailed)
    assert list(running.failures) == [SHARD]
    assert running.health().stopped.keys() == {SHARD}


def test_a_loop_over_a_consumer_ends_with_the_error_too(stream):
    stream.put("k", b"x")
    got = []

    def use():
        for batch in consumer(stream):
            got.extend(record.data for record in batch)
            stream.fetch_records = stream.fetch_iterator = stream.fetch_shards = gone

    with pytest.raises(ShardsStopped) as caught:
        use()
    assert got == [b"x"]
    assert isinstance(caught.value.failures[SHARD], NotFound)


def test_a_processor_of_amazon_kclpy_that_fails_ends_its_consumer_too(stream):
    class Processor(RecordProcessorBase):
        def initialize(self, initialize_input):
            pass

        def process_records(self, process_records_input):
            raise ValueError("poison")

        def lease_lost(self, lease_lost_input):
            pass

    stream.put("k", b"x")
    ports = ConsumerPorts(stream, MemoryLeaseTable("app"))
    running = consumer_for(Processor, "orders", "app", ports=ports, handler_retries_max=0, **FAST)
    with pytest.raises(ShardsStopped, match="ValueError: poison"):
        running.run()


def test_leaving_a_loop_is_no_failure(stream):
    stream.put("k", b"x")
    for _ in consumer(stream, handler_retries_max=0):
        break


def test_a_deleted_stream_ends_its_consumer(stream):
    running = consumer(stream, lambda batch: None)
    running.start()
    wait_until(lambda: running.health().shards)
    stream.fetch_records = stream.fetch_iterator = stream.fetch_shards = gone
    wait_until(lambda: not running.is_running)
    with pytest.raises(ShardsStopped, match="the stream does not exist"):
        running.stop()


class ForeignTable(MemoryLeaseTable):
    def ensure_exists(self):
        raise Rejected("DynamoDB table app is not a lease table", operation="DescribeTable")


def test_a_table_that_is_no_lease_table_ends_the_consumer_at_once(stream):
    with pytest.raises(Rejected, match="not a lease table"):
        consumer(stream, lambda batch: None, ForeignTable()).run()


# --- reports while shards are stopped -------------------------------------------------------------------


def test_health_names_what_has_stopped_with_its_reason_and_growing_lag():
    world = World(shard_count=2)
    world.put(100)
    worker = world.worker("a", poison_some(b"r50"), **STAY)
    world.run(60)
    found = health(worker)
    (stopped,) = [shard for shard in found.shards if shard.state == "stopped"]
    assert "ValueError: poison" in stopped.stopped_reason
    assert 55_000 < stopped.lag_ms <= 61_000
    assert not found.is_healthy
    assert found.is_ready
    assert found.problems == (f"shard {stopped.shard_id} has stopped: {stopped.stopped_reason}",)
    assert found.lag_ms == stopped.lag_ms
    assert [shard.lag_ms for shard in found.shards if shard.state == "reading"] == [0]
    world.run(100)
    assert 155_000 < health(worker).lag_ms <= 161_000


def test_the_gauges_of_a_stopped_shard_stay_and_grow():
    world = World(shard_count=1)
    world.put(3)
    world.worker("a", poison, **STAY)
    world.run(60)
    lag = gauges(world, "millis_behind_latest")
    assert list(lag) == [(("shard", SHARD),)]
    assert 55_000 < lag[(("shard", SHARD),)] <= 61_000
    assert gauges(world, "stopped_shards") == {(): 1}
    assert gauges(world, "shard_stopped") == {(("reason", "handler_failed"), ("shard", SHARD)): 1}
    assert world.metrics.snapshot().counters[("shard_stops", (("shard", SHARD),))] == 1


def test_the_lease_says_to_others_that_its_shard_has_stopped_until_somebody_reads_it():
    world = World(shard_count=1)
    world.put(3)
    stopped = world.worker("a", poison, **STAY)
    world.run(20, until=lambda: bool(stopped.runtime.delivery.stopped))
    world.run(0.1)
    (row,) = world.table.scan().leases
    assert (row.stopped_reason, row.checkpoint) == ("handler_failed: ValueError: poison", TRIM_HORIZON)
    world.run(30)
    (row,) = world.table.scan().leases
    assert row.stopped_reason == "handler_failed: ValueError: poison"
    stopped.runtime.request_stop()
    world.run(20, until=stopped.runtime.has_ended.is_set)
    world.worker("a")
    world.run(30)
    (row,) = world.table.scan().leases
    assert (row.owner, row.stop_note) == ("a", None)


def test_a_shard_that_stops_keeps_its_progress_and_reports_at_the_next_renewal():
    world = World(shard_count=1)
    world.put(3)
    world.worker("a", poison_some(b"r2"), max_records=1, **STAY)
    world.run(20)
    (row,) = world.table.scan().leases
    assert row.stopped_reason == "handler_failed: ValueError: poison"
    assert row.checkpoint.sequence_number == world.kinesis.shards[SHARD].records[1].sequence_number


def test_the_gauges_say_at_once_that_a_shard_has_stopped():
    world = World(shard_count=1)
    world.put(3)
    worker = world.worker("a", poison, **STAY)
    world.run(20, until=lambda: bool(worker.runtime.delivery.stopped))
    world.run(0.1)
    assert gauges(world, "stopped_shards") == {(): 1}
    assert len(gauges(world, "shard_stopped")) == 1


def test_a_stopped_shard_that_another_worker_takes_is_in_sight_no_more():
    world = World(shard_count=1)
    world.put(3)
    worker = world.worker("a", poison, **STAY)
    world.run(30)
    (row,) = world.table.scan().leases
    world.table.write(Take(SHARD, row.counter, "b"))
    world.run(ROUND_S)
    assert health(worker).shards == ()
    assert health(worker).is_healthy
    assert gauges(world, "millis_behind_latest") == gauges(world, "shard_stopped") == {}
    assert gauges(world, "stopped_shards") == {(): 0}


def test_the_lag_of_a_shard_that_went_to_another_worker_is_shown_no_more():
    world = World(shard_count=2)
    world.worker("a")
    world.run(30)
    assert len(gauges(world, "millis_behind_latest")) == 2
    row = next(lease for lease in world.table.scan().leases if lease.key == SHARD)
    world.table.write(Take(SHARD, row.counter, "b"))
    world.run(ROUND_S)
    assert list(gauges(world, "millis_behind_latest")) == [(("shard", "shardId-000000000001"),)]


def test_a_healthy_worker_says_when_it_last_renewed_and_looked():
    world = World(shard_count=2)
    worker = world.worker("a")
    assert not health(worker).is_ready
    assert health(worker).table_scan_age_s is None
    world.put(10)
    world.run(60)
    found = health(worker)
    assert (found.is_healthy, found.is_ready, found.problems) == (True, True, ())
    assert [(shard.shard_id[-1], shard.state, shard.lag_ms) for shard in found.shards] == [
        ("0", "reading", 0),
        ("1", "reading", 0),
    ]
    assert 0 <= found.renewal_age_s < LEASE_S / 2
    assert 0 <= found.table_scan_age_s <= 1.2 * ROUND_S
    assert found.to_document()["shards"][0]["state"] == "reading"


def test_a_worker_that_does_not_reach_its_table_is_not_healthy():
    world = World(shard_count=1)
    worker = world.worker("a")
    world.run(30)
    worker.table.is_cut = True
    world.run(5 * ROUND_S)
    found = health(worker)
    assert (found.is_healthy, found.is_ready) == (False, False)
    assert any("the lease table could not be read for" in problem for problem in found.problems)
    assert gauges(world, "worker_leases") == {(): 0}


def test_a_worker_names_a_lease_whose_row_cannot_be_read_until_it_is_repaired(tmp_path):
    ports = ConsumerPorts(tiny_stream(1), open_lease_table(f"file://{tmp_path}/leases"))
    with Consumer("orders", "app", lambda _: None, ports=ports, **FAST) as running:
        wait_until(lambda: running.health().shards)
        assert running.health().problems == ()
        row = tmp_path / "leases" / f"{SHARD}.json"
        content = row.read_bytes()
        row.write_bytes(b"")
        named = f"the row of lease {SHARD} cannot be read: it is not a JSON document: "
        wait_until(lambda: any(each.startswith(named) for each in running.health().problems))
        row.write_bytes(content)
        wait_until(lambda: not running.health().problems)


def test_a_row_that_no_worker_can_read_leaves_every_worker_healthy_and_ready():
    found = judge_health(
        stream="orders",
        application="app",
        worker_id="a",
        failure=None,
        has_ended=False,
        is_stopping=False,
        shards=(),
        leases=LeaseSnapshot((), 59.0, 8.0, damaged_leases=("the row of lease s cannot be read: why",)),
        started_s=0.0,
        now_s=60.0,
        lease_duration_s=10.0,
    )
    assert found.problems == ("the row of lease s cannot be read: why",)
    assert (found.is_healthy, found.is_ready) == (True, True)


def test_a_handler_that_does_not_return_is_a_stalled_shard():
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool, stall_after_s=100.0)
    world.run(20)
    pool.is_open = False
    world.put(3)
    world.run(90)
    assert [shard.state for shard in health(worker).shards] == ["reading"]
    world.run(20)
    assert [shard.state for shard in health(worker).shards] == ["stalled"]
    assert health(worker).problems == (f"shard {SHARD} is behind and does not move",)
    pool.let_go()
    world.run(10)
    assert health(worker).is_healthy


@pytest.mark.parametrize("checkpointing", ["auto", "manual"])
def test_a_handler_that_does_not_return_is_a_stalled_shard_while_records_arrive(checkpointing):
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool, stall_after_s=100.0, checkpointing=checkpointing)
    world.run(20)
    pool.is_open = False
    for _ in range(24):  # they are read ahead
        world.put(3)
        world.run(5)
    assert [shard.state for shard in health(worker).shards] == ["stalled"]


def test_a_handler_that_keeps_failing_is_a_stalled_shard_while_records_arrive():
    world = World(shard_count=1)
    worker = world.worker(
        "a", poison, stall_after_s=100.0, handler_retries_max=10**6, handler_backoff_max_s=1.0
    )
    for _ in range(26):
        world.put(3)
        world.run(5)
    assert [shard.state for shard in health(worker).shards] == ["stalled"]


def test_a_shard_whose_records_are_delivered_and_not_yet_checkpointed_is_not_stalled():
    world = World(shard_count=1)
    worker = world.worker("a", lambda batch: None, stall_after_s=50.0, checkpointing="manual")
    for _ in range(26):
        world.put(3)
        world.run(5)
    assert [shard.state for shard in health(worker).shards] == ["reading"]


def test_reads_that_fail_again_and_again_are_told_with_their_error():
    world = World(shard_count=1)
    worker = world.worker("a")
    world.run(20)
    fetch = world.kinesis.fetch_records

    def denied(*_):
        raise AccessDenied("not for you", operation="GetRecords")

    world.kinesis.fetch_records = denied
    world.run(60, until=lambda: bool(health(worker).problems))
    assert health(worker).problems == (f"shard {SHARD} cannot be read: not for you",)
    world.kinesis.fetch_records = fetch
    world.run(30)
    assert health(worker).is_healthy


def test_reads_that_are_asked_to_slow_down_are_no_illness():
    world = World(shard_count=1)
    worker = world.worker("a")
    world.run(20)
    world.kinesis.throttled_reads = 50
    world.run(60)
    assert world.kinesis.throttled_reads <= 45  # its reads were refused all the time
    assert health(worker).is_healthy


def test_reads_that_are_throttled_until_the_shard_is_stalled_are_its_cause():
    world = World(shard_count=1)
    worker = world.worker("a", stall_after_s=100.0)
    world.run(20)
    world.put(3)
    world.kinesis.throttled_reads = 10_000
    world.run(130)
    stalled, cause = health(worker).problems
    assert stalled == f"shard {SHARD} is behind and does not move"
    assert cause.startswith(f"shard {SHARD} cannot be read: ")
    assert not health(worker).is_ready


def test_a_worker_that_ends_names_what_had_stopped(caplog):
    world = World(shard_count=2)
    world.put(100)
    worker = world.worker("a", poison_some(b"r50"), handler_retries_max=0)
    world.run(30)
    (bad,) = health(worker).stopped
    worker.runtime.request_stop()
    world.run(20, until=worker.runtime.has_ended.is_set)
    assert worker.runtime.failure is None
    assert caplog.records[-1].getMessage() == f"worker a ends; stopped before: {bad}"
    assert list(health(worker).stopped) == [bad]


def test_children_wait_and_a_worker_that_stops_is_not_ready():
    world = World(shard_count=1)
    pool = HeldPool()
    worker = world.worker("a", handler_pool=pool)
    world.put(3)
    world.kinesis.split(SHARD)
    pool.is_open = False
    world.run(20)
    assert health(worker).is_ready
    worker.runtime.request_stop()
    world.run(1)
    found = health(worker)
    assert (found.is_ready, [shard.state for shard in found.shards]) == (False, ["leaving"])
    pool.let_go()
    world.run(20, until=worker.runtime.has_ended.is_set)
    found = health(worker)
    assert (found.is_healthy, found.problems, found.shards) == (False, ("the worker has stopped",), ())


def test_a_consumer_that_was_not_started_says_so(stream):
    found = consumer(stream, print).health()
    assert (found.is_healthy, found.is_ready) == (False, False)
    assert found.problems == ("the consumer was not started",)
