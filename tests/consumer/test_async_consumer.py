"""The consumer on an event loop: handlers are coroutines, and everything else is the consumer's. The ports are in memory."""

import asyncio
import contextvars
import gc
import os
import signal
import threading

import pytest
from real_threads import FAST, put, tiny_stream, unfinished

from few_threads import leave_threads
from penstock import AsyncConsumer
from penstock.consumer import AsyncShardCheckpointer, Consumer, ConsumerPorts
from penstock.consumer.async_calls import EventLoopCalls
from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.core.position import at_record
from penstock.core.shard import StreamSummary
from penstock.errors import (
    AccessDenied,
    HandlerFailed,
    LeaseLost,
    OptionError,
    PenstockError,
    Unavailable,
    UsageError,
)
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from waiting import DEADLINE_S, wait_until


def put_in_every_shard(stream):
    """Put one record into each shard."""
    filled, index = set(), 0
    while len(filled) < len(stream.shards):
        filled.add(stream.put(f"k{index}", b"x"))
        index += 1
    for shard in stream.shards.values():
        del shard.records[1:]


def consumer(stream, table, handler=None, **options) -> AsyncConsumer:
    user_code = {name: options.pop(name) for name in USER_CODE if name in options}
    return AsyncConsumer(
        "orders", "app", handler, ports=ConsumerPorts(stream, table), **user_code, **{**FAST, **options}
    )


USER_CODE = ("dead_letter", "processor_factory", "tracer_provider")


def run(scenario):
    """Run a scenario on an event loop of its own, no longer than a busy machine may take."""

    async def bounded():
        async with asyncio.timeout(DEADLINE_S):
            return await scenario

    return asyncio.run(bounded())


async def until(is_true):
    while not is_true():  # noqa: ASYNC110 - the condition changes on threads, which set no event of the loop
        await asyncio.sleep(0.01)


def test_records_are_handled_on_the_event_loop_and_checkpointed(stream, table):
    sent, got, threads = put(stream, 50), [], set()

    async def handle(batch):
        await asyncio.sleep(0)
        threads.add(threading.current_thread())
        got.extend(record.data for record in batch)

    async def scenario():
        async with consumer(stream, table, handle) as running:
            await until(lambda: len(got) == 50)
            assert running.is_running
            assert running.health().is_ready
        assert not running.is_running

    run(scenario())
    assert sorted(got) == sorted(sent)
    assert threads == {threading.main_thread()}
    assert unfinished(stream, table) == []


def test_a_cancelled_run_finishes_its_handlers_and_gives_its_leases_back(stream, table):
    put_in_every_shard(stream)
    begun, finished = [], []

    async def scenario():
        go_on = asyncio.Event()

        async def handle(batch):
            begun.append(batch.shard_id)
            await go_on.wait()
            finished.append(batch.shard_id)

        task = asyncio.create_task(consumer(stream, table, handle).run())
        await until(lambda: len(begun) == 2)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())
    assert sorted(finished) == sorted(stream.shards)
    assert unfinished(stream, table) == []


def test_slow_handlers_hold_up_their_own_shards_only(table):
    stream = tiny_stream(20)  # more than a pool of threads has
    put_in_every_shard(stream)
    quick = next(iter(stream.shards))
    got, waiting = [], set()

    async def scenario():
        go_on = asyncio.Event()

        async def handle(batch):
            if batch.shard_id != quick:
                waiting.add(batch.shard_id)
                await go_on.wait()
            got.extend((batch.shard_id, record.data) for record in batch)

        async with consumer(stream, table, handle):
            await until(lambda: len(waiting) == 19)
            shard = stream.shards[quick]
            key = next(f"q{n}" for n in range(10_000) if stream.put(f"q{n}", b"later") == quick)
            await until(lambda: (quick, b"later") in got)
            assert {shard_id for shard_id, _ in got} == {quick}
            assert shard.records[-1].partition_key == key
            go_on.set()

    run(scenario())


