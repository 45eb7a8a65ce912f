"""Orders that a handler cannot bill go to a stream of their own; after the fix they are put back by two commands in a pipe."""

import json

from waiting import wait_until

BILLING = r"""
    import json
    import logging

    from penstock import Consumer, Producer

    logging.basicConfig(level="INFO")
    aside = Producer(stream="unbilled")

    def handle(batch):
        for record in batch:
            order = json.loads(record.data)
            PRICE
            print(f"{order['number']}\n", end="", flush=True)

    def put_aside(batch, error):
        for receipt in [aside.put(record.data, partition_key=record.partition_key) for record in batch]:
            receipt.result()
        logging.info("put aside %d", len(batch))

    with aside:
        Consumer(
            stream="orders",
            application="billing",
            handler=handle,
            starting_position="TRIM_HORIZON",
            on_failure="dead_letter",
            dead_letter=put_aside,
            handler_retries_max=0,  # the same input fails again
        ).run()
"""
BUGGY = BILLING.replace("PRICE", 'order["price"] + 0')
FIXED = BILLING.replace("PRICE", 'order.get("price", 0) + 0')
PUT_BACK = """
    import subprocess

    line = "set -o pipefail; penstock tail unbilled --until-end --data | penstock put orders --key-field customer"
    subprocess.run(["bash", "-c", line], check=True)
"""


def test_unbilled_orders_are_put_back_from_their_stream(local_kinesis, programs):
    for name in ("orders", "unbilled"):
        local_kinesis.create_stream(name, shards=2)
    orders = [
        {"number": n, "customer": f"c{n % 7}"} | ({} if n % 10 == 0 else {"price": n}) for n in range(100)
    ]
    entries = [{"Data": json.dumps(order).encode(), "PartitionKey": order["customer"]} for order in orders]
    answer = local_kinesis.client().put_records(StreamName="orders", Records=entries)
    assert answer["FailedRecordCount"] == 0
    buggy = programs.start(BUGGY, name="buggy")
    wait_until(lambda: len(set(buggy.lines())) >= 90, "the orders with a price")
    wait_until(lambda: buggy.log().count("put aside 1") >= 10, "the others")
    assert buggy.terminate() == 0
    # A batch of which one order fails is repeated in halves, so some orders are billed more than once.
    assert sorted(set(map(int, buggy.lines()))) == [n for n in range(100) if n % 10]

    fixed = programs.start(FIXED, name="fixed")
    back = programs.start(PUT_BACK, name="put-back")
    assert back.wait() == 0
    assert "acknowledged: 10 records" in back.log() + "\n".join(back.lines())
    wait_until(lambda: len(fixed.lines()) >= 10, "the unbilled orders")
    assert fixed.terminate() == 0
    assert sorted(map(int, fixed.lines())) == list(range(0, 100, 10))
