"""The positions that a query of awslabs' connector has saved, read by Spark from files as that connector leaves them."""

from __future__ import annotations

import json

import pytest

from penstock.errors import UsageError
from penstock.spark import saved_positions
from spark_support import numbered, put


def place_of(record):
    return {
        "iteratorType": "AFTER_SEQUENCE_NUMBER",
        "iteratorPosition": record["SequenceNumber"],
        "subSequenceNumber": "-1",
        "isLast": "true",
    }


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_query_goes_on_behind_the_last_batch_that_was_committed(job, spark, stream, client, tmp_path):
    old = tmp_path / "old"
    put(client, stream, numbered(0, 30))
    starts, ends, expected = {}, {}, []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        key = shard["ShardId"]
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=key, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = client.get_records(ShardIterator=iterator)["Records"]
        starts[key], ends[key] = place_of(records[0]), place_of(records[2])
        expected += [int(record["Data"]) for record in records[3:]]
    # Nine batches were planned; the log goes by numbers, not by names.
    for number in (9, 10):
        offset = {"metadata": {"batchId": str(number - 2), "streamName": stream}, **starts}
        write(old / "offsets" / str(number), f"v1\n{{}}\n{json.dumps(offset)}")
    write(old / "commits" / "9", "v1\n{}")
    assert json.loads(saved_positions(spark, str(old)))[key] == starts[key]

    write(old / "commits" / "10", "v1\n{}")
    with pytest.raises(UsageError, match="does not say where it ended"):
        saved_positions(spark, str(old))
    assert json.loads(saved_positions(spark, str(old), repeat_last_batch=True))[key] == starts[key]

    for key, end in ends.items():
        write(old / "sources" / "0" / "shard-source" / "8" / key, json.dumps({"shardId": key, **end}))
    run = job.start(startingPosition=saved_positions(spark, str(old)))
    run.wait_for(len(expected))
    assert run.numbers() == sorted(expected)


def test_a_folder_that_is_no_checkpoint_is_refused(spark, tmp_path):
    with pytest.raises(UsageError, match="no folder offsets"):
        saved_positions(spark, str(tmp_path / "nothing"))