def test_calls_of_different_keys_run_at_once_and_need_no_threads(stream, table):
    shard_id = stream.put("k0", b"x")
    keys = ["k0", *(f"k{n}" for n in range(1, 10_000) if n < 60)]
    for key in keys[1:]:
        stream.put(key, b"x")
    expected = len(stream.shards[shard_id].records)
    assert expected > 8

    async def scenario():
        all_begun, begun = asyncio.Event(), []
        all_handled, handled = asyncio.Event(), []

        async def handle(batch):
            if batch.shard_id == shard_id:
                begun.append(batch[0].partition_key)
                if len(begun) == expected:
                    all_begun.set()
                await all_begun.wait()
            handled.extend(batch)
            if len(handled) == len(keys):
                all_handled.set()

        async with consumer(stream, table, handle, concurrency=60):
            await all_handled.wait()

    run(scenario())
    assert unfinished(stream, table) == []


def test_iterating_gives_every_record_and_a_batch_is_done_when_the_next_is_asked_for(stream, table):
    sent, got = put(stream, 50), []

    async def scenario():
        async with consumer(stream, table, max_records=10) as pulled:
            async for batch in pulled:
                got.extend(record.data for record in batch)
                if len(got) == 50:
                    break

    run(scenario())
    assert sorted(got) == sorted(sent)
    assert (
        0 < len(unfinished(stream, table)) <= 20
    )  # the batch in whose body it was left, and one that waited


def test_a_loop_that_was_left_may_be_entered_again(stream, table):
    sent, first, again = put(stream, 20), [], []

    async def scenario():
        async with consumer(stream, table) as pulled:
            async for batch in pulled:
                first.append(batch.shard_id)
                break
            async for batch in pulled:
                again.extend(record.data for record in batch)
                batch.acknowledge()
                if len(again) == 20:
                    break

    run(scenario())
    assert sorted(again) == sorted(sent)
    assert unfinished(stream, table) == []


def test_a_cancelled_loop_stops_the_consumer(stream, table):
    put(stream, 20)
    got = []

    async def scenario():
        async def pull():
            async with consumer(stream, table) as pulled:
                async for batch in pulled:
                    await batch.checkpoint()
                    got.extend(batch)

        task = asyncio.create_task(pull())
        await until(lambda: len(got) == 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())
    assert unfinished(stream, table) == []


def test_a_loop_ends_when_the_consumer_is_asked_to_stop_and_raises_what_failed(stream, table):
    put(stream, 5)
    seen = []

    async def until_stopped():
        async with consumer(stream, table) as pulled:
            async for batch in pulled:
                seen.extend(record.data for record in batch)
                pulled.request_stop()

    run(until_stopped())
    assert seen
    assert not set(seen) & set(unfinished(stream, table))

    async def until_failed():
        async with consumer(stream, table) as pulled:
            pulled._consumer._running.fail(PenstockError("boom"))
            async for _batch in pulled:
                pass

    with pytest.raises(PenstockError, match="boom"):
        run(until_failed())


