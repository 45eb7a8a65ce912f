"""Micro-batches that the program drives: once each, the same again after a failure, until stopped."""

import os
import signal
import threading
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from penstock.errors import OptionError, PositionError, UsageError
from penstock.spark import micro_batches, write_kinesis


def put(kinesis, stream, first, end):
    records = [{"Data": b"%d" % n, "PartitionKey": f"k{n % 50}"} for n in range(first, end)]
    assert kinesis.client("kinesis").put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0


def numbers(rows):
    return [int(bytes(row.data)) for row in rows]


class Job:
    """What a program would have: its options, its checkpoint and what it was given."""

    def __init__(self, spark, options, checkpoint):
        self.spark, self.checkpoint = spark, str(checkpoint)
        self.options = {
            **options,
            "applicationName": options["streamName"],
            "startingPosition": "TRIM_HORIZON",
        }
        self.batches = []
        self.before_done = None

    def open(self, **more):
        return micro_batches(self.spark, {**self.options, **more}, checkpoint=self.checkpoint)

    def write(self, rows, number):
        found = rows.collect()
        self.batches.append((number, found))
        if self.before_done is not None:
            self.before_done(number)

    def run(self, **more):
        self.open(**more).foreach_batch(self.write, available_now=True)

    def seen(self):
        return sorted(each for _, rows in self.batches for each in numbers(rows))


@pytest.fixture
def job(spark, options, tmp_path):
    return Job(spark, options, tmp_path / "checkpoint")


def test_what_has_arrived_is_read_once_and_the_next_run_goes_on(job, kinesis, stream):
    put(kinesis, stream, 0, 200)
    job.run()
    assert job.seen() == list(range(200))
    job.run()
    assert job.seen() == list(range(200))
    put(kinesis, stream, 200, 300)
    job.run()
    assert job.seen() == list(range(300))
    assert [number for number, _ in job.batches] == list(range(len(job.batches)))
    assert job.batches[0][1][0].asDict().keys() >= {"shardId", "sequenceNumber", "partitionKey", "data"}


def test_a_starting_time_is_of_the_time_zone_of_the_session(spark, job, kinesis, stream):
    put(kinesis, stream, 0, 10)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        in_an_hour = datetime.fromtimestamp(kinesis.clock.now_s() + 3600, ZoneInfo("Asia/Kathmandu"))
        job.options["startingPosition"] = f"AT_TIMESTAMP {in_an_hour:%Y-%m-%d %H:%M:%S}"
        with pytest.raises(PositionError, match="this moment is in the future"):
            job.run()
        an_hour_ago = in_an_hour - timedelta(hours=2)
        job.options["startingPosition"] = f"AT_TIMESTAMP {an_hour_ago:%Y-%m-%d %H:%M:%S}"
        job.run()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert job.seen() == list(range(10))


def test_a_batch_may_be_looked_at_more_than_once_and_holds_the_same_rows(job, kinesis, stream):
    put(kinesis, stream, 0, 100)

    def twice(rows, number):
        first = sorted(numbers(rows.collect()))
        put(kinesis, stream, 100, 150)
        assert sorted(numbers(rows.collect())) == first
        assert rows.count() == len(first)
        job.batches.append((number, rows.limit(0).collect()))

    job.open().foreach_batch(twice, available_now=True)
    assert [number for number, _ in job.batches] == [0]


def test_a_batch_that_failed_is_repeated_with_its_number_and_its_rows(job, kinesis, stream):
    put(kinesis, stream, 0, 100)

    def fail(number):
        raise RuntimeError(f"no room for batch {number}")

    job.before_done = fail
    with pytest.raises(RuntimeError, match="no room for batch 0"):
        job.run()
    put(kinesis, stream, 100, 150)
    job.before_done = None
    job.run()
    (failed, first), (repeated, second), *later = job.batches
    assert (failed, repeated) == (0, 0)
    assert sorted(first) == sorted(second)
    assert sorted(numbers(second) + [each for _, rows in later for each in numbers(rows)]) == list(range(150))


def test_limits_hold_and_an_unread_batch_counts_as_done(job, kinesis, stream):
    put(kinesis, stream, 0, 100)
    job.open(maxRecordsPerTrigger="30").foreach_batch(job.write, available_now=True)
    assert job.seen() == list(range(100))
    assert all(len(rows) <= 30 for _, rows in job.batches)
    put(kinesis, stream, 100, 120)
    job.open().foreach_batch(lambda rows, number: None, available_now=True)
    job.run()
    assert job.seen() == list(range(100))


