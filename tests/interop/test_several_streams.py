"""A worker of the KCL in multi-stream mode and a consumer of several streams go on where the other one stopped."""

from __future__ import annotations

import threading

import pytest
from counterparts import KCL_2, KCL_3, Counterpart
from worker_process import WorkerProcess

from penstock import Consumer
from penstock_demo.resharding import split_shard
from penstock_local import LocalKinesis
from waiting import wait_until

STREAMS = ["orders", "returns"]
KEYS = 10


def put(kinesis, part: str) -> set[str]:
    data = {f"{stream}-{part}-{key}" for stream in STREAMS for key in range(KEYS)}
    for stream in STREAMS:
        entries = [
            {"PartitionKey": f"key-{key}", "Data": f"{stream}-{part}-{key}".encode()} for key in range(KEYS)
        ]
        assert kinesis.put_records(StreamName=stream, Records=entries)["FailedRecordCount"] == 0
    return data


def stream_id(kinesis, stream: str) -> str:
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    account = summary["StreamARN"].split(":")[4]
    return f"{account}:{stream}:{int(summary['StreamCreationTimestamp'].timestamp())}"


class Reader:
    """A consumer of Penstock and what it was given."""

    def __init__(self, server):
        self.lock = threading.Lock()
        self.data: list[str] = []
        self.consumer = Consumer(
            STREAMS,
            "billing",
            self.handle,
            connection=server.connection(),
            cold_start_jitter_s=0.0,
        )

    def handle(self, batch):
        with self.lock:
            self.data += [record.data.decode() for record in batch]


@pytest.mark.parametrize("counterpart", [pytest.param(KCL_2, id="2.7.2"), pytest.param(KCL_3, id="3.5.1")])
def test_leases_of_several_streams_go_from_java_to_python_and_back(counterpart: Counterpart, tmp_path):
    with LocalKinesis() as server:
        for stream in STREAMS:
            server.create_stream(stream, shards=2)
        kinesis = server.client("kinesis")
        ids = ",".join(stream_id(kinesis, stream) for stream in STREAMS)

        first = put(kinesis, "first")
        with WorkerProcess(counterpart, server, tmp_path, "java-1", ids, "billing") as java:
            java.wait_for(lambda: len(java.records) >= len(first))
            java.stop()
            assert sorted(record.data for record in java.records) == sorted(first)
        leases = {
            row["leaseKey"]["S"]: row for row in server.client("dynamodb").scan(TableName="billing")["Items"]
        }

        second = put(kinesis, "second")
        reader = Reader(server)
        with reader.consumer:
            wait_until(lambda: len(reader.data) >= len(second), "what was put since")
            split_shard(kinesis, "orders", 0)
            third = put(kinesis, "third")
            wait_until(lambda: len(reader.data) >= len(second | third), "what was put behind the split")
        assert sorted(reader.data) == sorted(second | third)

        fourth = put(kinesis, "fourth")
        with WorkerProcess(counterpart, server, tmp_path, "java-2", ids, "billing") as java:
            java.wait_for(lambda: len(java.records) >= len(fourth))
            java.stop()
            assert sorted(record.data for record in java.records) == sorted(fourth), java.log()
            shards = {record.shard for record in java.records}
        assert f"{stream_id(kinesis, 'orders')}:shardId-000000000002" in shards
        after = {
            row["leaseKey"]["S"]: row for row in server.client("dynamodb").scan(TableName="billing")["Items"]
        }
    theirs = leases[f"{stream_id_in(ids, 'returns')}:shardId-000000000000"]
    ours = after[f"{stream_id_in(ids, 'orders')}:shardId-000000000002"]
    for name in ("streamName", "shardId", "startingHashKey", "endingHashKey"):
        assert ours[name].keys() == theirs[name].keys()
    assert ours["parentShardId"] == {"SS": ["shardId-000000000000"]}


def stream_id_in(ids: str, stream: str) -> str:
    return next(each for each in ids.split(",") if f":{stream}:" in each)
