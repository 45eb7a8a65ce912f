"""The blocks of docs/recipes.md and docs/coming-from.md for Spark: what they read from streams that hold what the recipe is about."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime

import pyspark
import pytest
from pyspark.errors import StreamingQueryException

from docs_blocks import blocks
from waiting import wait_until

JSON, VARIANT, LOGS, HOUR = [
    block.text
    for block in blocks("docs/recipes.md")
    if block.language == "python" and block.is_run and "from penstock import" not in block.text
]

KAFKA, DSTREAMS = [
    block.text
    for block in blocks("docs/coming-from.md")
    if block.language == "python" and block.is_run and "spark" in block.text
]


@pytest.fixture
def made(kinesis, client):
    """Return a function that creates a stream with records; they are deleted after the test."""
    names = []

    def make(name, records):
        kinesis.create_stream(name, shards=1)
        names.append(name)
        for data in records:
            client.put_record(StreamName=name, Data=data, PartitionKey="anna")

    yield make
    for name in names:
        client.delete_stream(StreamName=name)
    wait_until(lambda: not {*names} & {*client.list_streams()["StreamNames"]}, "the deletions")


def of_stream(text):
    """A block that reads the stream once, as a batch: what it does with the rows is the same."""
    return (
        text.replace("readStream", "read")
        .replace('    .option("applicationName", "json")\n', "")
        .replace('    .option("applicationName", "logs-to-table")\n', "")
    )


def test_json_gains_fields_and_one_bad_record_goes_aside(spark, made):
    old, new = b'{"order": 1, "cents": 300}', b'{"order": 2, "cents": 400, "country": "DE", "more": [1]}'
    made("orders", [old, b"no JSON", new])
    names = {"spark": spark}
    exec(of_stream(JSON), names)
    rows = sorted(tuple(row) for row in names["orders"].collect())
    assert rows == [("anna", 1, 300, None), ("anna", 2, 400, "DE")]
    assert [row.json for row in names["bad"].collect()] == ["no JSON"]
    exec(VARIANT, names)
    assert sorted(row.cents or 0 for row in names["amounts"].collect()) == [0, 300, 400]


def test_each_log_event_is_a_row(spark, made):
    events = [{"id": str(n), "timestamp": 1769860800000 + n, "message": f"line {n}"} for n in range(2)]
    message = {"messageType": "DATA_MESSAGE", "logGroup": "g", "logStream": "s", "logEvents": events}
    made(
        "logs",
        [
            gzip.compress(json.dumps(each).encode())
            for each in (message, {**message, "messageType": "CONTROL_MESSAGE"})
        ],
    )
    names = {"spark": spark}
    exec(of_stream(LOGS), names)
    rows = sorted(
        tuple(row)
        for row in names["logs"].selectExpr("logGroup", "id", "unix_millis(time)", "message").collect()
    )
    assert rows == [("g", "0", 1769860800000, "line 0"), ("g", "1", 1769860800001, "line 1")]


def test_an_hour_is_read_without_its_end(spark, made, client):
    made("orders", [b"before", b"first", b"last", b"after"])
    [shard] = client.list_shards(StreamName="orders")["Shards"]
    start = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(StreamName="orders", **start)["ShardIterator"]
    moments = [
        each["ApproximateArrivalTimestamp"].astimezone(UTC)
        for each in client.get_records(ShardIterator=iterator)["Records"]
    ]
    assert moments == sorted(set(moments)), "the records share milliseconds"
    hour = {"2026-01-31T14:00:00+01:00": moments[1], "2026-01-31T15:00:00+01:00": moments[3]}
    text = HOUR
    for shown, moment in hour.items():
        assert datetime.fromisoformat(shown).tzinfo is not None
        text = text.replace(shown, moment.isoformat(timespec="milliseconds"))
    names = {"spark": spark}
    exec(text, names)
    assert [bytes(row.data) for row in names["hour"].orderBy("sequenceNumber").collect()] == [
        b"first",
        b"last",
    ]


def test_a_query_that_came_from_kafka_reads_under_its_names(spark, made, tmp_path):
    made("orders", [b"first", b"second"])
    names = {"spark": spark}
    exec(KAFKA.replace('"billing"', '"from-kafka"'), names)  # other pages' blocks use that application
    rows = []
    writer = names["orders"].writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(
        120
    )
    assert [(row.key, bytes(row.value), row.topic) for row in rows] == [
        ("anna", b"first", "orders"),
        ("anna", b"second", "orders"),
    ]


def test_a_query_that_came_from_dstreams_counts_its_batches(spark, made, tmp_path):
    made("orders", [b"3", b"4"])
    names = {"spark": spark}
    text = DSTREAMS.replace("/tmp/from-dstreams", str(tmp_path))
    text = text.replace(".load()", '.option("startingPosition", "TRIM_HORIZON").load()')
    exec(text.replace(".start()", ".trigger(availableNow=True).start()"), names)
    assert names["query"].awaitTermination(300)
    assert sum(names["counts"]) == 2


@pytest.mark.skipif(
    [int(part) for part in pyspark.__version__.split(".")[:2]] < [4, 1],
    reason="real-time mode begins with Spark 4.1",
)
def test_real_time_mode_is_refused_as_the_page_says(spark, made, tmp_path):
    made("orders", [])
    orders = spark.readStream.format("kinesis").option("streamName", "orders").load()
    writer = orders.writeStream.format("console").outputMode("update").trigger(realTime="5 seconds")
    with pytest.raises(
        StreamingQueryException, match=r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"
    ):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(120)
