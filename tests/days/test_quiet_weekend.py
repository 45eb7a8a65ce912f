"""A stream on which nothing happens from Friday to Monday, for longer than it keeps a record."""

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

HALF_A_DAY_S = 12 * 3600


def spend_the_weekend(kinesis, is_read) -> None:
    """Let 60 hours pass, half a day at a time; the stream keeps a record for 24."""
    for _ in range(5):
        kinesis.clock.advance(HALF_A_DAY_S)
        before = kinesis.calls().count("GetRecords")
        if is_read:
            wait_until(lambda: kinesis.calls().count("GetRecords") >= before + 4, "a look at the stream")  # noqa: B023


def test_a_consumer_runs_through_a_quiet_weekend(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    consumer = programs.start(CONSUMER, name="consumer")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    spend_the_weekend(local_kinesis, is_read=True)
    orders.put(100)
    programs.wait_for(orders)
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)
    assert "WARNING" not in consumer.log()
    assert "ERROR" not in consumer.log()


def test_a_consumer_that_ran_through_the_weekend_is_restarted_on_monday(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    friday = programs.start(CONSUMER, name="friday")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    spend_the_weekend(local_kinesis, is_read=True)
    assert friday.terminate() == 0
    orders.put(100)
    monday = programs.start(CONSUMER, name="monday")
    programs.wait_for(orders)
    assert monday.terminate() == 0
    assert programs.printed() == once(orders)


def test_a_consumer_that_was_stopped_over_the_weekend_says_that_records_may_be_lost(local_kinesis, programs):
    local_kinesis.create_stream("orders")
    friday = programs.start(CONSUMER, name="friday")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    assert friday.terminate() == 0
    spend_the_weekend(local_kinesis, is_read=False)
    orders.put(100)
    monday = programs.start(CONSUMER, name="monday")
    assert monday.wait() == 1
    assert "on_data_loss" in monday.log()
    assert programs.printed() == dict.fromkeys(orders.texts[:100], 1)
    # Nobody can know that nothing was put on Saturday, so a person decides.
    decided = programs.start(CONSUMER.replace(").run()", ', on_data_loss="warn").run()'), name="decided")
    programs.wait_for(orders)
    assert decided.terminate() == 0
    assert programs.printed() == once(orders)
