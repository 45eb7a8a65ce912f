"""What the sink tells of itself, and where rows go that can never be written."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from penstock.errors import OptionError, PenstockError, UsageError
from penstock.producer.task_writer import ShardCounts, WriteReport
from penstock.spark import SinkReport, sink_report
from penstock.spark.sink import RowWriter
from penstock.spark.sink_metrics import FILE_NAME, merge, record_commit
from penstock.spark.spark_options import parse_sink
from spark_support import DEADLINE_S, numbered, put, wait_until
from stream_reading import raw_records


def report_of(count, shard="shardId-0", **more):
    report = WriteReport(**more)
    for _ in range(count):
        report.note_acknowledged(shard, 2, 10)
    return report


def test_reports_add_up():
    one = report_of(1, refused_count=2, refused_by_reason={"throttled": 2}, pause_s=0.5)
    other = report_of(2, "shardId-1", refused_count=1, refused_by_reason={"throttled": 1}, request_count=4)
    total = merge([one, other])
    assert (total.user_record_count, total.kinesis_record_count, total.bytes_count) == (6, 3, 30)
    assert (total.refused_count, total.pause_s, total.request_count) == (3, 0.5, 4)
    assert total.refused_by_reason == {"throttled": 3}
    assert total.by_shard == {"shardId-0": ShardCounts(2, 1, 10), "shardId-1": ShardCounts(4, 2, 20)}


def test_a_commit_is_noted_once_and_totals_go_on_after_a_restart(tmp_path):
    where = str(tmp_path)
    assert sink_report(None, where) is None
    record_commit(where, 0, {"a": report_of(1)}, 0)
    record_commit(where, 1, {"a": report_of(2), "b": report_of(1)}, 3)
    record_commit(where, 1, {"a": report_of(2), "b": report_of(1)}, 3)
    found = sink_report(None, where)
    assert found == SinkReport(
        batch=1,
        last={"a": report_of(2), "b": report_of(1)},
        total={"a": report_of(3), "b": report_of(1)},
        dead_letters=3,
        dead_letters_total=3,
    )


def test_a_report_that_cannot_be_written_costs_a_warning_and_no_batch(tmp_path, caplog):
    (tmp_path / FILE_NAME).write_text("not json")
    record_commit(str(tmp_path), 5, {"a": report_of(1)}, 0)
    assert "batch 5: what the sink has written could not be noted" in caplog.text
    with pytest.raises(UsageError, match="cannot be read from here"):
        sink_report(None, str(tmp_path))


def test_a_query_that_does_not_tell_its_location_needs_it_given():
    with pytest.raises(UsageError, match="checkpoint_location="):
        sink_report(SimpleNamespace(id="x"))


def test_a_streaming_query_reports_what_it_wrote_by_stream_and_shard(
    spark, job, stream, client, kinesis, tmp_path
):
    copy = f"copy-of-{stream}"
    kinesis.create_stream(copy, shards=2)
    kinesis.faults.partial(count=2, stream=copy)
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

    def written():
        report = sink_report(query)
        return 0 if report is None or copy not in report.total else report.total[copy].user_record_count

    wait_until(lambda: not query.isActive or written() >= 200, "the report to be complete")
    total = sink_report(query).total[copy]
    assert total.user_record_count == 200
    assert total.refused_count > 0
    assert sum(total.refused_by_reason.values()) == total.refused_count
    by_shard = {shard["ShardId"]: len(records) for shard, records in raw_records(client, copy)}
    assert {shard: counts.kinesis_record_count for shard, counts in total.by_shard.items()} == by_shard


# --- dead letters ---------------------------------------------------------------------------------------------------

MIXED = """
    select * from values
        ('k1', 'good', null), (null, 'no key', null), ('k2', cast(null as string), null), (repeat('k', 300), 'long key', null),
        ('k3', 'bad hash key', '-1'), ('k4', 'good too', '5')
    as t(partitionKey, data, explicitHashKey)
