"""A consumer in a native KCL 3 fleet whose leader is played by the test, on the embedded server."""

import threading
import time
from pathlib import Path

import pytest

from penstock.consumer import Consumer
from penstock.errors import OptionError
from penstock.local import LocalKinesis

DEADLINE_S = 120.0
SHARDS = ["shardId-000000000000", "shardId-000000000001"]


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as server:
        yield server


class JavaLeader:
    """The lease table of an application, and a Java worker that leads it for the next hour."""

    def __init__(self, server, name, version="CLIENT_VERSION_3X"):
        self.server = server
        self.name = name
        self.dynamo = server.client("dynamodb")
        server.create_stream(name, shards=2)
        self.dynamo.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[
                {"AttributeName": "leaseKey", "AttributeType": "S"},
                {"AttributeName": "leaseOwner", "AttributeType": "S"},
            ],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "LeaseOwnerToLeaseKeyIndex",
                    "KeySchema": [
                        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                    ],
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                }
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        self.put("Migration3.0", "CLIENT_VERSION_MIGRATION", cv={"S": version})
        lock = {"ownerName": {"S": "java"}, "recordVersionNumber": {"S": "1"}}
        self.put("Leader", "LEADER", leaseDuration={"S": "3600000"}, **lock)
        samples, limits = {"C": {"L": [{"N": "7"}]}}, {"C": {"L": [{"N": "100"}]}}
        lut = {"N": str(int(time.time()) + 3600)}
        self.put("java", "WORKER_METRIC_STATS", lut=lut, sts={"M": samples}, opr={"M": limits})

    def put(self, key, entity, **row):
        item = {"leaseKey": {"S": key}, "entityType": {"S": entity}, **row}
        self.dynamo.put_item(TableName=self.name, Item=item)

    def rows(self):
        items = self.dynamo.scan(TableName=self.name, ConsistentRead=True)["Items"]
        return {item["leaseKey"]["S"]: item for item in items}

    def update(self, key, expression, **values):
        self.dynamo.update_item(
            TableName=self.name,
            Key={"leaseKey": {"S": key}},
            UpdateExpression=expression,
            ExpressionAttributeValues={f":{name}": value for name, value in values.items()},
        )

    def consumer(self, seen):
        return Consumer(
            self.name,
            self.name,
            lambda batch: seen.extend((batch.shard_id, record.data) for record in batch),
            region="us-east-1",
            endpoint_url=self.server.endpoint_url,
            connection={"access_key_id": "local", "secret_access_key": "local"},
            worker_id="py",
            starting_position="TRIM_HORIZON",
            lease_duration_s=2.0,
            idle_time_between_reads_s=0.1,
            cold_start_jitter_s=0.0,
        )

    def wait(self, condition, what):
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited for {what}: {self.rows()}"
            threading.Event().wait(0.05)


def test_a_consumer_reads_what_the_leader_assigns_and_gives_back_what_it_takes(server):
    leader, seen = JavaLeader(server, "led"), []
    kinesis = server.client("kinesis")
    for key in range(20):
        kinesis.put_record(StreamName="led", PartitionKey=f"k{key}", Data=b"%d" % key)
    consumer = leader.consumer(seen)
    consumer.start()
    leader.wait(lambda: leader.rows().keys() >= {"py", *SHARDS}, "leases and a report")
    measured = {"C"} if Path("/proc/stat").exists() else set()
    assert leader.rows()["py"]["sts"]["M"].keys() == measured
    one = {"N": "1"}
    leader.update(SHARDS[0], "SET leaseOwner = :py ADD leaseCounter :one", py={"S": "py"}, one=one)
    leader.wait(lambda: seen, "records of the assigned shard")
    leader.update(
        SHARDS[0],
        "SET leaseOwner = :java, checkpointOwner = :py",
        java={"S": "java"},
        py={"S": "py"},
    )
    leader.wait(lambda: "checkpointOwner" not in leader.rows()[SHARDS[0]], "the hand-over")
    given = leader.rows()[SHARDS[0]]
    assert given["leaseOwner"] == {"S": "java"}
    assert given["checkpoint"]["S"].isdigit()
    assert {shard for shard, _ in seen} == {SHARDS[0]}
    assert "leaseOwner" not in leader.rows()[SHARDS[1]]
    consumer.stop()
    assert "py" not in leader.rows()


def test_a_fleet_in_an_unknown_state_is_refused_before_anything_is_read(server):
    leader, seen = JavaLeader(server, "strange", "CLIENT_VERSION_5X"), []
    with pytest.raises(OptionError, match=r"cv=CLIENT_VERSION_5X.*update Penstock"):
        leader.consumer(seen).run()
    assert leader.rows().keys() == {"Leader", "Migration3.0", "java"}
