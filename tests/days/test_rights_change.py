"""Calls are refused for a while: a policy is being changed, or a proxy in between answers by itself."""

import pytest

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

READS = ("GetShardIterator", "GetRecords")


@pytest.mark.parametrize("code", ["NotAuthorized", "PolicyUnderReviewException"])
def test_reads_are_refused_for_a_while_and_a_restart_falls_into_it(local_kinesis, programs, code):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(40)
    first = programs.start(CONSUMER, name="first")
    programs.wait_for(orders)
    assert first.terminate() == 0

    orders.put(40)
    for call in READS:
        local_kinesis.faults.error(call, code=code, status=400, count=None)
    second = programs.start(CONSUMER, name="second")
    wait_until(
        lambda: local_kinesis.calls().failed("GetShardIterator", code) >= 6,
        f"{code} refuses both shards often",
    )
    if code != "NotAuthorized":
        second.wait_for(code)  # what may never pass is in the log soon
    assert second.is_running
    local_kinesis.faults.clear()
    programs.wait_for(orders)
    assert second.terminate() == 0
    assert programs.printed() == once(orders)
    assert "another shard or stream" not in second.log()
    assert "--reset-to" not in second.log()


def test_lease_writes_are_refused_for_a_while(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(40)
    consumer = programs.start(CONSUMER, name="consumer")
    programs.wait_for(orders)
    local_kinesis.faults.error(
        "dynamodb.UpdateItem", code="PolicyUnderReviewException", status=400, count=None
    )
    wait_until(
        lambda: local_kinesis.calls().failed("dynamodb.UpdateItem") >= 6, "lease writes are refused often"
    )
    local_kinesis.faults.clear()
    orders.put(40)
    programs.wait_for(orders)
    assert consumer.is_running
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)