def test_it_runs_until_it_is_stopped_and_sigterm_stops_it_too(job, kinesis, stream):
    put(kinesis, stream, 0, 10)
    batches = job.open()
    job.before_done = lambda number: batches.stop()
    batches.foreach_batch(job.write)
    assert job.seen() == list(range(10))
    assert batches.last_progress["batchId"] == 0
    put(kinesis, stream, 10, 20)
    job.before_done = lambda number: os.kill(os.getpid(), signal.SIGTERM)
    job.open().foreach_batch(job.write)
    assert job.seen() == list(range(20))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_shard_that_is_split_is_read_to_its_end_before_its_children(job, kinesis, stream):
    put(kinesis, stream, 0, 50)
    job.run()
    client = kinesis.client("kinesis")
    shard = client.list_shards(StreamName=stream)["Shards"][0]
    low, high = (int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
    client.split_shard(
        StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
    )
    client.get_waiter("stream_exists").wait(StreamName=stream)
    put(kinesis, stream, 50, 100)
    job.run()
    assert job.seen() == list(range(100))


def test_mistakes_are_told_in_a_sentence(job, spark, options, kinesis, stream, tmp_path):
    with pytest.raises(OptionError, match="streamNam"):
        micro_batches(spark, {"streamNam": "x"}, checkpoint=str(tmp_path / "a"))
    (tmp_path / "query" / "offsets").mkdir(parents=True)
    with pytest.raises(UsageError, match="belongs to a streaming query"):
        micro_batches(spark, options, checkpoint=str(tmp_path / "query"))
    put(kinesis, stream, 0, 10)
    again = []

    def plan_the_next_one_too(number):
        Path(job.checkpoint, "penstock-batches", "offsets", str(number + 1)).write_text("{}")
        put(kinesis, stream, 10, 20)

    job.before_done = plan_the_next_one_too
    with pytest.raises(UsageError, match="another program works from the same checkpoint"):
        job.open().foreach_batch(job.write)
    batches = job.open()
    holding = threading.Thread(target=lambda: again.append(batches._running.acquire()))
    holding.start()
    holding.join(60)
    with pytest.raises(UsageError, match="run already"):
        batches.foreach_batch(job.write)


def test_rows_are_written_and_counted(spark, options, kinesis, stream, job):
    rows = spark.range(500).selectExpr("cast(id as string) as data", "cast(id % 7 as string) as partitionKey")
    report = write_kinesis(rows, options, batch_id=4)
    assert (report.batch, report.last.keys()) == (4, {stream})
    assert report.last[stream].user_record_count == 500
    job.run()
    assert job.seen() == list(range(500))
    with pytest.raises(OptionError, match="column partitionKey is missing"):
        write_kinesis(rows.select("data"), options)


def test_a_stream_is_copied_as_it_is_read(spark, kinesis, stream, options, job, caplog):
    put(kinesis, stream, 0, 100)
    copies = f"copies-{stream}"
    kinesis.create_stream(copies, shards=1)
    reports = []

    def copy(rows, number):
        reports.append(write_kinesis(rows, {**options, "streamName": copies}, batch_id=number))

    job.open().foreach_batch(copy, available_now=True)
    assert [(report.total[copies].user_record_count, report.overruled) for report in reports] == [(100, 100)]
    assert caplog.text.count(f"the column streamName of 100 rows names another stream ('{stream}')") == 1
    client = kinesis.client("kinesis")
    found = [
        record["Data"]
        for shard in client.list_shards(StreamName=copies)["Shards"]
        for record in client.get_records(
            ShardIterator=client.get_shard_iterator(
                StreamName=copies, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
        )["Records"]
    ]
    assert sorted(map(int, found)) == list(range(100))


def test_a_text_that_is_not_utf_8_is_data_and_no_key(spark, options, stream, job, tmp_path):
    rows = spark.createDataFrame(
        [(bytearray(b"\x1f\x8b\xff"),), (bytearray(b"7"),)], "raw binary"
    ).selectExpr(
        "cast(raw as string) as partitionKey", "if(hex(raw) = '37', '7', cast(raw as string)) as data"
    )
    with pytest.raises(Exception, match="the column partitionKey is not UTF-8 text"):
        write_kinesis(rows, options)
    aside = {**options, "onError": "deadLetter", "deadLetterPath": str(tmp_path / "dead")}
    report = write_kinesis(rows.coalesce(1), aside)
    assert (report.last[stream].user_record_count, report.dead_letters) == (1, 1)
    report = write_kinesis(rows.selectExpr("'k' as partitionKey", "data"), options)
    assert (report.last[stream].user_record_count, report.dead_letters) == (2, 0)
