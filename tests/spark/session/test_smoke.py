"""Spark in every run of the tests: source, restart, reshard, sink and batch, a few tests of each in one session."""

from __future__ import annotations

import time

import pytest

from spark_support import (
    Run,
    numbered,
    numbers_of,
    position,
    put,
    read_available,
    read_batch,
    rows_to_write,
    wait_active,
)
from stream_reading import kcl_reads
from waiting import DEADLINE_S, wait_by_limited_calls, wait_until


def test_a_query_reads_everything_once_and_goes_on_after_a_restart(job, stream, client):
    before_s = time.time()
    put(client, stream, numbered(0, 300))
    run = job.start()
    run.wait_for(300)
    put(client, stream, numbered(300, 400))
    run.wait_for(400)
    run.query.stop()
    put(client, stream, numbered(400, 500))
    run = job.start()
    run.wait_for(500)
    assert run.numbers() == list(range(500))
    first = run.rows()[0]
    assert first.asDict().keys() == {
        "streamName",
        "shardId",
        "sequenceNumber",
        "subSequenceNumber",
        "partitionKey",
        "explicitHashKey",
        "approximateArrivalTimestamp",
        "data",
    }
    assert (first.streamName, first.explicitHashKey, first.subSequenceNumber) == (stream, None, 0)
    assert before_s - 1 < first.approximateArrivalTimestamp.timestamp() <= time.time()


def test_available_now_reads_what_was_there_and_ends(job, stream, client):
    put(client, stream, numbered(0, 100))
    read_available(lambda: job.start(available_now=True, maxRecordsPerTrigger="40").query)
    run = Run(None, job.batches)
    assert run.numbers() == list(range(100))
    assert len(run.batches) >= 3
    put(client, stream, numbered(100, 120))
    run = job.start(available_now=True)
    run.query.awaitTermination(DEADLINE_S)
    assert run.numbers() == list(range(120))


def test_a_child_shard_is_read_only_after_the_batch_that_ended_its_parents(job, stream, client):
    put(client, stream, numbered(0, 200))
    run = job.start(maxRecordsPerTrigger="60")
    run.wait_for(60)
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    wait_active(client, stream)
    put(client, stream, numbered(200, 300))
    client.merge_shards(
        StreamName=stream, ShardToMerge="shardId-000000000003", AdjacentShardToMerge="shardId-000000000001"
    )
    wait_active(client, stream)
    put(client, stream, numbered(300, 400))
    run.wait_for(400)
    assert run.numbers() == list(range(400))
    parents = {
        "shardId-000000000002": ["shardId-000000000000"],
        "shardId-000000000003": ["shardId-000000000000"],
        "shardId-000000000004": ["shardId-000000000003", "shardId-000000000001"],
    }
    batches_of = {}
    for batch, executions in run.batches.items():
        for row in executions[-1]:
            batches_of.setdefault(row.shardId, []).append(batch)
    for child, its_parents in parents.items():
        for parent in its_parents:
            assert max(batches_of[parent]) < min(batches_of[child])
    for key in {row.partitionKey for row in run.rows()}:
        seen = [
            int(bytes(row.data))
            for batch in sorted(run.batches)
            for row in sorted(run.batches[batch][-1], key=position)
            if row.partitionKey == key
        ]
        assert seen == sorted(seen)


def test_a_failed_batch_is_replayed_with_the_same_rows_although_more_has_come(job, stream, client):
    put(client, stream, numbered(0, 50))
    failures = []

    def fail_once(batch_id, rows):
        if not failures:
            failures.append(batch_id)
            raise RuntimeError("the sink is down")

    job.before_batch = fail_once
    run = job.start()
    wait_until(lambda: not run.query.isActive, "the query to fail")
    put(client, stream, numbered(50, 80))
    run = job.start()
    run.wait_for(80)
    executions = run.batches[failures[0]]
    assert len(executions) == 2
    assert sorted(map(position, executions[0])) == sorted(map(position, executions[1]))
    assert run.numbers() == list(range(80))


def test_a_batch_read_covers_the_whole_stream_also_across_a_reshard(spark, stream, client):
    put(client, stream, numbered(0, 100))
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126))
    wait_active(client, stream)
    put(client, stream, numbered(100, 150))
    frame = read_batch(spark, stream)
    assert numbers_of(frame) == list(range(150))
    assert frame.rdd.getNumPartitions() == 4


@pytest.mark.parametrize("aggregation", ["false", "true"])
def test_a_batch_write_puts_every_row_in_order_per_key(spark, stream, client, aggregation):
    rows_to_write(spark, 3000).write.format("kinesis").option("streamName", stream).option(
        "aggregation", aggregation
    ).mode("append").save()
    found = kcl_reads(client, stream)
    assert sorted(int(data) for _, data in found) == list(range(3000))
    for key in "0123456":
        own = [int(data) for its_key, data in found if its_key == key]
        assert own == sorted(own)


def test_a_streaming_write_copies_a_stream(spark, job, stream, client, kinesis, tmp_path):
    copy = f"copy-of-{stream}"
    kinesis.create_stream(copy, shards=2)
    put(client, stream, numbered(0, 200))
    query = job.copy_to(copy, tmp_path / "copy")
    wait_by_limited_calls(lambda: not query.isActive or len(kcl_reads(client, copy)) >= 200, "the copy")
    assert query.exception() is None
    assert sorted(int(data) for _, data in kcl_reads(client, copy)) == list(range(200))
