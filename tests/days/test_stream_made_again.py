"""A test stream is deleted and made again under its name, while a consumer and a producer run on."""

import subprocess

from user_programs import CONSUMER, Orders, all_records, once
from waiting import wait_until

PRODUCER = """
    import sys

    from penstock import Producer

    with Producer(stream="orders") as producer:
        for line in sys.stdin:
            producer.put(line.strip().encode(), partition_key="k").result()
            print("put", flush=True)
"""


def make_again(kinesis) -> None:
    client = kinesis.client()
    client.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
    wait_until(lambda: "orders" not in client.list_streams()["StreamNames"], "the end of the old stream")
    kinesis.create_stream("orders", shards=2)


def test_a_consumer_does_not_take_the_new_stream_for_the_old_one(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    consumer = programs.start(CONSUMER, name="consumer")
    yesterday = Orders(local_kinesis)
    yesterday.put(100)
    programs.wait_for(yesterday)
    make_again(local_kinesis)
    today = Orders(local_kinesis)
    today.put(50)
    assert consumer.wait() == 1
    assert "created again" in consumer.log()
    # The same application is refused: its checkpoints are of the old stream.
    again = programs.start(CONSUMER, name="again")
    assert again.wait() == 1
    assert "choose another application for this stream" in again.log()
    assert programs.printed() == once(yesterday)
    new = programs.start(CONSUMER.replace('"billing"', '"billing-2"'), name="new")
    wait_until(lambda: len(new.lines()) == 50, "the orders of the new stream")
    assert new.terminate() == 0
    assert sorted(new.lines()) == sorted(today.texts)


def test_a_producer_goes_on_in_the_new_stream(local_kinesis, programs):
    local_kinesis.create_stream("orders")
    producer = programs.start(PRODUCER, name="producer", stdin=subprocess.PIPE)

    def put(text):
        producer.process.stdin.write(f"{text}\n".encode())
        producer.process.stdin.flush()

    put("yesterday")
    producer.wait_for("put")
    make_again(local_kinesis)
    for number in range(10):
        put(f"today {number}")
    wait_until(lambda: len(producer.lines()) == 11, "all acknowledgements")
    producer.process.stdin.close()
    assert producer.wait() == 0
    assert [record.data for record in all_records(local_kinesis, "orders")] == [
        b"today %d" % number for number in range(10)
    ]
