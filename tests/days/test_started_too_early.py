"""A service is deployed an hour before its stream is made; a supervisor restarts what ends."""

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

PRODUCER = """
    from penstock import Producer

    with Producer(stream="orders") as producer:
        producer.put(b"order 0", partition_key="k").result()
"""


def test_a_consumer_and_a_producer_are_started_before_their_stream_exists(local_kinesis, programs):
    for name in ("first", "second"):
        consumer = programs.start(CONSUMER, name=f"consumer-{name}")
        producer = programs.start(PRODUCER, name=f"producer-{name}")
        assert (consumer.wait(), producer.wait()) == (1, 1)
        for log in (consumer.log(), producer.log()):
            assert "NotFound: " in log
            assert "orders" in log.rpartition("NotFound: ")[2]
            assert "us-east-1" in log.rpartition("NotFound: ")[2]
    assert programs.printed() == {}
    assert "billing" not in local_kinesis.client("dynamodb").list_tables()["TableNames"]

    local_kinesis.client().create_stream(StreamName="orders", ShardCount=2)
    orders = Orders(local_kinesis)
    consumer = programs.start(CONSUMER, name="consumer-third")  # while the stream is being made
    wait_until(lambda: is_active(local_kinesis), "the stream")
    orders.put(50)
    programs.wait_for(orders)
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)


def is_active(kinesis) -> bool:
    summary = kinesis.client().describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    return summary["StreamStatus"] == "ACTIVE"
