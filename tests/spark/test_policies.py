"""The policies in docs/cluster.md allow what each role calls, and nothing that it never calls.

Every role is run against the embedded Kinesis, which counts the calls. What a role calls only now and then stands in the
document beside its policy, in a line `<!-- now and then: ... -->`.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Consumer, Producer
from penstock.spark.options import parse_sink
from penstock.spark.sink import RowWriter
from reader_query import Query
from spark_support import numbered, put

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"
BLOCK = re.compile(
    r"<!-- policy: (?P<role>[a-z ]+) -->\s*(?:<!-- now and then: (?P<rare>[^>]*) -->\s*)?```json\n(?P<json>.*?)```",
    re.DOTALL,
)
SERVICES = ("kinesis", "dynamodb", "cloudwatch", "sts")


@pytest.fixture(scope="module")
def server():
    from penstock.local import LocalKinesis

    with LocalKinesis(limits=False, settle_s=0) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return server.client("kinesis")


def policies():
    found = {}
    for match in BLOCK.finditer(DOCUMENT.read_text(encoding="utf-8")):
        document = json.loads(match["json"])
        actions = set()
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow"
            assert statement["Resource"] != "*" or statement["Action"] == "cloudwatch:PutMetricData"
            actions |= set(
                statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            )
        rare = {action.strip() for action in (match["rare"] or "").split(",") if action.strip()}
        assert rare <= actions, match["role"]
        found[match["role"]] = (actions, rare)
    return found


def called(server):
    """The actions since the last look, as a policy names them."""
    names = {name for name in server.calls().total if name.partition(".")[0] in SERVICES}
    return {name.replace(".", ":", 1) for name in names}


def check(role, seen):
    actions, rare = policies()[role]
    assert seen <= actions, f"{role}: not allowed: {sorted(seen - actions)}"
    assert actions - rare <= seen, f"{role}: allowed and not called: {sorted(actions - rare - seen)}"


def options_of(server, **more):
    return {
        "endpointUrl": server.endpoint_url,
        "region": "us-east-1",
        "awsAccessKeyId": "local",
        "awsSecretKey": "local",
        **more,
    }


def test_a_querys_driver_and_its_tasks_call_what_their_policies_allow(server, client):
    query = Query(server, client)
    put(client, query.stream, numbered(0, 40))
    driver, tasks = set(), set()
    try:
        for _ in range(8):
            server.reset_calls()
            end = query.plan()
            parts = [] if end is None else query.reader.partitions(query.done or {}, end)
            # The driver's leases are kept on threads of their own: let them come to rest.
            assert query.reader._planner._joined[0].wait_until_at_rest(10)
            driver |= called(server)
            server.reset_calls()
            rows = [row for part in parts for row in query.read(part)]
            tasks |= called(server)
            if end is not None:
                query.commit(end, rows)
            if len(query.rows) == 40:
                client.split_shard(
                    StreamName=query.stream,
                    ShardToSplit="shardId-000000000000",
                    NewStartingHashKey=str(2**126),
                )
                put(client, query.stream, numbered(40, 60))
        server.reset_calls()
        query.reader.stop()
        driver |= called(server)
    finally:
        query.stop()
    assert query.numbers() == list(range(60))
    check("driver", driver)
    check("reading tasks", tasks)


@pytest.mark.parametrize(("role", "aggregation"), [("writing tasks", "false"), ("aggregating tasks", "true")])
def test_a_sinks_tasks_call_what_their_policies_allow(server, role, aggregation):
    stream = f"sink-{aggregation}"
    server.create_stream(stream, shards=2)
    options, _ = parse_sink(options_of(server, streamName=stream, aggregation=aggregation))
    rows = pa.RecordBatch.from_pydict({"data": ["a", "b"], "partitionKey": ["k", "l"]})
    server.reset_calls()
    RowWriter(options, ("data", "partitionKey", "", "")).write(iter([rows]))
    check(role, called(server))


def test_a_producer_calls_what_its_policy_allows(server):
    server.create_stream("made", shards=2)
    server.reset_calls()
    with Producer(
        "made",
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        connection={"access_key_id": "local", "secret_access_key": "local"},
    ) as producer:
        producer.put(b"x", "k").result(20)
    check("producer", called(server))


def test_a_consumer_calls_what_its_policy_allows(server, client):
    server.create_stream("read", shards=2)
    put(client, "read", numbered(0, 20))
    seen = []
    server.reset_calls()
    with Consumer(
        "read",
        "consumer-app",
        seen.extend,
        connection={
            "region": "us-east-1",
            "endpoint_url": server.endpoint_url,
            "access_key_id": "local",
            "secret_access_key": "local",
        },
        starting_position="TRIM_HORIZON",
        lease_duration_s=1.0,
        cold_start_jitter_s=0.0,
    ):
        deadline_s = time.monotonic() + 20
        while len(seen) < 20 and time.monotonic() < deadline_s:
            time.sleep(0.02)
    assert len(seen) == 20
    check("consumer", called(server))
