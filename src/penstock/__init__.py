"""Amazon Kinesis Data Streams for Python and PySpark.

`Consumer` reads a stream with leases that Java KCL workers can share. `Producer` writes a stream with aggregation, order and
flow control. `QueueConsumer` consumes a queue. `AsyncConsumer`, `AsyncProducer` and `AsyncQueueConsumer` do the same for asyncio.
`penstock.spark` has the Spark source and sink (`format("kinesis")`), `penstock_local` the embedded Kinesis, `penstock.testing`
the tools to test handlers, and `penstock.errors` all errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._lazy_names import loaded_on_use
from penstock._version import __version__ as __version__

if TYPE_CHECKING:
    from penstock.aws.dead_letters import DeadLetterBucket, DeadLetterQueue, DeadLetterStream
    from penstock.aws.finished_table import FinishedRecordsTable
    from penstock.consumer import (
        AsyncBatch,
        AsyncConsumer,
        AsyncConsumerKeywords,
        AsyncShardCheckpointer,
        AsyncShardProcessor,
        Batch,
        Consumer,
        ConsumerKeywords,
        ConsumerOptions,
        Health,
        Record,
        ShardCheckpointer,
        ShardHealth,
        ShardProcessor,
    )
    from penstock.core.position import Position
    from penstock.errors import PenstockError
    from penstock.producer import Acknowledgement, AsyncProducer, Producer, ProducerKeywords, ProducerOptions
    from penstock.queues import (
        AsyncQueueConsumer,
        QueueBatch,
        QueueConsumer,
        QueueConsumerKeywords,
        QueueConsumerOptions,
        QueueCreation,
        QueueHealth,
        QueueRecord,
        Reject,
    )
    from penstock.sizing.autoscaler import AutoscaleEvent, AutoscaleOptions, Autoscaler

_HOMES: Final = {
    "penstock.aws.dead_letters": "DeadLetterBucket DeadLetterQueue DeadLetterStream",
    "penstock.aws.finished_table": "FinishedRecordsTable",
    "penstock.consumer": (
        "AsyncBatch AsyncConsumer AsyncConsumerKeywords AsyncShardCheckpointer AsyncShardProcessor Batch "
        "Consumer ConsumerKeywords ConsumerOptions Health Record ShardCheckpointer ShardHealth "
        "ShardProcessor"
    ),
    "penstock.core.position": "Position",
    "penstock.errors": "PenstockError",
    "penstock.producer": "Acknowledgement AsyncProducer Producer ProducerKeywords ProducerOptions",
    "penstock.queues": (
        "AsyncQueueConsumer QueueBatch QueueConsumer QueueConsumerKeywords QueueConsumerOptions "
        "QueueCreation QueueHealth QueueRecord Reject"
    ),
    "penstock.sizing.autoscaler": "AutoscaleEvent AutoscaleOptions Autoscaler",
}

__all__ = [
    "Acknowledgement",
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncConsumerKeywords",
    "AsyncProducer",
    "AsyncQueueConsumer",
    "AsyncShardCheckpointer",
    "AsyncShardProcessor",
    "AutoscaleEvent",
    "AutoscaleOptions",
    "Autoscaler",
    "Batch",
    "Consumer",
    "ConsumerKeywords",
    "ConsumerOptions",
    "DeadLetterBucket",
    "DeadLetterQueue",
    "DeadLetterStream",
    "FinishedRecordsTable",
    "Health",
    "PenstockError",
    "Position",
    "Producer",
    "ProducerKeywords",
    "ProducerOptions",
    "QueueBatch",
    "QueueConsumer",
    "QueueConsumerKeywords",
    "QueueConsumerOptions",
    "QueueCreation",
    "QueueHealth",
    "QueueRecord",
    "Record",
    "Reject",
    "ShardCheckpointer",
    "ShardHealth",
    "ShardProcessor",
]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, (*__all__, "__version__"))
