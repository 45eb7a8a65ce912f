"""Two teams read one stream by enhanced fan-out, each with its own application; one of them stops reading it for good."""

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

BY_FAN_OUT = CONSUMER.replace(").run()", ', retrieval="fan-out").run()')
AUDIT = BY_FAN_OUT.replace('application="billing"', 'application="audit"')


def test_two_teams_read_a_stream_by_fan_out_and_one_leaves(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    billing, audit = programs.start(BY_FAN_OUT, name="billing"), programs.start(AUDIT, name="audit")
    orders.put(100)
    for program in (billing, audit):
        wait_until(lambda lines=program.lines: len(lines()) >= 200, f"all orders of {program.name}")
    assert audit.terminate() == 0
    assert {text: audit.lines().count(text) for text in audit.lines()} == once(orders)

    left = programs.penstock("streams", "consumers", "orders", "--deregister", "audit", name="deregistered")
    assert left.wait() == 0
    stream = local_kinesis.client().describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    registered = local_kinesis.client().list_stream_consumers(StreamARN=stream["StreamARN"])["Consumers"]
    assert "billing" in [consumer["ConsumerName"] for consumer in registered]
    orders.put(100)
    wait_until(lambda: len(billing.lines()) >= 300, "all orders of billing")
    assert billing.terminate() == 0
    assert {text: billing.lines().count(text) for text in billing.lines()} == once(orders)
    assert local_kinesis.calls().count("GetRecords") == 0
    assert [program.log().count("WARNING") for program in (billing, audit)] == [0, 0]
