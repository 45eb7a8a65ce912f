"""A stream is split in the morning and merged in the evening, while consumers and a query read it and customers order."""

import json

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

# Each customer's orders must be handled in their order.
IN_ORDER = CONSUMER.replace(
    'print(record.data.decode() + "\\n", end="", flush=True)',
    'print(f"{record.partition_key} {record.data.decode()}\\n", end="", flush=True)',
)
QUERY = """
    import json
    import sys

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = (
        spark.readStream.format("kinesis")
        .option("streamName", "orders")
        .option("applicationName", "reports")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )

    def write(batch, batch_id):
        texts = [row.data for row in batch.selectExpr("cast(data as string) as data").collect()]
        print(json.dumps(texts), flush=True)

    rows.writeStream.foreachBatch(write).option("checkpointLocation", "checkpoint").start().awaitTermination()
"""
CUSTOMERS = 20


class CustomersOrders(Orders):
    """Orders of a few customers, put one after the other: each customer's are in the order of their numbers."""

    def put(self, count: int) -> None:
        for number in range(len(self.texts), len(self.texts) + count):
            customer = f"c{number % CUSTOMERS}"
            self._client.put_record(StreamName=self._stream, Data=b"order %d" % number, PartitionKey=customer)
            self.texts.append(f"order {number}")


def open_shards(client):
    """Return the open shards in the order of their hash keys."""
    listed = client.list_shards(StreamName="orders", ShardFilter={"Type": "AT_LATEST"})["Shards"]
    return sorted(listed, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))


def split(client, place):
    shard = open_shards(client)[place]
    keys = [int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey")]
    middle = str(sum(keys) // 2)
    client.split_shard(StreamName="orders", ShardToSplit=shard["ShardId"], NewStartingHashKey=middle)


def merge(client):
    one, other, *_ = (shard["ShardId"] for shard in open_shards(client))
    client.merge_shards(StreamName="orders", ShardToMerge=one, AdjacentShardToMerge=other)


def check_order(texts):
    """Check that each customer's orders are in the order of their numbers."""
    numbers = [int(text.split()[-1]) for text in texts]
    for customer in range(CUSTOMERS):
        mine = [number for number in numbers if number % CUSTOMERS == customer]
        assert mine == sorted(mine)


def test_a_stream_is_split_and_merged_while_it_is_read(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    client = local_kinesis.client()
    orders = CustomersOrders(local_kinesis)
    fleet = [programs.start(IN_ORDER, name=f"consumer-{n}") for n in range(2)]
    query = programs.start(QUERY, name="query")

    def handled():
        return [line.partition(" ")[2] for consumer in fleet for line in consumer.lines()]

    def reported():
        return [text for line in query.lines() for text in json.loads(line)]

    everybody = [consumer.lines for consumer in fleet] + [query.lines]
    orders.put_until(lambda: all(lines() for lines in everybody), "first orders for all")
    for count, change in ((3, lambda: split(client, 0)), (4, lambda: split(client, -1))):
        change()
        orders.put_until(lambda: len(open_shards(client)) == count, f"{count} shards")  # noqa: B023
        orders.put(CUSTOMERS)
    for count in (3, 2, 1):
        merge(client)
        orders.put_until(lambda: len(open_shards(client)) == count, f"{count} shards")  # noqa: B023
        orders.put(CUSTOMERS)
    wait_until(lambda: len(set(handled())) == len(orders.texts), "all orders, by the consumers")
    wait_until(lambda: len(set(reported())) == len(orders.texts), "all orders, by the query")
    assert [consumer.terminate() for consumer in fleet] == [0, 0]
    query.terminate()
    for texts in (handled(), reported()):
        assert {text: texts.count(text) for text in texts} == once(orders)
    for texts in (fleet[0].lines(), fleet[1].lines(), reported()):
        check_order(texts)
