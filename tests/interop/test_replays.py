"""A worker of the KCL reads a replay of a recorded stream, through a split, as it would have read the stream."""

from __future__ import annotations

from collections import defaultdict

import pytest
from counterparts import KCL_3, KCL_3_FAN_OUT, Counterpart
from worker_process import WorkerProcess

from penstock.cli import main as cli
from penstock_local import LocalKinesis

KEYS = 20
EACH = 50


def put(kinesis, first: int) -> None:
    entries = [
        {"PartitionKey": f"key-{key}", "Data": str(number).encode()}
        for number in range(first, first + EACH)
        for key in range(KEYS)
    ]
    for begin in range(0, len(entries), 500):
        answer = kinesis.put_records(StreamName="orders", Records=entries[begin : begin + 500])
        assert answer["FailedRecordCount"] == 0


@pytest.mark.parametrize(
    "counterpart", [pytest.param(KCL_3, id="3.5.1 polls"), pytest.param(KCL_3_FAN_OUT, id="3.5.1")]
)
def test_a_worker_reads_a_replay(counterpart: Counterpart, tmp_path, monkeypatch):
    path = tmp_path / "incident.penstock"
    with LocalKinesis(limits=False, settle_s=0.0) as server:
        server.create_stream("orders", shards=2)
        kinesis = server.client("kinesis")
        put(kinesis, 0)
        kinesis.split_shard(
            StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
        )
        put(kinesis, EACH)
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        assert cli.main(["record", "orders", "--since", "1h", "-o", str(path)]) == 0
    with LocalKinesis(replay=(path,)) as server:
        with WorkerProcess(counterpart, server, tmp_path, "worker-1", "orders", "billing") as worker:
            worker.wait_for(lambda: len(worker.records) >= 2 * KEYS * EACH)
            worker.stop()
            assert worker.last_line == "stopped", worker.log()
        leases = server.client("dynamodb").scan(TableName="billing")["Items"]
    found = defaultdict(list)
    for record in worker.records:
        found[record.key].append(int(record.data))
    checkpoints = {row["leaseKey"]["S"]: row["checkpoint"]["S"] for row in leases if "checkpoint" in row}
    assert found == {f"key-{key}": list(range(2 * EACH)) for key in range(KEYS)}
    assert checkpoints["shardId-000000000000"] == "SHARD_END"
    assert len({record.shard for record in worker.records}) == 4
