"""Options of other connectors that are not aliases: accepted without effect, or refused.

Source:
    awslabs/spark-sql-kinesis-connector: README and KinesisOptions.scala; qubole/kinesis-sql: README; Databricks' documentation of
    its Kinesis source and of `read_kinesis`; AWS Glue: KinesisStreamingSourceOptions; Spark: KinesisInputDStream of
    spark-streaming-kinesis-asl, and the integration guide of the Kafka source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMER_LEASE_TABLE: Final = ("kinesis.dynamodb.tableName", "dynamodb.tableName")
"""Named the lease table until 0.2."""
_IN_CHECKPOINT: Final = "positions are kept in the query's own checkpoint and on the leases"
_OTHER_TABLE: Final = (
    "its table of positions cannot hold leases; option leaseTable names another table than applicationName"
)
_NO_SECOND_LOG: Final = "there is no second commit log"
_NO_EMPTY_BATCHES: Final = "empty batches are never run"
_NO_PREFETCH: Final = "there is no prefetch to buffer"
_FETCH_INTERVAL: Final = "set fetchInterval instead"
_SENDS_AT_ONCE: Final = "a task sends as soon as a request is full"
_WAITS: Final = "a task waits for each acknowledgement"
_CONNECTIONS: Final = "connections are kept per Python worker"
_POLLS_MEANWHILE: Final = "while a subscription is not accepted, the shard is polled"
_NAMES_CHILDREN: Final = "the last page of a shard names its children"
_NO_QUEUE: Final = "a task reads page by page, without a queue"

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "kinesis.metadataCommitterType": _IN_CHECKPOINT,
    "kinesis.metadataPath": _IN_CHECKPOINT,
    **dict.fromkeys(FORMER_LEASE_TABLE, _OTHER_TABLE),
    "kinesis.metadataNumRetries": _NO_SECOND_LOG,
    "kinesis.metadataRetryIntervalsMs": _NO_SECOND_LOG,
    "kinesis.metadataMaxRetryIntervalMs": _NO_SECOND_LOG,
    "kinesis.executor.metadata.committer": _NO_SECOND_LOG,
    "kinesis.minBatchesToRetain": _NO_SECOND_LOG,
    "kinesis.checkNewRecordThreads": "idle shards are probed as needed",
    "kinesis.internal.avoidEmptyBatches": _NO_EMPTY_BATCHES,
    "kinesis.internal.dataQueueCapacity": _NO_QUEUE,
    "kinesis.internal.maxDataQueueEmptyCount": _NO_QUEUE,
    "kinesis.internal.dataQueueWaitTimeoutSec": _NO_QUEUE,
    "kinesis.internal.maintenanceTaskIntervalSec": "there are no old positions to remove",
    "kinesis.subscribeToShard.timeoutSec": _POLLS_MEANWHILE,
    "kinesis.subscribeToShard.maxRetries": _POLLS_MEANWHILE,
    "kinesis.client.avoidEmptyBatches": _NO_EMPTY_BATCHES,
    "avoidEmptyBatches": _NO_EMPTY_BATCHES,
    "kinesis.executor.addIdleTimeBetweenReads": _FETCH_INTERVAL,
    "kinesis.executor.idleTimeBetweenReadsInMs": _FETCH_INTERVAL,
    "addIdleTimeBetweenReads": _FETCH_INTERVAL,
    "idleTimeBetweenReadsInMs": _FETCH_INTERVAL,
    "addRecordTimestamp": "the column approximateArrivalTimestamp is always there",
    "emitConsumerLagMetrics": "set metrics=cloudwatch instead",
    "checkpointInterval": "each batch is a checkpoint",
    "storageLevel": "records are not stored in Spark",
    "awsUseInstanceProfile": "boto3's credential chain finds instance profiles by itself",
    "maxFetchRate": "a task reads as fast as the shard allows",
    "maxFetchDuration": _NO_PREFETCH,
    "fetchBufferSize": _NO_PREFETCH,
    "coalesceThresholdBlockSize": "there are no cached blocks to merge",
    "coalesceBinSize": "there are no cached blocks to merge",
    "shardFetchInterval": _NAMES_CHILDREN,
    "describeShardInterval": _NAMES_CHILDREN,
    "kinesis.describeShardInterval": _NAMES_CHILDREN,
    "kinesis.client.describeShardInterval": _NAMES_CHILDREN,
    "maxShardsPerDescribe": "shards are listed a thousand at a time",
    "consumerRefreshInterval": "the registered consumer is looked up before the first batch",
    "registeredConsumerIdType": "registeredConsumerId takes a name or an ARN",
    "kinesis.sink.flushWaitTimeMs": _WAITS,
    "kinesis.sink.flushWaitTimeMillis": _WAITS,
    "kniesis.executor.flushWaitTimeMillis": _WAITS,
    "kinesis.executor.flushWaitTimeMillis": _WAITS,
    "kinesis.sink.recordMaxBufferedTimeMs": _SENDS_AT_ONCE,
    "kinesis.executor.recordMaxBufferedTime": _SENDS_AT_ONCE,
    "kinesis.sink.maxConnections": _CONNECTIONS,
    "kinesis.executor.maxConnections": _CONNECTIONS,
    "kinesis.sink.recordTtl": "records are not dropped by age",
}
"""Accepted without effect: a query that sets one runs, and logs the reason."""

_NO_PATH: Final = "load() and start() take no path; name the stream with option streamName"
_STREAM: Final = "Kinesis has streams; use option streamName"
_COLUMN: Final = (
    "it is a column: the source returns it, and the sink takes it from the rows, for instance by "
    "withColumn('partitionKey', col('id').cast('string'))"
)
_PROXY: Final = "set the environment variable HTTPS_PROXY for driver and executors instead; botocore uses it"
_PARSE_DATA: Final = "the source does not parse records; parse the column data, for instance with from_json"
_CREDENTIALS: Final = (
    "credentials are those of boto3's credential chain, or given by the options profile, roleArn, or awsAccessKeyId and "
    "awsSecretKey; remove it"
)
_TRIGGER: Final = (
    "batches have no minimum size; use trigger(processingTime=...) for fewer batches, and remove it"
)

REFUSED: Final[Mapping[str, str]] = {
    "path": _NO_PATH,
    "paths": f"{_NO_PATH}, several with commas: orders,returns",
    "queueName": "a queue has no position to replay from, so Spark could not repeat a batch: read the stream with option streamName (every "
    "query and every queue of a stream gets all of its records), or consume the queue with penstock.QueueConsumer",
    "queueARN": "a queue has no position to replay from, so Spark could not repeat a batch: read the stream with option streamName, or "
    "consume the queue with penstock.QueueConsumer",
    "topic": _STREAM,
    "subscribe": _STREAM,
    "subscribePattern": f"{_STREAM}, with one source for each stream",
    "assign": f"{_STREAM}. A query reads all shards, or shares them with others of its applicationName",
    "kafka.bootstrap.servers": "Kinesis is reached by option region, another server by option endpointUrl",
    "kafka.group.id": "queries that share a stream have the same option applicationName",
    "kafka.": "Kafka's client options have no effect on Kinesis; use region, endpointUrl, applicationName and the others of "
    "`penstock options`",
    "groupIdPrefix": "use option applicationName",
    "minPartitions": "the number of tasks is set by option maxPartitions or shardsPerTask",
    "maxRecordsPerPartition": "use option maxRecordsPerShard, or maxRecordsPerTrigger for all shards together",
    "minOffsetsPerTrigger": _TRIGGER,
    "maxTriggerDelay": _TRIGGER,
    "startingOffsetsByTimestamp": "use option startingTimestamp",
    "startingOffsetsByTimestampStrategy": "a shard without records at or after startingTimestamp is read from its next record",
    "endingOffsetsByTimestamp": "use option endingTimestamp",
    "partitionKey": _COLUMN,
    "explicitHashKey": _COLUMN,
    "includeHeaders": "Kinesis records have no headers; put them into data",
    "fetchOffset.numRetries": "use option maxRetries",
    "fetchOffset.retryIntervalMs": "use option retryInterval",
    "kafkaConsumer.pollTimeoutMs": "use option requestTimeout",
    "serviceCredential": f"it names a credential of Databricks' Unity Catalog, which only Databricks' own source can use; {_CREDENTIALS}",
    "kinesis.credentialProviderClass": f"it names a Java class; {_CREDENTIALS}",
    "kinesis.credentialProviderParam": f"it belongs to a Java class; {_CREDENTIALS}",
    "fanoutConsumerARN": "set consumerType=fan-out, and registeredConsumerId to this ARN",
    "classification": _PARSE_DATA,
    "delimiter": _PARSE_DATA,
    "inferSchema": _PARSE_DATA,
    **{
        f"{prefix}proxy{name}": _PROXY
        for prefix in ("", "kinesis.sink.")
        for name in ("Address", "Port", "Username", "Password")
    },
}
"""Refused, each with the alternative. A name that ends with a dot is a prefix."""
