"""The task writer against the embedded Kinesis: it returns when every record is acknowledged, or names the others."""

from __future__ import annotations

import gc
import pickle
import random
import tracemalloc

import pyarrow as pa
import pytest

from moved_clock import MovedClock
from penstock.errors import AccessDenied, DeliveryFailed, NotFound, OptionError, RecordError
from penstock.producer import TaskMemory, TaskWriter, TaskWriterOptions
from penstock.producer.placement import PlacementCache
from penstock.spark.options.spark_options import parse_sink
from penstock.spark.sink.row_writer import write_rows
from penstock_local import LocalKinesisProcess
from stream_reading import firsts_by_key, kcl_reads


def write_numbered(writer, count, keys=7):
    given = {}
    for number in range(count):
        key, data = f"key-{number % keys}", b"%d" % number
        given.setdefault(key, []).append(data)
        writer.write(data, key)
    return given


@pytest.mark.parametrize("ordering", ["key", "none"])
@pytest.mark.parametrize("aggregation", [True, False])
def test_every_record_is_acknowledged_when_it_ends(server, kinesis, stream, aggregation, ordering):
    writer = TaskWriter(kinesis, stream, TaskWriterOptions(aggregation=aggregation, ordering=ordering))
    given = write_numbered(writer, 3000)
    report = writer.finish()
    seen = kcl_reads(server.client(), stream)
    assert sorted(seen) == sorted((key, data) for key, its in given.items() for data in its)
    if ordering == "key":
        assert firsts_by_key(seen) == given
    assert report.user_record_count == 3000
    assert report.bytes_count >= sum(len(data) for _, data in seen)
    assert (
        sum(counts.kinesis_record_count for counts in report.by_shard.values()) == report.kinesis_record_count
    )
    assert sum(counts.user_record_count for counts in report.by_shard.values()) == report.user_record_count
    assert (report.refused_count, report.possible_duplicate_count, report.pause_s) == (0, 0, 0.0)
    assert pickle.loads(pickle.dumps(report)) == report


def test_refusals_and_lost_answers_are_counted(server, kinesis, stream):
    server.faults.throttle("PutRecords", count=1, stream=stream)
    server.faults.drop_after("PutRecords", count=1, skip=1, stream=stream)
    writer = TaskWriter(kinesis, stream)
    given = write_numbered(writer, 20)
    report = writer.finish()
    assert firsts_by_key(kcl_reads(server.client(), stream)) == given
    assert report.refused_count >= 7
    assert report.possible_duplicate_count >= 1
    assert "refused and sent again" in str(report)
    assert "possibly twice" in str(report)


def test_a_full_request_holds_500_records(server, kinesis, stream):
    server.reset_calls()
    writer = TaskWriter(kinesis, stream)
    for number in range(501):
        writer.write(b"x", f"{number}")
    assert server.calls().count("PutRecords") == 1
    writer.finish()
    assert server.calls().count("PutRecords") == 2
    assert server.calls().count("DescribeStreamSummary") == 0


def test_tasks_of_one_process_ask_once_how_a_stream_places_records(server, kinesis, stream):
    server.reset_calls()
    for _ in range(5):
        writer = TaskWriter(kinesis, stream, TaskWriterOptions(aggregation=True))
        writer.write(b"x", "k")
        writer.finish()
    assert server.calls().count("DescribeStreamSummary") == 1


def test_tasks_that_open_the_service_one_after_the_other_ask_once_too(server, kinesis, stream):
    server.reset_calls()
    placements = PlacementCache()
    for _ in range(3):
        each = kinesis.without_retries()
        writer = TaskWriter(each, stream, TaskWriterOptions(aggregation=True), placements=placements)
        writer.write(b"x", "k")
        writer.finish()
        del each, writer
        gc.collect()  # as Spark's daemon does after each task
    assert server.calls().count("DescribeStreamSummary") == 1


def test_a_record_over_the_streams_limit_is_refused_and_the_others_arrive(server, kinesis, stream):
    writer = TaskWriter(kinesis, stream)
    writer.write(b"x" * (2**20 - 1), "k")
    with pytest.raises(RecordError, match="1048577 bytes, and the stream takes 1048576"):
        writer.write(b"x" * 2**20, "k")
    assert writer.finish().user_record_count == 1


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("ExpiredTokenException", AccessDenied, "DescribeStreamSummary"),
        (
            "AccessDeniedException",
            RecordError,
            "DescribeStreamSummary is not permitted, so the limit is assumed",
        ),
    ],
)
def test_a_record_is_not_called_too_large_where_the_credentials_have_expired(
    server, kinesis, stream, code, error, words
):
    server.faults.error("DescribeStreamSummary", count=None, status=400, code=code, stream=stream)
    writer = TaskWriter(kinesis, stream, placements=PlacementCache())
    with pytest.raises(error, match=words):
        writer.write(b"x" * 2**20, "k")


