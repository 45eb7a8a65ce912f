"""The policies in docs/cluster.md allow what each role calls, and nothing that it never calls.

Every role runs against the embedded Kinesis with its own access key, which identifies its calls. The document lists
a role's occasional calls beside its policy, in a line `<!-- now and then: ... -->`.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Consumer, Producer
from penstock.cli import main as cli
from penstock.cli.overview.stream_reader import fetch_stream
from penstock.spark.batch import KinesisBatchReader
from penstock.spark.options.spark_options import parse_batch, parse_sink
from penstock.spark.sink.row_writer import RowWriter
from penstock.wiring import AwsOptions, SystemClock, open_cloudwatch_queries, open_kinesis
from reader_query import Query
from spark_support import numbered, put
from waiting import wait_until

DOCUMENT = Path(__file__).parents[3] / "docs" / "cluster.md"
BLOCK = re.compile(
    r"<!-- policy: (?P<role>[a-z ]+) -->\s*(?:<!-- now and then: (?P<rare>[^>]*) -->\s*)?```json\n(?P<json>.*?)```",
    re.DOTALL,
)
SERVICES = ("kinesis", "dynamodb", "cloudwatch", "sts")
OF_NO_RESOURCE = ("cloudwatch:PutMetricData", "cloudwatch:GetMetricData", "dynamodb:ListTables")
CHECKED = {
    "driver",
    "reading tasks",
    "writing tasks",
    "aggregating tasks",
    "producer",
    "consumer",
    "batch driver",
    "batch tasks",
    "tail",
    "leases",
    "top",
    "lease reset",
}


def policies():
    found = {}
    for match in BLOCK.finditer(DOCUMENT.read_text(encoding="utf-8")):
        document = json.loads(match["json"])
        actions = set()
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow"
            assert statement["Resource"] != "*" or statement["Action"] in OF_NO_RESOURCE
            actions |= set(
                statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            )
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
    RowWriter(options, ("data", "partitionKey", "", "")).write(iter([rows]))
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


@pytest.fixture
def command(server, monkeypatch, capsys, tmp_path):
    """Run commands, each time with their own profile and key, and return all of their calls."""
    profiles = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    keys = (f"command-{number}" for number in itertools.count())

    def run(*commands):
        key = next(keys)
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
