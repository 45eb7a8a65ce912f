"""The consumer with leases: `Consumer` and `AsyncConsumer`, their options, and the objects that user code receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._lazy_names import loaded_on_use
from penstock.consumer.consumer import Consumer
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.consumer_ports import ConsumerPorts
from penstock.consumer.health import Health, ShardHealth
from penstock.consumer.processor import ShardProcessor
from penstock.consumer.records import Batch, ShardCheckpointer
from penstock.core.reading.record import Record

if TYPE_CHECKING:
    from penstock.consumer.async_batch import AsyncBatch, AsyncShardCheckpointer
    from penstock.consumer.async_calls import AsyncShardProcessor
    from penstock.consumer.async_consumer import AsyncConsumer
    from penstock.consumer.keywords import AsyncConsumerKeywords, ConsumerArguments, ConsumerKeywords

_LATER_HOMES: Final = {
    "penstock.consumer.async_batch": "AsyncBatch AsyncShardCheckpointer",
    "penstock.consumer.async_calls": "AsyncShardProcessor",
    "penstock.consumer.async_consumer": "AsyncConsumer",
    "penstock.consumer.keywords": "AsyncConsumerKeywords ConsumerArguments ConsumerKeywords",
}

__all__ = [
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncConsumerKeywords",
    "AsyncShardCheckpointer",
    "AsyncShardProcessor",
    "Batch",
    "Consumer",
    "ConsumerArguments",
    "ConsumerKeywords",
    "ConsumerOptions",
    "ConsumerPorts",
    "Health",
    "Record",
    "ShardCheckpointer",
    "ShardHealth",
    "ShardProcessor",
]

__getattr__, __dir__ = loaded_on_use(__name__, _LATER_HOMES, __all__)
