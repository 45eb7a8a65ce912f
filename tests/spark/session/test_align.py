"""Rows go to tasks by the shard that they will reach."""

from __future__ import annotations

import random
import uuid
from collections import Counter, defaultdict

import pytest
from pyspark.sql import functions as f

from penstock.core.hash_key import HASH_KEY_MAX, effective_hash_key
from penstock.errors import OptionError
from penstock.spark import align_to_shards
from waiting import wait_until

WHERE = {"region": "us-east-1"}


@pytest.fixture
def resharded(kinesis, client):
    """Five open shards whose numbers do not follow their ranges."""
    name = f"s-{uuid.uuid4().hex[:10]}"
    kinesis.create_stream(name, shards=3)
    for shard in ("shardId-000000000000", "shardId-000000000002"):
        span = next(
            each["HashKeyRange"]
            for each in client.list_shards(StreamName=name)["Shards"]
            if each["ShardId"] == shard
        )
        middle = (int(span["StartingHashKey"]) + int(span["EndingHashKey"])) // 2
        client.split_shard(StreamName=name, ShardToSplit=shard, NewStartingHashKey=str(middle))
        wait_until(lambda: is_active(client, name), "the split")
    return name


def is_active(client, name):
    summary = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    return summary["StreamStatus"] == "ACTIVE"


def open_ranges(client, stream):
    return {
        shard["ShardId"]: range(
            int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"]) + 1
        )
        for shard in client.list_shards(StreamName=stream)["Shards"]
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    }


def shard_of(ranges, key, hash_key):
    value = effective_hash_key(key, hash_key)
    return next(shard for shard, span in ranges.items() if value in span)


def test_every_shard_is_one_task_and_every_task_one_shard(spark, resharded, client):
    chance = random.Random(1)
    ranges = open_ranges(client, resharded)
    edges = [str(value) for span in ranges.values() for value in (span.start, span.stop - 1)]
    rows = [(f"schlüssel-{number}", None, number) for number in range(400)]
    rows += [("any", edge, 400) for edge in [*edges, "0", str(HASH_KEY_MAX)]]
    rows += [("any", str(chance.randrange(HASH_KEY_MAX)), 401) for _ in range(200)]
    frame = spark.createDataFrame(rows, "partitionKey string, explicitHashKey string, number int")
    aligned = align_to_shards(frame.repartition(7), resharded, **WHERE)
    placed = aligned.withColumn("task", f.spark_partition_id()).collect()
    assert Counter(tuple(row)[:3] for row in placed) == Counter(rows)
    tasks = defaultdict(set)
    for row in placed:
        tasks[row.task].add(shard_of(ranges, row.partitionKey, row.explicitHashKey))
    assert sorted(next(iter(shards)) for shards in tasks.values()) == sorted(ranges)
    assert {len(shards) for shards in tasks.values()} == {1}


def test_each_shards_rows_keep_the_order_of_a_column(spark, resharded):
    frame = spark.range(2000).selectExpr(
        "cast(id % 50 as string) as partitionKey", "id as number", "cast(id as string) as data"
    )
    aligned = align_to_shards(frame.repartition(5), resharded, order_by="number", **WHERE)
    by_task = defaultdict(list)
    for row in aligned.withColumn("task", f.spark_partition_id()).collect():
        by_task[row.task].append(row.number)
    assert len(by_task) == 5
    assert all(numbers == sorted(numbers) for numbers in by_task.values())


def test_aligned_writes_fill_aggregates_and_keep_the_order(spark, resharded, client):
    frame = spark.range(5000).selectExpr(
        "cast(id % 50 as string) as partitionKey", "id as number", "cast(id as string) as data"
    )
    align_to_shards(frame.repartition(4), resharded, order_by="number", **WHERE).select(
        "partitionKey", "data"
    ).write.format("kinesis").option("streamName", resharded).option("aggregation", "true").mode(
        "append"
    ).save()
    from stream_reading import kcl_reads, raw_records

    raw = [record for _, records in raw_records(client, resharded) for record in records]
    assert len(raw) == 5  # one aggregate for each shard
    by_key = defaultdict(list)
    for key, data in kcl_reads(client, resharded):
        by_key[key].append(int(data))
    assert sum(map(len, by_key.values())) == 5000
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_streaming_write_can_be_aligned_and_not_ordered(spark, resharded, client, job):
    reader = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    frame = reader.selectExpr("cast(value as string) as partitionKey", "cast(value as string) as data")
    with pytest.raises(OptionError, match="in foreachBatch, or leave order_by out"):
        align_to_shards(frame, resharded, order_by="data", **WHERE)
    query = (
        align_to_shards(frame, resharded, **WHERE)
        .writeStream.format("kinesis")
        .option("streamName", resharded)
        .option("checkpointLocation", str(job.checkpoint))
        .start()
    )
    job.running.append(query)
    from stream_reading import raw_records

    wait_until(
        lambda: (
            query.exception() is not None
            or sum(len(records) for _, records in raw_records(client, resharded)) >= 300
        ),
        "rows to arrive",
    )
    assert query.exception() is None


def test_mistakes_are_named(spark, stream):
    frame = spark.sql("select 'k' as partitionKey, 'x' as data")
    with pytest.raises(OptionError, match="the column partitionKey is missing"):
        align_to_shards(frame.drop("partitionKey"), stream)
    with pytest.raises(OptionError, match="Did you mean region"):
        align_to_shards(frame, stream, regoin="us-east-1")
