"""The conversation of tests/interop/test_sdks.py with boto3."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

stream, batches, refusals = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kinesis = boto3.client("kinesis")
one_attempt = boto3.client("kinesis", config=Config(retries={"total_max_attempts": 1}))

kinesis.create_stream(StreamName=stream, ShardCount=2)
kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
streams = kinesis.list_streams()["StreamNames"]
shards = [shard["ShardId"] for shard in kinesis.list_shards(StreamName=stream)["Shards"]]

failed = 0
for batch in range(batches):
    records = [
        {"PartitionKey": f"key-{i}", "Data": (f"{i}:" * 1000)[:1000].encode()}
        for i in range(batch * 500, batch * 500 + 500)
    ]
    failed += kinesis.put_records(StreamName=stream, Records=records)["FailedRecordCount"]


def iterator(shard: str) -> str:
    ask = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
    return kinesis.get_shard_iterator(**ask)["ShardIterator"]


def refusal(call: Callable[..., object], **arguments: object) -> str:
    try:
        call(**arguments)
    except ClientError as error:
        name = type(error).__name__
        return error.response["Error"]["Code"] if name == "ClientError" else name
    return "none"


read = []
for shard in shards:
    page = kinesis.get_records(ShardIterator=iterator(shard))["Records"]
    read += [record["Data"].decode() for record in page]

first = iterator(shards[0])
refused = [refusal(one_attempt.get_records, ShardIterator=first) for _ in range(refusals)]
missing = refusal(kinesis.describe_stream_summary, StreamName="missing")
again = refusal(kinesis.create_stream, StreamName=stream, ShardCount=1)
print(
    json.dumps(
        {
            "sdk": botocore.__version__,
            "is_listed": stream in streams,
            "shards": len(shards),
            "failed": failed,
            "read": len(read),
            "digest": hashlib.sha256("\n".join(sorted(read)).encode()).hexdigest(),
            "missing": missing,
            "again": again,
            "refused": refused,
        }
    )
)
