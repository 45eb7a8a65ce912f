"""A handler calls a slow service, ten orders at once; the stream is scaled up for the day's peak and down behind it."""

import threading
from collections import Counter, defaultdict

from waiting import wait_until

CALLER = r"""
    import logging
    import threading

    from penstock import Consumer

    logging.basicConfig(level="INFO")

    def handle(batch):
        for record in batch:
            threading.Event().wait(0.003)  # the service's answer
            print(f"{record.partition_key} {record.data.decode()}\n", end="", flush=True)

    Consumer(
        stream="orders",
        application="billing",
        handler=handle,
        starting_position="TRIM_HORIZON",
        concurrency=10,  # the service answers slowly and takes ten calls
        handler_threads=20,  # for two shards
        max_records=20,  # of which each has a few orders
    ).run()
"""


def test_ten_calls_at_once_keep_each_customers_order_through_a_scaling(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    client = local_kinesis.client()
    counts = Counter()
    is_evening = threading.Event()

    def customers():
        while not is_evening.wait(0.1):
            entries = []
            for n in range(15):
                key = f"c{(sum(counts.values()) * 7 + n) % 40}"
                entries.append({"Data": b"%d" % counts[key], "PartitionKey": key})
                counts[key] += 1
            for entry in entries:  # one after the other, so that a customer's orders are in order
                client.put_record(StreamName="orders", **entry)

    shop = threading.Thread(target=customers)
    shop.start()
    try:
        caller = programs.start(CALLER, name="caller")
        wait_until(lambda: len(caller.lines()) >= 50, "the first orders")
        for shards in ("4", "2"):
            scaled = programs.penstock("streams", "scale", "orders", shards, "--wait", name=f"to-{shards}")
            assert scaled.wait() == 0
            seen = len(caller.lines())
            wait_until(lambda seen=seen: len(caller.lines()) >= seen + 50, "orders behind the change")
    finally:
        is_evening.set()
        shop.join()
    wait_until(lambda: len(caller.lines()) >= sum(counts.values()), "all orders")
    assert caller.terminate() == 0
    handled = defaultdict(list)
    for line in caller.lines():
        key, number = line.split()
        handled[key].append(int(number))
    assert handled == {key: list(range(count)) for key, count in counts.items()}
