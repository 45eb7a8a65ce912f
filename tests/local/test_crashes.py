"""Random histories with crashes, full disks and restarts: acknowledged changes are kept, and refused ones are not.

The seeds run in seconds; `python -m tests.local.test_crashes 1000` runs that many.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from tests.local.conftest import ONE_ATTEMPT

from penstock_local import LocalKinesisProcess, frames, tables
from penstock_local.errors import OptionError
from penstock_local.faults import FaultBook
from penstock_local.frames import FrameFile
from penstock_local.http import Request
from penstock_local.journal import FileJournal
from penstock_local.moto_bridge import MotoBridge
from penstock_local.operations import dispatch
from penstock_local.operations.call import Service, ServiceCall
from penstock_local.queues.long_polls import LongPolls
from penstock_local.quotas import Quotas
from penstock_local.service_errors import RequestRefused
from penstock_local.state_folder import StateFolder
from penstock_local.store import Store, StoreOptions
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.subscriptions import Subscriptions
from penstock_local.tokens import Tokens
from penstock_local.virtual_clock import VirtualClock
from penstock_local.wire import JSON

SEEDS = range(12)
STEPS = 50
HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Limit the bytes that can be written, with at most a few at a time."""
    original = os.write
    left = [room]

    def write(fd: int, data: Any) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        count = original(fd, data[: min(left[0], 50)])
        left[0] -= count
        return count

    with mock.patch.object(frames.os, "write", write):
        yield


def crashed(folder: StateFolder, chance: random.Random, name: str) -> Path:
    """Return a copy of a folder as a crash would leave it: perhaps with part of an unacknowledged record."""
    copy = Path(tempfile.mkdtemp(dir=folder.path.parent)) / "state"
    shutil.copytree(folder.path, copy)
    if chance.random() < 0.5:
        longer = StateFolder(copy)
        file = FrameFile(longer, name)
        for _ in file.frames():
            pass
        size = file.size
        file.append(b"R", chance.randbytes(chance.randrange(200)))
        file.close()
        longer.close()
        os.truncate(copy / name, chance.randrange(size, (copy / name).stat().st_size))
    if chance.random() < 0.3:
        (copy / f"{name}.new").write_bytes(chance.randbytes(100))
    return copy


