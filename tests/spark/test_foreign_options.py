"""Options of other connectors: each has a meaning here, has no effect and says why, or is refused with the way out."""

import pytest

from penstock.errors import OptionError
from penstock.spark.options.spark_options import parse_batch, parse_sink, parse_source

ROLE = "arn:aws:iam::123456789012:role/r"
CONSUMER = "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/bill:1525898737"
DATABRICKS = {
    "streamName": "orders",
    "region": "us-east-1",
    "endpoint": "https://k",
    "initialPosition": "latest",
    "awsAccessKey": "a",
    "awsSecretKey": "b",
    "roleArn": ROLE,
    "roleExternalId": "x",
    "roleSessionName": "s",
    "stsEndpoint": "https://sts",
    "maxFetchRate": "1.0",
    "minFetchPeriod": "400ms",
    "maxFetchDuration": "10s",
    "fetchBufferSize": "20gb",
    "shardsPerTask": "5",
    "shardFetchInterval": "1s",
    "coalesceThresholdBlockSize": "10000000",
    "coalesceBinSize": "128000000",
    "consumerMode": "efo",
    "consumerName": "bill",
    "consumerNamePrefix": "p_",
    "consumerRefreshInterval": "300s",
    "registeredConsumerIdType": "name",
    "requireConsumerDeregistration": "true",
    "avoidEmptyBatches": "true",
    "maxRecordsPerFetch": "10000",
    "maxShardsPerDescribe": "100",
    "awsUseInstanceProfile": "true",
    "failOnDataLoss": "true",
}
AWSLABS = {
    "kinesis.streamName": "orders",
    "kinesis.region": "us-east-1",
    "kinesis.endpointUrl": "https://k",
    "kinesis.consumerType": "SubscribeToShard",
    "kinesis.consumerName": "bill",
    "kinesis.failOnDataLoss": "false",
    "kinesis.maxFetchRecordsPerShard": "100000",
    "kinesis.maxFetchTimePerShardSec": "10",
    "kinesis.startingPosition": "LATEST",
    "kinesis.describeShardInterval": "1s",
    "kinesis.minBatchesToRetain": "100",
    "kinesis.checkNewRecordThreads": "8",
    "kinesis.metadataCommitterType": "DYNAMODB",
    "kinesis.metadataPath": "/m",
    "kinesis.metadataNumRetries": "5",
    "kinesis.metadataRetryIntervalsMs": "1000",
    "kinesis.metadataMaxRetryIntervalMs": "10000",
    "kinesis.clientNumRetries": "5",
    "kinesis.clientRetryIntervalsMs": "1000",
    "kinesis.clientMaxRetryIntervalMs": "10000",
    "kinesis.stsRoleArn": ROLE,
    "kinesis.stsSessionName": "s",
    "kinesis.stsEndpointUrl": "https://sts",
    "kinesis.awsAccessKeyId": "a",
    "kinesis.awsSecretKey": "b",
    "kinesis.sessionToken": "t",
    "kinesis.dynamodb.tableName": "meta",
    "kinesis.subscribeToShard.timeoutSec": "60",
    "kinesis.subscribeToShard.maxRetries": "10",
    "kinesis.getRecords.numberOfRecordsPerFetch": "10000",
    "kinesis.getRecords.fetchIntervalMs": "200",
    "kinesis.internal.avoidEmptyBatches": "true",
    "kinesis.internal.dataQueueCapacity": "1000",
    "kinesis.internal.maxDataQueueEmptyCount": "2",
    "kinesis.internal.dataQueueWaitTimeoutSec": "5",
    "kinesis.internal.maintenanceTaskIntervalSec": "100",
}
QUBOLE = {
    "streamName": "orders",
    "endpointUrl": "https://k",
    "regionName": "us-east-1",
    "awsAccessKeyId": "a",
    "awsSecretKey": "b",
    "sessionToken": "t",
    "awsSTSRoleARN": ROLE,
    "awsSTSSessionName": "s",
    "awsUseInstanceProfile": "true",
    "startingPosition": "trim_horizon",
    "failondataloss": "true",
    "kinesis.executor.maxFetchTimeInMs": "1000",
    "kinesis.executor.maxFetchRecordsPerShard": "100000",
    "kinesis.executor.maxRecordPerRead": "10000",
    "kinesis.executor.addIdleTimeBetweenReads": "false",
    "kinesis.executor.idleTimeBetweenReadsInMs": "1000",
    "kinesis.client.describeShardInterval": "1s",
    "kinesis.client.numRetries": "3",
    "kinesis.client.retryIntervalMs": "1000",
    "kinesis.client.maxRetryIntervalMs": "10000",
    "kinesis.client.avoidEmptyBatches": "true",
    "kinesis.executor.metadata.committer": "hdfs",
}
GLUE = {
    "streamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
    "endpointUrl": "https://k",
    "startingPosition": "earliest",
    "maxFetchTimeInMs": "1000",
    "maxFetchRecordsPerShard": "100000",
    "maxRecordPerRead": "10000",
    "addIdleTimeBetweenReads": "false",
    "idleTimeBetweenReadsInMs": "1000",
    "describeShardInterval": "1s",
    "numRetries": "3",
    "retryIntervalMs": "1000",
    "maxRetryIntervalMs": "10000",
    "avoidEmptyBatches": "false",
    "roleArn": ROLE,
    "roleSessionName": "s",
    "addRecordTimestamp": "true",
    "emitConsumerLagMetrics": "true",
}
KINESIS_ASL = {
    "streamName": "orders",
    "endpointUrl": "https://k",
    "regionName": "us-east-1",
    "initialPositionInStream": "TRIM_HORIZON",
    "checkpointAppName": "billing",
    "checkpointInterval": "2000",
    "storageLevel": "MEMORY_AND_DISK_2",
}
SINKS = {
    "awslabs": {
        "kinesis.streamName": "orders",
        "kinesis.sink.flushWaitTimeMs": "100",
        "kinesis.sink.recordMaxBufferedTimeMs": "1000",
        "kinesis.sink.maxConnections": "1",
        "kinesis.sink.aggregationEnabled": "true",
        "kinesis.sink.recordTtl": "30000",
    },
    "qubole": {
        "streamName": "orders",
        "kinesis.executor.recordMaxBufferedTime": "1000",
        "kinesis.executor.maxConnections": "1",
        "kinesis.executor.aggregationEnabled": "true",
        "kniesis.executor.flushwaittimemillis": "100",
    },
}


