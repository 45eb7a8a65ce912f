"""A query with enhanced fan-out on a server with its quotas: a shard is split, and the query is stopped and started again."""

from __future__ import annotations

from collections import defaultdict

import pytest

from penstock.spark.monitoring.progress import report_of
from penstock_local import LocalKinesis
from spark_support import numbered, put
from waiting import DEADLINE_S, wait_by_limited_calls


@pytest.mark.timeout(600)
def test_pushed_records_come_once_and_in_order_through_a_split_and_a_restart(job):
    options = {"consumerType": "fan-out", "fetchInterval": "200ms"}
    with LocalKinesis(settle_s=0) as server:
        client = server.client("kinesis")
        server.create_stream(job.stream, shards=1)
        run = job.start(endpointUrl=server.endpoint_url, **options)
        count = 0
        while not is_pushed(run.query):
            assert count < 10_000, "100 batches, and nothing came by a subscription"
            put(client, job.stream, numbered(count, count + 100))
            count += 100
            run.wait_for(count)
        put(client, job.stream, numbered(count, count + 100))
        client.split_shard(
            StreamName=job.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
        )
        put(client, job.stream, numbered(count + 100, count + 200))
        run.wait_for(count + 50)
        run.query.stop()
        run = job.start(endpointUrl=server.endpoint_url, deregisterConsumer="true", **options)
        run.wait_for(count + 200)
        run.query.stop()
        run.query.awaitTermination(DEADLINE_S)
        assert server.calls().count("RegisterStreamConsumer") == 1
        wait_by_limited_calls(lambda: not consumers(client, job.stream), "the consumer to be deregistered")
    assert run.numbers() == list(range(count + 200))
    by_key = defaultdict(list)
    for row in run.rows():
        by_key[row.partitionKey].append(int(bytes(row.data)))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def consumers(client, stream):
    arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    return [each["ConsumerName"] for each in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


def is_pushed(query):
    """Whether a subscription has delivered any of the records in the query's progress."""
    reports = [report_of(progress["sources"][0]) for progress in query.recentProgress]
    return any(report["pushed"]["records"] for report in reports if report)