def test_a_checkpoint_is_awaited_until_it_is_durable(stream, table):
    put(stream, 20)
    seen = []

    async def scenario():
        async def handle(batch):
            middle = batch[len(batch) // 2]
            await batch.checkpoint(middle)
            lease = next(lease for lease in table.scan().leases if lease.key == batch.shard_id)
            seen.append((lease.checkpoint.sequence_number, middle.sequence_number))
            await batch.checkpoint()

        async with consumer(stream, table, handle, checkpointing="manual"):
            await until(lambda: len(seen) == 2)

    run(scenario())
    assert all(stored == wanted for stored, wanted in seen)
    assert unfinished(stream, table) == []


def test_a_checkpoint_of_a_lost_lease_raises(stream, table):
    put(stream, 2)
    errors = []

    async def scenario():
        async def handle(batch):
            running._consumer._running.delivery.abandon()
            try:
                await batch.checkpoint()
            except LeaseLost as error:
                assert not batch.is_owned
                errors.append(error)
                running.request_stop()

        async with consumer(stream, table, handle) as running:
            await until(lambda: errors)

    run(scenario())


def test_a_checkpoint_without_an_answer_raises_and_may_still_be_stored():
    pending = PendingCheckpoint("orders", "s0", at_record("5"), 0.01)

    class Shard:
        def begin_checkpoint(self):
            return pending

    with pytest.raises(Unavailable, match=r"checkpoint 5.0: the lease table gave no answer within 0.01 s"):
        run(AsyncShardCheckpointer(Shard()).store_checkpoint())
    pending.on_durable()


def test_a_failing_handler_is_repeated_and_its_records_go_to_the_dead_letters(stream, table):
    put(stream, 1)
    attempts, dead = [], []

    async def scenario():
        async def handle(batch):
            attempts.append(batch.attempt)
            raise ValueError("boom")

        async def put_aside(batch, error):
            await asyncio.sleep(0)
            dead.append((batch[0].data, repr(error)))

        options = {"on_failure": "dead_letter", "dead_letter": put_aside, "handler_retries_max": 2}
        async with consumer(stream, table, handle, **options):
            await until(lambda: dead)

    run(scenario())
    assert attempts == [1, 2, 3]
    assert dead == [(b"r0", "ValueError('boom')")]
    assert unfinished(stream, table) == []


@pytest.mark.parametrize("raised", [ValueError("boom"), SystemExit("boom"), asyncio.CancelledError("boom")])
def test_run_raises_what_stopped_the_worker(stream, table, raised):
    put(stream, 1)

    async def handle(_batch):
        raise raised

    with pytest.raises(HandlerFailed, match=f"{type(raised).__name__}"):
        run(consumer(stream, table, handle, on_failure="stop_worker", handler_retries_max=0).run())
    assert len(unfinished(stream, table)) == 1


def test_a_handler_that_never_returns_is_cancelled_when_the_time_is_over(stream, table):
    put(stream, 1)
    cancelled = []

    async def scenario():
        begun = asyncio.Event()

        async def handle(_batch):
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        async with consumer(stream, table, handle, shutdown_timeout_s=0.1):
            await begun.wait()

    run(scenario())
    assert cancelled == [1]


def test_a_processor_lives_on_the_loop_from_start_to_stop(stream, table):
    put_in_every_shard(stream)
    told = []

    class Processor:
        def __init__(self):
            asyncio.get_running_loop()
            self._told = []
            told.append(self._told)

        async def on_start(self, _shard_id, _position):
            self._told.append("start")

        async def on_batch(self, batch):
            self._told.append(len(batch))

        async def on_end(self, _shard):
            self._told.append("end")

        async def on_stop(self, shard):
            shard.acknowledge_through(shard.last_delivered)
            await shard.store_checkpoint()
            self._told.append("stop")

        async def on_lost(self):
            self._told.append("lost")

    async def scenario():
        options = {"processor_factory": Processor, "checkpointing": "manual"}
        async with consumer(stream, table, **options):
            await until(lambda: [each[:2] for each in told] == [["start", 1], ["start", 1]])

    run(scenario())
    assert [each[:3] for each in told] == [["start", 1, "stop"]] * 2
    assert unfinished(stream, table) == []


def test_of_several_streams_a_processor_is_told_its_own(stream, table):
    put(stream, 1)
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    stream.fetch_summary = lambda name: StreamSummary(
        name, arn, "ACTIVE", 1_700_000_000_000, open_shard_count=2
    )
    got = []

    class Processor:
        def __init__(self, name):
            self._name = name

        async def on_start(self, shard_id, position):
            pass

        async def on_batch(self, batch):
            got.append((self._name, batch.stream))

        async def on_stop(self, shard):
            pass

        async def on_lost(self):
            pass

    async def scenario():
        ports = ConsumerPorts(stream, table)
        async with AsyncConsumer(
            ["orders"], "app", processor_factory=Processor, ports=ports, **FAST
        ) as running:
            assert running.streams == ("orders",)
            await until(lambda: got)

    run(scenario())
    assert got == [("orders", "orders")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_every_run_of_the_loop_gracefully(stream, number):
    put_in_every_shard(stream)
    tables = [MemoryLeaseTable("one"), MemoryLeaseTable("two")]
    got = []

    async def handle(batch):
        got.append(batch)

    async def scenario():
        both = asyncio.gather(*(consumer(stream, table, handle).run() for table in tables))
        await until(lambda: len(got) == 4)
        os.kill(os.getpid(), number)
        await both

    before = signal.getsignal(signal.SIGTERM)
    run(scenario())
    assert signal.getsignal(signal.SIGTERM) is before
    assert [unfinished(stream, table) for table in tables] == [[], []]


def test_a_second_signal_interrupts_at_once(stream, table):
    put_in_every_shard(stream)

    async def scenario():
        begun = asyncio.Event()

        async def handle(_batch):
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(consumer(stream, table, handle, shutdown_timeout_s=600).run())
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        await task

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run(scenario())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.timeout(60)
def test_a_second_signal_during_the_start_waits_for_no_handler(stream, table, monkeypatch):
    put_in_every_shard(stream)
    interrupted = threading.Event()

    async def handle(_batch):
        pass

    tried = consumer(stream, table, handle, shutdown_timeout_s=600)
    worker = tried._consumer
    start, request_stop = worker.start, worker.request_stop

    def start_late():
        start()
        assert interrupted.wait(DEADLINE_S)

    monkeypatch.setattr(worker, "start", start_late)
    monkeypatch.setattr(worker, "request_stop", lambda: None)  # it never ends

    async def scenario():
        task = asyncio.create_task(tried.run())
        await until(lambda: worker.is_running)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        interrupted.set()
        os.kill(os.getpid(), signal.SIGINT)
        await task

    with pytest.raises(KeyboardInterrupt):
        run(scenario())
    request_stop()
    wait_until(lambda: not worker.is_running)


def test_a_loop_that_ends_first_stops_the_worker_with_a_warning(stream, table, caplog):
    put_in_every_shard(stream)
    got = []

    async def handle(batch):
        got.append(batch)

    forgotten = consumer(stream, table, handle)

    async def scenario():
        await forgotten.start()
        await until(lambda: len(got) == 2)

    run(scenario())
    wait_until(lambda: not forgotten.is_running)
    assert "the event loop ends while worker" in caplog.text
    assert unfinished(stream, table) == []


def test_a_loop_that_was_closed_by_force_fails_the_worker(stream, table):
    loop = asyncio.new_event_loop()

    async def handle(_batch):
        pass

    running = consumer(stream, table, handle)
    loop.run_until_complete(running.start())
    keeper = running._keeper
    loop.close()
    put_in_every_shard(stream)
    wait_until(lambda: not running.is_running)
    with pytest.raises(UsageError, match=r"the event loop was closed .* `await consumer\.stop"):
        running._consumer.stop()
    keeper._log_destroy_pending = False


def test_a_plain_function_is_refused_when_it_returns_nothing_to_await(stream, table):
    put(stream, 1)

    def handle(_batch):
        pass

    with pytest.raises(UsageError, match=r"handle returned NoneType, which cannot be awaited: write it with"):
        run(consumer(stream, table, handle).run())
    assert len(unfinished(stream, table)) == 1


def test_a_method_of_a_processor_that_is_no_coroutine_function_is_refused(stream, table):
    class Processor:
        def on_start(self, shard_id, position):
            pass

    with pytest.raises(UsageError, match=r"Processor.on_start returned NoneType, which cannot be awaited"):
        run(consumer(stream, table, processor_factory=Processor).run())


def test_a_consumer_of_plain_functions_refuses_coroutine_functions(stream, table):
    async def handle(_batch, _error=None):
        pass

    class Called:
        async def __call__(self, _batch):
            pass

    ports = ConsumerPorts(stream, table)
    for given in ({"handler": handle}, {"handler": Called()}):
        with pytest.raises(
            UsageError, match=r"handler is a coroutine function .* use penstock.AsyncConsumer"
        ):
            Consumer("orders", "app", ports=ports, **given)
    with pytest.raises(UsageError, match="dead_letter is a coroutine function"):
        Consumer("orders", "app", print, dead_letter=handle, on_failure="dead_letter", ports=ports)


def test_a_handler_with_a_yield_is_refused(stream, table):
    put(stream, 1)

    def plain(batch):
        yield batch

    async def asynchronous(batch):
        yield batch

    ports = ConsumerPorts(stream, table)
    for handler in (plain, asynchronous):
        with pytest.raises(UsageError, match="handler is a generator function: it has a yield"):
            Consumer("orders", "app", handler, ports=ports)
        with pytest.raises(UsageError, match="user code returned a generator"):
            Consumer("orders", "app", lambda batch, made=handler: made(batch), ports=ports, **FAST).run()
        with pytest.raises(UsageError, match="user code returned a generator"):
            run(consumer(stream, table, handler).run())
    assert len(unfinished(stream, table)) == 1


def test_a_consumer_of_plain_functions_stops_when_its_handler_returns_a_coroutine(stream, table):
    put(stream, 1)

    async def handle(_batch, _count):
        pass

    ports = ConsumerPorts(stream, table)
    with pytest.raises(UsageError, match=r"user code returned coroutine, which Consumer does not await"):
        Consumer("orders", "app", lambda batch: handle(batch, 1), ports=ports, **FAST).run()
    gc.collect()  # a coroutine that was never awaited would warn here
    assert len(unfinished(stream, table)) == 1


def test_context_variables_are_those_of_the_start(stream, table):
    put(stream, 1)
    variable = contextvars.ContextVar("variable", default="none")
    got = []

    async def scenario():
        async def handle(_batch):
            got.append(variable.get())

        variable.set("of the start")
        async with consumer(stream, table, handle):
            await until(lambda: got)

    run(scenario())
    assert got == ["of the start"]


def test_a_span_lasts_as_long_as_the_coroutine(stream, table):
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import get_current_span

    put(stream, 1)
    exporter, provider, seen = InMemorySpanExporter(), sdk.TracerProvider(), []
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def scenario():
        async def handle(_batch):
            await asyncio.sleep(0)
            seen.append((get_current_span().name, get_current_span().is_recording()))

        async with consumer(stream, table, handle, tracer_provider=provider):
            await until(lambda: seen)

    run(scenario())
    provider.shutdown()
    assert seen == [("process orders", True)]
    assert [span.attributes["messaging.batch.message_count"] for span in exporter.get_finished_spans()] == [1]


def test_stop_inside_a_handler_says_what_to_call(stream, table):
    put(stream, 1)
    errors = []

    async def scenario():
        async def handle(_batch):
            try:
                await running.stop()
            except UsageError as error:
                errors.append(str(error))
                running.request_stop()

        running = consumer(stream, table, handle)
        await running.run()

    run(scenario())
    assert errors == [
        "stop() waits for the handlers under way, and is called in one: call request_stop() instead"
    ]


def test_what_is_asked_at_the_wrong_time_is_refused(stream, table):
    async def handle(_batch):
        pass

    async def iterate(pulled):
        async for _ in pulled:
            pass

    async def twice():
        async with consumer(stream, table, handle) as running:
            with pytest.raises(UsageError, match="started before"):
                await running.start()

    run(twice())
    with pytest.raises(UsageError, match="leave the handler out"):
        run(iterate(consumer(stream, table, handle)))
    with pytest.raises(UsageError, match=r"not started: `async with AsyncConsumer"):
        run(iterate(consumer(stream, table)))
    with pytest.raises(UsageError, match="give a handler, or iterate"):
        run(consumer(stream, table).run())
    with pytest.raises(UsageError, match="not both"):
        consumer(stream, table, handle, processor_factory=object)
    with pytest.raises(OptionError, match="handler_threads has no effect"):
        consumer(stream, table, handle, handler_threads=4)
    with pytest.raises(OptionError, match="did you mean concurrency"):
        consumer(stream, table, handle, concurency=4)
    run(consumer(stream, table, handle).stop())


def test_a_stream_that_cannot_be_used_is_said_at_the_start(stream, table):
    def denied(_stream):
        raise AccessDenied("no", operation="DescribeStreamSummary")

    async def handle(_batch):
        pass

    stream.fetch_summary = denied
    with pytest.raises(AccessDenied):
        run(consumer(stream, table, handle).run())


def test_a_start_that_is_cancelled_leaves_no_worker_behind(stream, table):
    asked, go_on = threading.Event(), threading.Event()
    fetch = stream.fetch_summary

    def slow(name):
        asked.set()
        assert go_on.wait(DEADLINE_S)
        return fetch(name)

    async def handle(_batch):
        pass

    running = consumer(stream, table, handle)

    async def scenario():
        stream.fetch_summary = slow
        task = asyncio.create_task(running.run())
        await until(asked.is_set)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())
    wait_until(lambda: not running.is_running)


def test_a_stop_that_is_asked_for_during_the_start_is_not_lost(stream, table):
    fetch = stream.fetch_summary

    async def handle(_batch):
        pass

    async def scenario():
        running = consumer(stream, table, handle)

        def stop_and_fetch(name):
            stream.fetch_summary = fetch  # the worker asks again
            running.request_stop()
            return fetch(name)

        stream.fetch_summary = stop_and_fetch
        await running.run()
        assert not running.is_running

    run(scenario())


def test_after_a_failed_start_stop_does_nothing_and_a_second_start_works(stream, table):
    sent, got, fetch = put(stream, 5), [], stream.fetch_summary

    def denied(_stream):
        raise AccessDenied("no", operation="DescribeStreamSummary")

    async def handle(batch):
        got.extend(record.data for record in batch)

    async def scenario():
        running = consumer(stream, table, handle)
        stream.fetch_summary = denied
        with pytest.raises(AccessDenied):
            await running.start()
        await running.stop()
        stream.fetch_summary = fetch
        async with running:
            await until(lambda: len(got) == 5)

    run(scenario())
    assert sorted(got) == sorted(sent)


def test_a_worker_whose_end_no_thread_waits_for_is_stopped(stream, table, monkeypatch):
    async def handle(_batch):
        pass

    async def scenario():
        running = consumer(stream, table, handle)
        leave_threads(monkeypatch, 0, "penstock-async-end")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await running.start()
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: not running.is_running)

    run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_cancelled_start_stop_waits_for_what_was_started(stream, table, fails):
    asked, go_on, fetch = threading.Event(), threading.Event(), stream.fetch_summary

    def slow(name):
        asked.set()
        assert go_on.wait(DEADLINE_S)
        if fails:
            raise AccessDenied("no", operation="DescribeStreamSummary")
        return fetch(name)

    async def handle(_batch):
        pass

    async def scenario():
        running = consumer(stream, table, handle)
        stream.fetch_summary = slow
        task = asyncio.create_task(running.start())
        await until(asked.is_set)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await running.stop()
        assert not running.is_running
        stream.fetch_summary = fetch
        if fails:
            async with running:
                assert running.is_running
        else:
            with pytest.raises(UsageError, match="started before"):
                await running.start()

    run(scenario())


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="tasks are never eager here")
def test_an_eager_call_knows_that_it_is_inside():
    calls, inside = EventLoopCalls(), []

    async def call():
        inside.append(calls.is_inside)
        await asyncio.sleep(0)
        inside.append(calls.is_inside)

    async def scenario():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        calls.open()
        await asyncio.wrap_future(calls.begin_call(call))
        assert not calls.is_inside

    run(scenario())
    assert inside == [True, True]


def test_it_shows_what_it_reads_and_can_be_paused(stream, table):
    async def handle(_batch):
        pass

    async def scenario():
        running = consumer(stream, table, handle, worker_id="w1")
        async with running:
            assert repr(running) == (
                "AsyncConsumer(stream='orders', application='app', worker_id='w1', is_running=True)"
            )
            assert running.failures == {}
            await until(lambda: len(running.health().shards) == 2)
            running.pause()
            await until(lambda: {shard.state for shard in running.health().shards} == {"paused"})
            running.resume()
            await until(lambda: {shard.state for shard in running.health().shards} == {"reading"})

    run(scenario())