@pytest.mark.parametrize("spelt", [str, str.lower, str.upper])
@pytest.mark.parametrize(
    ("given", "ignored_count"),
    [(DATABRICKS, 11), (AWSLABS, 16), (QUBOLE, 6), (GLUE, 6), (KINESIS_ASL, 2)],
    ids=["Databricks", "awslabs", "qubole", "Glue", "kinesis-asl"],
)
def test_the_options_of_another_connector_work_unchanged(given, ignored_count, spelt):
    options, notes = parse_source({spelt(name): value for name, value in given.items()})
    assert options.stream.endswith("orders")
    assert len(notes) == ignored_count
    assert all(" has no effect: " in note for note in notes)


@pytest.mark.parametrize("connector", SINKS)
def test_the_options_of_another_sink_work_unchanged(connector):
    options, notes = parse_sink(SINKS[connector])
    assert options.aggregation
    assert len(notes) == len(SINKS[connector]) - 2


@pytest.mark.parametrize(
    ("given", "name", "application"),
    [
        ({"consumerName": "bill", "consumerNamePrefix": "databricks_"}, "databricks_bill", "bill"),
        ({"consumerNamePrefix": "databricks_", "applicationName": "app"}, "databricks_app", "app"),
        (
            {"registeredConsumerId": "orders-efo", "registeredConsumerIdType": "name"},
            "orders-efo",
            "orders-efo",
        ),
        ({"registeredConsumerId": CONSUMER, "registeredConsumerIdType": "ARN"}, "bill", "bill"),
        ({"registeredConsumerId": CONSUMER, "consumerNamePrefix": "databricks_"}, "bill", "bill"),
        ({"registeredConsumerId": CONSUMER, "applicationName": "app"}, "bill", "app"),
    ],
)
def test_the_registered_consumer_is_named_as_in_databricks(given, name, application):
    options, _ = parse_source({"streamName": "orders", "consumerMode": "efo", **given})
    assert (options.consumer_type, options.consumer_name, options.application) == (
        "fan-out",
        name,
        application,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"registeredConsumerId": "orders-efo", "consumerName": "d"}, "both name the consumer; keep one"),
        ({"registeredConsumerId": CONSUMER.replace("orders", "bills")}, "of a consumer of stream orders"),
        ({"registeredConsumerId": "arn:aws:kinesis:r:1:stream/orders"}, "is not the ARN of a consumer"),
        ({"consumerNamePrefix": "a b"}, "the name of a registered consumer has 1 to 128 letters"),
    ],
)
def test_a_registered_consumer_that_cannot_be_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        parse_source({"streamName": "orders", "consumerMode": "efo", **given})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("subscribe", "use option streamName"),
        ("subscribePattern", "use option streamName"),
        ("assign", "use option streamName"),
        ("topic", "use option streamName"),
        ("kafka.bootstrap.servers", "by option region"),
        ("kafka.group.id", "the same option applicationName"),
        ("kafka.security.protocol", "Kafka's client options have no effect on Kinesis"),
        ("groupIdPrefix", "use option applicationName"),
        ("minPartitions", "option maxPartitions or shardsPerTask"),
        ("maxRecordsPerPartition", "use option maxRecordsPerShard"),
        ("minOffsetsPerTrigger", "trigger(processingTime=...)"),
        ("maxTriggerDelay", "trigger(processingTime=...)"),
        ("startingOffsetsByTimestamp", "use option startingTimestamp"),
        ("endingOffsetsByTimestamp", "use option endingTimestamp"),
        ("includeHeaders", "no headers"),
        ("partitionKey", "takes it from the rows"),
        ("explicitHashKey", "it is a column"),
        ("fetchOffset.numRetries", "use option maxRetries"),
        ("fetchOffset.retryIntervalMs", "use option retryInterval"),
        ("kafkaConsumer.pollTimeoutMs", "use option requestTimeout"),
        ("serviceCredential", "profile, roleArn, or awsAccessKeyId and awsSecretKey"),
        ("kinesis.credentialProviderClass", "boto3's credential chain"),
        ("fanoutConsumerARN", "registeredConsumerId to this ARN"),
        ("proxyAddress", "HTTPS_PROXY"),
        ("kinesis.sink.proxyPassword", "HTTPS_PROXY"),
        ("inferSchema", "parse the column data"),
    ],
)
@pytest.mark.parametrize("spelt", [str, str.lower])
@pytest.mark.parametrize("parse", [parse_source, parse_batch, parse_sink])
def test_an_option_that_is_named_otherwise_here_is_answered_with_our_word(name, remedy, spelt, parse):
    with pytest.raises(OptionError) as caught:
        parse({"streamName": "orders", spelt(name): "hunter2"})
    assert f"option {name}: ".lower() in str(caught.value).lower()
    assert remedy in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("consumrMode", "consumerType"),
        ("registeredConsumerID_", "registeredConsumerId"),
        ("initalPosition", "startingPosition"),
        ("KINESIS.STREAMNAM", "streamName"),
    ],
)
def test_a_misspelt_option_of_another_connector_names_ours(name, nearest):
    with pytest.raises(OptionError, match=rf"unknown option {name}\. Did you mean {nearest}\?"):
        parse_source({"streamName": "orders", name: "x"})
