"""A second team begins to read a stream: only what comes from now on, beside the application that is there."""

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

# Without a starting position it is LATEST, as the second team wants it.
FRAUD = CONSUMER.replace('"billing"', '"fraud"').replace(', starting_position="TRIM_HORIZON"', "")


def test_a_second_application_begins_with_what_comes_from_now_on(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=4)
    orders = Orders(local_kinesis)
    billing = programs.start(CONSUMER, name="billing")
    orders.put(200)
    programs.wait_for(orders)
    fraud = programs.start(FRAUD, name="fraud")
    orders.put_until(fraud.lines, "the first order of the second application")
    first = len(orders.texts)
    orders.put(200)
    late = set(orders.texts[first:])
    wait_until(lambda: late <= set(fraud.lines()) and set(billing.lines()) == set(orders.texts), "all orders")
    assert (billing.terminate(), fraud.terminate()) == (0, 0)
    assert sorted(billing.lines()) == sorted(orders.texts)
    found = fraud.lines()
    assert len(found) == len(set(found))
    assert not set(found) & set(orders.texts[:200])
    # Each application has its place: after the night both go on, and the second one is not a new application any more.
    orders.put(100)
    programs.started.clear()
    again = programs.start(FRAUD, name="fraud-again")
    wait_until(lambda: len(again.lines()) >= 100, "the orders of the night")
    assert again.terminate() == 0
    assert programs.printed() == dict.fromkeys(orders.texts[-100:], 1) != once(orders)
