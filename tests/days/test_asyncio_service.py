"""A service on asyncio consumes orders beside its own work, and is deployed while they arrive."""

import threading

from user_programs import Orders, once
from waiting import wait_until

SERVICE = r"""
    import asyncio
    import contextlib
    import logging
    import signal

    from penstock import AsyncConsumer

    logging.basicConfig(level="INFO")

    async def handle(batch):
        for record in batch:
            await asyncio.sleep(0.002)  # the database's answer
            print(record.data.decode() + "\n", end="", flush=True)

    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
        with contextlib.suppress(asyncio.CancelledError):
            async with AsyncConsumer(
                stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON"
            ):
                await asyncio.Event().wait()  # the service's own work

    asyncio.run(main())
"""


def test_an_asyncio_service_is_deployed_while_orders_arrive(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=4)
    orders = Orders(local_kinesis)
    is_evening = threading.Event()

    def customers():
        while not is_evening.wait(0.1):
            orders.put(10)

    shop = threading.Thread(target=customers)
    shop.start()
    try:
        services = [programs.start(SERVICE, name="morning")]
        wait_until(lambda: len(services[0].lines()) >= 20, "orders of the morning")
        assert services[0].terminate() == 0
        services.append(programs.start(SERVICE, name="afternoon"))
        wait_until(lambda: len(services[-1].lines()) >= 20, "orders of the afternoon")
    finally:
        is_evening.set()
        shop.join()
    programs.wait_for(orders)
    assert services[-1].terminate() == 0
    assert programs.printed() == once(orders)
    assert [service.log().count("ERROR") + service.log().count("Traceback") for service in services] == [0, 0]
