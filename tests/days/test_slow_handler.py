"""Each batch takes the handler longer than a lease lasts, and a second consumer comes to help."""

from user_programs import Orders, once

# The work of a batch is 12 seconds; a lease lasts 10.
SLOW = r"""
    import logging
    import time

    from penstock import Consumer

    logging.basicConfig(level="INFO")

    def handle(batch):
        print(f"begins\n", end="", flush=True)
        time.sleep(12)
        for record in batch:
            print(record.data.decode() + "\n", end="", flush=True)

    Consumer(stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON").run()
"""


def test_a_handler_takes_longer_than_a_lease_lasts(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(50)
    first = programs.start(SLOW, name="first")
    first.wait_for("begins")
    second = programs.start(SLOW, name="second")
    orders.put(50)
    orders.put_until(lambda: "begins" in second.lines(), "the second consumer's share")
    programs.wait_for_lines(len(orders.texts) + 1)
    assert (first.terminate(), second.terminate()) == (0, 0)
    printed = programs.printed()
    del printed["begins"]
    assert printed == once(orders)
    assert "could not be renewed" not in first.log() + second.log()
