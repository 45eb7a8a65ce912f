"""The consumer on real threads: iterating, stopping, signals, bounds. The ports are in memory, and times are short."""

import logging
import os
import signal
import threading
import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta, timezone

import pytest
from real_threads import FAST, put, unfinished

from few_threads import leave_threads
from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record, at_timestamp
from penstock.core.starting import StartingPosition
from penstock.errors import AccessDenied, HandlerFailed, OptionError, PenstockError, PositionError, UsageError
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.runtime.system_clock import SystemClock
from waiting import DEADLINE_S, wait_until


def consumer(stream, table, handler=None, **options) -> Consumer:
    dead_letter = options.pop("dead_letter", None)
    return Consumer(
        "orders",
        "app",
        handler,
        ports=ConsumerPorts(stream, table),
        dead_letter=dead_letter,
        **{**FAST, **options},
    )


def test_start_and_stop_as_a_context_manager(stream, table):
    sent, got = put(stream, 50), []
    with consumer(stream, table, lambda batch: got.extend(r.data for r in batch)) as running:
        wait_until(lambda: len(got) == 50)
        assert running.is_running
    assert not running.is_running
    assert sorted(got) == sorted(sent)
    assert unfinished(stream, table) == []


def test_a_consumer_whose_logger_is_disabled_warns_when_it_starts(stream, table, monkeypatch):
    monkeypatch.setattr(logging.getLogger("penstock.consumer"), "disabled", True)
    with pytest.warns(RuntimeWarning, match="disable_existing_loggers=False"), consumer(stream, table, print):
        """It works."""


def test_iterating_gives_every_record_and_a_batch_is_done_when_the_next_is_asked_for(stream, table):
    sent, got = put(stream, 50), []
    for batch in consumer(stream, table, max_records=10):
        got += [record.data for record in batch]
        if len(got) == 50:
            break
    assert sorted(got) == sorted(sent)
    left = unfinished(stream, table)
    assert (
        0 < len(left) <= 20
    )  # the batch in whose body the loop was left, and perhaps one of the other shard
    again = [record.data for batch in _some(consumer(stream, table), len(left)) for record in batch]
    assert sorted(again) == sorted(left)


def _some(pulled, count):
    got = 0
    for batch in pulled:
        yield batch
        got += len(batch)
        if got >= count:
            return


def test_an_iterated_batch_that_is_checkpointed_does_not_come_again(stream, table):
    put(stream, 20)
    got = 0
    for batch in consumer(stream, table):
        batch.checkpoint()
        got += len(batch)
        if got == 20:
            break
    assert unfinished(stream, table) == []


def test_an_error_in_the_loops_body_stops_the_consumer_and_comes_out(stream, table):
    put(stream, 5)

    def use():
        for batch in consumer(stream, table):
            assert len(batch) / 0

    with pytest.raises(ZeroDivisionError):
        use()
    assert len(unfinished(stream, table)) == 5


def test_a_second_loop_over_a_consumer_is_refused(stream, table):
    """As a cell of a notebook that is run again: the consumer has ended with the first loop, and would give nothing."""
    put(stream, 5)
    looped = consumer(stream, table)
    for _ in looped:
        break
    with pytest.raises(UsageError, match="a loop over this consumer has ended before"):
        next(iter(looped))


def test_threads_that_iterate_one_after_another_are_not_taken_for_each_other(stream, table):
    """The system gives the identifier of a thread that has ended to the next one."""
    put(stream, 5)
    looped, failures = consumer(stream, table), []

    def iterate():
        try:
            for _ in looped:
                break
        except Exception as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    for _ in range(3):
        thread = threading.Thread(target=iterate, daemon=True)
        thread.start()
        thread.join(90)
        assert not thread.is_alive()
    assert failures == []