def damage(path: Path, chance: random.Random) -> None:
    """Flip one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def refuses_damage(path: Path, chance: random.Random, start: Any, expected: Any) -> None:
    """Flip a bit of a file, see that it is refused and left alone, and put it right again."""
    whole = path.read_bytes()
    damage(path, chance)
    damaged = path.read_bytes()
    try:
        found, error = start(), ""
    except OptionError as refusal:
        found, error = None, str(refusal)
    if found is None:
        assert "is damaged at byte" in error
        assert path.read_bytes() == damaged
    else:
        # the flipped bit was in the record that the crash had cut short
        assert found.shown() == expected
        found.close()
    path.write_bytes(whole)


# -- streams ------------------------------------------------------------------------------------------------


class Streams:
    """The operations on streams, with a state folder and without a server."""

    def __init__(self, path: Path, now_ms: int) -> None:
        self.folder = StateFolder(path)
        self.journal = FileJournal(self.folder)
        self.store = Store(StoreOptions(settle_ms=500), self.journal)
        self.now_ms = now_ms
        metrics = StreamMetrics()
        self.service = Service(
            self.store,
            Quotas(enforced=False),
            Tokens(b"key"),
            FaultBook(),
            Subscriptions(self.store, VirtualClock(0), metrics, limits=False),
            metrics,
            LongPolls(self.store.queues, VirtualClock(0)),
        )
        try:
            self.journal.load(self.store)
        except BaseException:
            self.close()
            raise

    def close(self, now_ms: int | None = None) -> None:
        self.journal.close(now_ms)
        self.folder.close()

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        call = ServiceCall(self.service, operation, JSON, self.now_ms)
        return dict(json.loads(dispatch.answer(call, json.dumps(request).encode())))

    def records(self, stream: str, shard: str) -> list[Any]:
        how = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self.call("GetShardIterator", **how)["ShardIterator"]
        return list(self.call("GetRecords", ShardIterator=iterator)["Records"])

    def shown(self) -> Any:
        """Everything that a client can see."""
        found = {}
        self.store.settle_all(self.now_ms)
        for name in self.call("ListStreams")["StreamNames"]:
            summary = self.call("DescribeStreamSummary", StreamName=name)
            shards = self.call("DescribeStream", StreamName=name)["StreamDescription"]["Shards"]
            read = {shard["ShardId"]: self.records(name, shard["ShardId"]) for shard in shards}
            policy = self.call("GetResourcePolicy", ResourceARN=arn_of(name))
            consumers = self.call("ListStreamConsumers", StreamARN=arn_of(name))
            tags = self.call("ListTagsForStream", StreamName=name)
            found[name] = summary, shards, read, tags, policy, consumers
        return found, self.call("DescribeAccountSettings")


def step_of_streams(streams: Streams, chance: random.Random, number: int) -> None:  # noqa: C901, PLR0912 - one case per operation
    """Carry one random operation out; it may be refused."""
    name = chance.choice("ab")
    stream = streams.store.get("us-east-1", name, streams.now_ms)
    open_shards = [] if stream is None else stream.open_shards
    shard = chance.choice(open_shards) if open_shards else None
    what = chance.choices(
        [
            *["put", "puts", "split", "merge", "scale", "retain", "tag", "create", "delete", "wait"],
            "long wait",
            "set",
            "account",
            "consumer",
        ],
        [12, 6, 3, 2, 2, 3, 2, 3, 1, 6, 1, 4, 2, 4],
    )[0]
    if stream is None and chance.random() < 0.8:
        what = "create"
    data = base64.b64encode(b"%d" % number + bytes(chance.randrange(300))).decode()
    match what:
        case "put":
            streams.call("PutRecord", StreamName=name, Data=data, PartitionKey=str(chance.random()))
        case "puts":
            records = [
                {"Data": data, "PartitionKey": str(chance.random())} for _ in range(chance.randint(1, 5))
            ]
            streams.call("PutRecords", StreamName=name, Records=records)
        case "split" if shard is not None:
            at = str((shard.hash_start + shard.hash_end) // 2)
            streams.call("SplitShard", StreamName=name, ShardToSplit=shard.id, NewStartingHashKey=at)
        case "merge" if len(open_shards) > 1:
            first = chance.randrange(len(open_shards) - 1)
            pair = {"ShardToMerge": open_shards[first].id, "AdjacentShardToMerge": open_shards[first + 1].id}
            streams.call("MergeShards", StreamName=name, **pair)
        case "scale":
            how = {"TargetShardCount": chance.randint(1, 4), "ScalingType": "UNIFORM_SCALING"}
            streams.call("UpdateShardCount", StreamName=name, **how)
        case "retain":
            operation = f"{chance.choice(['In', 'De'])}creaseStreamRetentionPeriod"
            streams.call(operation, StreamName=name, RetentionPeriodHours=chance.choice([24, 30, 48]))
        case "tag":
            streams.call("AddTagsToStream", StreamName=name, Tags={chance.choice("xy"): str(number)})
        case "create":
            streams.call("CreateStream", StreamName=name, ShardCount=chance.randint(1, 3), Tags={"t": "1"})
        case "delete":
            streams.call("DeleteStream", StreamName=name, EnforceConsumerDeletion=chance.random() < 0.8)
        case "wait":
            streams.now_ms += chance.randint(1, 2000)
        case "set":
            operation, request = random_setting(chance, arn_of(name))
            streams.call(operation, **request)
        case "account":
            status = chance.choice(["ENABLED", "DISABLED"])
            streams.call("UpdateAccountSettings", MinimumThroughputBillingCommitment={"Status": status})
        case "consumer":
            named = {"StreamARN": arn_of(name), "ConsumerName": chance.choice("cd")}
            streams.call(chance.choice(["RegisterStreamConsumer", "DeregisterStreamConsumer"]), **named)
        case "long wait":
            streams.now_ms += chance.randint(1, 30) * HOUR_MS


def arn_of(stream: str) -> str:
    return f"arn:aws:kinesis:us-east-1:123456789012:stream/{stream}"


def random_setting(chance: random.Random, arn: str) -> tuple[str, dict[str, Any]]:
    """Return an operation that sets something in a stream, and its request."""
    name = arn.rpartition("/")[2]
    key = {"StreamName": name, "EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}
    metrics = {"StreamName": name, "ShardLevelMetrics": ["IncomingBytes"]}
    mode = {"StreamMode": chance.choice(["PROVISIONED", "ON_DEMAND"])}
    return chance.choice(
        [
            ("StartStreamEncryption", key),
            ("StopStreamEncryption", key),
            ("EnableEnhancedMonitoring", metrics),
            ("DisableEnhancedMonitoring", metrics),
            (
                "PutResourcePolicy",
                {"ResourceARN": arn, "Policy": '{"Version": "2012-10-17", "Statement": []}'},
            ),
            ("DeleteResourcePolicy", {"ResourceARN": arn}),
            ("UpdateStreamMode", {"StreamARN": arn, "StreamModeDetails": mode}),
            ("UpdateMaxRecordSize", {"StreamARN": arn, "MaxRecordSizeInKiB": chance.choice([1024, 2048])}),
        ]
    )


def check_streams(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    streams = Streams(path, BEGIN_MS)
    accepted = 0
    try:
        for number in range(STEPS):
            before = streams.shown()
            room = chance.choice([None, None, None, None, 0, chance.randrange(400)])
            refused = False
            with full_disk(room) if room is not None else contextlib.nullcontext():
                try:
                    step_of_streams(streams, chance, number)
                except RequestRefused:
                    refused = True
            # without the full disk: a change that was due waits for room, and takes effect here
            assert not refused or streams.shown() == before, number
            accepted += not refused
            if chance.random() < 0.1:
                streams.journal.compact(streams.store)
            if chance.random() < 0.15:
                streams = started_again(streams, chance)
        assert accepted > STEPS / 6
    finally:
        streams.close()


def started_again(streams: Streams, chance: random.Random) -> Streams:
    """Crash or stop, damage the remains, and start from them."""
    expected = streams.shown()
    if chance.random() < 0.3:
        streams.close(streams.now_ms)
        path = streams.folder.path
    else:
        path = crashed(streams.folder, chance, "kinesis.journal")
        streams.close()
    refuses_damage(path / "kinesis.journal", chance, lambda: Streams(path, streams.now_ms), expected)
    again = Streams(path, streams.now_ms)
    assert again.shown() == expected
    assert again.journal.clock_ms <= streams.now_ms
    return again


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_are_what_was_acknowledged_whatever_happens(tmp_path, seed):
    check_streams(tmp_path / "state", seed)


# -- tables -------------------------------------------------------------------------------------------------


class Tables:
    """The operations on tables, with a state folder and without a server."""

    def __init__(self, path: Path, runner: asyncio.Runner) -> None:
        self.folder = StateFolder(path)
        self.runner = runner
        self.bridge = MotoBridge("us-east-1", StreamMetrics(), self.folder)
        try:
            runner.run(self.bridge.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.bridge.close()
        self.folder.close()

    def call(self, operation: str, **request: Any) -> tuple[int, dict[str, Any]]:
        headers = {
            "x-amz-target": f"DynamoDB_20120810.{operation}",
            "content-type": "application/x-amz-json-1.0",
            "authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request",
        }
        answer = self.bridge.answer(
            "dynamodb", operation, Request("POST", "/", headers, json.dumps(request).encode())
        )
        response = self.runner.run(answer)
        return response.status, json.loads(response.body)

    def read(self, operation: str, **request: Any) -> dict[str, Any]:
        status, answer = self.call(operation, **request)
        assert status == 200, answer
        return answer

    def items(self, table: str) -> dict[str, Any]:
        return {item["id"]["S"]: item for item in self.read("Scan", TableName=table)["Items"]}

    def shown(self) -> Any:
        """Everything that a client can see."""
        found = {}
        for name in self.read("ListTables")["TableNames"]:
            table = self.read("DescribeTable", TableName=name)["Table"]
            found[name] = (
                table,
                self.items(name),
                self.read("DescribeTimeToLive", TableName=name),
                self.read("DescribeContinuousBackups", TableName=name),
                self.read("ListTagsOfResource", ResourceArn=table["TableArn"]),
            )
        return found, self.read("ListBackups")


TABLES = ["orders", "users"]
KEYS = [f"k{i}" for i in range(6)]


def random_request(chance: random.Random, number: int, present: Any) -> tuple[str, dict[str, Any]]:
    """Return operation and request; it may be one that is refused."""
    table = chance.choice(TABLES)
    made = {
        "TableName": table,
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    if table not in present and chance.random() < 0.8:
        return "CreateTable", made
    key = {"id": {"S": chance.choice(KEYS)}}
    item = {
        **key,
        "n": {"N": str(number)},
        "zone": {"S": chance.choice("xyz")},
        "b": {"B": "AAAA" * chance.randrange(60)},
    }
    condition = chance.choice([{}, {}, {"ConditionExpression": "attribute_not_exists(id)"}])
    update = {
        "UpdateExpression": "SET n = if_not_exists(n, :o) + :o",
        "ExpressionAttributeValues": {":o": {"N": "1"}},
    }
    wrong = {"UpdateExpression": "SET n = zone + :o", "ExpressionAttributeValues": {":o": {"N": "1"}}}
    other = {"id": {"S": chance.choice(KEYS)}}
    name = chance.choice(["ByZone", "ByN"])
    create = {
        "Create": {
            "IndexName": name,
            "KeySchema": [{"AttributeName": name[2:].lower(), "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "ALL"},
        }
    }
    defined = [{"AttributeName": name[2:].lower(), "AttributeType": "S" if name == "ByZone" else "N"}]
    index = chance.choice([create, {"Delete": {"IndexName": name}}])
    ways: list[tuple[int, str, dict[str, Any]]] = [
        (8, "PutItem", {"TableName": table, "Item": item, **condition}),
        (6, "UpdateItem", {"TableName": table, "Key": key, **chance.choice([update, update, wrong])}),
        (4, "DeleteItem", {"TableName": table, "Key": key}),
        (
            3,
            "BatchWriteItem",
            {"RequestItems": {table: [{"PutRequest": {"Item": item}}, {"DeleteRequest": {"Key": other}}]}},
        ),
        (
            3,
            "TransactWriteItems",
            {
                "TransactItems": [
                    {"Put": {"TableName": table, "Item": item, **condition}},
                    {"Update": {"TableName": table, "Key": other, **chance.choice([update, wrong])}},
                ]
            },
        ),
        (1, "ExecuteStatement", {"Statement": f"DELETE FROM \"{table}\" WHERE id = '{key['id']['S']}'"}),
        (1, "CreateTable", made),
        (1, "DeleteTable", {"TableName": table}),
        (
            3,
            "UpdateTable",
            {"TableName": table, "GlobalSecondaryIndexUpdates": [index], "AttributeDefinitions": defined},
        ),
        (
            2,
            "UpdateTimeToLive",
            {
                "TableName": table,
                "TimeToLiveSpecification": {
                    "Enabled": chance.random() < 0.5,
                    "AttributeName": chance.choice("ef"),
                },
            },
        ),
        (1, "CreateBackup", {"TableName": table, "BackupName": "backup"}),
        (
            1,
            "RestoreTableToPointInTime",
            {
                "SourceTableName": table,
                "TargetTableName": chance.choice([*TABLES, "copy"]),
                "UseLatestRestorableTime": True,
            },
        ),
    ]
    return chance.choices([(operation, request) for _, operation, request in ways], [way[0] for way in ways])[
        0
    ]


def check_tables(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    accepted = 0
    with asyncio.Runner() as runner, mock.patch.object(tables, "_COMPACT_BYTES_MIN", 5000):
        opened = Tables(path, runner)
        try:
            for number in range(STEPS):
                before = opened.shown()
                room = chance.choice([None, None, None, None, 0, chance.randrange(400)])
                operation, request = random_request(chance, number, before[0])
                with full_disk(room) if room is not None else contextlib.nullcontext():
                    status, answer = opened.call(operation, **request)
                if status != 200:
                    assert opened.shown() == before, (operation, request, answer)
                    continue
                accepted += 1
                if operation == "PutItem":
                    assert opened.items(request["TableName"])[request["Item"]["id"]["S"]] == request["Item"]
                if chance.random() < 0.15:
                    opened = opened_again(opened, chance)
            assert accepted > STEPS / 6
        finally:
            opened.close()


def opened_again(opened: Tables, chance: random.Random) -> Tables:
    """Crash or stop, damage the remains, and start from them."""
    expected = opened.shown()
    path = opened.folder.path
    if chance.random() < 0.7:
        path = crashed(opened.folder, chance, "dynamodb.journal")
    opened.close()
    refuses_damage(path / "dynamodb.journal", chance, lambda: Tables(path, opened.runner), expected)
    again = Tables(path, opened.runner)
    assert again.shown() == expected
    return again


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_tables_are_what_was_acknowledged_whatever_happens(tmp_path, seed):
    check_tables(tmp_path / "state", seed)


# -- a server that is killed --------------------------------------------------------------------------------


class Writers:
    """Threads that put records and count up items until their server is gone."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.counts: dict[str, int] = {}
        self._changed = threading.Condition()
        self._done = 0

    def run(self, server: LocalKinesisProcess, chance: random.Random) -> None:
        """Write until the server is killed after some hundred answers."""
        kill_at = self._done + chance.randrange(30, 200)
        threads = [threading.Thread(target=self._put, args=(server, f"{kill_at}-{i}")) for i in range(2)]
        threads += [threading.Thread(target=self._count, args=(server, f"k{i}")) for i in range(2)]
        for thread in threads:
            thread.start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._done >= kill_at, 60)
        server.kill()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def _put(self, server: LocalKinesisProcess, name: str) -> None:
        client = server.client("kinesis", config=ONE_ATTEMPT)
        for number in itertools.count():
            data = [f"{name} {number} {i}".encode() for i in range(3)]
            records = [{"Data": each, "PartitionKey": str(each)} for each in data]
            try:
                answer = client.put_records(StreamName="s", Records=records)
            except (BotoCoreError, ClientError):
                return
            with self._changed:
                assert answer["FailedRecordCount"] == 0
                self.acknowledged.update(data)
                self._done += 1
                self._changed.notify_all()

    def _count(self, server: LocalKinesisProcess, key: str) -> None:
        client = server.client("dynamodb", config=ONE_ATTEMPT)
        while True:
            try:
                answer = client.update_item(
                    TableName="counts",
                    Key={"id": {"S": key}},
                    UpdateExpression="ADD n :one",
                    ExpressionAttributeValues={":one": {"N": "1"}},
                    ReturnValues="UPDATED_NEW",
                )
            except (BotoCoreError, ClientError):
                return
            if "Attributes" not in answer:
                return  # the kill cut the answer off behind its headers
            with self._changed:
                self.counts[key] = int(answer["Attributes"]["n"]["N"])
                self._done += 1
                self._changed.notify_all()


