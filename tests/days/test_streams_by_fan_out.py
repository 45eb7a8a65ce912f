"""A consumer reads two streams by fan-out; one of them is deleted on purpose, and the other one goes on."""

from user_programs import Orders
from waiting import wait_until

LEDGER = r"""
    import logging

    from penstock import Consumer

    logging.basicConfig(level="INFO")

    def handle(batch):
        for record in batch:
            print(f"{batch.stream} {record.data.decode()}\n", end="", flush=True)

    Consumer(
        stream={"orders": "TRIM_HORIZON", "vouchers": "TRIM_HORIZON"},
        application="ledger",
        handler=handle,
        retrieval="fan-out",
    ).run()
"""


def test_one_of_two_pushed_streams_is_deleted(local_kinesis, programs):
    for name in ("orders", "vouchers"):
        local_kinesis.create_stream(name, shards=2)
    orders, vouchers = Orders(local_kinesis, "orders"), Orders(local_kinesis, "vouchers")
    orders.put(50)
    vouchers.put(50)
    ledger = programs.start(LEDGER, name="ledger")
    programs.wait_for_lines(100)
    local_kinesis.client().delete_stream(StreamName="vouchers", EnforceConsumerDeletion=True)
    wait_until(
        lambda: "vouchers" in ledger.log() and "ERROR" in ledger.log(), "an error that names the stream"
    )
    orders.put(100)
    programs.wait_for_lines(200)
    assert ledger.terminate() == 0
    expected = [f"orders {text}" for text in orders.texts] + [f"vouchers {text}" for text in vouchers.texts]
    assert programs.printed() == dict.fromkeys(expected, 1)
