"""The streaming source as a user sees it: everything once, in order, whatever happens to shards and processes."""

from __future__ import annotations

import json
import time

import pytest

from spark_support import numbered, put, wait_active, wait_for_next_second
from stream_reading import raw_records
from waiting import DEADLINE_S, wait_until

QUARTER = str(2**126)


def offsets_on_disk(job):
    """The source's offset of every batch, as the text that Spark logged."""
    folder = job.checkpoint / "offsets"
    return {
        int(file.name): file.read_text().splitlines()[2] for file in folder.iterdir() if file.name.isdigit()
    }


def test_an_idle_query_runs_no_batches_and_asks_each_shard_at_most_as_often_as_told(
    job, stream, client, kinesis
):
    put(client, stream, numbered(0, 10))
    run = job.start(probeInterval="1s")
    run.wait_for(10)
    wait_until(
        lambda: not run.query.status["isTriggerActive"] or run.query.status["message"], "the query to settle"
    )

    def calls():
        return kinesis.calls().count("GetRecords", stream=stream)

    # A shard that was just read is probed four times in the next second.
    settled = calls()
    wait_until(lambda: calls() >= settled + 2 * 5, "the shards to be quiet")
    before, batches, began = calls(), len(run.batches), time.monotonic()

    def asked():
        return calls() - before

    wait_until(lambda: time.monotonic() - began > 3 and asked() >= 2, "three idle seconds, with probes")
    count = asked()
    assert len(run.batches) == batches
    # Two shards, one probe a second each, over the time that really passed.
    assert count <= 2 * (time.monotonic() - began + 1)


def test_a_batch_holds_at_most_the_records_of_the_limit(job, stream, client):
    put(client, stream, numbered(0, 100))
    run = job.start(maxRecordsPerTrigger="30")
    run.wait_for(100)
    assert run.numbers() == list(range(100))
    assert max(len(rows[-1]) for rows in run.batches.values()) <= 30


def test_a_batch_ends_with_the_record_that_reaches_the_bytes_of_the_limit(job, stream, client):
    put(client, stream, [(f"k{number}", f"{number:08d}" + "x" * 992) for number in range(60)])
    run = job.start(maxBytesPerTrigger="20000")
    run.wait_for(60)
    # Each of the two shards gets half of the limit and may overshoot by less than one record.
    assert max(sum(len(row.data) for row in rows[-1]) for rows in run.batches.values()) <= 20_000 + 2 * 1000
    assert len(run.rows()) == 60


def test_available_now_on_a_stream_without_news_ends_at_once(job):
    run = job.start(available_now=True)
    run.query.awaitTermination(DEADLINE_S)
    assert run.query.exception() is None
    assert run.rows() == []


def test_two_actions_on_one_batch_see_the_same_rows_without_cache(spark, job, stream, client):
    put(client, stream, numbered(0, 40))
    seen = []

    def count_then_collect(frame, batch_id):
        first = frame.count()
        put(client, stream, numbered(40 + 10 * batch_id, 50 + 10 * batch_id))
        seen.append((first, len(frame.collect()), frame.count()))

    reader = spark.readStream.format("kinesis").option("streamName", stream)
    for key, value in job.options.items():
        reader = reader.option(key, value)
    query = (
        reader.load()
        .writeStream.foreachBatch(count_then_collect)
        .option("checkpointLocation", str(job.checkpoint))
        .start()
    )
    job.running.append(query)
    wait_until(lambda: len(seen) >= 3 or not query.isActive, "three batches")
    assert query.exception() is None
    assert all(first == collected == counted for first, collected, counted in seen)


def test_latest_means_the_moment_of_the_first_start_also_after_a_restart(job, stream, client):
    put(client, stream, numbered(0, 50))
    wait_for_next_second()
    run = job.start(startingPosition="LATEST")
    wait_until(lambda: len(lease_rows(job)) == 2, "the leases")
    run.query.stop()
    put(client, stream, numbered(50, 70))
    run = job.start(startingPosition="LATEST")
    run.wait_for(20)
    assert run.numbers() == list(range(50, 70))


