"""Writing: every row acknowledged, in order per key, within the service's limits."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_support import numbered, put, wait_until

pytestmark = pytest.mark.spark


def everything(client, stream):
    """Read a stream's records, per shard in order, user records of aggregates one by one."""
    from penstock.core.aggregation import deaggregate

    found = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            page = client.get_records(ShardIterator=iterator)
            for record in page["Records"]:
                inner = deaggregate(record["Data"])
                if inner is None:
                    found.append((record["PartitionKey"], record["Data"]))
                else:
                    found.extend((each.partition_key, each.data) for each in inner)
            iterator = page["NextShardIterator"] if page["MillisBehindLatest"] else None
    return found


def rows(spark, count, keys=7):
    return (
        spark.range(count)
        .selectExpr(f"cast(id % {keys} as string) as partitionKey", "cast(id as string) as data")
        .coalesce(1)
    )


@pytest.mark.parametrize("aggregation", ["false", "true"])
def test_a_batch_write_puts_every_row_in_order_per_key(spark, stream, client, aggregation):
    rows(spark, 3000).write.format("kinesis").option("streamName", stream).option(
        "aggregation", aggregation
    ).mode("append").save()
    found = everything(client, stream)
    assert sorted(int(data) for _, data in found) == list(range(3000))
    for key in "0123456":
        own = [int(data) for its_key, data in found if its_key == key]
        assert own == sorted(own)


def test_a_streaming_write_copies_a_stream(spark, job, stream, client, kinesis, tmp_path):
    copy = f"copy-of-{stream}"
    kinesis.create_stream(copy, shards=2)
    put(client, stream, numbered(0, 200))
    reader = spark.readStream.format("kinesis").option("streamName", stream)
    for key, value in job.options.items():
        reader = reader.option(key, value)
    query = (
        reader.load()
        .select("partitionKey", "data")
        .writeStream.format("kinesis")
        .option("streamName", copy)
        .option("checkpointLocation", str(tmp_path / "copy"))
        .start()
    )
    job.running.append(query)
    wait_until(lambda: not query.isActive or len(everything(client, copy)) >= 200, "the copy")
    assert query.exception() is None
    assert sorted(int(data) for _, data in everything(client, copy)) == list(range(200))


def test_rows_are_routed_by_their_stream_name(spark, kinesis, client):
    for name in ("route-a", "route-b"):
        kinesis.create_stream(name, shards=1)
    spark.sql(
        "select * from values ('route-a', 'k', '1'), ('route-b', 'k', '2'), (null, 'k', '3') "
        "as t(streamName, partitionKey, data)"
    ).write.format("kinesis").option("streamName", "route-b").mode("append").save()
    assert [data for _, data in everything(client, "route-a")] == [b"1"]
    assert sorted(data for _, data in everything(client, "route-b")) == [b"2", b"3"]


def test_refused_entries_are_sent_again_and_nothing_is_lost(spark, stream, client, kinesis):
    kinesis.faults.partial(count=5, stream=stream)
    rows(spark, 1200).write.format("kinesis").option("streamName", stream).mode("append").save()
    assert sorted(int(data) for _, data in everything(client, stream)) == list(range(1200))


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("select 'x' as data", {}, "the column partitionKey is missing"),
        ("select 'k' as partitionKey", {}, "the column data is missing"),
        (
            "select 'k' as partitionKey, 1 as data",
            {},
            "the column data is int; the sink takes binary or string",
        ),
        ("select 'k' as partitionKey, 'x' as data, 1 as extra", {}, "does not know the column extra"),
        ("select 'k' as partitionKey, cast(null as string) as data", {}, "the column data is null"),
        ("select '' as partitionKey, 'x' as data", {}, "row 0 of the task"),
        ("select repeat('k', 257) as partitionKey, 'x' as data", {}, "row 0 of the task"),
        ("select 'k' as partitionKey, 'x' as data", {"orderin": "key"}, "Did you mean ordering?"),
        ("select 'k' as partitionKey, 'x' as data", {"streamName": "no-such-stream"}, "no-such-stream"),
    ],
)
def test_a_mistake_is_named_in_the_error(spark, stream, query, options, message):
    writer = spark.sql(query).write.format("kinesis").mode("append")
    for key, value in {"streamName": stream, **options}.items():
        writer = writer.option(key, value)
    with pytest.raises(PySparkException) as caught:
        writer.save()
    assert message in str(caught.value)


def test_a_stream_cannot_be_replaced(spark, stream):
    with pytest.raises(PySparkException, match="a stream cannot be replaced"):
        rows(spark, 1).write.format("kinesis").option("streamName", stream).mode("overwrite").save()
