"""A program of a user with a mistake on each line that ends with a part of what a strict type checker says about it."""

# A mistake and the words for it are on one line.
# fmt: off
from __future__ import annotations

from penstock import AsyncBatch, AsyncConsumer, AsyncProducer, Batch, Consumer, Producer, testing
from penstock.kclpy import consumer_for
from penstock_local import LocalKinesis, LocalKinesisProcess


def handle(batch: Batch) -> None:
    batch.checkpoints()  # "Batch" has no attribute "checkpoints"


async def handle_async(batch: AsyncBatch) -> None:
    batch.nothing  # "AsyncBatch" has no attribute "nothing"


Consumer("orders", "billing", handle, concurency=10)  # Unexpected keyword argument "concurency"
Consumer("orders", "billing", handle, concurrency="10")  # Argument "concurrency" to "Consumer" has incompatible type "str"
Consumer("orders", "billing", handle, retrieval="fanout")  # Argument "retrieval" to "Consumer" has incompatible type
Consumer("orders", "billing", handle, max_leases=1.5)  # Argument "max_leases" to "Consumer" has incompatible type "float"
Consumer("orders", "billing", handle_async, handover=1)  # Argument "handover" to "Consumer" has incompatible type "int"
AsyncConsumer("orders", "billing", handle)  # Argument 3 to "AsyncConsumer" has incompatible type
AsyncConsumer("orders", "billing", handle_async, max_record=5)  # Unexpected keyword argument "max_record"
AsyncConsumer("orders", "billing", handle_async, handler_threads=5)  # Unexpected keyword argument "handler_threads"
Producer("orders", linger_ms=100)  # Unexpected keyword argument "linger_ms"
Producer("orders", linger_s="0.1")  # Argument "linger_s" to "Producer" has incompatible type "str"
Producer("orders", ordering="keys")  # Argument "ordering" to "Producer" has incompatible type
AsyncProducer()  # All overload variants of "AsyncProducer" require at least one argument
AsyncProducer("orders")  # No overload variant of "AsyncProducer" matches argument type "str"
AsyncProducer(stream="orders")  # No overload variant of "AsyncProducer" matches argument type "str"
consumer_for(object, "orders", "billing", max_recrods=5)  # Unexpected keyword argument "max_recrods"
consumer_for(object, "orders", "billing", region=1)  # Argument "region" to "consumer_for" has incompatible type "int"
testing.run(handle, testing.records("a"), max_record=5)  # Unexpected keyword argument "max_record"
testing.run(handle, ["a"])  # List item 0 has incompatible type "str"
testing.run(handle_async, testing.records("a"), faults=testing.Faults(stop=1))  # Unexpected keyword argument "stop" for "Faults"
LocalKinesisProcess(limit=False)  # Unexpected keyword argument "limit"
LocalKinesisProcess(settle_s="1")  # Argument "settle_s" to "LocalKinesisProcess" has incompatible type "str"
LocalKinesis.process(limit=False)  # Unexpected keyword argument "limit"
with LocalKinesis() as kinesis:
    kinesis.faults.throttle("GetRecords", times=3)  # Unexpected keyword argument "times"
    kinesis.faults.error("GetRecords", status="500")  # Argument "status" to "error" of "Faults" has incompatible type "str"
    kinesis.faults.delay("GetRecords", 1.0, streams="a")  # Unexpected keyword argument "streams"
