"""A server whose disk is full for a while: refused requests have no effect, and acknowledged ones are kept."""

from __future__ import annotations

import functools
import resource
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.local.conftest import ONE_ATTEMPT

from penstock_local import LocalKinesisProcess

if not hasattr(resource, "prlimit"):
    pytest.skip("the disk of another process is made full by Linux only", allow_module_level=True)

FIRST = "shardId-000000000000"
FILES = ("kinesis.journal", "dynamodb.journal")


class Disk:
    """A server in a process of its own, whose files can be kept from growing."""

    def __init__(self, folder) -> None:
        self._folder = folder
        self.server = LocalKinesisProcess(limits=False, time_factor=0, state_dir=folder).start()

    def client(self, service: str) -> Any:
        return self.server.client(service, config=ONE_ATTEMPT)

    def fill(self, room: int = 0) -> None:
        """Limit the growth of files to `room` bytes over the largest."""
        size = max((self._folder / name).stat().st_size for name in FILES)
        resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))

    def free(self) -> None:
        resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    def crash_and_start(self) -> None:
        self.server.kill()
        self.server = LocalKinesisProcess(limits=False, time_factor=0, state_dir=self._folder).start()


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.server.stop()


def refused(call: Any, **arguments: Any) -> None:
    with pytest.raises(
        ClientError, match=r"StorageFullException.*journal cannot be written: File too large"
    ) as caught:
        call(**arguments)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 507


def records(client: Any, shard: str = FIRST) -> list[bytes]:
    answer = client.get_shard_iterator(StreamName="s", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    return [record["Data"] for record in client.get_records(ShardIterator=answer["ShardIterator"])["Records"]]


def shown(client: Any) -> Any:
    """All that Kinesis returns about its streams."""
    names = client.list_streams()["StreamNames"]
    found = []
    for name in names:
        summary = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        tags = client.list_tags_for_stream(StreamName=name)["Tags"]
        found.append((summary, tags, client.list_shards(StreamName=name)["Shards"]))
    return found


def test_streams_are_as_they_were_when_the_disk_is_full_and_go_on_when_it_is_not(disk):
    client = disk.client("kinesis")
    disk.server.create_stream("s", shards=1)
    client.put_record(StreamName="s", Data=b"before", PartitionKey="k")
    client.increase_stream_retention_period(StreamName="s", RetentionPeriodHours=48)
    before = shown(client)
    for room in (0, 5, 100):
        disk.fill(room)
        refused(client.put_record, StreamName="s", Data=b"x" * 200, PartitionKey="k")
        refused(client.put_records, StreamName="s", Records=[{"Data": b"x" * 200, "PartitionKey": "k"}])
        refused(client.create_stream, StreamName="other", ShardCount=1, Tags={"a": "b"})
        refused(client.add_tags_to_stream, StreamName="s", Tags={"a": "b"})
        refused(client.decrease_stream_retention_period, StreamName="s", RetentionPeriodHours=24)
        refused(client.split_shard, StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="1000")
        refused(client.update_shard_count, StreamName="s", TargetShardCount=2, ScalingType="UNIFORM_SCALING")
        refused(client.delete_stream, StreamName="s")
        assert shown(client) == before
        assert records(client) == [b"before"]
        disk.free()
    client.put_record(StreamName="s", Data=b"after", PartitionKey="k")
    client.create_stream(StreamName="other", ShardCount=1, Tags={"a": "b"})
    disk.server.clock.advance(1)
    after = shown(client)
    disk.crash_and_start()
    client = disk.client("kinesis")
    assert shown(client) == after
    assert records(client) == [b"before", b"after"]


def test_a_split_that_comes_due_while_the_disk_is_full_waits_for_room(disk):
    client = disk.client("kinesis")
    disk.server.create_stream("s", shards=1)
    client.put_record(StreamName="s", Data=b"before", PartitionKey="k")
    client.split_shard(StreamName="s", ShardToSplit=FIRST, NewStartingHashKey="1000")
    disk.server.clock.advance(0.1)
    disk.fill()
    with pytest.raises(Exception, match="cannot be written"):
        disk.server.clock.advance(5)
    assert records(client) == [b"before"]
    summary = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]
    assert (summary["StreamStatus"], summary["OpenShardCount"]) == ("UPDATING", 1)
    refused(client.put_record, StreamName="s", Data=b"x" * 200, PartitionKey="k")
    disk.free()
    put = client.put_record(StreamName="s", Data=b"child", PartitionKey="k", ExplicitHashKey="5")
    assert put["ShardId"] == "shardId-000000000001"
    after = shown(client)
    disk.crash_and_start()
    client = disk.client("kinesis")
    assert shown(client) == after
    assert records(client, "shardId-000000000001") == [b"child"]