"""


def write(frame, stream, **options):
    writer = frame.write.format("kinesis").mode("append").option("streamName", stream)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.save()


def test_rows_that_can_never_be_written_go_to_a_folder_and_the_others_to_the_stream(
    spark, stream, client, tmp_path
):
    folder = tmp_path / "dead"
    write(spark.sql(MIXED).coalesce(1), stream, onError="deadLetter", deadLetterPath=str(folder))
    good = [record["Data"] for _, records in raw_records(client, stream) for record in records]
    assert sorted(good) == [b"good", b"good too"]
    [file] = folder.iterdir()
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [letter["row"] for letter in letters] == [1, 2, 3, 4]
    assert [letter["data"] and base64.b64decode(letter["data"]) for letter in letters] == [
        b"no key",
        None,
        b"long key",
        b"bad hash key",
    ]
    assert {letter["stream"] for letter in letters} == {stream}
    assert "the column partitionKey is null" in letters[0]["reason"]
    assert "explicit hash key '-1'" in letters[3]["reason"]


def test_two_writes_of_one_foreach_batch_keep_their_dead_letters_apart(
    spark, stream, client, kinesis, job, tmp_path
):
    put(client, stream, numbered(0, 20, keys=1))
    targets = [f"one-{stream}", f"two-{stream}"]
    for target in targets:
        kinesis.create_stream(target, shards=1)
    folder = tmp_path / "dead"

    def write_twice(batch, batch_id):
        number = "cast(cast(data as string) as int)"
        for target, step in zip(targets, (5, 4), strict=True):
            rows = batch.selectExpr(
                f"if({number} % {step} = 0, null, partitionKey) as partitionKey", "data"
            ).coalesce(1)
            write(rows, target, onError="deadLetter", deadLetterPath=str(folder))

    reader = spark.readStream.format("kinesis").option("streamName", stream)
    for key, value in job.options.items():
        reader = reader.option(key, value)
    query = (
        reader.load()
        .writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    job.running.append(query)
    assert query.awaitTermination(DEADLINE_S)
    assert query.exception() is None
    letters = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    by_stream = {target: [each for each in letters if each["stream"] == target] for target in targets}
    assert {target: len(its) for target, its in by_stream.items()} == dict(zip(targets, (4, 5), strict=True))
    assert all(file.name.startswith(f"dead-letters-{query.id}-batch-") for file in folder.iterdir())


def test_dead_letters_can_go_to_another_stream(spark, stream, client, kinesis):
    other = f"dead-{stream}"
    kinesis.create_stream(other, shards=1)
    write(spark.sql(MIXED).coalesce(1), stream, onError="deadLetter", deadLetterStream=other)
    letters = [json.loads(record["Data"]) for _, records in raw_records(client, other) for record in records]
    assert sorted(letter["row"] for letter in letters) == [1, 2, 3, 4]


def test_a_dead_letter_that_fits_nowhere_fails_the_task_with_the_way_out(spark, stream, kinesis):
    other = f"dead-{stream}"
    kinesis.create_stream(other, shards=1)
    huge = spark.sql("select 'k' as partitionKey, repeat('x', 2000000) as data")
    with pytest.raises(PySparkException, match="use option deadLetterPath"):
        write(huge, stream, onError="deadLetter", deadLetterStream=other)


def test_a_streaming_query_counts_its_dead_letters_and_names_files_by_batch(
    spark, stream, kinesis, job, tmp_path, client
):
    put(client, stream, [("k", "short"), ("k", "x" * 3000)])
    target = f"out-{stream}"
    kinesis.create_stream(target, shards=1)
    reader = spark.readStream.format("kinesis").option("streamName", stream)
    for key, value in job.options.items():
        reader = reader.option(key, value)
    query = (
        reader.load()
        .selectExpr("repeat(partitionKey, length(data)) as partitionKey", "data")
        .coalesce(1)
        .writeStream.format("kinesis")
        .option("streamName", target)
        .option("onError", "deadLetter")
        .option("deadLetterPath", str(tmp_path / "dead"))
        .option("checkpointLocation", str(tmp_path / "out"))
        .trigger(availableNow=True)
        .start()
    )
    job.running.append(query)
    assert query.awaitTermination(DEADLINE_S)
    report = sink_report(query)
    assert (report.dead_letters_total, report.total[target].user_record_count) == (1, 1)
    [file] = (tmp_path / "dead").iterdir()
    assert file.name.startswith(f"dead-letters-{query.id}-batch-")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onError": "deadLetter"}, "say where to, with either deadLetterPath or deadLetterStream"),
        ({"onError": "deadLetter", "deadLetterPath": "/x", "deadLetterStream": "y"}, "with either"),
        ({"onError": "deadLetter", "deadLetterStream": "orders"}, "is the stream that is written to"),
        ({"deadLetterPath": "/x"}, "option deadLetterPath has no effect with onError=fail"),
        ({"onError": "skip"}, "onError"),
    ],
)
def test_dead_letters_without_a_place_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        parse_sink({"streamName": "orders", **options})


@pytest.fixture
def task():
    """Make this process look like a Spark task of one micro-batch."""
    context = TaskContext._getOrCreate()
    context._partitionId = 3
    context._localProperties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
    yield context
    TaskContext._setTaskContext(None)


def bad_rows(kinesis, target, folder):
    """Give the writers of two writes, and a task's rows of which none can ever be written."""
    options, _ = parse_sink(
        {
            "streamName": target,
            "endpointUrl": kinesis.endpoint_url,
            "region": "us-east-1",
            "awsAccessKeyId": "local",
            "awsSecretKey": "local",
            "onError": "deadLetter",
            "deadLetterPath": str(folder),
        }
    )
    rows = pa.RecordBatch.from_pydict({"data": [b"x"] * 3, "partitionKey": pa.nulls(3, pa.string())})
    columns = ("data", "partitionKey", "", "")
    return [RowWriter(options, columns, name) for name in ("one", "two")], rows


def test_a_task_that_is_tried_again_replaces_its_own_letters_and_no_others(kinesis, stream, task, tmp_path):
    writers, rows = bad_rows(kinesis, stream, tmp_path)
    for writer in (writers[0], writers[1], writers[0]):
        assert writer.write(iter([rows])).dead_letter_count == 3
    names = [f"dead-letters-q-batch-7-write-{name}-part-00003.jsonl" for name in ("one", "two")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [len((tmp_path / name).read_text().splitlines()) for name in names] == [3, 3]


def test_dead_letters_that_find_no_place_fail_the_task_and_name_the_option(kinesis, stream, task, tmp_path):
    (tmp_path / "taken").write_text("a file")
    writers, rows = bad_rows(kinesis, stream, tmp_path / "taken")
    with pytest.raises(
        PenstockError, match=r"option deadLetterPath=.*taken: 3 dead letters cannot be written"
    ):
        writers[0].write(iter([rows]))
