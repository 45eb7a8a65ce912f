"""The sink's report of a running query, and where rows go that can never be written."""

from __future__ import annotations

import base64
import json

import pytest
from pyspark.errors import PySparkException

from penstock.spark import sink_report
from spark_support import numbered, put
from stream_reading import raw_records
from waiting import DEADLINE_S, wait_until


def test_a_streaming_query_reports_what_it_wrote_by_stream_and_shard(
    spark, job, stream, client, kinesis, tmp_path
):
    copy = f"copy-of-{stream}"
    kinesis.create_stream(copy, shards=2)
    kinesis.faults.partial(count=2, stream=copy)
    put(client, stream, numbered(0, 200))
    query = job.copy_to(copy, tmp_path / "copy")

    def written():
        report = sink_report(query)
        return 0 if report is None or copy not in report.total else report.total[copy].user_record_count

    wait_until(lambda: not query.isActive or written() >= 200, "the report to be complete")
    total = sink_report(query).total[copy]
    assert total.user_record_count == 200
    assert total.refused_count > 0
    assert sum(total.refused_by_reason.values()) == total.refused_count
    wait_until(
        lambda: sum(progress["sink"]["numOutputRows"] for progress in query.recentProgress) == 200,
        "Spark's own count to be the same",
    )
    by_shard = {shard["ShardId"]: len(records) for shard, records in raw_records(client, copy)}
    assert {shard: counts.kinesis_record_count for shard, counts in total.by_shard.items()} == by_shard


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
