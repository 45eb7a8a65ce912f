"""Leases are set back by mistake, and restored; and a table is restored from the night's backup."""

import json

from user_programs import CONSUMER, Orders, once

LEASES = "billing"


def test_a_reset_is_taken_back(local_kinesis, programs, tmp_path):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    consumer = programs.start(CONSUMER, name="morning")
    programs.wait_for(orders)
    refused = programs.penstock(
        "leases", LEASES, "--stream", "orders", "--reset-to", "TRIM_HORIZON", name="refused"
    )
    assert refused.wait() == 1
    assert "has live workers" in refused.log()
    assert consumer.terminate() == 0

    backup = str(tmp_path / "backup.json")
    reset = programs.penstock(
        "leases", LEASES, "--stream", "orders", "--reset-to", "TRIM_HORIZON", "--backup", backup, name="reset"
    )
    assert (reset.wait(), reset.log()) == (0, "")
    restored = programs.penstock("leases", LEASES, "--restore", backup, name="restored")
    assert (restored.wait(), restored.log()) == (0, "")
    for command in (refused, reset, restored):
        programs.started.remove(command)
    orders.put(100)
    consumer = programs.start(CONSUMER, name="evening")
    programs.wait_for(orders)
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)


def test_a_table_is_restored_from_the_backup_of_the_night(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    dynamodb = local_kinesis.client("dynamodb")
    orders = Orders(local_kinesis)
    orders.put(100)
    yesterday = programs.start(CONSUMER, name="yesterday")
    programs.wait_for(orders)
    assert yesterday.terminate() == 0
    backup = dynamodb.scan(TableName=LEASES)["Items"]

    today = programs.start(CONSUMER, name="today")
    orders.put(50)
    programs.wait_for(orders)
    assert today.terminate() == 0
    since_the_backup = orders.texts[100:]
    dynamodb.delete_table(TableName=LEASES)
    dynamodb.create_table(
        TableName=LEASES,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for row in json.loads(json.dumps(backup)):
        dynamodb.put_item(TableName=LEASES, Item=row)
    orders.put(50)
    tomorrow = programs.start(CONSUMER, name="tomorrow")
    programs.wait_for(orders)
    assert tomorrow.terminate() == 0
    # What was done since the backup comes again, once; nothing else does.
    assert programs.printed() == once(orders) | dict.fromkeys(since_the_backup, 2)
