"""Two teams keep their leases in one bucket: one at `leases/billing`, the other one at `leases`, with backups beside them."""

import json

import pytest

from s3_server import S3Server
from user_programs import CONSUMER, Orders
from waiting import wait_until


@pytest.fixture
def bucket(monkeypatch):
    with S3Server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        yield server


def test_an_application_below_another_one_in_a_bucket(local_kinesis, programs, bucket):
    local_kinesis.create_stream("orders", shards=2)
    orders = Orders(local_kinesis)
    orders.put(100)
    billing = programs.start(CONSUMER.replace('"billing"', '"s3://acme/leases/billing"'), name="billing")
    programs.wait_for(orders)
    with bucket.lock:  # and a program that knows nothing of Penstock keeps something under the prefix
        bucket.objects["leases/archive/2026-11.json"] = b"x" * 5_000_000
        bucket.objects["leases/notes.txt"] = b"x" * 5_000_000

    fraud = programs.start(CONSUMER.replace('"billing"', '"s3://acme/leases"'), name="fraud")
    orders.put(100)
    for program in (billing, fraud):
        wait_until(lambda program=program: len(program.lines()) >= 200, f"all orders in {program.name}")
    shown = programs.penstock("leases", "s3://acme/leases", "--json", name="leases")
    assert shown.wait() == 0
    leases = json.loads("\n".join(shown.lines()))["leases"]
    assert [lease["shard"] for lease in leases] == ["shardId-000000000000", "shardId-000000000001"]
    assert len({lease["owner"] for lease in leases}) == 1
    assert [program.terminate() for program in (billing, fraud)] == [0, 0]
    for program in (billing, fraud):
        assert sorted(program.lines()) == sorted(orders.texts)
    assert not {"leases/archive/2026-11.json", "leases/notes.txt"} & {key for _, key in bucket.requests}
    assert bucket.keys("leases/shard") == [f"leases/shardId-00000000000{number}.json" for number in (0, 1)]
