"""Move an application of the Kinesis Client Library to Spark, and back: both keep their place in one lease table.

    python examples/from_kcl.py --local

Stop the KCL workers, or let them run and share the shards with Spark. Start the query with `applicationName` set to the KCL
application's name. It goes on after each shard's checkpoint, even inside a KPL aggregate. When the query stops, KCL workers,
`penstock consume` or a `penstock.Consumer` (as here) go on where it stopped.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import where

from penstock import Consumer


def kcl_read_some(server: Any, stream: str, application: str) -> int:
    """Leave a lease table as a KCL 2.x application does that stopped after half of each shard."""
    kinesis, dynamodb = server.client("kinesis"), server.client("dynamodb")
    dynamodb.create_table(
        TableName=application,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    done = 0
    for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
        iterator = kinesis.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = kinesis.get_records(ShardIterator=iterator)["Records"]
        half = records[: len(records) // 2]
        done += len(half)
        span = shard["HashKeyRange"]
        dynamodb.put_item(
            TableName=application,
            Item={
                "leaseKey": {"S": shard["ShardId"]},
                "leaseCounter": {"N": "41"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": half[-1]["SequenceNumber"] if half else "TRIM_HORIZON"},
                "checkpointSubSequenceNumber": {"N": "0"},
                "startingHashKey": {"S": span["StartingHashKey"]},
                "endingHashKey": {"S": span["EndingHashKey"]},
            },
        )
    return done


def main() -> int:
    parser = where.arguments(__doc__, application="billing-kcl")
    args = parser.parse_args()
    if not args.local:
        parser.error(
            "this one shows its way with --local; on AWS set applicationName to your KCL application's name"
        )
    with where.kinesis(args, orders=2) as server, tempfile.TemporaryDirectory() as scratch:
        client = server.client("kinesis")
        client.put_records(
            StreamName=args.stream,
            Records=[
                {
                    "Data": json.dumps(where.order(number)).encode(),
                    "PartitionKey": where.order(number)["customer"],
                }
                for number in range(100)
            ],
        )
        by_kcl = kcl_read_some(server, args.stream, args.application)
        with where.session("from the KCL") as spark:
            count = 0

            def note(batch: Any, _: int) -> None:
                nonlocal count
                count += batch.count()

            orders = (
                spark.readStream.format("kinesis")
                .option("streamName", args.stream)
                .option("applicationName", args.application)
                .load()
            )
            query = orders.writeStream.foreachBatch(note).option(
                "checkpointLocation", str(Path(scratch) / "checkpoint")
            )
            query.trigger(availableNow=True).start().awaitTermination()
        print(f"the KCL had done {by_kcl} records, Spark the other {count}")
        client.put_records(
            StreamName=args.stream,
            Records=[{"Data": b"later", "PartitionKey": f"k{number}"} for number in range(10)],
        )
        more = 0
        # One of the application's workers again, here a Python one; its records end with this loop.
        with Consumer(args.stream, args.application) as consumer:
            for batch in consumer:
                more += len(batch)
                if more >= 10:
                    break
        print(f"a plain worker went on with {more} more")
        return 0 if by_kcl + count == 100 and more == 10 else 1


if __name__ == "__main__":
    raise SystemExit(main())
