"""Several streams in one query, in Spark: a restart, a reshard, availableNow, a limit, and the batch read."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from penstock.spark import lag
from penstock.spark.engine import PASSES_START
from spark_support import Job, numbered, put, wait_active
from waiting import DEADLINE_S, wait_until

RETURNS = 1000


@pytest.fixture
def names(kinesis):
    made = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("orders", "returns")]
    for name in made:
        kinesis.create_stream(name, shards=2)
    return made


@pytest.fixture
def both(spark, names, tmp_path):
    made = Job(
        spark,
        ", ".join(names),
        tmp_path / "checkpoint",
        {
            "startingPosition": "TRIM_HORIZON",
            "applicationName": f"app-{names[0]}",
            "leaseDuration": "5s",
            "fetchInterval": "0ms",
            "probeInterval": "200ms",
        },
    )
    yield made
    for query in made.running:
        query.stop()


def test_two_streams_in_one_query_over_a_restart_and_a_reshard(both, spark, client, names):
    orders, returns = names
    put(client, orders, numbered(0, 60))
    put(client, returns, numbered(RETURNS, RETURNS + 60))
    run = both.start(maxRecordsPerTrigger="30")
    run.wait_for(120)
    assert max(len(rows[-1]) for rows in run.batches.values()) <= 30
    wait_until(lambda: len(lag(run.query)) == 2, "the lag of both")
    assert {each.stream for each in lag(run.query)} == set(names)
    run.query.stop()
    put(client, orders, numbered(60, 80))
    client.merge_shards(
        StreamName=returns, ShardToMerge="shardId-000000000000", AdjacentShardToMerge="shardId-000000000001"
    )
    wait_active(client, returns)
    put(client, returns, numbered(RETURNS + 60, RETURNS + 80))
    run = both.start()
    run.wait_for(160)
    assert run.numbers() == [*range(80), *range(RETURNS, RETURNS + 80)]
    assert {(row.streamName, int(bytes(row.data)) >= RETURNS) for row in run.rows()} == {
        (orders, False),
        (returns, True),
    }
    run.query.stop()
    frame = spark.read.format("kinesis").option("streamName", ",".join(names)).load()
    assert Counter(row.streamName for row in frame.select("streamName").collect()) == {
        orders: 80,
        returns: 80,
    }


def test_available_now_reads_both_streams_and_ends(both, client, names):
    put(client, names[0], numbered(0, 40))
    put(client, names[1], numbered(RETURNS, RETURNS + 10))
    run = both.start(available_now=True, **({"maxRecordsPerTrigger": "20"} if PASSES_START else {}))
    assert run.query.awaitTermination(DEADLINE_S)
    assert run.query.exception() is None
    assert run.numbers() == [*range(40), *range(RETURNS, RETURNS + 10)]
