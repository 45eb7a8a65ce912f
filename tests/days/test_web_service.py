"""A web service on asyncio answers an order when its record is acknowledged; it is deployed while customers order."""

from collections import Counter

from user_programs import all_records
from waiting import wait_until

SERVICE = r"""
    import asyncio
    import itertools
    import logging
    import signal
    import sys

    from penstock import AsyncProducer, Producer

    logging.basicConfig(level="INFO")

    async def main():
        is_deployed = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_deployed.set)
        async with AsyncProducer(Producer(stream="orders")) as producer, asyncio.TaskGroup() as requests:

            async def answer(text):
                await producer.put(text.encode(), text)
                print(text + "\n", end="", flush=True)

            for n in itertools.count():
                if is_deployed.is_set():
                    break
                requests.create_task(answer(f"{sys.argv[1]} {n}"))
                await asyncio.sleep(0.002)

    asyncio.run(main())
"""


def test_a_web_service_is_deployed_while_customers_order(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    for name in ("morning", "noon"):
        service = programs.start(SERVICE, name, name=name)
        wait_until(lambda service=service: len(service.lines()) >= 200, f"the orders of the {name}")
        assert service.terminate() == 0
        assert service.log().count("WARNING") + service.log().count("ERROR") == 0
    held = Counter(record.data.decode() for record in all_records(local_kinesis, "orders"))
    assert held == programs.printed()
    assert set(held.values()) == {1}