def lease_rows(job, endpoint_url=None):
    import boto3

    from penstock_local.handle import ACCESS_KEY  # noqa: F401 - the endpoint is in the environment

    table = boto3.client("dynamodb", endpoint_url=endpoint_url)
    try:
        return table.scan(TableName=job.options["applicationName"])["Items"]
    except table.exceptions.ResourceNotFoundException:
        return []


def test_a_starting_moment_leaves_out_what_arrived_before(job, stream, client, kinesis):
    put(client, stream, numbered(0, 30))
    wait_for_next_second()
    moment_ms = kinesis.clock.now_ms()
    put(client, stream, numbered(30, 60))
    run = job.start(startingPosition=f"AT_TIMESTAMP {moment_ms}")
    run.wait_for(30)
    assert run.numbers() == list(range(30, 60))


def test_a_query_begins_where_its_user_says_shard_by_shard(job, stream, client):
    put(client, stream, numbered(0, 60))
    parent, neighbour = (shard["ShardId"] for shard in client.list_shards(StreamName=stream)["Shards"])
    client.split_shard(StreamName=stream, ShardToSplit=parent, NewStartingHashKey=QUARTER)
    wait_active(client, stream)

    def put_at(hash_key, number):
        return client.put_record(
            StreamName=stream, PartitionKey="k", ExplicitHashKey=hash_key, Data=str(number).encode()
        )

    put_at("0", 1000)
    done = put_at("0", 1001)
    put_at("0", 1002)
    put_at(QUARTER, 2000)
    beside = [
        int(record["Data"])
        for shard, records in raw_records(client, stream)
        for record in records
        if shard["ShardId"] == neighbour
    ]
    run = job.start(startingPosition=json.dumps({done["ShardId"]: done["SequenceNumber"]}))
    # Nothing of the parent: a query in the middle of its child has done it.
    expected = sorted([*beside, 1002, 2000])
    run.wait_for(len(expected))
    assert run.numbers() == expected


@pytest.mark.parametrize("lenient", [False, True])
def test_a_shard_that_the_starting_position_names_and_the_stream_lacks_is_an_error(
    job, stream, client, lenient
):
    put(client, stream, numbered(0, 30))
    given = {"startingPosition": '{"shardId-000000000099": "123"}', "failOnDataLoss": str(not lenient)}
    run = job.start(**given)
    if lenient:
        run.wait_for(30)
        assert run.numbers() == list(range(30))
    else:
        wait_until(run.failed, "the error")
        assert "OptionError: option startingPosition" in str(run.query.exception())
        assert "does not list shardId-000000000099: misspelt, or gone" in str(run.query.exception())


def test_a_new_query_goes_on_where_its_application_stopped(job, stream, client, tmp_path):
    put(client, stream, numbered(0, 60))
    run = job.start()
    run.wait_for(60)
    wait_until(lambda: all(row["checkpoint"]["S"].isdigit() for row in lease_rows(job)), "the checkpoints")
    run.query.stop()
    job.checkpoint = tmp_path / "another checkpoint"
    job.batches.clear()
    put(client, stream, numbered(60, 90))
    run = job.start()
    run.wait_for(30)
    assert run.numbers() == list(range(60, 90))


def test_aggregates_are_deaggregated_and_a_limit_may_end_inside_one(job, stream, client):
    from penstock.core.aggregation import AggregateBuilder

    builder = AggregateBuilder()
    for number in range(25):
        builder.add(f"{number:08d}".encode(), "key", None)
    packed = builder.build()
    client.put_record(
        StreamName=stream,
        Data=packed.data,
        PartitionKey=packed.partition_key,
        ExplicitHashKey=packed.explicit_hash_key,
    )
    run = job.start(maxRecordsPerTrigger="10")
    run.wait_for(25)
    assert run.numbers() == list(range(25))
    assert [row.subSequenceNumber for row in run.rows()] == list(range(25))
    assert {row.partitionKey for row in run.rows()} == {"key"}
    assert [len(rows[-1]) for _, rows in sorted(run.batches.items())] == [10, 10, 5]


