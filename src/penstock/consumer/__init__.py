"""The consumer with leases: `Consumer` and `AsyncConsumer`, their options, and what user code receives."""

from penstock.consumer.async_batch import AsyncBatch, AsyncShardCheckpointer
from penstock.consumer.async_calls import AsyncShardProcessor
from penstock.consumer.async_consumer import AsyncConsumer
from penstock.consumer.consumer import Consumer, ConsumerPorts
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.health import Health, ShardHealth
from penstock.consumer.processor import ShardProcessor
from penstock.consumer.records import Batch, Record, ShardCheckpointer

__all__ = [
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncShardCheckpointer",
    "AsyncShardProcessor",
    "Batch",
    "Consumer",
    "ConsumerOptions",
    "ConsumerPorts",
    "Health",
    "Record",
    "ShardCheckpointer",
    "ShardHealth",
    "ShardProcessor",
]
