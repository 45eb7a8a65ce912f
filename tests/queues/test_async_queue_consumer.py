"""A queue's consumer on an event loop, over a queue in memory."""

import asyncio

import pytest

from penstock import AsyncQueueConsumer, Reject
from penstock.errors import NotFound, UsageError
from queue_world import QueueWorld
from waiting import wait_until

DEADLINE_S = 90.0


@pytest.fixture
def world():
    return QueueWorld()


def consumer(world, handler=None, **options):
    return AsyncQueueConsumer("invoices", handler, ports=world.ports, **{"wait_time_s": 1, **options})


async def until(is_true):
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110 - the condition is of other threads
            await asyncio.sleep(0.02)


def test_five_hundred_records_wait_in_their_handlers_at_the_same_time(world):
    world.put(*(f"r{n}" for n in range(500)))
    running = most = 0

    async def handle(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await until(lambda: most == 500)
        running -= 1

    async def main():
        async with consumer(world, handle, concurrency=500):
            await until(lambda: not world.left)

    asyncio.run(main())
    assert most == 500


def test_failed_records_come_again_and_rejected_ones_are_dead(world):
    world.put("a", "b", "c")
    seen = []

    async def handle(record):
        seen.append((record.data.decode(), record.receive_count))
        if record.data == b"b":
            raise Reject
        if record.data == b"c" and record.receive_count == 1:
            raise ValueError

    async def main():
        async with consumer(world, handle, backoff_min_s=1, backoff_max_s=1):
            await until(lambda: not world.left)

    asyncio.run(main())
    assert sorted(seen) == [("a", 1), ("b", 1), ("c", 1), ("c", 2)]
    assert world.dead() == ["b"]


def test_an_interruption_in_a_handler_ends_the_program_and_returns_the_record(world):
    world.put("a")
    counts = []

    async def handle(record):
        counts.append(record.receive_count)
        raise KeyboardInterrupt

    async def main():
        async with consumer(world, handle) as of:
            await until(lambda: not of.is_running)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert counts == [1]
    wait_until(lambda: world.visible == ["a"], "the record to be visible again")


def test_a_cancelled_consumer_gives_back_what_runs_too_long(world):
    world.put("endless")
    begun = []

    async def handle(record):
        begun.append(record)
        await asyncio.Event().wait()

    async def main():
        running = asyncio.create_task(consumer(world, handle, shutdown_timeout_s=0.5).run())
        await until(lambda: begun)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    # A long poll that was open at the end may receive the record that was returned; its thread returns it again.
    wait_until(lambda: world.visible == ["endless"], "the record to be visible again")


def test_stop_in_a_handler_is_refused_and_request_stop_works(world):
    world.put("a")
    raised = []

    async def main():
        async def handle(_):
            try:
                await of.stop()
            except UsageError as error:
                raised.append(str(error))
                of.request_stop()

        of = consumer(world, handle)
        await of.run()

    asyncio.run(main())
    assert "call request_stop() instead" in raised[0]
    assert world.left == []


def test_a_plain_function_is_refused(world):
    world.put("a")

    async def main():
        with pytest.raises(UsageError, match=r"penstock\.QueueConsumer"):
            await consumer(world, lambda _: None).run()

    asyncio.run(main())
    assert world.visible == ["a"]


def test_records_are_pulled_by_two_tasks(world):
    world.put(*(f"r{n}" for n in range(40)))
    taken = []

    async def main():
        async with consumer(world) as of:

            async def take():
                async for record in of:
                    taken.append(record.data.decode())
                    if len(taken) == 40:
                        of.request_stop()

            await asyncio.gather(take(), take())

    asyncio.run(main())
    assert sorted(taken) == sorted(f"r{n}" for n in range(40))
    assert world.left == []


def test_a_loop_that_ends_first_stops_the_consumer_with_a_warning(world, caplog):
    world.put("a")

    async def handle(_):
        pass

    forgotten = consumer(world, handle)

    async def main():
        await forgotten.start()
        await until(lambda: not world.left)

    asyncio.run(main())
    wait_until(lambda: not forgotten.is_running)
    assert "the event loop ends while worker" in caplog.text
    assert "async with AsyncQueueConsumer(...)" in caplog.text


def test_a_consumer_whose_start_failed_may_be_started_again(world):
    world.put("a")
    of = AsyncQueueConsumer("nosuch", lambda _: None, ports=world.ports)

    async def main():
        for _ in range(2):
            with pytest.raises(NotFound, match="no queue nosuch"):
                await of.start()

    asyncio.run(main())
