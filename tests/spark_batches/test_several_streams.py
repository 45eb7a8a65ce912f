"""Micro-batches of several streams in one application, driven by the program."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError
from penstock.spark import micro_batches


@pytest.fixture
def streams(kinesis, request):
    names = [f"{each}{abs(hash(request.node.nodeid))}" for each in ("orders", "returns")]
    for name in names:
        kinesis.create_stream(name, shards=2)
    return names


def put(kinesis, stream, first, end):
    records = [{"Data": b"%d" % n, "PartitionKey": f"k{n % 50}"} for n in range(first, end)]
    assert kinesis.client("kinesis").put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0


@pytest.mark.timeout(600)
def test_each_stream_is_read_once_and_a_batch_that_failed_is_repeated(
    spark, kinesis, options, streams, tmp_path
):
    chosen = {
        **options,
        "streamName": ",".join(streams),
        "applicationName": streams[0],
        "startingPosition": "TRIM_HORIZON",
    }
    written, failed = {}, []

    def write(rows, number):
        found = sorted((row.streamName, int(bytes(row.data))) for row in rows.collect())
        if fails:
            failed.append((number, found))
            raise ValueError("the disk is full")
        written[number] = found

    def run(checkpoint="checkpoint"):
        batches = micro_batches(spark, chosen, checkpoint=str(tmp_path / checkpoint))
        batches.foreach_batch(write, available_now=True)
        return batches

    fails = False
    for stream in streams:
        put(kinesis, stream, 0, 50)
    run()
    put(kinesis, streams[1], 50, 80)
    fails = True
    with pytest.raises(ValueError, match="the disk is full"):
        run()
    put(kinesis, streams[0], 50, 90)
    kinesis.client("kinesis").split_shard(
        StreamName=streams[1], ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
    )
    fails = False
    run()
    put(kinesis, streams[1], 80, 100)
    batches = run()
    assert [written[number] for number, _ in failed] == [found for _, found in failed]
    assert {stream for stream, _ in failed[0][1]} == {streams[1]}
    seen = sorted(each for found in written.values() for each in found)
    expected = [(streams[0], n) for n in range(90)] + [(streams[1], n) for n in range(100)]
    assert seen == sorted(expected)
    assert batches.last_progress["batchId"] == max(written)


def test_several_streams_need_the_name_of_their_application(spark, options, streams, tmp_path):
    several = {**options, "streamName": ",".join(streams)}
    with pytest.raises(OptionError, match="applicationName is missing"):
        micro_batches(spark, several, checkpoint=str(tmp_path / "checkpoint"))
