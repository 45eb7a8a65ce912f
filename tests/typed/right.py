"""A program of a user that a strict type checker accepts."""

from __future__ import annotations

import asyncio
from typing import Unpack

from penstock import (
    Acknowledgement,
    AsyncBatch,
    AsyncConsumer,
    AsyncProducer,
    AsyncShardCheckpointer,
    Batch,
    Consumer,
    ConsumerKeywords,
    ConsumerOptions,
    Health,
    Position,
    Producer,
    ProducerKeywords,
    Record,
    ShardCheckpointer,
    testing,
)
from penstock.kclpy import consumer_for
from penstock_local import LocalKinesis, LocalKinesisProcess


def handle(batch: Batch) -> None:
    record: Record = batch[0]
    print(record.data.decode(), record.partition_key)
    batch.checkpoint(record)


async def handle_async(batch: AsyncBatch) -> None:
    await batch.checkpoint(batch[-1])


async def set_aside(batch: AsyncBatch, error: BaseException) -> None:
    print(batch.shard_id, error)


class Orders:
    def on_start(self, shard_id: str, position: Position) -> None:
        print(shard_id, position)

    def on_batch(self, batch: Batch) -> None:
        handle(batch)

    def on_end(self, shard: ShardCheckpointer) -> None:
        shard.store_checkpoint()

    def on_stop(self, shard: ShardCheckpointer) -> None:
        shard.store_checkpoint()

    def on_lost(self) -> None:
        pass


class AsyncOrders:
    async def on_start(self, shard_id: str, position: Position) -> None:
        print(shard_id, position)

    async def on_batch(self, batch: AsyncBatch) -> None:
        await handle_async(batch)

    async def on_end(self, shard: AsyncShardCheckpointer) -> None:
        await shard.store_checkpoint()

    async def on_stop(self, shard: AsyncShardCheckpointer) -> None:
        await shard.store_checkpoint()

    async def on_lost(self) -> None:
        pass


def billing(**options: Unpack[ConsumerKeywords]) -> Consumer:
    """Wrap what every consumer of a team has in common."""
    return Consumer("orders", "billing", handle, region="eu-west-1", **options)


def orders(**options: Unpack[ProducerKeywords]) -> Producer:
    return Producer("orders", connection={"profile": "test"}, **options)


def run() -> None:
    consumer = billing(concurrency=10, on_failure="stop_worker", starting_position="TRIM_HORIZON")
    health: Health = consumer.health()
    print(health.is_healthy)
    consumer.run()
    Consumer("orders", "billing", processor_factory=Orders, options=ConsumerOptions(max_records=10)).run()
    consumer_for(object, "orders", "billing", max_records=100, endpoint_url="http://localhost:4567").run()
    with orders(linger_s=0.5, ordering="none") as producer:
        acknowledgement: Acknowledgement = producer.put(b"x", "k").result()
        print(acknowledgement.sequence_number)


async def run_async() -> None:
    await AsyncConsumer("orders", "billing", handle_async, concurrency=100).run()
    await AsyncConsumer(
        "orders", "billing", handle_async, dead_letter=set_aside, on_failure="dead_letter"
    ).run()
    await AsyncConsumer("orders", "billing", processor_factory=AsyncOrders).run()
    await AsyncProducer(orders()).put(b"x", "k")


def test_a_handler() -> None:
    made: testing.Records = testing.records("a", b"b", {"c": 1}) + testing.aggregate("d", "e")
    run: testing.Run = testing.run(handle, made, faults=testing.Faults(lease_lost_after=1), max_records=1)
    checkpoint: Record | None = run.checkpoint
    letters: list[Record] = run.dead_letters
    waits: list[float] = [call.wait_s for call in run.retries]
    later = asyncio.run(testing.run_async(handle_async, made, concurrency=100))
    others = [testing.run_processor(Orders, made), testing.run_kclpy(object, made, may_fail=True)]
    stored: Record | None = testing.batch(made).stored
    handle(testing.batch(made))
    asyncio.run(handle_async(testing.async_batch(made, attempt=2)))
    print(checkpoint, letters, waits, later.left, others, stored)


def test_it() -> None:
    with LocalKinesis(limits=False) as kinesis, LocalKinesisProcess(time_factor=0) as other:
        kinesis.faults.throttle("GetRecords", count=None, rate=0.1, stream="orders")
        kinesis.faults.omit_shard("shardId-000000000000", stream="orders")
        other.faults.partial(fraction=0.2, applied=True)
        asyncio.run(run_async())