def test_a_consumer_may_be_opened_and_then_iterated(stream, table):
    sent, got = put(stream, 20), []
    with consumer(stream, table) as opened:
        for batch in opened:
            got += [record.data for record in batch]
            if len(got) == 20:
                batch.acknowledge()
                break
    assert sorted(got) == sorted(sent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_run_gracefully(stream, table, number):
    sent, got = put(stream, 50), []
    before = signal.getsignal(number)
    last_one = iter([True])  # two handlers at once may both see that all is there

    def handle(batch):
        got.extend(record.data for record in batch)
        if len(got) == 50 and next(last_one, False):
            os.kill(os.getpid(), number)

    consumer(stream, table, handle).run()
    assert sorted(got) == sorted(sent)
    assert unfinished(stream, table) == []
    assert signal.getsignal(number) is before


def test_stop_finishes_the_call_in_hand_and_its_records_are_checkpointed(stream, table):
    put(stream, 2)
    begun, go_on = threading.Event(), threading.Event()

    def handle(_batch):
        begun.set()
        go_on.wait(60)

    running = consumer(stream, table, handle)
    running.start()
    assert begun.wait(60)
    running.request_stop()
    go_on.set()
    running.stop()
    assert len(unfinished(stream, table)) < 2


def test_a_handler_that_calls_stop_is_told_what_to_call(stream, table):
    put(stream, 2)

    def handle(_batch):
        running.stop()

    running = consumer(stream, table, handle, handler_retries_max=0, on_failure="stop_worker")
    with pytest.raises(
        HandlerFailed, match=r"stop\(\) waits for the handlers under way.*call request_stop\(\)"
    ):
        running.run()


def test_a_handler_that_never_returns_cannot_hold_up_the_stop_beyond_its_bound(stream, table):
    put(stream, 2)
    begun, never = threading.Event(), threading.Event()

    def handle(_batch):
        begun.set()
        never.wait(60)

    running = consumer(stream, table, handle, shutdown_timeout_s=1.0)
    running.start()
    assert begun.wait(60)
    began_s = time.monotonic()
    running.stop()
    assert time.monotonic() - began_s < 30.0
    never.set()


def test_a_consumer_shows_what_it_reads_and_whether_it_runs(stream, table):
    with consumer(stream, table, lambda batch: None, worker_id="w1") as running:
        assert (
            repr(running) == "Consumer(stream='orders', application='app', worker_id='w1', is_running=True)"
        )
    assert repr(running).endswith("is_running=False)")


def test_a_start_may_be_a_datetime_with_its_zone(stream):
    noon = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=-5)))
    assert ConsumerOptions(starting_position=noon).start.default == at_timestamp(1_769_878_800_000)
    future = datetime(2999, 1, 1, tzinfo=UTC)
    ports = ConsumerPorts(stream, MemoryLeaseTable("app"))
    consumer = Consumer({"orders": future}, "billing", print, ports=ports)
    with pytest.raises(PositionError, match=r"stream orders: starting_position=datetime.*is in the future"):
        consumer.start()


@pytest.mark.parametrize("start", [at_record("5"), SHARD_END, StartingPosition(default=at_record("5"))])
def test_a_place_in_one_shard_is_no_start_for_all(start):
    with pytest.raises(OptionError, match=r"starting_position=.* is a place in one shard; give"):
        ConsumerOptions(starting_position=start)


def test_a_start_at_a_moment_to_come_is_refused_before_a_lease_is_made(stream):
    table = MemoryLeaseTable("app")
    ports = ConsumerPorts(stream, table)
    start = "AT_TIMESTAMP 2999-01-01T00:00:00Z"
    consumer = Consumer("orders", "billing", print, ports=ports, starting_position=start)
    with pytest.raises(PositionError, match=r"starting_position='AT_TIMESTAMP 2999.*is in the future"):
        consumer.start()
    assert not table.scan().leases


def test_where_the_service_is_does_not_go_with_ports(stream, table):
    with pytest.raises(UsageError, match="ports are given, so endpoint_url, region would have no effect"):
        consumer(stream, table, lambda batch: None, region="eu-west-1", endpoint_url="http://127.0.0.1:1")


def test_run_raises_what_stopped_the_worker(stream, table):
    put(stream, 5)

    def handle(_batch):
        raise ValueError("boom")

    with pytest.raises(HandlerFailed, match="ValueError: boom") as caught:
        consumer(stream, table, handle, on_failure="stop_worker", handler_retries_max=0).run()
    assert isinstance(caught.value.__cause__, ValueError)


def test_records_whose_handler_returns_a_future_are_done_when_that_is(stream, table):
    put(stream, 1)
    begun, future = threading.Event(), Future()

    def handle(_batch):
        begun.set()
        return future

    running = consumer(stream, table, handle, checkpoint_interval_s=0)
    running.start()
    assert begun.wait(60)
    assert all(lease.checkpoint == TRIM_HORIZON for lease in table.scan().leases)
    running.request_stop()
    future.set_result("ignored")
    running.stop()
    assert unfinished(stream, table) == []


def test_a_handler_fails_as_the_future_that_it_returns(stream, table):
    put(stream, 1)
    failed, cancelled = Future(), Future()
    failed.set_exception(ValueError("boom"))
    cancelled.cancel()
    for future, word in ((failed, "ValueError: boom"), (cancelled, "the future of the call was cancelled")):
        with pytest.raises(HandlerFailed, match=word):
            consumer(
                stream,
                table,
                lambda _, returned=future: returned,
                on_failure="stop_worker",
                handler_retries_max=0,
            ).run()


def test_calls_of_different_keys_run_at_the_same_time(stream, table):
    both = threading.Barrier(2, timeout=DEADLINE_S)
    met = []

    def handle(_batch):
        both.wait()
        met.append(1)

    shard = next(iter(stream.shards.values()))
    keys = [f"k{n}" for n in range(50)]
    here = [key for key in keys if stream.put(key, b"x") == shard.shard_id][:2]
    for one in stream.shards.values():
        one.records = [r for r in one.records if r.partition_key in here]
    with consumer(stream, table, handle, concurrency=2):
        wait_until(lambda: len(met) == 2)


def test_a_defect_in_a_loop_stops_the_worker_and_is_raised(stream, table):
    running = consumer(stream, table, lambda batch: None)
    running.start()
    running._running.delivery.post("nonsense")
    wait_until(lambda: not running.is_running)
    with pytest.raises(AttributeError):
        running.stop()