def test_offsets_on_disk_are_canonical_and_hold_what_a_replay_needs(job, stream, client):
    put(client, stream, numbered(0, 10))
    run = job.start()
    run.wait_for(10)
    texts = offsets_on_disk(job)
    assert texts
    for text in texts.values():
        offset = json.loads(text)
        assert json.dumps(offset) == text
        assert list(offset) == sorted(offset)
        assert offset["stream"]["arn"].endswith(f"stream/{stream}")
        assert set(offset["shards"]) == {"shardId-000000000000", "shardId-000000000001"}


def test_a_stream_that_was_deleted_and_created_again_is_refused(job, stream, client):
    put(client, stream, numbered(0, 10))
    run = job.start()
    run.wait_for(10)
    run.query.stop()
    client.delete_stream(StreamName=stream)
    wait_until(lambda: is_gone(client, stream), "the stream to be gone")
    wait_for_next_second()
    client.create_stream(StreamName=stream, ShardCount=2)
    wait_active(client, stream)
    run = job.start()
    wait_until(lambda: not run.query.isActive, "the query to refuse")
    assert "was deleted and created again" in str(run.query.exception())


def is_gone(client, stream):
    try:
        client.describe_stream_summary(StreamName=stream)
    except client.exceptions.ResourceNotFoundException:
        return True
    return False


def test_a_deleted_lease_table_repeats_a_batch_and_loses_nothing(job, stream, client, kinesis):
    put(client, stream, numbered(0, 40))
    run = job.start()
    run.wait_for(40)
    kinesis.client("dynamodb").delete_table(TableName=job.options["applicationName"])
    put(client, stream, numbered(40, 80))
    wait_until(lambda: set(run.numbers()) >= set(range(80)) or run.failed(), "all records")
    assert run.query.exception() is None


def test_a_query_without_application_refuses_to_share_with_another(spark, stream, client, tmp_path):
    put(client, stream, numbered(0, 10))

    def begin(name):
        return (
            spark.readStream.format("kinesis")
            .option("streamName", stream)
            .option("startingPosition", "TRIM_HORIZON")
            .option("leaseDuration", "6s")
            .load()
            .writeStream.foreachBatch(lambda frame, _: frame.collect())
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )

    first = begin("first")
    wait_until(lambda: first.lastProgress is not None, "the first query to read")
    second = begin("second")
    wait_until(lambda: not second.isActive, "the second query to refuse")
    assert "applicationName of its own" in str(second.exception())
    assert first.isActive
    first.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strreamName": "x"}, "unknown option strreamname. Did you mean streamName?"),
        ({"streamName": "no-such-stream"}, "no-such-stream"),
        ({"streamName": "x", "startingPosition": "SOON"}, "'SOON' is not a position"),
        ({"streamName": "x", "maxRecordsPerTrigger": "0"}, "expected a whole number from 1"),
    ],
)
def test_a_mistake_is_named_in_the_error(spark, tmp_path, options, message):
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:  # noqa: PT012 - Spark decides when it looks
        reader = spark.readStream.format("kinesis")
        for key, value in options.items():
            reader = reader.option(key, value)
        query = (
            reader.load()
            .writeStream.foreachBatch(lambda frame, _: frame.collect())
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.awaitTermination(DEADLINE_S)
    assert message in str(caught.value)


def test_lost_records_stop_the_query_or_are_skipped_by_option(job, stream):
    from penstock_local import LocalKinesis

    # A server of its own: its clock is moved past the retention.
    with LocalKinesis(limits=False) as server:
        client = server.client("kinesis")
        server.create_stream(stream, shards=2)
        job.options["endpointUrl"] = server.endpoint_url
        put(client, stream, numbered(0, 20))
        run = job.start()
        run.wait_for(20)
        wait_until(
            lambda: all("pendingCheckpoint" not in row for row in lease_rows(job, server.endpoint_url)),
            "the query to be idle",
        )
        run.query.stop()
        put(client, stream, numbered(20, 40))
        server.clock.advance(25 * 3600)
        put(client, stream, numbered(40, 60))
        run = job.start()
        wait_until(lambda: not run.query.isActive, "the query to stop")
        assert "failOnDataLoss=false" in str(run.query.exception())
        run = job.start(failOnDataLoss="false")
        wait_until(lambda: run.failed() or len(run.rows()) >= 40, "the records that are left")
        assert run.query.exception() is None
        assert run.numbers() == [*range(20), *range(40, 60)]
        run.query.stop()
