"""A laptop is closed while a consumer runs on it, for twice as long as its leases last, and opened again."""

import signal
import time

from user_programs import CONSUMER, Orders, once
from waiting import wait_by_limited_calls, wait_until

LEASE_S = 10  # the default


def sleep_for_two_leases(consumer) -> None:
    consumer.send(signal.SIGSTOP)
    wakes_s = time.monotonic() + 2 * LEASE_S
    wait_until(lambda: time.monotonic() >= wakes_s, "the morning")


def test_the_only_consumer_of_an_application_sleeps(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    laptop = programs.start(CONSUMER, name="laptop")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    sleep_for_two_leases(laptop)
    orders.put(100)
    laptop.send(signal.SIGCONT)
    programs.wait_for(orders)
    assert laptop.terminate() == 0
    assert programs.printed() == once(orders)


def test_a_colleague_takes_over_while_it_sleeps_and_shares_when_it_wakes(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=4)
    laptop, server = (programs.start(CONSUMER, name=name) for name in ("laptop", "server"))
    orders = Orders(local_kinesis)
    orders.put_until(lambda: laptop.lines() and server.lines(), "a share for both")
    programs.wait_for(orders)
    # What was read is stored by now: a checkpoint is due five seconds after the last.
    wait_by_limited_calls(lambda: is_stored(local_kinesis), "the checkpoints")
    sleep_for_two_leases(laptop)
    orders.put(100)
    programs.wait_for(orders)  # on the server
    laptop.send(signal.SIGCONT)
    before = len(laptop.lines())
    orders.put_until(lambda: len(laptop.lines()) > before, "the laptop's share")
    programs.wait_for(orders)
    assert (laptop.terminate(), server.terminate()) == (0, 0)
    assert programs.printed() == once(orders)


def is_stored(kinesis) -> bool:
    """Whether the checkpoint of each shard is its last record."""
    client = kinesis.client("kinesis")
    rows = kinesis.client("dynamodb").scan(TableName="billing")["Items"]
    for row in rows:
        shard = {"ShardId": row["leaseKey"]["S"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = client.get_shard_iterator(StreamName="orders", **shard)["ShardIterator"]
        records = client.get_records(ShardIterator=iterator)["Records"]
        if records and records[-1]["SequenceNumber"] != row["checkpoint"]["S"]:
            return False
    return True
