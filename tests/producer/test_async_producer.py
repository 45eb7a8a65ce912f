"""`AsyncProducer`: the loop never waits, puts keep their order, and their deadlines hold."""

from __future__ import annotations

import asyncio
import socket
import time
import traceback

import pytest

from penstock.errors import BufferFull, DeliveryFailed, PenstockError
from penstock.producer import AsyncProducer, Producer
from user_programs import all_records


@pytest.fixture
def stream(local_kinesis):
    local_kinesis.create_stream("orders", shards=1)
    return local_kinesis


async def longest_pause_s(stop):
    longest_s, before_s = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.01)
        now_s = time.monotonic()
        longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


def numbers(stream):
    return [int(record.data) for record in all_records(stream, "orders")]


def test_gathered_puts_of_a_key_keep_their_order_while_the_buffer_is_full(stream):
    async def work():
        async with AsyncProducer(
            Producer(stream="orders", buffer_bytes_max=60_000, linger_s=0.01)
        ) as producer:
            await asyncio.gather(*(producer.put(b"%d" % n + b" " * 3_000, "k") for n in range(200)))

    asyncio.run(work())
    assert numbers(stream) == list(range(200))


def test_a_silent_endpoint_does_not_hold_the_loop(local_kinesis):
    async def work():
        stop = asyncio.Event()
        pause = asyncio.create_task(longest_pause_s(stop))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            producer = AsyncProducer(Producer(stream="orders", endpoint_url=url, region="us-east-1"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.put(b"1", "k"), 2)
            stop.set()
            return await pause

    assert asyncio.run(work()) < 1.5


def test_waiting_puts_keep_their_deadline_and_leave_the_executor_alone(stream):
    stream.faults.throttle("PutRecords", count=None)

    async def work():
        producer = AsyncProducer(Producer(stream="orders", buffer_bytes_max=100_000, put_timeout_s=1.0))
        puts = [asyncio.create_task(producer.submit(b"x" * 5_000, "k")) for _ in range(60)]
        await asyncio.sleep(0.2)
        began_s = time.monotonic()
        await asyncio.to_thread(lambda: None)
        waited_s = time.monotonic() - began_s
        answers = await asyncio.gather(*puts, return_exceptions=True)
        taken_s = time.monotonic() - began_s
        stream.faults.clear()
        await producer.close()
        return waited_s, taken_s, sum(isinstance(each, BufferFull) for each in answers)

    waited_s, taken_s, full_count = asyncio.run(work())
    assert waited_s < 0.8
    assert taken_s < 3
    assert 30 < full_count < 60


def test_a_cancelled_put_that_waits_for_room_is_not_written_and_the_others_are(stream):
    stream.faults.throttle("PutRecords", count=None)

    async def work():
        producer = AsyncProducer(Producer(stream="orders", buffer_bytes_max=30_000))
        accepted = []
        while True:
            put = asyncio.ensure_future(producer.put(b"%d" % len(accepted) + b" " * 5_000, "k"))
            await asyncio.sleep(0.1)
            accepted.append(put)
            if len(accepted) == 12:
                break
        for put in accepted[-2:]:
            put.cancel()
        await asyncio.gather(*accepted[-2:], return_exceptions=True)
        stream.faults.clear()
        await asyncio.gather(*accepted[:-2])
        await producer.close()

    asyncio.run(work())
    assert numbers(stream) == list(range(10))


def test_every_waiting_put_gets_the_error_of_the_opening(local_kinesis):
    async def work():
        producer = AsyncProducer(Producer(stream="missing"))
        return await asyncio.gather(*(producer.put(b"1", "k") for _ in range(5)), return_exceptions=True)

    answers = asyncio.run(work())
    assert [type(each).__name__ for each in answers] == ["NotFound"] * 5
    assert all(isinstance(each, PenstockError) for each in answers)
    frames = [each.name for each in traceback.extract_tb(answers[-1].__traceback__)]
    assert frames.count("put") == 2, "of the one put that raised it last"


def test_closing_waits_for_earlier_puts_and_refuses_later_ones(stream):
    async def work():
        producer = AsyncProducer(Producer(stream="orders", buffer_bytes_max=60_000, linger_s=0.01))
        puts = [asyncio.create_task(producer.put(b"%d" % n + b" " * 3_000, "k")) for n in range(100)]
        await asyncio.sleep(0)
        await producer.close()
        await asyncio.gather(*puts)
        with pytest.raises(DeliveryFailed, match="closed"):
            await producer.put(b"late", "k")

    asyncio.run(work())
    assert numbers(stream) == list(range(100))


def test_one_producer_serves_one_loop_after_the_other(stream):
    producer = AsyncProducer(Producer(stream="orders"))
    for number in range(3):
        asyncio.run(producer.put(b"%d" % number, "k"))
    asyncio.run(producer.close())
    assert numbers(stream) == [0, 1, 2]
