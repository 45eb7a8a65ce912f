"""The consumer with leases: `Consumer` and `AsyncConsumer`, their options, and what user code receives."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from penstock.consumer.consumer import Consumer, ConsumerPorts
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.health import Health, ShardHealth
from penstock.consumer.processor import ShardProcessor
from penstock.consumer.records import Batch, Record, ShardCheckpointer

if TYPE_CHECKING:
    from penstock.consumer.async_batch import AsyncBatch, AsyncShardCheckpointer
    from penstock.consumer.async_calls import AsyncShardProcessor
    from penstock.consumer.async_consumer import AsyncConsumer

_ASYNC_HOMES: Final = {
    "AsyncBatch": "penstock.consumer.async_batch",
    "AsyncConsumer": "penstock.consumer.async_consumer",
    "AsyncShardCheckpointer": "penstock.consumer.async_batch",
    "AsyncShardProcessor": "penstock.consumer.async_calls",
}

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


def __getattr__(name: str) -> Any:
    """Load what is for asyncio, and asyncio with it, when it is asked for."""
    if name in _ASYNC_HOMES:
        return getattr(import_module(_ASYNC_HOMES[name]), name)
    raise AttributeError(f"module 'penstock.consumer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
