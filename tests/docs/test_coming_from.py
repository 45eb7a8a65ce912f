"""The blocks of docs/coming-from.md: a loop of boto3 as a consumer, a test that ran under moto, and the table of a KCL 1.x worker."""

import importlib.util
import subprocess
import sys

import boto3
import pytest

pytest.importorskip("httptools")

from docs_blocks import ROOT, blocks
from penstock import Consumer, Producer
from waiting import wait_until

_SPEC = importlib.util.spec_from_file_location("penstock_peers", ROOT / "tools" / "peers.py")
peers = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = peers  # a dataclass looks for its module there
_SPEC.loader.exec_module(peers)

KAFKA, DSTREAMS, LOOP, MOTO, OTHERS = [
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


@pytest.mark.parametrize("name", ["kinesalite", "kinesis-local", "ministack", "moto"])
def test_a_consumer_reads_from_a_server_by_others(name, tmp_path, monkeypatch, capsys):
    """Installs the server; LocalStack itself needs Docker."""
    for variable, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(variable, value)
    printed = []

    class Until(Consumer):
        def run(self):
            with self:
                wait_until(lambda: printed or printed.extend(capsys.readouterr().out.split()), "the record")

    monkeypatch.setattr("penstock.Consumer", Until, raising=False)
    try:
        with peers.running(name, tmp_path / "log") as url:
            kinesis = boto3.client("kinesis", endpoint_url=url, region_name="us-east-1")
            kinesis.create_stream(StreamName="orders", ShardCount=1)
            kinesis.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
            with Producer("orders", endpoint_url=url) as producer:
                producer.put(b"3", "anna").result(30)
            program = OTHERS.replace("http://localhost:4566", url).replace(
                "/tmp/billing-leases", str(tmp_path / "leases")
            )
            exec(program, {})
    except peers.PeerUnavailable as problem:
        pytest.skip(str(problem))
    assert printed == ["anna", "b'3'"]


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
