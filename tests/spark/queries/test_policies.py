"""The policies in docs/cluster.md allow what each role calls, and nothing that it never calls.

Every role runs against the embedded Kinesis with its own access key, which identifies its calls. The document lists
a role's occasional calls beside its policy, in a line `<!-- now and then: ... -->`.
"""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import boto3
import botocore.client
import pyarrow as pa
import pytest

from penstock import (
    Consumer,
    DeadLetterBucket,
    DeadLetterQueue,
    DeadLetterStream,
    Producer,
    QueueConsumer,
    Record,
)
from penstock.cli import main as cli
from penstock.cli.overview.stream_reader import fetch_stream
from penstock.spark.batch import KinesisBatchReader
from penstock.spark.options.spark_options import parse_batch, parse_sink
from penstock.spark.sink.row_writer import write_rows
from penstock.wiring import AwsOptions, SystemClock, open_cloudwatch_queries, open_kinesis
from queue_rig import knows_queues
from reader_query import Query
from spark_support import numbered, put
from waiting import wait_until

DOCUMENT = Path(__file__).parents[3] / "docs" / "cluster.md"
BLOCK = re.compile(
    r"<!-- policy: (?P<role>[a-z ]+) -->\s*(?:<!-- now and then: (?P<rare>[^>]*) -->\s*)?```json\n(?P<json>.*?)```",
    re.DOTALL,
)
SERVICES = ("kinesis", "dynamodb", "cloudwatch", "sts")
OF_NO_RESOURCE = {
    "cloudwatch:PutMetricData",
    "cloudwatch:GetMetricData",
    "dynamodb:ListTables",
    "kinesis:ListQueues",
}
CHECKED = {
    "driver",
    "reading tasks",
    "writing tasks",
    "aggregating tasks",
    "producer",
    "consumer",
    "dead letter stream",
    "dead letter bucket",
    "dead letter queue",
    "queue consumer",
    "queue dead letters",
    "batch driver",
    "batch tasks",
    "tail",
    "leases",
    "top",
    "lease reset",
    "plan",
    "autoscale",
}


def policies():
    found = {}
    for match in BLOCK.finditer(DOCUMENT.read_text(encoding="utf-8")):
        document = json.loads(match["json"])
        actions = set()
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow"
            named = statement["Action"]
            named = set(named if isinstance(named, list) else [named])
            assert statement["Resource"] != "*" or named <= OF_NO_RESOURCE
            actions |= named
        rare = {action.strip() for action in (match["rare"] or "").split(",") if action.strip()}
        assert rare <= actions, match["role"]
        found[match["role"]] = (actions, rare)
    return found


def called(server, key):
    """The calls of an access key, as a policy names them."""
    names = {name for name in server.calls().by_caller[key] if name.partition(".")[0] in SERVICES}
    return {name.replace(".", ":", 1) for name in names}


def check(role, seen):
    actions, rare = policies()[role]
    assert seen <= actions, f"{role}: not allowed: {sorted(seen - actions)}"
    assert actions - rare <= seen, f"{role}: allowed and not called: {sorted(actions - rare - seen)}"


def options_of(server, key, **more):
    return {
        "endpointUrl": server.endpoint_url,
        "region": "us-east-1",
        "awsAccessKeyId": key,
        "awsSecretKey": "local",
        **more,
    }


def test_a_querys_driver_and_its_tasks_call_what_their_policies_allow(server, client):
    query = Query(server, client, awsAccessKeyId="driver")
    put(client, query.stream, numbered(0, 40))
    try:
        for _ in range(8):
            end = query.plan()
            if end is None:
                continue
            parts = query.reader.partitions(query.done or {}, end)
            query.given["awsAccessKeyId"] = "reading-tasks"
            rows = [row for part in parts for row in query.read(part)]
            query.given["awsAccessKeyId"] = "driver"
            query.commit(end, rows)
            if len(query.rows) == 40:
                client.split_shard(
                    StreamName=query.stream,
                    ShardToSplit="shardId-000000000000",
                    NewStartingHashKey=str(2**126),
                )
                put(client, query.stream, numbered(40, 60))
        query.drain()
    finally:
        query.stop()
    assert query.numbers() == list(range(60))
    check("driver", called(server, "driver"))
    check("reading tasks", called(server, "reading-tasks"))


