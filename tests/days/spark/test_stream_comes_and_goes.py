"""A query is started before its stream exists, and outlives it."""

import pytest

from user_programs import Orders, once
from waiting import wait_until


def start(spark, stream, folder):
    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    return (
        rows.selectExpr("cast(data as string) as data")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "orders"))
    )


def counted(spark, folder) -> dict[str, int]:
    texts = [row.data for row in spark.read.parquet(str(folder / "orders")).collect()]
    return {text: texts.count(text) for text in texts}


def test_a_query_is_started_before_its_stream_exists(kinesis, spark, tmp_path):
    name = f"later-{tmp_path.name.replace('_', '-')}"
    query = start(spark, name, tmp_path)
    wait_until(lambda: not query.isActive, "the end of the query")
    assert f"stream {name}" in str(query.exception())
    assert "NotFound" in str(query.exception())
    kinesis.create_stream(name, shards=2)
    orders = Orders(kinesis, name)
    orders.put(100)
    again = start(spark, name, tmp_path)  # the same cell, and the same checkpoint location
    again.processAllAvailable()
    again.stop()
    assert counted(spark, tmp_path) == once(orders)


def test_a_query_does_not_take_a_new_stream_for_the_old_one(kinesis, client, stream, spark, tmp_path):
    yesterday = Orders(kinesis, stream)
    yesterday.put(100)
    query = start(spark, stream, tmp_path)
    query.processAllAvailable()
    client.delete_stream(StreamName=stream, EnforceConsumerDeletion=True)
    wait_until(lambda: stream not in client.list_streams(Limit=1000)["StreamNames"], "the end of the stream")
    kinesis.create_stream(stream, shards=2)
    today = Orders(kinesis, stream)
    today.put(50)
    wait_until(lambda: not query.isActive, "the end of the query")
    assert "created again" in str(query.exception())
    again = start(spark, stream, tmp_path)
    wait_until(lambda: not again.isActive, "the end of the query")
    with pytest.raises(Exception, match="new checkpoint location"):
        again.awaitTermination()
    assert counted(spark, tmp_path) == once(yesterday)
