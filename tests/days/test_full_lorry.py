"""A job loads orders until a lorry is full, and the next job goes on with the order behind the last one that was loaded."""

from user_programs import Orders, once

JOB = r"""
    import asyncio
    import logging

    from penstock import AsyncConsumer

    logging.basicConfig(level="INFO")

    async def main():
        loaded = 0
        async with AsyncConsumer(
            stream="orders", application="loading", starting_position="TRIM_HORIZON"
        ) as consumer:
            async for batch in consumer:
                for record in batch:
                    print(record.data.decode() + "\n", end="", flush=True)
                loaded += len(batch)
                if loaded >= 100:
                    consumer.request_stop()  # asking for the next batch acknowledges this one, and there is none

    asyncio.run(main())
"""


def test_jobs_load_orders_until_their_lorries_are_full(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    while len(orders.texts) < 250:
        job = programs.start(JOB, name=f"lorry-{len(orders.texts)}")
        orders.put_until(lambda job=job: not job.is_running, "a full lorry")
        assert job.wait() == 0
        assert "ERROR" not in job.log()
    last = programs.start(JOB, name="last")
    programs.wait_for(orders)
    assert last.terminate() == -15  # a job without a full lorry has no end of its own, and handles no signal
    assert programs.printed() == once(orders)
