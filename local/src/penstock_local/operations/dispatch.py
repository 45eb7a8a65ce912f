"""Finds the function of an operation by its name, after the checks that all share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock_local import request_model
from penstock_local.credentials import is_region
from penstock_local.operations import (
    account,
    channels,
    consumers,
    queue_records,
    queues,
    records,
    settings,
    shards,
    streams,
    tags,
)
from penstock_local.operations.call import ServiceCall
from penstock_local.operations.consumers import EventStream
from penstock_local.quotas import STREAM_CALLS_PER_S
from penstock_local.service_errors import RequestRefused, not_served

Answer = bytes | EventStream | Awaitable[bytes]
Operation = Callable[[ServiceCall, dict[str, Any]], dict[str, Any] | Answer]

OPERATIONS: dict[str, Operation] = {
    function.__name__: function
    for function in (
        streams.CreateStream,
        streams.DecreaseStreamRetentionPeriod,
        streams.DeleteStream,
        streams.DescribeStream,
        streams.DescribeStreamSummary,
        streams.IncreaseStreamRetentionPeriod,
        streams.ListStreams,
        shards.ListShards,
        shards.MergeShards,
        shards.SplitShard,
        shards.UpdateShardCount,
        channels.CreateChannel,
        channels.DeleteChannel,
        channels.DescribeChannel,
        channels.ListChannels,
        channels.UpdateChannel,
        consumers.DeregisterStreamConsumer,
        consumers.DescribeStreamConsumer,
        consumers.ListStreamConsumers,
        consumers.RegisterStreamConsumer,
        consumers.SubscribeToShard,
        queues.CreateQueue,
        queues.DeleteQueue,
        queues.DescribeQueue,
        queues.ListQueues,
        queues.UpdateQueue,
        queue_records.AcknowledgeDeadLetterQueueRecords,
        queue_records.AcknowledgeQueueRecords,
        queue_records.ReceiveDeadLetterQueueRecords,
        queue_records.ReceiveQueueRecords,
        queue_records.RestoreDeadLetterQueueRecords,
        queue_records.UpdateDeadLetterQueueRecordsVisibility,
        queue_records.UpdateQueueRecordsVisibility,
        records.GetRecords,
        records.GetShardIterator,
        records.PutRecord,
        settings.DeleteResourcePolicy,
        settings.DisableEnhancedMonitoring,
        settings.EnableEnhancedMonitoring,
        settings.GetResourcePolicy,
        settings.PutResourcePolicy,
        settings.StartStreamEncryption,
        settings.StopStreamEncryption,
        settings.UpdateMaxRecordSize,
        settings.UpdateStreamMode,
        settings.UpdateStreamRecordDistributionStrategy,
        settings.UpdateStreamWarmThroughput,
        tags.AddTagsToStream,
        tags.ListTagsForResource,
        tags.ListTagsForStream,
        tags.RemoveTagsFromStream,
        tags.TagResource,
        tags.UntagResource,
        account.DescribeAccountSettings,
        account.DescribeLimits,
        account.UpdateAccountSettings,
    )
}

SERVED = frozenset({*OPERATIONS, "PutRecords"})
"""The operations that are carried out; PutRecords reads its body itself."""


def answer(call: ServiceCall, body: bytes) -> Answer:
    """Carry out one call.

    Returns:
        The body of the answer, in the call's encoding; of SubscribeToShard, the stream of its events. A receive from a
        queue that has to wait returns an awaitable of its body.

    Raises:
        RequestRefused: The service's error, or HTTP 501 for an operation that this server does not have.
        DropConnection: A fault closes the connection before the call is applied.
    """
    if not is_region(call.region):
        raise RequestRefused("InvalidSignatureException", "Credential should be scoped to a valid region.")
    if call.operation not in request_model.operations():
        raise RequestRefused(
            "UnknownOperationException", f"Kinesis has no operation {call.operation[:100]!r} here."
        )
    if call.operation == "PutRecords":
        return records.PutRecords(call, body)
    operation = OPERATIONS.get(call.operation)
    if operation is None:
        raise not_served(f"penstock-local does not serve {call.operation}.")
    request = request_model.checked(call.operation, call.wire.decode(body))
    # operations with a limit per stream count their calls themselves
    if call.operation not in STREAM_CALLS_PER_S and not call.service.quotas.may_call(
        call.operation, call.now_ms, call.region
    ):
        call.resource = request.get("StreamName", "")
        raise call.throttled()
    try:
        result = operation(call, request)
    except RequestRefused as refusal:
        call.count_refusal(refusal)
        raise
    return call.wire.encode(result) if isinstance(result, dict) else result