@pytest.mark.parametrize(("role", "aggregation"), [("writing tasks", "false"), ("aggregating tasks", "true")])
def test_a_sinks_tasks_call_what_their_policies_allow(server, role, aggregation):
    stream = f"sink-{aggregation}"
    server.create_stream(stream, shards=2)
    options, _ = parse_sink(options_of(server, stream, streamName=stream, aggregation=aggregation))
    rows = pa.RecordBatch.from_pydict({"data": ["a", "b"], "partitionKey": ["k", "l"]})
    write_rows(iter([rows]), options, ("data", "partitionKey", "", ""))
    check(role, called(server, stream))


def test_a_producer_calls_what_its_policy_allows(server):
    server.create_stream("made", shards=2)
    with Producer(
        "made",
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        connection={"access_key_id": "producer", "secret_access_key": "local"},
    ) as producer:
        producer.put(b"x", "k").result(20)
    check("producer", called(server, "producer"))


def consume(server, stream, application, count):
    """Run a plain consumer until it has so many records."""
    seen = []
    with Consumer(
        stream,
        application,
        seen.extend,
        connection={
            "region": "us-east-1",
            "endpoint_url": server.endpoint_url,
            "access_key_id": application,
            "secret_access_key": "local",
        },
        starting_position="TRIM_HORIZON",
        lease_duration_s=5.0,
        cold_start_jitter_s=0.0,
    ):
        wait_until(lambda: len(seen) >= count, "the consumer to read")
    assert len(seen) == count


def test_a_consumer_calls_what_its_policy_allows(server, client):
    server.create_stream("read", shards=2)
    put(client, "read", numbered(0, 20))
    consume(server, "read", "consumer-app", 20)
    check("consumer", called(server, "consumer-app"))


def of_key(server, key):
    return {
        "region": "us-east-1",
        "endpoint_url": server.endpoint_url,
        "connection": {"access_key_id": key, "secret_access_key": "local"},
    }


@pytest.fixture
def one_record(server, client):
    """A batch of one record."""
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    return [Record(b"x", "anna", "49", 0, None, at, "shardId-000000000001", "orders")]


def test_a_stream_for_dead_letters_is_called_as_its_policy_allows(server, one_record):
    server.create_stream("orders-dead")
    DeadLetterStream("orders-dead", **of_key(server, "letters"))(one_record, ValueError("x"))
    check("dead letter stream", called(server, "letters"))


def test_a_bucket_and_a_queue_for_dead_letters_are_called_as_their_policies_allow(one_record, monkeypatch):
    moto = pytest.importorskip("moto")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a")
    with moto.mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="my-bucket")
        queue = boto3.client("sqs", region_name="us-east-1").create_queue(QueueName="orders-dead")["QueueUrl"]
        called_names = []
        call = botocore.client.BaseClient._make_api_call

        def recorded(client, operation, arguments):
            called_names.append(f"{client.meta.service_model.service_name}:{operation}")
            return call(client, operation, arguments)

        monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", recorded)
        DeadLetterBucket("my-bucket", region="us-east-1")(one_record, ValueError("x"))
        DeadLetterQueue(queue, region="us-east-1")(one_record, ValueError("x"))
    for role in ("bucket", "queue"):
        check(f"dead letter {role}", {called_names.pop(0)})


@knows_queues
def test_a_queues_consumer_calls_what_its_policy_allows(server, client):
    client.create_stream(StreamName="queued", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    put(client, "queued", numbered(0, 2))
    seen = []

    def handle(record):
        seen.append(record)
        if len(seen) == 1:
            raise ConnectionError("the bank is asleep")

    consumer = QueueConsumer(
        "invoices",
        handle,
        create={"stream": "queued", "starting_position": "TRIM_HORIZON"},
        wait_time_s=1,
        **of_key(server, "queue-consumer"),
    )
    consumer.start()
    try:
        wait_until(
            lambda: called(server, "queue-consumer") >= policies()["queue consumer"][0], "each kind of call"
        )
    finally:
        consumer.stop()
    check("queue consumer", called(server, "queue-consumer"))


def test_every_policy_of_the_document_is_checked_here():
    assert set(policies()) == CHECKED


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"kinesis:PutRecords"}, r"not called: \['kinesis:ListShards'\]"),
        (
            {"kinesis:PutRecords", "kinesis:ListShards", "sts:AssumeRole"},
            r"not allowed: \['sts:AssumeRole'\]",
        ),
    ],
)
def test_the_check_tells_a_policy_that_is_too_wide_from_one_that_is_too_narrow(seen, message):
    with pytest.raises(AssertionError, match=message):
        check("writing tasks", seen)


