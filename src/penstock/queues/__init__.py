"""Consume a Kinesis queue: records are delivered one by one, without leases, order or checkpoints."""

from __future__ import annotations

from penstock.errors import Reject
from penstock.ports.queues import FinishedRecords
from penstock.queues.async_queue_consumer import AsyncQueueConsumer
from penstock.queues.keywords import QueueConsumerKeywords
from penstock.queues.queue_consumer import QueueConsumer, QueueConsumerPorts
from penstock.queues.queue_health import QueueHealth
from penstock.queues.queue_options import QueueConsumerOptions, QueueCreation
from penstock.queues.queue_records import QueueBatch, QueueRecord

__all__ = [
    "AsyncQueueConsumer",
    "FinishedRecords",
    "QueueBatch",
    "QueueConsumer",
    "QueueConsumerKeywords",
    "QueueConsumerOptions",
    "QueueConsumerPorts",
    "QueueCreation",
    "QueueHealth",
    "QueueRecord",
    "Reject",
]
