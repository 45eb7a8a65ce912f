"""The likeliest mistakes, as a user of Spark sees them: near the top is a message with the mistake and its cure."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from waiting import DEADLINE_S

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
SECRET = "hunter2-hunter2"
QUICK = {"maxRetries": "1", "requestTimeout": "2s"}


def begin(spark, folder, options):
    """Start a query and wait for its end, as a user's program does."""
    query = (
        spark.readStream.format("kinesis")
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda frame, _: frame.collect())
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        assert query.awaitTermination(DEADLINE_S), f"the query runs on with {options}"
    finally:
        query.stop()


def check(text, *parts):
    """Check the output: few frames, then the message with all its parts, then little."""
    lines = text.splitlines()
    told = [number for number, line in enumerate(lines) if "penstock.errors." in line]
    assert len(told) == 1, text
    assert told[0] <= 9, text
    assert len(lines) <= 26, text
    assert "py4j" not in text
    message = "\n".join(lines[told[0] :])
    for part in parts:
        assert part in message, text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"strreamName": "x"}, ("OptionError: unknown option strreamname", "Did you mean streamName?")),
        (
            {"streamName": "x", "startingPosition": "SOON"},
            ("OptionError: option startingPosition: 'SOON' is not a position", "TRIM_HORIZON"),
        ),
        (
            {"streamName": "x", "initialPosition": "earlyest"},
            ("OptionError: option startingPosition: 'earlyest' is not a position", "TRIM_HORIZON"),
        ),
        (
            {"streamName": "x", "startingPosition": "LATEST", "startingTimestamp": "2026-01-01"},
            ("OptionError: options startingPosition and startingTimestamp exclude each other", "keep one"),
        ),
        ({"streamName": "x", "streamARN": ARN}, (f"streamName=x and streamARN={ARN}", "keep one")),
        ({"streamName": "no-such"}, ("NotFound:", "stream no-such", "check the name, the region")),
        (
            {"streamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "region": "eu-west-1"},
            ("NotFound:", "check the name, the region (eu-west-1) and the account"),
        ),
        (
            {"streamName": "x", "endpointUrl": "http://127.0.0.1:9", **QUICK},
            ("Unavailable:", "stream x", "http://127.0.0.1:9/"),
        ),
        ({"streamName": "x", "region": "eu west"}, ("OptionError:", "'eu west'")),
        ({"streamName": "x", "awsProfile": "nobody"}, ("AccessDenied:", "profile (nobody)", "credentials")),
    ],
)
def test_a_mistake_of_a_source_is_told_near_the_top(spark, tmp_path, options, parts):
    with pytest.raises(PySparkException) as caught:
        begin(spark, tmp_path, options)
    check(str(caught.value), *parts)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("AccessDeniedException", "check the credentials"),
        ("UnrecognizedClientException", "check the credentials"),
        ("ExpiredTokenException", "log in again, or fetch new keys"),
    ],
)
def test_credentials_that_are_refused_are_told_and_never_shown(
    spark, stream, kinesis, tmp_path, code, remedy
):
    number = kinesis.faults.error(
        "DescribeStreamSummary", stream=stream, code=code, status=400, count=None, message="refused here"
    )
    try:
        with pytest.raises(PySparkException) as caught:
            begin(
                spark,
                tmp_path,
                {"streamName": stream, "awsAccessKeyId": "AKIAEXAMPLE", "awsSecretKey": SECRET, **QUICK},
            )
    finally:
        kinesis.faults.clear(number)
    check(str(caught.value), "AccessDenied:", f"stream {stream}", "refused here", remedy)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ("datum STRING, partitionKey STRING", ("the sink has no column datum", "takes data, partitionKey")),
        ("data STRING", ("the column partitionKey is missing", "alias('partitionKey')")),
        ("data INT, partitionKey STRING", ("the column data is int", "binary or string")),
    ],
)
def test_a_wrong_column_for_the_sink_is_told_near_the_top(spark, stream, columns, parts):
    rows = spark.createDataFrame([], columns)
    with pytest.raises(PySparkException) as caught:
        rows.write.format("kinesis").option("streamName", stream).mode("append").save()
    check(str(caught.value), "OptionError:", *parts)


def test_a_batch_read_of_a_missing_stream_is_told_near_the_top(spark):
    with pytest.raises(PySparkException) as caught:
        spark.read.format("kinesis").option("streamName", "no-such").load().count()
    check(
        str(caught.value),
        "NotFound:",
        "stream no-such",
        "check the name, the region (us-east-1) and the account",
    )


def test_another_schema_is_told_near_the_top(spark, stream, tmp_path):
    query = (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .schema("a INT")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(DEADLINE_S)
    check(str(caught.value), "OptionError: schema struct<a:int>", "leave out .schema(...)", "from_json")


@pytest.mark.parametrize(
    ("mode", "part"),
    [
        ("complete", "OptionError: a stream cannot be replaced: use mode append"),
        (
            "update",
            "requirement failed",
        ),  # Spark's own: it does not ask the sink; docs/spark.md says what to do
    ],
)
def test_a_mode_that_the_sink_does_not_have_ends_the_query(spark, stream, tmp_path, mode, part):
    counts = (
        spark.readStream.format("kinesis")
        .option("streamName", stream)
        .load()
        .groupBy("partitionKey")
        .count()
        .selectExpr("partitionKey", "cast(count as string) as data")
    )
    query = (
        counts.writeStream.format("kinesis")
        .outputMode(mode)
        .option("streamName", stream)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(DEADLINE_S)
    assert part in str(caught.value)