def tables_shown(client: Any) -> Any:
    """All that DynamoDB returns about its tables."""
    found = []
    for name in client.list_tables()["TableNames"]:
        table = client.describe_table(TableName=name)["Table"]
        found.append(
            (
                table,
                client.scan(TableName=name)["Items"],
                client.describe_time_to_live(TableName=name)["TimeToLiveDescription"],
                client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"],
            )
        )
    return found


def make_table(client: Any, name: str) -> None:
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
    )


def test_tables_are_as_they_were_when_the_disk_is_full_and_go_on_when_it_is_not(disk):
    client = disk.client("dynamodb")
    make_table(client, "orders")
    make_table(client, "users")
    client.put_item(TableName="orders", Item={"id": {"S": "a"}, "n": {"N": "1"}})
    before = tables_shown(client)
    long = {"S": "x" * 300}
    put = {"Put": {"TableName": "orders", "Item": {"id": {"S": "c"}, "x": long}}}
    delete = {"Delete": {"TableName": "orders", "Key": {"id": {"S": "a"}}}}
    for room in (0, 5, 30):
        disk.fill(room)
        refused(client.put_item, TableName="orders", Item={"id": {"S": "b"}, "x": long})
        refused(client.put_item, TableName="orders", Item={"id": {"S": "a"}, "x": long})
        refused(client.delete_item, TableName="orders", Key={"id": {"S": "a"}})
        refused(
            client.update_item,
            TableName="orders",
            Key={"id": {"S": "a"}},
            UpdateExpression="SET n = :n, x = :x",
            ExpressionAttributeValues={":n": {"N": "2"}, ":x": long},
        )
        refused(
            client.batch_write_item,
            RequestItems={"orders": [{"PutRequest": {"Item": {"id": {"S": "d"}, "x": long}}}]},
        )
        refused(client.transact_write_items, TransactItems=[put, delete])
        refused(
            client.execute_statement,
            Statement=f"INSERT INTO \"orders\" VALUE {{'id': 'e', 'x': '{'x' * 300}'}}",
        )
        refused(make_table, client=client, name="other")
        refused(client.delete_table, TableName="orders")
        refused(client.update_table, TableName="orders", BillingMode="PROVISIONED")
        refused(
            client.update_time_to_live,
            TableName="orders",
            TimeToLiveSpecification={"Enabled": True, "AttributeName": "e"},
        )
        refused(client.create_backup, TableName="orders", BackupName="backup")
        assert tables_shown(client) == before
        assert client.list_backups()["BackupSummaries"] == []
        disk.free()
    client.put_item(
        TableName="orders",
        Item={"id": {"S": "b"}},
        ConditionExpression="attribute_not_exists(id)",
    )
    client.delete_item(TableName="orders", Key={"id": {"S": "a"}})
    assert told(disk, "orders") == ["INSERT", "INSERT", "REMOVE"]
    after = tables_shown(client)
    disk.crash_and_start()
    assert tables_shown(disk.client("dynamodb")) == after


def told(disk: Disk, table: str) -> list[str]:
    """The changes in the stream of a table."""
    arn = disk.client("dynamodb").describe_table(TableName=table)["Table"]["LatestStreamArn"]
    streams = disk.client("dynamodbstreams")
    (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    how = {"StreamArn": arn, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = streams.get_shard_iterator(**how)["ShardIterator"]
    return [record["eventName"] for record in streams.get_records(ShardIterator=iterator)["Records"]]


def test_a_server_starts_and_reads_while_its_disk_is_full(tmp_path, disk, monkeypatch):
    disk.server.create_stream("s", shards=1)
    client = disk.client("kinesis")
    client.put_record(StreamName="s", Data=b"before", PartitionKey="k")
    disk.server.kill()
    size = (tmp_path / "kinesis.journal").stat().st_size
    starting = functools.partial(
        subprocess.Popen,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)),
    )
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", starting)
        disk.server = LocalKinesisProcess(limits=False, time_factor=0, state_dir=tmp_path).start()
    client = disk.client("kinesis")
    assert records(client) == [b"before"]
    refused(client.put_record, StreamName="s", Data=b"x" * 200, PartitionKey="k")
    disk.free()
    client.put_record(StreamName="s", Data=b"after", PartitionKey="k")
    assert records(client) == [b"before", b"after"]
