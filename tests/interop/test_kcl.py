"""Workers of the KCL with its default clients (HTTP/2), alone on the embedded server with all its quotas."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from counterparts import KCL_2, KCL_3, Counterpart
from worker_process import WorkerProcess

from penstock.local import LocalKinesis

KEYS = 20
EACH = 50


def put(kinesis, first: int) -> None:
    """Put EACH records per key, numbered from `first`; a key's records stay in order."""
    entries = [
        {"PartitionKey": f"key-{key}", "Data": str(number).encode()}
        for number in range(first, first + EACH)
        for key in range(KEYS)
    ]
    for begin in range(0, len(entries), 500):
        answer = kinesis.put_records(StreamName="orders", Records=entries[begin : begin + 500])
        assert answer["FailedRecordCount"] == 0


@pytest.mark.parametrize(
    ("counterpart", "tls"),
    [
        pytest.param(KCL_2, False, id="2.7.2"),
        pytest.param(KCL_3, False, id="3.5.1"),
        pytest.param(KCL_3, True, id="3.5.1 over TLS"),
    ],
)
def test_a_worker_reads_a_stream_through_a_split(counterpart: Counterpart, tls: bool, tmp_path):
    with LocalKinesis(tls=tls) as server:
        server.create_stream("orders", shards=2)
        kinesis = server.client("kinesis")
        put(kinesis, 0)
        with WorkerProcess(counterpart, server, tmp_path, "worker-1", "orders", "billing") as worker:
            worker.wait_for(lambda: len(worker.records) >= KEYS * EACH)
            kinesis.split_shard(
                StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
            )
            kinesis.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
            put(kinesis, EACH)
            worker.wait_for(lambda: len(worker.records) >= 2 * KEYS * EACH)
            worker.stop()
            assert worker.last_line == "stopped", worker.log()
        leases = server.client("dynamodb").scan(TableName="billing")["Items"]
        refused = server.calls().errors
    checkpoints = {row["leaseKey"]["S"]: row["checkpoint"]["S"] for row in leases if "checkpoint" in row}
    by_key: dict[str, list[int]] = defaultdict(list)
    for record in worker.records:
        by_key[record.key].append(int(record.data))
    assert by_key == {f"key-{key}": list(range(2 * EACH)) for key in range(KEYS)}
    shards = Counter(record.shard for record in worker.records)
    assert len(shards) == 4
    assert checkpoints["shardId-000000000000"] == "SHARD_END"
    assert "kinesis.GetRecords" not in refused
