"""The command line and several streams: leases of a shared table, what `top` and `dashboard` snapshot at, and records."""

import json
from datetime import UTC, datetime

import pytest

pytest.importorskip("httptools")

from penstock.cli import main as cli
from penstock.cli.lease_report import choose_stream, streams_of
from penstock.cli.overview.cells import short_shard
from penstock.cli.overview.watcher import ApplicationWatcher, WatchOptions
from penstock.cli.record_lines import record_document, record_text
from penstock.core.leases.lease import Lease
from penstock.core.reading.record import Record
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import OptionError
from penstock.wiring import AwsOptions, SystemClock, open_kinesis, open_lease_table
from penstock_local import LocalKinesis

SHARD = "shardId-000000000000"
ORDERS, RETURNS = "000000000000:orders:1700000000", "000000000000:returns:1700000000"
ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/"


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis(limits=False) as server:  # one shard is read more than five times a second
        for stream in ("orders", "returns"):
            server.create_stream(stream, 1)
            server.client("kinesis").put_record(StreamName=stream, Data=b"x", PartitionKey="k")
        yield server


@pytest.fixture
def table(kinesis, monkeypatch, tmp_path, request):
    """Return a table whose orders are read to the end, and whose returns were not begun."""
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    dynamo, name = kinesis.client("dynamodb"), f"t{abs(hash(request.node.name))}"
    dynamo.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    iterator = kinesis.client("kinesis").get_shard_iterator(
        StreamName="orders", ShardId=SHARD, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    last = kinesis.client("kinesis").get_records(ShardIterator=iterator)["Records"][-1]["SequenceNumber"]
    for stream_id, checkpoint in ((ORDERS, last), (RETURNS, "TRIM_HORIZON")):
        row = {
            "leaseKey": {"S": f"{stream_id}:{SHARD}"},
            "streamName": {"S": stream_id},
            "shardId": {"S": SHARD},
            "leaseCounter": {"N": "1"},
            "checkpoint": {"S": checkpoint},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "startingHashKey": {"S": "0"},
            "endingHashKey": {"S": str(2**128 - 1)},
        }
        dynamo.put_item(TableName=name, Item=row)
    return name


def leases(kinesis, *arguments) -> int:
    connection = ["--endpoint-url", kinesis.endpoint_url, "--region", "us-east-1"]
    return cli.main(["leases", *arguments, "--observe", "0", *connection])


def checkpoints(kinesis, table):
    items = kinesis.client("dynamodb").scan(TableName=table, ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item["checkpoint"]["S"] for item in items}


def test_the_lags_are_those_of_the_stream_that_is_named(kinesis, table, capsys):
    for named, key in (("orders", f"{ORDERS}:{SHARD}"), (RETURNS, f"{RETURNS}:{SHARD}")):
        assert leases(kinesis, table, "--stream", named, "--json") == 0
        rows = json.loads(capsys.readouterr().out)["leases"]
        lags = {row["shard"]: row["millis_behind_latest"] for row in rows}
        assert {shard for shard, lag in lags.items() if lag is not None} == {key}


def test_a_reset_of_one_stream_leaves_the_others_alone(kinesis, table):
    before = checkpoints(kinesis, table)
    assert leases(kinesis, table, "--stream", "orders", "--reset-to", "TRIM_HORIZON", "--backup", "b") == 0
    after = checkpoints(kinesis, table)
    assert after == {**before, f"{ORDERS}:{SHARD}": "TRIM_HORIZON"}
    assert leases(kinesis, table, "--restore", "b") == 0
    assert checkpoints(kinesis, table) == before


def test_a_stream_that_the_table_does_not_have_is_refused(kinesis, table, capsys):
    assert leases(kinesis, table, "--stream", "shipments", "--reset-to", "TRIM_HORIZON") != 0
    assert f"the table has leases of {ORDERS}, {RETURNS}; name one of them" in capsys.readouterr().err


def test_a_look_knows_the_shards_and_lags_of_every_stream(kinesis, table):
    options = AwsOptions(**kinesis.connection())
    watcher = ApplicationWatcher(
        open_lease_table(table, options), open_kinesis(options), SystemClock(), WatchOptions()
    )
    snapshot = watcher.take_snapshot()
    assert snapshot.stream == "orders, returns"
    assert snapshot.problems == ()
    keys = {f"{ORDERS}:{SHARD}", f"{RETURNS}:{SHARD}"}
    assert {shard.shard_id for shard in snapshot.lineage} == keys
    lags = {row.shard: row.lag_ms for row in snapshot.shards}
    assert lags.keys() == keys
    assert lags[f"{ORDERS}:{SHARD}"] == 0
    assert lags[f"{RETURNS}:{SHARD}"] is not None


def test_a_stream_that_was_made_again_is_named_with_its_epoch():
    again = "000000000000:orders:1800000000"
    rows = [Lease(f"{stream_id}:{SHARD}") for stream_id in (ORDERS, again)]
    with pytest.raises(OptionError, match="with account and epoch"):
        choose_stream(rows, "orders")
    assert choose_stream(rows, again) == (again, (rows[1],))


def test_the_leases_of_one_stream_are_not_those_of_another():
    rows = [Lease(SHARD, stream=StreamIdentity(f"{ARN}orders", 5)), Lease(f"{SHARD}1")]
    assert [choose_stream(rows, named) for named in ("orders", f"{ARN}orders")] == [("", tuple(rows))] * 2
    with pytest.raises(OptionError, match=f"--stream returns: the table has leases of {ARN}orders; name one"):
        choose_stream(rows, "returns")
    assert choose_stream(rows[1:], "returns") == ("", (rows[1],))  # rows of the KCL do not name it
    assert choose_stream([], "returns") == ("", ())


def test_leases_that_name_their_stream_are_asked_about_there():
    named = Lease(f"{ORDERS}:{SHARD}", stream=StreamIdentity(f"{ARN}orders", 5))
    assert streams_of([named, Lease(f"{RETURNS}:{SHARD}")], None) == {
        ORDERS: f"{ARN}orders",
        RETURNS: "returns",
    }
    assert streams_of([Lease(SHARD)], None) == {}
    assert streams_of([Lease(SHARD)], "orders") == {"": "orders"}


def test_a_shard_is_shown_behind_its_streams_name():
    assert (short_shard(SHARD), short_shard(f"{ORDERS}:{SHARD}")) == ("0", "orders/0")


RECORD = Record(b"x", "k", "77", 0, None, datetime(2026, 1, 2, tzinfo=UTC), SHARD, "orders")


def test_records_of_several_streams_tell_theirs():
    assert record_document(RECORD, names_stream=True)["stream"] == "orders"
    assert "stream" not in record_document(RECORD)
    assert record_text(RECORD, names_stream=True).startswith("orders/0  ")
    assert record_text(RECORD).startswith("   0  ")


@pytest.mark.parametrize(
    ("streams", "expected"), [(["orders"], "orders"), (["orders", "returns"], ["orders", "returns"])]
)
def test_consume_reads_every_stream_that_is_named(monkeypatch, streams, expected):
    made = []

    def make(stream, application, *_, **__):
        made.append((stream, application))
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.consumer.Consumer", make)
    cli.main(["consume", *streams, "--application", "ledger"])
    assert made == [(expected, "ledger")]
