"""Put and read aggregates with aws-kinesis-agg.

`aggregates.py STREAM put COUNT` packs records numbered from 0 for 20 keys. `aggregates.py STREAM read` prints a JSON list with key,
data, sub-sequence number and explicit hash key of every user record, by shard.
"""

from __future__ import annotations

import base64
import json
import sys

import boto3
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import deaggregate_records

stream, what = sys.argv[1:3]
kinesis = boto3.client("kinesis")


def put(aggregate):
    key, hash_key, data = aggregate.get_contents()
    placed = {} if hash_key is None else {"ExplicitHashKey": hash_key}
    kinesis.put_record(StreamName=stream, PartitionKey=key, Data=data, **placed)


def put_numbers(count):
    """Pack for a stream of one shard: for several, it takes an aggregator for each range of hash keys."""
    aggregator = RecordAggregator(max_size=20_000)
    for number in range(count):
        full = aggregator.add_user_record(f"key-{number % 20}", str(number // 20).encode())
        if full:
            put(full)
    put(aggregator.clear_and_get())


def lambda_event(record):
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": record["PartitionKey"],
            "sequenceNumber": record["SequenceNumber"],
            "approximateArrivalTimestamp": record["ApproximateArrivalTimestamp"].timestamp(),
            "data": base64.b64encode(record["Data"]),
        }
    }


def read(shard):
    ask = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = kinesis.get_shard_iterator(**ask)["ShardIterator"]
    found = []
    while True:
        page = kinesis.get_records(ShardIterator=iterator)
        found += page["Records"]
        iterator = page.get("NextShardIterator")
        if iterator is None or not (page["Records"] or page["MillisBehindLatest"]):
            return found


if what == "put":
    put_numbers(int(sys.argv[3]))
else:
    user_records = []
    for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
        for each in deaggregate_records([lambda_event(record) for record in read(shard["ShardId"])]):
            inner = each["kinesis"]
            data = base64.b64decode(inner["data"]).decode()
            place = inner.get("subSequenceNumber", 0)
            user_records.append([inner["partitionKey"], data, place, inner.get("explicitHashKey")])
    print(json.dumps(user_records))
