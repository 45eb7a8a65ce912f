"""Penstock is upgraded from 0.1.0: a consumer and a query go on where that version has left them.

What 0.1.0 left is made from what this version leaves: its rows had the attributes of the KCL and one of its own, and its offsets fewer
fields.
"""

from user_programs import CONSUMER, Orders, once

ATTRIBUTES_OF_0_1_0 = {
    "leaseKey",
    "leaseOwner",
    "leaseCounter",
    "ownerSwitchesSinceCheckpoint",
    "checkpoint",
    "checkpointSubSequenceNumber",
    "parentShardId",
    "childShardIds",
    "startingHashKey",
    "endingHashKey",
    "throughputKBps",
    "penstockStartMillis",
}


def write_as_0_1_0(kinesis, table: str) -> None:
    """Leave of each row what 0.1.0 wrote."""
    dynamodb = kinesis.client("dynamodb")
    for row in dynamodb.scan(TableName=table)["Items"]:
        kept = {name: value for name, value in row.items() if name in ATTRIBUTES_OF_0_1_0}
        assert kept != row
        dynamodb.put_item(TableName=table, Item=kept)


def test_a_consumer_goes_on_where_0_1_0_stopped(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    old = programs.start(CONSUMER, name="old")
    programs.wait_for(orders)
    assert old.terminate() == 0
    write_as_0_1_0(local_kinesis, "billing")
    orders.put(100)
    new = programs.start(CONSUMER, name="new")
    programs.wait_for(orders)
    orders.put(100)
    programs.wait_for(orders)
    assert new.terminate() == 0
    assert programs.printed() == once(orders)
    assert "WARNING" not in new.log()
    assert "ERROR" not in new.log()
