"""The blocks of docs/coming-from.md: a loop of boto3 as a consumer, a test that ran under moto, and the table of a KCL 1.x worker."""

import subprocess
import sys

import boto3
import pytest

pytest.importorskip("httptools")

from docs_blocks import blocks
from penstock import Consumer
from waiting import wait_until

KAFKA, DSTREAMS, LOOP, MOTO = [
    block.text for block in blocks("docs/coming-from.md") if block.language == "python" and block.is_run
]


def test_a_loop_over_boto3_becomes_a_consumer(local_kinesis, monkeypatch, capsys):
    local_kinesis.create_stream("orders")
    boto3.client("kinesis").put_record(StreamName="orders", Data=b"3", PartitionKey="anna")
    printed = []

    class Until(Consumer):
        def run(self):
            self.start()
            wait_until(lambda: printed or printed.extend(capsys.readouterr().out.split()), "the record")
            self.stop()

    monkeypatch.setattr("penstock.Consumer", Until, raising=False)
    exec(LOOP, {})
    assert printed == ["anna", "b'3'"]


def test_a_test_that_ran_under_moto_runs(tmp_path):
    program = tmp_path / "test_orders.py"
    program.write_text(MOTO)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_of_kcl_1_is_joined_at_its_checkpoint(local_kinesis):
    """The attributes of a lease of KCL 1.x, which spark-streaming-kinesis-asl uses."""
    local_kinesis.create_stream("orders")
    kinesis, dynamodb = boto3.client("kinesis"), boto3.client("dynamodb")
    first, _ = (
        kinesis.put_record(StreamName="orders", Data=data, PartitionKey="anna")["SequenceNumber"]
        for data in (b"done", b"unread")
    )
    dynamodb.create_table(
        TableName="old-dstream",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    lease = {
        "leaseKey": {"S": "shardId-000000000000"},
        "leaseOwner": {"S": "receiver:1"},
        "leaseCounter": {"N": "41"},
        "checkpoint": {"S": first},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
    }
    dynamodb.put_item(TableName="old-dstream", Item=lease)
    read = []
    consumer = Consumer("orders", "old-dstream", read.extend, lease_duration_s=2)
    with consumer:
        wait_until(lambda: read, "the record behind the checkpoint")
    assert [record.data for record in read] == [b"unread"]
