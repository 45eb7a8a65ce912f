"""Writing: every row acknowledged, in order per key, within the service's limits."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_support import rows_to_write
from stream_reading import kcl_reads

ROUTED = "select * from values ('route-a', 'k', '1'), ('route-b', 'k', '2'), (null, 'k', '3') as t(streamName, partitionKey, data)"


def test_the_option_decides_and_without_it_the_column_routes(spark, kinesis, client, tmp_path):
    for name in ("route-a", "route-b", "all"):
        kinesis.create_stream(name, shards=1)
    rows = spark.sql(ROUTED)
    rows.write.format("kinesis").mode("append").option("streamName", "all").save()
    assert sorted(data for _, data in kcl_reads(client, "all")) == [b"1", b"2", b"3"]
    assert kcl_reads(client, "route-a") == []
    rows.write.format("kinesis").mode("append").option("onError", "deadLetter").option(
        "deadLetterPath", str(tmp_path)
    ).save()
    assert [data for _, data in kcl_reads(client, "route-a")] == [b"1"]
    assert [data for _, data in kcl_reads(client, "route-b")] == [b"2"]
    assert len([line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]) == 1


def test_refused_entries_are_sent_again_and_nothing_is_lost(spark, stream, client, kinesis):
    kinesis.faults.partial(count=5, stream=stream)
    rows_to_write(spark, 1200).write.format("kinesis").option("streamName", stream).mode("append").save()
    assert sorted(int(data) for _, data in kcl_reads(client, stream)) == list(range(1200))


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
        ("select 'k' as partitionKey, 'x' as data, 1 as extra", {}, "the sink has no column extra"),
        ("select 'k' as key, 'x' as value", {}, "the column value is called data here"),
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
        rows_to_write(spark, 1).write.format("kinesis").option("streamName", stream).mode("overwrite").save()
