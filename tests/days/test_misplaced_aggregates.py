"""An old producer goes on sending aggregates to the shard from which its keys have moved; the consumer drops them, restarts, and is done."""

import hashlib
import json

from waiting import wait_until

CONSUMER = r"""
    from penstock import Consumer

    def handle(batch):
        for record in batch:
            print(record.data.decode() + "\n", end="", flush=True)

    Consumer(
        stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON",
        drop_misplaced_aggregates=True,  # as the KCL does, beside which it was written
    ).run()
"""
FIRST = "shardId-000000000000"
LAST_KEY = 2**128 - 1


def varint(number):
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def aggregate(hash_key, payloads):
    """The KPL's format: keys, explicit hash keys, and records that name both by index."""
    records = b"".join(field(3, b"\x08\x00\x10\x00" + field(3, payload)) for payload in payloads)
    body = field(1, b"k") + field(2, str(hash_key).encode()) + records
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body).digest()


def checkpoint(kinesis):
    rows = kinesis.client("dynamodb").scan(TableName="billing")["Items"]
    return next(row["checkpoint"]["S"] for row in rows if row["leaseKey"]["S"] == FIRST)


def test_a_consumer_is_restarted_over_misplaced_aggregates(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    client = local_kinesis.client()

    def put(data):
        return client.put_record(StreamName="orders", Data=data, PartitionKey="k", ExplicitHashKey="1")[
            "SequenceNumber"
        ]

    put(b"first")
    consumer = programs.start(CONSUMER, name="consumer")
    programs.wait_for_lines(1)
    last = [put(aggregate(LAST_KEY, [b"%d.%d" % (n, m) for m in range(3)])) for n in range(60)][-1]
    wait_until(lambda: checkpoint(local_kinesis) == last, "the checkpoint behind what was dropped")
    local_kinesis.clock.advance(7200)
    shown = programs.penstock("leases", "billing", "--stream", "orders", "--json", name="leases")
    assert shown.wait() == 0
    lags = [row["millis_behind_latest"] for row in json.loads("\n".join(shown.lines()))["leases"]]
    assert lags == [0, 0]
    assert consumer.terminate() == 0

    again = programs.start(CONSUMER, name="consumer-again")
    put(b"second")
    wait_until(again.lines, "the order behind them")
    assert again.terminate() == 0
    assert (consumer.lines(), again.lines()) == (["first"], ["second"])
