"""The consumer with leases: `Consumer`, its options, and what user code receives."""

from penstock.consumer.consumer import Consumer, ConsumerPorts
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.health import Health, ShardHealth
from penstock.consumer.processor import ShardProcessor
from penstock.consumer.records import Batch, Record, ShardCheckpointer

__all__ = [
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
