"""Batch reads: a bounded range, one task per shard."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pyspark.errors import PySparkException

from spark_support import numbered, numbers_of, put, read_batch, wait_for_next_second


def service_time(kinesis):
    # Arrivals are by the server's clock, in whole milliseconds; this process's clock may be a little behind.
    return datetime.fromtimestamp(kinesis.clock.now_s(), UTC)


def test_a_batch_read_between_two_moments(spark, stream, kinesis, client):
    put(client, stream, numbered(0, 20))
    wait_for_next_second()
    begin = service_time(kinesis)
    put(client, stream, numbered(20, 40))
    wait_for_next_second()
    end = service_time(kinesis)
    put(client, stream, numbered(40, 60))
    frame = read_batch(spark, stream, startingTimestamp=begin.isoformat(), endingTimestamp=end.isoformat())
    assert numbers_of(frame) == list(range(20, 40))


def test_a_batch_read_between_two_records_of_a_shard(spark, kinesis, client):
    kinesis.create_stream("positions", shards=1)
    answers = [
        client.put_record(StreamName="positions", PartitionKey="k", Data=str(n).encode()) for n in range(6)
    ]
    shard = answers[0]["ShardId"]
    frame = read_batch(
        spark,
        "positions",
        startingPosition=f'{{"{shard}": "{answers[1]["SequenceNumber"]}"}}',
        endingPosition=f'{{"{shard}": "{answers[4]["SequenceNumber"]}"}}',
    )
    # The start is the last record that is done, the end is the last one that is read.
    assert numbers_of(frame) == [2, 3, 4]


def test_a_shard_that_an_option_names_and_the_stream_lacks_is_an_error(spark, stream, client):
    put(client, stream, numbered(0, 5))
    given = {"endingPosition": '{"shardId-000000000099": "123", "*": "LATEST"}'}
    with pytest.raises(
        PySparkException, match=r"option endingPosition: .* does not list shardId-000000000099"
    ):
        read_batch(spark, stream, **given).collect()
    assert numbers_of(read_batch(spark, stream, failOnDataLoss="false", **given)) == list(range(5))


def test_a_batch_read_from_a_moment_to_come_is_an_error(spark, stream):
    with pytest.raises(PySparkException, match=r"startingTimestamp.*: this moment is in the future"):
        read_batch(spark, stream, startingTimestamp="2999-01-01T00:00Z").collect()


def test_a_batch_read_between_two_times_that_a_clock_in_new_york_shows(spark, stream, kinesis, client):
    put(client, stream, numbered(0, 20))
    wait_for_next_second()
    begin = service_time(kinesis).astimezone(ZoneInfo("America/New_York"))
    put(client, stream, numbered(20, 40))
    given = {"startingTimestamp": begin.replace(tzinfo=None).isoformat(), "endingTimestamp": "2998-12-31"}
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        zone = spark.conf.get("spark.sql.session.timeZone")
        assert numbers_of(read_batch(spark, stream, timeZone=zone, **given)) == list(range(20, 40))
        with pytest.raises(PySparkException, match=r"has no time zone: .* or set option timeZone"):
            read_batch(spark, stream, **given)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_the_arrival_is_an_instant_also_if_timestamps_of_the_session_have_no_time_zone(spark, stream, client):
    put(client, stream, numbered(0, 3))
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        rows = read_batch(spark, stream)
        assert dict(rows.dtypes)["approximateArrivalTimestamp"] == "timestamp"
        assert numbers_of(rows) == list(range(3))
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_a_filtered_action_leaves_the_other_actions_of_its_frame_as_they_are(spark, stream, client):
    # Spark keeps the plan of a frame's first action for the later ones.
    put(client, stream, numbered(0, 40))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read_batch(spark, stream)
        assert frame.where("shardId = 'shardId-000000000009'").collect() == []
        assert numbers_of(frame) == list(range(40))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_a_batch_read_of_an_empty_stream_is_empty(spark, stream):
    assert read_batch(spark, stream).count() == 0


def test_a_batch_read_ends_although_records_keep_coming(spark, stream, client):
    put(client, stream, numbered(0, 10))
    frame = read_batch(spark, stream)
    first = frame.count()
    put(client, stream, numbered(10, 20))
    assert first == 10
    assert read_batch(spark, stream).count() == 20
