"""The conversation of tests/interop/test_sdks.py with boto3."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

stream = sys.argv[1]
batches, refusals, failures = (int(text) for text in sys.argv[2:])
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
        is_general = type(error) in (ClientError, EventStreamError)
        return error.response["Error"]["Code"] if is_general else type(error).__name__
    return "none"


read = []
for shard in shards:
    page = kinesis.get_records(ShardIterator=iterator(shard))["Records"]
    read += [record["Data"].decode() for record in page]

first = iterator(shards[0])
refused = [refusal(one_attempt.get_records, ShardIterator=first) for _ in range(refusals)]
missing = refusal(kinesis.describe_stream_summary, StreamName="missing")
again = refusal(kinesis.create_stream, StreamName=stream, ShardCount=1)

summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
made = kinesis.register_stream_consumer(StreamARN=summary["StreamARN"], ConsumerName="fan")["Consumer"]
consumer = {"ConsumerARN": made["ConsumerARN"]}
while kinesis.describe_stream_consumer(**consumer)["ConsumerDescription"]["ConsumerStatus"] != "ACTIVE":
    time.sleep(0.1)


def push(shard: str) -> list[str]:
    """Return the data of all events, when the stream of them has ended."""
    position = {"Type": "TRIM_HORIZON"}
    answer = kinesis.subscribe_to_shard(**consumer, ShardId=shard, StartingPosition=position)
    with closing(answer["EventStream"]) as events:
        return [record["Data"].decode() for e in events for record in e["SubscribeToShardEvent"]["Records"]]


def digest(data: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(data)).encode()).hexdigest()


pushed = [data for shard in shards for data in push(shard)]
failures_in_stream = [refusal(push, shard=shards[0]) for _ in range(failures)]
print(
    json.dumps(
        {
            "sdk": botocore.__version__,
            "is_listed": stream in streams,
            "shards": len(shards),
            "failed": failed,
            "read": len(read),
            "digest": digest(read),
            "missing": missing,
            "again": again,
            "refused": refused,
            "pushed": len(pushed),
            "pushed_digest": digest(pushed),
            "failures": failures_in_stream,
        }
    )
)
