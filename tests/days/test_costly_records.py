"""A producer goes wrong and writes records that are small and cost a lot to read: the others are billed as always."""

import uuid
import zlib

VERSION = uuid.UUID("0d9b0a3c-6a34-4a0c-9d0f-3a3f5f0c7d11")
LINES = uuid.UUID("7bfae0f6-0cf5-4d6c-8e58-4f6b8f7f2f10")
BILLING = r"""
    import logging
    import uuid

    from penstock import Consumer
    from penstock.errors import SchemaError
    from penstock.schemas import MemorySchemaRegistry, SchemaDecoder

    logging.basicConfig(level="INFO")
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    order = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": amount}]}
    registry = MemorySchemaRegistry()
    registry.add("orders", order, version_id=uuid.UUID("0d9b0a3c-6a34-4a0c-9d0f-3a3f5f0c7d11"))
    lines = {"type": "array", "items": "null"}
    registry.add("lines", lines, version_id=uuid.UUID("7bfae0f6-0cf5-4d6c-8e58-4f6b8f7f2f10"))
    decoder = SchemaDecoder(registry=registry)

    def handle(batch):
        for record in batch:
            try:
                line = f"{record.partition_key} {decoder.decode(record.data).data['amount']}"
            except SchemaError:
                line = f"set aside {record.partition_key}"
            print(line + "\n", end="", flush=True)

    Consumer(stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON").run()
"""


def number(value):
    value <<= 1
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def order(amount: bytes) -> bytes:
    return b"\x03\x00" + VERSION.bytes + number(len(amount)) + amount


COSTLY = {
    "a long decimal": order(b"\x7f" * 300_000),
    "a billion of nothing": b"\x03\x00" + LINES.bytes + number(10**9) + number(0),
    "a compressed one": b"\x03\x05" + VERSION.bytes + zlib.compress(bytes(90_000_000), 9),
}


def test_costly_records_are_set_aside_and_the_others_billed(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    client = local_kinesis.client("kinesis")

    def put(key, data):
        client.put_record(StreamName="orders", Data=data, PartitionKey=key)

    billing = programs.start(BILLING, name="billing")
    expected = {}
    for place in range(30):
        key = f"order {place}"
        put(key, order((place + 1).to_bytes(2, "big")))
        expected[f"{key} {(place + 1) / 100:.2f}"] = 1
        if place % 10 == 5:
            name = list(COSTLY)[place // 10]
            put(name, COSTLY[name])
            expected[f"set aside {name}"] = 1
    programs.wait_for_lines(len(expected))
    assert billing.terminate() == 0
    assert programs.printed() == expected
    assert "lost" not in billing.log()
    assert "could not be renewed" not in billing.log()
