"""The database that a handler writes to is under repair for a while: the consumer pauses, and then goes on."""

from penstock import Consumer
from user_programs import Orders, once
from waiting import wait_until


def test_a_consumer_pauses_while_its_database_is_under_repair(local_kinesis):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    is_under_repair = False
    stored = []

    def store(batch):
        assert not is_under_repair
        stored.extend(record.data.decode() for record in batch)

    consumer = Consumer(
        stream="orders", application="billing", handler=store, starting_position="TRIM_HORIZON"
    )
    consumer.start()
    try:
        orders.put(100)
        wait_until(lambda: len(stored) >= 100, "the orders before")
        consumer.pause()
        wait_until(lambda: {shard.state for shard in consumer.health().shards} == {"paused"}, "the pause")
        is_under_repair = True
        orders.put(100)
        held = consumer.health()
        assert (held.is_healthy, [shard.state for shard in held.shards]) == (True, ["paused"] * 2)
        is_under_repair = False
        consumer.resume()
        wait_until(lambda: len(stored) >= 200, "the orders of the pause")
    finally:
        consumer.stop()
    assert {text: stored.count(text) for text in stored} == once(orders)
    assert not consumer.failures
