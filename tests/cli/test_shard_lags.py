"""The lag that `penstock leases --stream` shows: the age of the oldest unread record, whatever the service's own figure says."""

import json

import pytest

pytest.importorskip("httptools")

from penstock.cli import main as cli
from penstock.core.aggregation import AggregateBuilder
from penstock_local import LocalKinesis

SHARD = "shardId-000000000000"
AGE_S = 600.0
SLACK_MS = 120_000  # this machine may be busy


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis() as server:
        yield server


@pytest.fixture(autouse=True)
def environ(kinesis, monkeypatch):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stream(kinesis, request):
    name = f"s{abs(hash(request.node.name))}"
    kinesis.create_stream(name, 1)
    kinesis.client("dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


def put(kinesis, stream, data=b"x") -> str:
    return kinesis.client("kinesis").put_record(StreamName=stream, Data=data, PartitionKey="k")[
        "SequenceNumber"
    ]


def write_lease(kinesis, stream, checkpoint, sub=0):
    lease = {
        "leaseKey": {"S": SHARD},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": str(sub)},
    }
    kinesis.client("dynamodb").put_item(TableName=stream, Item=lease)


def leases(kinesis, table, stream) -> int:
    # Named, since connections are kept for what boto3 finds by itself, also between test modules.
    at = ["--endpoint-url", kinesis.endpoint_url]
    return cli.main(["leases", table, "--stream", stream, "--observe", "0", "--json", *at])


def lag_ms(kinesis, capsys, stream) -> int:
    capsys.readouterr()
    assert leases(kinesis, stream, stream) == 0
    (lease,) = json.loads(capsys.readouterr().out)["leases"]
    return lease["millis_behind_latest"]


def is_about(found_ms, age_s) -> bool:
    return 1000 * age_s - 1000 <= found_ms <= 1000 * age_s + SLACK_MS


def test_one_unread_record_is_as_old_as_it_is(kinesis, stream, capsys):
    write_lease(kinesis, stream, "TRIM_HORIZON")
    put(kinesis, stream)
    kinesis.clock.advance(AGE_S)
    assert is_about(lag_ms(kinesis, capsys, stream), AGE_S)


def test_a_record_behind_the_checkpoint_counts_and_the_done_one_does_not(kinesis, stream, capsys):
    write_lease(kinesis, stream, put(kinesis, stream))
    kinesis.clock.advance(3600)
    assert lag_ms(kinesis, capsys, stream) == 0
    put(kinesis, stream)
    kinesis.clock.advance(AGE_S)
    put(kinesis, stream)
    assert is_about(lag_ms(kinesis, capsys, stream), AGE_S)


def test_an_aggregate_that_is_done_in_part_counts(kinesis, stream, capsys):
    builder = AggregateBuilder()
    for _ in range(3):
        builder.add(b"x", "k")
    number = put(kinesis, stream, builder.build().data)
    kinesis.clock.advance(AGE_S)
    write_lease(kinesis, stream, number, sub=1)
    assert is_about(lag_ms(kinesis, capsys, stream), AGE_S)
    write_lease(kinesis, stream, number, sub=2)
    assert lag_ms(kinesis, capsys, stream) == 0


def test_empty_pages_on_the_way_and_refused_reads_hide_nothing(kinesis, stream, capsys):
    write_lease(kinesis, stream, "TRIM_HORIZON")
    put(kinesis, stream)
    kinesis.clock.advance(AGE_S)
    kinesis.faults.empty_reads(count=2)
    kinesis.faults.throttle("GetRecords", count=2)
    assert is_about(lag_ms(kinesis, capsys, stream), AGE_S)


def test_a_missing_stream_is_one_error_and_the_leases_are_shown_all_the_same(kinesis, stream, capsys):
    write_lease(kinesis, stream, "TRIM_HORIZON")
    capsys.readouterr()
    assert leases(kinesis, stream, "nosuch") == 1
    out, err = capsys.readouterr()
    assert [lease["shard"] for lease in json.loads(out)["leases"]] == [SHARD]
    assert "nosuch" in err
    assert err.count("\n") == 1
