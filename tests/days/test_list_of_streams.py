"""A consumer's list of streams changes: one is added while it runs, one is left out for a day and added again."""

from collections import Counter

from user_programs import Orders
from waiting import wait_until

LEDGER = r"""
    import logging
    import sys

    from penstock import Consumer

    logging.basicConfig(level="INFO")

    def handle(batch):
        for record in batch:
            print(f"{batch.stream} {record.data.decode()}\n", end="", flush=True)

    Consumer(
        stream=sys.argv[1:], application="ledger", handler=handle, starting_position="TRIM_HORIZON"
    ).run()
"""


def test_streams_are_added_to_a_list_and_left_out(local_kinesis, programs):
    for stream in ("orders", "returns"):
        local_kinesis.create_stream(stream, shards=2)
    orders, returns = Orders(local_kinesis, "orders"), Orders(local_kinesis, "returns")

    def expected():
        return Counter(
            [f"orders {text}" for text in orders.texts] + [f"returns {text}" for text in returns.texts]
        )

    orders.put(100)
    first = programs.start(LEDGER, "orders", name="first")
    programs.wait_for_lines(100)
    # A rolling deploy: the worker with the old list ends when the new one works.
    both = programs.start(LEDGER, "orders", "returns", name="both")
    returns.put(100)
    wait_until(both.lines, "the first returns")
    assert first.terminate() == 0
    orders.put(50)
    programs.wait_for_lines(250)
    assert both.terminate() == 0
    assert programs.printed() == expected()

    without = programs.start(LEDGER, "returns", name="without-orders")
    orders.put(50)
    returns.put(50)
    wait_until(lambda: len(without.lines()) >= 50, "the returns of the day")
    assert without.terminate() == 0
    assert all(line.startswith("returns ") for line in without.lines())

    again = programs.start(LEDGER, "orders", "returns", name="both-again")
    programs.wait_for_lines(sum(expected().values()))
    assert again.terminate() == 0
    assert programs.printed() == expected()