def test_silence_for_too_long_ends_the_task_and_says_what_is_left(server, kinesis, stream):
    server.faults.error("PutRecords", count=None, stream=stream)
    writer = TaskWriter(kinesis, stream, TaskWriterOptions(no_progress_deadline_s=0.3))
    writer.write(b"x", "k")
    with pytest.raises(DeliveryFailed, match="Acknowledged so far: 0 records; not acknowledged: 1"):
        writer.finish()


def test_a_final_refusal_ends_the_task_at_once(server, kinesis, stream):
    server.faults.error("PutRecords", count=None, status=400, code="AccessDeniedException", stream=stream)
    writer = TaskWriter(kinesis, stream)
    writer.write(b"x", "k")
    with pytest.raises(DeliveryFailed, match="refused the request for good"):
        writer.finish()
    assert server.faults.active()[0]["hits"] == 1


def test_a_missing_stream_is_named(kinesis):
    writer = TaskWriter(kinesis, "no-such-stream", TaskWriterOptions(aggregation=True))
    with pytest.raises(NotFound, match="no-such-stream"):
        writer.write(b"x", "k")
    plain = TaskWriter(kinesis, "no-such-stream")
    plain.write(b"x", "k")
    with pytest.raises(DeliveryFailed, match="no-such-stream"):
        plain.finish()


def test_nothing_written_is_an_empty_report(kinesis, stream):
    assert TaskWriter(kinesis, stream).finish().request_count == 0


@pytest.mark.parametrize(
    "changes", [{"ordering": "shard"}, {"aggregate_bytes_max": 10}, {"buffer_bytes_max": -1}]
)
def test_a_wrong_option_is_named(changes):
    with pytest.raises(OptionError, match=next(iter(changes))):
        TaskWriterOptions(**changes)


@pytest.mark.parametrize("aggregation", [True, False])
def test_the_writers_of_one_task_share_one_bound_on_memory(server, kinesis, stream, aggregation):
    streams = [f"{stream}-{number}" for number in range(6)]
    for each in streams:
        server.create_stream(each, shards=1)
    memory = TaskMemory(100_000)
    writers = [
        TaskWriter(kinesis, each, TaskWriterOptions(aggregation=aggregation), memory=memory)
        for each in streams
    ]
    for number in range(60):
        for writer in writers:
            writer.write(b"%05d" % number * 600, "k")
            assert memory.used_bytes == sum(each.waiting_bytes for each in writers) <= 100_000
    for each, writer in zip(streams, writers, strict=True):
        assert writer.finish().user_record_count == 60
        assert firsts_by_key(kcl_reads(server.client(), each)) == {
            "k": [b"%05d" % number * 600 for number in range(60)]
        }
    assert memory.used_bytes == 0


def test_a_stream_that_takes_nothing_does_not_keep_the_others_from_making_room(server, kinesis, stream):
    other = f"{stream}-other"
    server.create_stream(other, shards=1)
    clock = MovedClock(on_sleep=lambda _: server.faults.clear())
    memory = TaskMemory(30_000)
    slow, free = (
        TaskWriter(kinesis, each, memory=memory, clock=clock, chance=random.Random(1))
        for each in (stream, other)
    )
    server.faults.throttle("PutRecords", count=None, stream=stream)
    for _ in range(8):
        slow.write(b"x" * 2000, "k")
    for _ in range(40):
        free.write(b"x" * 2000, "k")
    assert clock.now_s == 0  # no wait was needed: the idle stream's room is enough
    for _ in range(8):
        slow.write(b"x" * 2000, "k")
    assert clock.now_s > 0
    assert (slow.finish().user_record_count, free.finish().user_record_count) == (16, 40)


def test_a_task_that_writes_to_many_streams_holds_no_more_than_its_bound():
    streams = [f"many-{number}" for number in range(12)]
    rows = pa.RecordBatch.from_pydict(
        {"data": [b"x" * 900_000] * 12, "partitionKey": ["k"] * 12, "streamName": streams}
    )
    with LocalKinesisProcess(limits=False, settle_s=0) as server:  # its records are not the task's
        for each in streams:
            server.create_stream(each, shards=1)
        options, _ = parse_sink(
            {
                "endpointUrl": server.endpoint_url,
                "region": "us-east-1",
                "awsAccessKeyId": "local",
                "awsSecretKey": "local",
                "bufferBytes": "8m",
            }
        )
        tracemalloc.start()
        try:
            message = write_rows(
                (rows for _ in range(5)), options, ("data", "partitionKey", "", "streamName")
            )
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [report.user_record_count for report in message.reports.values()] == [5] * 12
    # The bound, one slice of rows, and a request on its way in a few forms: of 54 MB in all.
    assert peak_bytes < 24 * 2**20
