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
    "Acknowledgement": "penstock.producer",
    "AsyncBatch": "penstock.consumer",
    "AsyncConsumer": "penstock.consumer",
    "AsyncConsumerKeywords": "penstock.consumer",
    "AsyncProducer": "penstock.producer",
    "AsyncQueueConsumer": "penstock.queues",
    "AsyncShardCheckpointer": "penstock.consumer",
    "AsyncShardProcessor": "penstock.consumer",
    "AutoscaleEvent": "penstock.sizing.autoscaler",
    "AutoscaleOptions": "penstock.sizing.autoscaler",
    "Autoscaler": "penstock.sizing.autoscaler",
    "Batch": "penstock.consumer",
    "Consumer": "penstock.consumer",
    "ConsumerKeywords": "penstock.consumer",
    "ConsumerOptions": "penstock.consumer",
    "DeadLetterBucket": "penstock.aws.dead_letters",
    "DeadLetterQueue": "penstock.aws.dead_letters",
    "DeadLetterStream": "penstock.aws.dead_letters",
    "FinishedRecordsTable": "penstock.aws.finished_table",
    "Health": "penstock.consumer",
    "PenstockError": "penstock.errors",
    "Position": "penstock.core.position",
    "Producer": "penstock.producer",
    "ProducerKeywords": "penstock.producer",
    "ProducerOptions": "penstock.producer",
    "QueueBatch": "penstock.queues",
    "QueueConsumer": "penstock.queues",
    "QueueConsumerKeywords": "penstock.queues",
    "QueueConsumerOptions": "penstock.queues",
    "QueueCreation": "penstock.queues",
    "QueueHealth": "penstock.queues",
    "QueueRecord": "penstock.queues",
    "Record": "penstock.consumer",
    "Reject": "penstock.queues",
    "ShardCheckpointer": "penstock.consumer",
    "ShardHealth": "penstock.consumer",
    "ShardProcessor": "penstock.consumer",
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