def test_a_stream_that_cannot_be_used_is_said_at_the_start(stream, table):
    def denied(_stream):
        raise AccessDenied("no", operation="DescribeStreamSummary")

    stream.fetch_summary = denied
    with pytest.raises(AccessDenied):
        consumer(stream, table, lambda batch: None).run()


def test_stopping_what_was_never_started_does_nothing(stream, table):
    consumer(stream, table, lambda batch: None).stop()


@pytest.mark.parametrize("call", ["request_stop", "stop"])
def test_a_stop_that_is_asked_for_while_the_consumer_starts_is_not_lost(stream, table, call):
    running, fetch = consumer(stream, table, lambda batch: None), stream.fetch_summary

    def stop_and_fetch(name):
        stream.fetch_summary = fetch  # the worker asks again
        getattr(running, call)()
        return fetch(name)

    stream.fetch_summary = stop_and_fetch
    running.start()
    wait_until(lambda: not running.is_running)


@pytest.mark.parametrize("call", ["request_stop", "stop"])
def test_a_consumer_that_was_asked_to_stop_before_it_starts_stops_at_once(stream, table, call):
    running = consumer(stream, table, lambda batch: None)
    getattr(running, call)()
    running.start()
    wait_until(lambda: not running.is_running)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_start_without_enough_threads_leaves_none_and_may_be_repeated(stream, table, monkeypatch, count):
    sent, got = put(stream, 5), []
    running = consumer(stream, table, lambda batch: got.extend(record.data for record in batch))
    others = set(threading.enumerate())
    with monkeypatch.context() as limited:
        leave_threads(limited, count)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            running.start()
        wait_until(lambda: set(threading.enumerate()) <= others)
    assert not running.is_running
    with running:
        wait_until(lambda: len(got) == 5)
    assert sorted(got) == sorted(sent)


def test_a_consumer_starts_once(stream, table):
    running = consumer(stream, table, lambda batch: None)
    with running, pytest.raises(UsageError, match="started before"):
        running.start()


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"handler": None}, UsageError, "give a handler"),
        ({"concurency": 2}, OptionError, "did you mean concurrency"),
        ({"concurrency": 20}, OptionError, "handler_threads=20"),
        ({"on_failure": "dead_letter"}, UsageError, "dead_letter handler"),
        ({"dead_letter": print}, UsageError, "on_failure='dead_letter'"),
        ({"policy": "fair"}, OptionError, "policy='fair'"),
        ({"starting_position": "yesterday"}, PenstockError, "starting_position"),
        ({"max_records": 0}, OptionError, "max_records=0: expected 1 to 10,000"),
        ({"handler_retries_max": -1}, OptionError, "handler_retries_max=-1: expected at least 0"),
        ({"handler_backoff_min_s": 0}, OptionError, "handler_backoff_min_s=0, handler_backoff_max_s=30.0: "),
        ({"worker_id": " "}, OptionError, "worker_id is empty"),
        (
            {"worker_id": "caf\udce9"},
            OptionError,
            r"worker_id='caf\\udce9': it is not Unicode text at character 3",
        ),
        ({"lease_duration_s": 0}, OptionError, "lease_duration_s=0"),
        ({"lease_duration_s": "10"}, OptionError, "lease_duration_s='10': expected a number"),
        ({"handover": "no"}, OptionError, "handover='no': expected True or False"),
        ({"handler": 3}, UsageError, "handler=3 cannot be called"),
        ({"metrics": "prometheus"}, UsageError, "metrics='prometheus' has no gauge, observe"),
        ({"starting_position": {"s-0": "5"}}, OptionError, r"starting_position=.*json\.dumps"),
        ({"starting_position": datetime(2026, 1, 31)}, PositionError, "has no time zone.*its tzinfo"),  # noqa: DTZ001
        ({"starting_position": "AT_TIMESTAMP 2026-01-31T12:00:00"}, PositionError, "has no time zone"),
        (
            {"starting_position": at_timestamp(1_769_860_800)},
            PositionError,
            "seconds.*milliseconds are expected",
        ),
        ({"starting_position": 3}, OptionError, "starting_position=3: expected a text"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_happens(stream, table, arguments, error, word):
    with pytest.raises(error, match=word):
        consumer(stream, table, **{"handler": print, **arguments}).start()


def test_a_consumer_with_a_handler_cannot_be_iterated(stream, table):
    with pytest.raises(UsageError, match="leave the handler out"):
        next(iter(consumer(stream, table, print)))


def test_the_options_are_a_value():
    assert ConsumerOptions() == ConsumerOptions()
    with pytest.raises(AttributeError):
        ConsumerOptions().concurrency = 3


def test_the_clock_goes_forward_and_knows_the_date():
    clock = SystemClock()
    before = clock.monotonic_s()
    clock.sleep(0.01)
    assert clock.monotonic_s() > before
    earliest_ms = time.time_ns() // 10**6
    assert earliest_ms <= clock.wall_ms() <= time.time_ns() // 10**6
