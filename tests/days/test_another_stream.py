"""The orders go to a new stream from today on: the consumer reads the old one to its end, and then the new one."""

from user_programs import CONSUMER, Orders, once

OF_THE_NEW_ONE = CONSUMER.replace('stream="orders"', 'stream="orders-eu"')


def test_a_consumer_moves_to_another_stream(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    local_kinesis.create_stream("orders-eu", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    old = programs.start(CONSUMER, name="old")
    orders.put(50)  # the last ones of the old stream
    new_orders = Orders(local_kinesis, "orders-eu")
    new_orders.texts += orders.texts  # the shop goes on counting
    new_orders.put(100)
    programs.wait_for(orders)
    assert old.terminate() == 0
    assert programs.printed() == once(orders)

    # The leases of `billing` are those of the old stream: the new one is refused under this name, before anything is read.
    refused = programs.start(OF_THE_NEW_ONE, name="refused")
    assert refused.wait() == 1
    assert refused.lines() == []
    error = refused.log().splitlines()[-1]
    for named in ("stream orders", "stream orders-eu", "billing"):
        assert named in error

    new = programs.start(
        OF_THE_NEW_ONE.replace('application="billing"', 'application="billing-eu"'), name="new"
    )
    new_orders.put(50)
    programs.wait_for(new_orders)
    assert new.terminate() == 0
    assert programs.printed() == once(new_orders)