def all_records(server: LocalKinesisProcess) -> list[bytes]:
    client = server.client("kinesis")
    found: list[bytes] = []
    for shard in client.list_shards(StreamName="s")["Shards"]:
        how = {"StreamName": "s", "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        iterator = client.get_shard_iterator(**how)["ShardIterator"]
        found += [record["Data"] for record in client.get_records(ShardIterator=iterator)["Records"]]
    return found


@pytest.mark.parametrize("seed", range(1))
def test_a_server_killed_again_and_again_has_what_it_acknowledged(tmp_path, seed):
    chance = random.Random(seed)
    writers = Writers()
    for number in range(3):
        server = LocalKinesisProcess(limits=False, state_dir=tmp_path).start()
        if number == 0:
            server.create_stream("s", shards=2)
            server.client("dynamodb").create_table(
                TableName="counts",
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        writers.run(server, chance)
    with LocalKinesisProcess(limits=False, state_dir=tmp_path) as server:
        kept = all_records(server)
        assert len(kept) == len(set(kept))
        assert set(kept) >= writers.acknowledged
        items = server.client("dynamodb").scan(TableName="counts")["Items"]
        counts = {item["id"]["S"]: int(item["n"]["N"]) for item in items}
        # one more of each writer and round may have been written whose answer was never sent
        assert all(0 <= counts[key] - count <= 1 for key, count in writers.counts.items())
        assert len(kept) - len(writers.acknowledged) <= 3 * 2 * 3


if __name__ == "__main__":
    for each in range(int(sys.argv[1])):
        for check in (check_streams, check_tables):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(Path(folder) / "state", each)
                except BaseException:
                    sys.stderr.write(f"{check.__name__} failed with seed {each}\n")
                    raise
