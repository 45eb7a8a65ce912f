"""The positions that a query of awslabs' connector has saved, read by Spark from files as that connector leaves them."""

from __future__ import annotations

import json

import pytest

from penstock.core.position import at_record
from penstock.core.starting import parse_starting
from penstock.errors import UsageError
from penstock.spark import saved_positions

SHARD = "shardId-000000000000"


def place(number):
    return {
        "iteratorType": "AFTER_SEQUENCE_NUMBER",
        "iteratorPosition": str(number),
        "subSequenceNumber": "-1",
        "isLast": "true",
    }


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_positions_are_those_behind_the_last_batch_that_was_committed(spark, tmp_path):
    old = tmp_path / "old"
    with pytest.raises(UsageError, match="no folder offsets"):
        saved_positions(spark, str(old))
    # Two batches were planned; the log goes by numbers, not by names.
    for number in (9, 10):
        offset = {"metadata": {"batchId": str(number - 2), "streamName": "orders"}, SHARD: place(number)}
        write(old / "offsets" / str(number), f"v1\n{{}}\n{json.dumps(offset)}")
    write(old / "offsets" / "10.copy", "an operator's")
    write(old / "offsets" / "11.tmp", "")
    write(old / "commits" / "9", "v1\n{}")
    assert parse_starting(saved_positions(spark, str(old))).position_of(SHARD) == at_record("10")

    write(old / "commits" / "10", "v1\n{}")
    with pytest.raises(UsageError, match="does not say where it ended"):
        saved_positions(spark, str(old))
    again = saved_positions(spark, str(old), repeat_last_batch=True)
    assert parse_starting(again).position_of(SHARD) == at_record("10")

    write(old / "sources" / "0" / "shard-source" / "8" / SHARD, json.dumps({"shardId": SHARD, **place(20)}))
    assert parse_starting(saved_positions(spark, str(old))).position_of(SHARD) == at_record("20")
