"""A consumer reads by polling; from today on it has records pushed; and next week it goes back."""

from user_programs import CONSUMER, Orders, once

BY_FAN_OUT = CONSUMER.replace(").run()", ', retrieval="fan-out").run()')


def test_a_consumer_moves_to_fan_out_and_back(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    arn = local_kinesis.client().describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"][
        "StreamARN"
    ]
    orders = Orders(local_kinesis)

    def run(text, name):
        orders.put(50)
        consumer = programs.start(text, name=name)
        programs.wait_for(orders)
        orders.put(50)
        programs.wait_for(orders)
        assert consumer.terminate() == 0
        return consumer

    run(CONSUMER, "polling")
    reads = local_kinesis.calls().count("GetRecords")
    run(BY_FAN_OUT, "fan-out")
    assert local_kinesis.calls().count("GetRecords") == reads
    registered = local_kinesis.client().list_stream_consumers(StreamARN=arn)["Consumers"]
    assert [consumer["ConsumerName"] for consumer in registered] == ["billing"]
    run(CONSUMER, "polling-again")
    assert programs.printed() == once(orders)


def test_a_fleet_moves_to_fan_out_one_consumer_after_the_other(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=4)
    orders = Orders(local_kinesis)
    fleet = [programs.start(CONSUMER, name=f"polling-{n}") for n in range(2)]
    orders.put_until(lambda: all(consumer.lines() for consumer in fleet), "a share for both")
    for n, old in enumerate(list(fleet)):
        assert old.terminate() == 0
        fleet[n] = programs.start(BY_FAN_OUT, name=f"fan-out-{n}")
        orders.put_until(fleet[n].lines, "its share")
    programs.wait_for(orders)
    assert [consumer.terminate() for consumer in fleet] == [0, 0]
    assert programs.printed() == once(orders)
