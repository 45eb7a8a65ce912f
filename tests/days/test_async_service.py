"""A service for asyncio reads orders and writes invoices. It is deployed twice a day."""

from user_programs import Orders, all_records
from waiting import wait_until

SERVICE = """
    import asyncio

    from penstock import AsyncConsumer, AsyncProducer, Producer

    async def main():
        async with AsyncProducer(Producer(stream="invoices")) as invoices:

            async def bill(batch):
                puts = [invoices.put(b"invoice for " + order.data, order.partition_key) for order in batch]
                await asyncio.gather(*puts)

            consumer = AsyncConsumer(
                stream="orders", application="billing", handler=bill, starting_position="TRIM_HORIZON"
            )
            await consumer.run()

    asyncio.run(main())
"""


def test_each_order_has_one_invoice_after_two_deploys(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    local_kinesis.create_stream("invoices", shards=1)
    orders = Orders(local_kinesis)

    def invoices():
        return [record.data.decode() for record in all_records(local_kinesis, "invoices")]

    for deploy in range(2):
        service = programs.start(SERVICE, name=f"service-{deploy}")
        before = len(orders.texts)
        orders.put_until(lambda: len(invoices()) > before, "an invoice of this version")  # noqa: B023
        assert service.terminate() == 0, service.log()  # in the middle of the orders
        assert service.log() == ""
    last = programs.start(SERVICE, name="last")
    orders.put(50)
    wait_until(lambda: len(invoices()) >= len(orders.texts), "all invoices")
    assert last.terminate() == 0
    assert sorted(invoices()) == sorted(f"invoice for {text}" for text in orders.texts)
