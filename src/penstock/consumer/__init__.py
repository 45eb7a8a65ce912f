"""The consumer with leases: `Consumer` and `AsyncConsumer`, their options, and the objects that user code receives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.consumer.consumer import Consumer
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.consumer_ports import ConsumerPorts
from penstock.consumer.health import Health, ShardHealth
from penstock.consumer.processor import ShardProcessor
from penstock.consumer.records import Batch, Record, ShardCheckpointer

if TYPE_CHECKING:
    from penstock.consumer.async_batch import AsyncBatch, AsyncShardCheckpointer
    from penstock.consumer.async_calls import AsyncShardProcessor
    from penstock.consumer.async_consumer import AsyncConsumer
    from penstock.consumer.keywords import AsyncConsumerKeywords, ConsumerArguments, ConsumerKeywords

_LATER_HOMES: Final = {
    "AsyncBatch": "penstock.consumer.async_batch",
    "AsyncConsumer": "penstock.consumer.async_consumer",
    "AsyncConsumerKeywords": "penstock.consumer.keywords",
    "AsyncShardCheckpointer": "penstock.consumer.async_batch",
    "AsyncShardProcessor": "penstock.consumer.async_calls",
    "ConsumerArguments": "penstock.consumer.keywords",
    "ConsumerKeywords": "penstock.consumer.keywords",
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


def __getattr__(name: str) -> Any:
    """Load the names for asyncio and for type checkers on first use."""
    if name in _LATER_HOMES:
        return getattr(import_module(_LATER_HOMES[name]), name)
    raise AttributeError(f"module 'penstock.consumer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
