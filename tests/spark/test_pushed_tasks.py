"""Planner and tasks of a query with enhanced fan-out against the embedded server with its quotas: every fault, and a reshard."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from penstock.core.batches.offsets import INITIAL_OFFSET
from penstock.errors import Rejected
from penstock.spark.driver.planner_opening import open_planner
from penstock.spark.options.spark_options import parse_source
from penstock.spark.tasks.task_opening import read_parts
from penstock_local import LocalKinesis
from waiting import DEADLINE_S, wait_until

FAULTS = {
    "end": "over",
    "silence": "silent",
    "reset": "broken",
    "goaway": "broken",
    "corrupt": "broken",
    "cut": "broken",
    "repeat": None,
    "exception": "takenOver",
}
"""Kinds of faults in a subscription, and what a batch counts for each."""
FAULT_COUNT = 20  # a subscription that moves on just then may take one with it


@pytest.fixture
def server():
    with LocalKinesis(settle_s=0) as server:
        yield server


class Batches:
    """A query without Spark: its batches one after the other, all tasks in this process."""

    def __init__(self, server, folder, **options):
        self.server = server
        self.client = server.client("kinesis")
        self.options, _ = parse_source(
            {
                "streamName": "orders",
                "applicationName": "billing",
                "leaseTable": f"file://{folder}/leases",
                "startingPosition": "TRIM_HORIZON",
                "endpointUrl": server.endpoint_url,
                "region": "us-east-1",
                "awsAccessKeyId": "local",
                "awsSecretKey": "local",
                "probeInterval": "200ms",
                "consumerType": "fan-out",
                **options,
            }
        )
        self.offset = INITIAL_OFFSET
        self.put_count = Counter()
        self.found = defaultdict(list)
        self.ends = Counter()
        self.pushed_count = 0
        self.planner = None

    def __enter__(self):
        self.planner = open_planner(self.options)
        return self

    def __exit__(self, *error):
        self.planner.stop()

    def open_shards(self):
        shards = self.client.list_shards(StreamName="orders")["Shards"]
        return [each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]]

    def put(self, count):
        """Put so many records into each open shard; each shard's are numbered."""
        for shard in self.open_shards():
            key, begin = shard["ShardId"], self.put_count[shard["ShardId"]]
            self.client.put_records(
                StreamName="orders",
                Records=[
                    {
                        "Data": f"{key}/{number}".encode(),
                        "PartitionKey": key,
                        "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"],
                    }
                    for number in range(begin, begin + count)
                ],
            )
            self.put_count[key] += count

    def read(self):
        """Run a batch; whether there was one."""
        self.planner.join(self.offset)
        following = self.planner.latest(self.offset)
        report = self.planner.report()
        if report is not None:
            self.ends.update(report["pushed"]["ends"])
            self.pushed_count += report["pushed"]["records"]
        if following is self.offset:
            return False
        self.offset = following
        for tasks in self.planner.tasks(following):
            for rows in read_parts(tasks, self.options):
                for shard, data in zip(
                    rows.column("shardId").to_pylist(), rows.column("data").to_pylist(), strict=True
                ):
                    self.found[shard].append(data.decode())
        return True

    def read_all(self):
        """Run batches until everything is read."""
        wait_until(lambda: not self.read() and self.is_read(), "everything to be read", DEADLINE_S)

    def is_read(self):
        return sum(map(len, self.found.values())) >= sum(self.put_count.values())

    def expected(self):
        return {key: [f"{key}/{number}" for number in range(count)] for key, count in self.put_count.items()}


def test_no_fault_of_a_subscription_loses_or_repeats_a_record(server, tmp_path):
    server.create_stream("orders", shards=len(FAULTS) + 1)
    with Batches(server, tmp_path) as batches:
        shards = [shard["ShardId"] for shard in batches.open_shards()]
        for shard, kind in zip(shards, FAULTS, strict=False):
            code = {"code": "ResourceInUseException"} if kind == "exception" else {}
            server.faults.in_subscription(kind, after_events=1, shard=shard, count=FAULT_COUNT, **code)
        server.faults.error(
            "SubscribeToShard",
            status=400,
            code="ResourceInUseException",
            shard=shards[-1],
            count=FAULT_COUNT,
        )
        wanted = {why for why in FAULTS.values() if why} | {"refused"}

        def is_each_met():
            batches.put(20)
            batches.read()
            return wanted <= set(batches.ends) and batches.pushed_count > 0

        wait_until(is_each_met, "each fault to be met and records to come by subscription")
        batches.read_all()
    assert dict(batches.found) == batches.expected()


def test_a_query_reads_on_through_a_split_and_as_another_driver(server, tmp_path):
    server.create_stream("orders", shards=2)
    with Batches(server, tmp_path) as first:
        first.put(30)
        first.read_all()
        shard = first.open_shards()[0]
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        first.client.split_shard(
            StreamName="orders",
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str((low + high) // 2),
        )

        def is_pushed():
            first.put(30)
            first.read_all()
            return first.pushed_count > 0

        wait_until(is_pushed, "records to come by subscription")
    with Batches(server, tmp_path) as second:
        second.offset, second.found, second.put_count = first.offset, first.found, first.put_count
        second.put(30)
        second.read_all()
    assert dict(second.found) == second.expected()
    assert server.calls().count("RegisterStreamConsumer") == 1
    assert server.calls().count("DeregisterStreamConsumer") == 0


def test_a_stream_that_takes_no_further_consumer_says_which_it_has(server, tmp_path):
    arn = server.create_stream("orders")
    client = server.client("kinesis")
    for number in range(20):
        client.register_stream_consumer(StreamARN=arn, ConsumerName=f"c{number}")
        server.clock.advance(10)
    with (
        Batches(server, tmp_path) as batches,
        pytest.raises(Rejected, match=r"consumer billing cannot be registered: .* set consumerType=polling"),
    ):
        batches.read()