def test_a_batch_reads_driver_and_tasks_call_what_their_policies_allow(server, client):
    server.create_stream("batch", shards=2)
    put(client, "batch", numbered(0, 20))
    client.split_shard(
        StreamName="batch", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    put(client, "batch", numbered(20, 30))

    def reader(key):
        return KinesisBatchReader(parse_batch(options_of(server, key, streamName="batch"))[0])

    parts = reader("batch-driver").partitions()
    rows = sum(page.num_rows for part in parts for page in reader("batch-tasks").read(part))
    assert (len(parts), rows) == (4, 30)
    check("batch driver", called(server, "batch-driver"))
    check("batch tasks", called(server, "batch-tasks"))


KEYS = itertools.count()
"""Numbers of the commands' access keys: the tests share a server."""


@pytest.fixture
def command(server, monkeypatch, capsys, tmp_path):
    """Run commands, each time with their own profile and key, and return all of their calls."""
    profiles = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)

    def run(*commands):
        key = f"command-{next(KEYS)}"
        with profiles.open("a", encoding="utf-8") as file:
            file.write(f"[{key}]\naws_access_key_id = {key}\naws_secret_access_key = local\n")
        for arguments in commands:
            assert cli.main([*arguments, "--profile", key]) == 0, capsys.readouterr().err
        return called(server, key)

    return run


def test_the_page_of_a_stream_calls_what_the_policy_has_for_it(server):
    server.create_stream("paged")
    options = AwsOptions(
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        access_key_id="stream-page",
        secret_access_key="local",
    )
    kinesis = open_kinesis(options)
    found = fetch_stream(
        kinesis,
        open_cloudwatch_queries(options),
        "paged",
        kinesis.fetch_shards("paged").shards,
        SystemClock().wall_ms(),
    )
    assert found.load is not None
    actions, rare = policies()["top"]
    assert rare <= called(server, "stream-page") <= actions


@knows_queues
def test_the_commands_for_dead_letters_of_a_queue_call_what_their_policy_allows(server, client, command):
    client.create_stream(StreamName="dead", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    create = ["queues", "create", "dead", "--stream", "dead", "--from", "TRIM_HORIZON", "--wait"]
    command([*create, "--max-receive-count", "1"])
    put(client, "dead", numbered(0, 2))
    command(["queues", "receive", "dead"], ["queues", "receive", "dead"])
    restore, purge = ["queues", "restore", "dead"], ["queues", "purge-dead", "dead"]
    one = ["--key", "k0", "--yes"]
    check("queue dead letters", command(["queues", "dead", "dead"], [*restore, *one], [*purge, "--yes"]))


def test_the_commands_call_what_their_policies_allow(server, client, command, tmp_path):
    server.create_stream("told", shards=2)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(20)), encoding="utf-8")
    check("producer", command(["put", "told", str(lines)]))
    check("producer", command(["put", "--aggregate", "told", str(lines)]))
    check("tail", command(["tail", "told", "--from", "TRIM_HORIZON", "--count", "40"]))
    assert command(["shards", "told"]) == {"kinesis:ListShards"}
    consume(server, "told", "told-app", 40)
    look = ["leases", "told-app", "--observe", "0"]
    assert command(look) == {"dynamodb:Scan", "dynamodb:DescribeTable"}
    check("leases", command([*look, "--stream", "told"]))
    check("top", command(["top", "--json", "--silent-after", "0"]))
    client.split_shard(StreamName="told", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    reset = [*look, "--stream", "told", "--reset-to", "LATEST", "--backup", str(tmp_path / "backup")]
    restore = [*look, "--restore", str(tmp_path / "backup"), "--backup", str(tmp_path / "second")]
    check("lease reset", command(reset, restore))
    check("plan", command(["plan", "told"]))
    server.create_stream("scaled", shards=2)
    server.clock.advance(120)
    rounds = [["autoscale", "scaled", "--min", str(least), "--max", "4", "--once"] for least in (2, 3)]
    check("autoscale", command(*rounds))
