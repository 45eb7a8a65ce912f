"""Write aggregates.json: user records that Penstock and aws-kinesis-agg pack into the same bytes and read from them.

Run it in a separate environment, because the project does not depend on the peer (whose own list lacks six):

    python -m venv peer
    peer/bin/pip install aws-kinesis-agg==1.2.3 six
    PYTHONPATH=src peer/bin/python tests/golden/make_aggregates.py

The file is kept in the repository, so that the tests need neither the peer nor the network. Run it again when cases are
added. Nothing is written unless both pack the same bytes and both read them back. When the bytes of an old case change, the wire format has changed, and that is a defect.
"""

import base64
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import google.protobuf
from aws_kinesis_agg.aggregator import AggRecord
from aws_kinesis_agg.deaggregator import iter_deaggregate_records

from penstock.core.aggregation import AggregateBuilder, deaggregate

LARGEST_HASH_KEY = str(2**128 - 1)


def cases():
    """Return each case's name and its records: partition key, explicit hash key or None, data."""
    chance = random.Random(2013)
    yield "two records of one key", [("pk", None, b"hello"), ("pk", None, b"world")]
    yield "no data at all", [("a", None, b""), ("b", None, b"")]
    yield (
        "keys in every script",
        [("ключ", None, b"1"), ("鍵", None, b"2"), ("🔑" * 64, None, b"3"), ("é", None, b"4")],
    )
    yield "the longest key", [("k" * 256, None, b"1"), ("K" * 256, None, b"2"), ("k" * 256, None, b"3")]
    yield (
        "explicit hash keys at both ends of the space",
        [("a", "0", b"1"), ("b", LARGEST_HASH_KEY, b"2"), ("a", "0", b"3"), ("a", LARGEST_HASH_KEY, b"4")],
    )
    yield "bytes that are no text", [("a", None, bytes(range(256))), ("b", None, b"\xff" * 20)]
    yield "an aggregate inside", [("a", None, bytes.fromhex("f3899ac2") + b"x" * 30), ("b", None, b"y")]
    for data_bytes in (115, 116, 127, 128):
        yield f"data of {data_bytes} bytes", [("a", None, b"d" * data_bytes), ("b", None, b"")]
    yield "more keys than one byte counts", [(f"key-{n}", None, b"%d" % n) for n in range(140)]
    yield "more hash keys than one byte counts", [("k", str(n * 10**30), b"%d" % n) for n in range(140)]
    for number in range(6):
        keys = [f"{chance.getrandbits(40):x}" for _ in range(chance.randint(1, 9))]
        with_hash_keys = number % 2 == 1
        yield (
            f"chance {number}",
            [
                (
                    key := chance.choice(keys),
                    str(int(key, 16) << 80) if with_hash_keys else None,
                    chance.randbytes(chance.randint(0, 90)),
                )
                for _ in range(chance.randint(2, 25))
            ],
        )


def pack_as_peer(records):
    """Return the peer's aggregate."""
    whole = AggRecord()
    for partition_key, explicit_hash_key, data in records:
        if not whole.add_user_record(partition_key, data, explicit_hash_key):
            raise AssertionError("the peer found the record too large")
    _, _, blob = whole.get_contents()
    return blob


def read_as_peer(blob):
    """Return partition key, explicit hash key, data and place of each user record."""
    raw = {
        "SequenceNumber": "1",
        "PartitionKey": "a",
        "ApproximateArrivalTimestamp": datetime.fromtimestamp(0, UTC),
        "Data": blob,
    }
    for record in iter_deaggregate_records([raw], data_format="Boto3"):
        inner = record["kinesis"]
        yield (
            inner["partitionKey"],
            inner["explicitHashKey"],
            base64.b64decode(inner["data"]),
            inner["subSequenceNumber"],
        )


def main():
    """Write the file; each side must read the other's bytes, or nothing is written."""
    written = []
    for name, records in cases():
        builder = AggregateBuilder()
        for partition_key, explicit_hash_key, data in records:
            builder.add(data, partition_key, explicit_hash_key)
        packed = builder.build()
        peer_blob = pack_as_peer(records)
        expected = [(key, hash_key, data, place) for place, (key, hash_key, data) in enumerate(records)]
        if peer_blob != packed.data:
            raise AssertionError(f"{name}: the two pack different bytes")
        if list(read_as_peer(packed.data)) != expected:
            raise AssertionError(f"{name}: the peer reads something else")
        if [tuple(record) for record in deaggregate(peer_blob)] != expected:
            raise AssertionError(f"{name}: Penstock reads something else")
        written.append(
            {
                "name": name,
                "records": [[key, hash_key, data.hex()] for key, hash_key, data in records],
                "blob": packed.data.hex(),
                "partition_key": packed.partition_key,
                "explicit_hash_key": packed.explicit_hash_key,
            }
        )
    made_by = f"make_aggregates.py with aws-kinesis-agg 1.2.3 and protobuf {google.protobuf.__version__}"
    lines = ",\n".join(f"  {json.dumps(case)}" for case in written)
    path = Path(__file__).with_name("aggregates.json")
    path.write_text(f'{{\n "made_by": {json.dumps(made_by)},\n "cases": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
