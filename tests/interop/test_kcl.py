"""Workers of the KCL with its default clients (HTTP/2), alone on the embedded server with all its quotas."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection

import pytest
from company_checks import Processed
from counterparts import KCL_2, KCL_2_FAN_OUT, KCL_3, KCL_3_FAN_OUT, Counterpart
from worker_process import WorkerProcess

from penstock_local import LocalKinesis

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
    ("counterpart", "retrieval", "tls"),
    [
        pytest.param(KCL_2, "polling", False, id="2.7.2 polls"),
        pytest.param(KCL_3, "polling", False, id="3.5.1 polls"),
        pytest.param(KCL_2_FAN_OUT, "fan-out", False, id="2.7.2"),
        pytest.param(KCL_3_FAN_OUT, "fan-out", False, id="3.5.1"),
        pytest.param(KCL_3_FAN_OUT, "fan-out", True, id="3.5.1 over TLS"),
    ],
)
def test_a_worker_reads_a_stream_through_a_split(
    counterpart: Counterpart, retrieval: str, tls: bool, tmp_path
):
    with LocalKinesis(tls=tls) as server:
        server.create_stream("orders", shards=2)
        kinesis = server.client("kinesis")
        put(kinesis, 0)
        with WorkerProcess(counterpart, server, tmp_path, "worker-1", "orders", "billing") as worker:
            worker.wait_for(lambda: len(worker.records) >= KEYS * EACH)
            split(kinesis)
            put(kinesis, EACH)
            worker.wait_for(lambda: len(worker.records) >= 2 * KEYS * EACH)
            worker.stop()
            assert worker.last_line == "stopped", worker.log()
        leases = server.client("dynamodb").scan(TableName="billing")["Items"]
        calls = server.calls()
    checkpoints = {row["leaseKey"]["S"]: row["checkpoint"]["S"] for row in leases if "checkpoint" in row}
    assert by_key(worker.records) == expected(2 * EACH)
    shards = Counter(record.shard for record in worker.records)
    assert len(shards) == 4
    assert checkpoints["shardId-000000000000"] == "SHARD_END"
    assert calls.failed("GetRecords") == 0
    by_what = {"polling": "GetRecords", "fan-out": "SubscribeToShard"}
    assert [how for how, operation in by_what.items() if calls.count(operation)] == [retrieval]


@pytest.mark.parametrize(
    "counterpart", [pytest.param(KCL_2_FAN_OUT, id="2.7.2"), pytest.param(KCL_3_FAN_OUT, id="3.5.1")]
)
def test_a_worker_with_fan_out_goes_on_through_faults_a_split_and_a_merge(counterpart: Counterpart, tmp_path):
    with LocalKinesis() as server:
        server.create_stream("orders", shards=2)
        kinesis = server.client("kinesis")
        put(kinesis, 0)
        # a refusal, then one end of each kind, each after an event of the call behind the last one's
        server.faults.error("SubscribeToShard", code="ResourceInUseException", status=400)
        server.faults.in_subscription("end", after_events=1, skip=1)
        server.faults.in_subscription("reset", after_events=1, skip=2)
        server.faults.in_subscription("exception", code="ResourceInUseException", after_events=1, skip=3)
        server.faults.in_subscription("exception", code="InternalFailureException", after_events=1, skip=4)
        server.faults.in_subscription("corrupt", skip=5)
        server.faults.in_subscription("cut", skip=6)
        server.faults.in_subscription("goaway", after_events=1, skip=7)
        with WorkerProcess(counterpart, server, tmp_path, "worker-1", "orders", "billing") as first:
            first.wait_for(lambda: not server.faults.active())
            first.wait_for(lambda: len(first.records) >= KEYS * EACH)
            assert by_key(first.records) == expected(EACH)
            split(kinesis)
            put(kinesis, EACH)
            merge = {"ShardToMerge": "shardId-000000000002", "AdjacentShardToMerge": "shardId-000000000003"}
            kinesis.merge_shards(StreamName="orders", **merge)
            settle(kinesis)
            put(kinesis, 2 * EACH)
            first.wait_for(lambda: len(first.records) >= 3 * KEYS * EACH)
            assert by_key(first.records) == expected(3 * EACH)
            first.stop()
            assert first.last_line == "stopped", first.log()


@pytest.mark.parametrize(
    ("counterpart", "end"),
    [
        pytest.param(KCL_2_FAN_OUT, None, id="2.7.2 from a living worker"),
        pytest.param(KCL_2_FAN_OUT, WorkerProcess.kill, id="2.7.2 from one that was killed"),
        # a new leader would take over from one that was killed, minutes later
        pytest.param(KCL_3_FAN_OUT, WorkerProcess.stop, id="3.5.1 from one that has stopped"),
    ],
)
def test_a_second_worker_takes_over_what_the_first_is_subscribed_to(
    counterpart: Counterpart, end: Callable[[WorkerProcess], None] | None, tmp_path
):
    with LocalKinesis() as server:
        server.create_stream("orders", shards=4)
        kinesis = server.client("kinesis")
        put(kinesis, 0)
        with WorkerProcess(counterpart, server, tmp_path, "worker-1", "orders", "billing") as first:
            first.wait_for(lambda: len(first.records) >= KEYS * EACH)
            with WorkerProcess(counterpart, server, tmp_path, "worker-2", "orders", "billing") as second:
                if end is not None:
                    end(first)
                second.wait_for(lambda: bool(second.did))
                put(kinesis, EACH)
                second.wait_for(lambda: len({*first.records, *second.records}) >= 2 * EACH * KEYS)
                second.stop()
    # what the first had read and not checkpointed came again; nothing is missing, and each worker kept the order
    assert by_key({*first.records, *second.records}) == expected(2 * EACH)
    for worker in (first, second):
        for numbers in by_key(worker.records).values():
            assert numbers == sorted(numbers)


def by_key(records: Collection[Processed]) -> dict[str, list[int]]:
    """The numbers that came for each key; sorted where the records are a set."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in records:
        found[record.key].append(int(record.data))
    return {k: sorted(v) for k, v in found.items()} if isinstance(records, set) else dict(found)


def expected(count: int) -> dict[str, list[int]]:
    return {f"key-{key}": list(range(count)) for key in range(KEYS)}


def split(kinesis) -> None:
    """Split the first shard, and wait until that is done."""
    kinesis.split_shard(
        StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    settle(kinesis)


def settle(kinesis) -> None:
    kinesis.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
