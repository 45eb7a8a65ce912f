"""Finds the function of an operation by its name, after the checks that all share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isfunction
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

_MODULES = (account, channels, consumers, queue_records, queues, records, settings, shards, streams, tags)
OPERATIONS: dict[str, Operation] = {
    name: function
    for module in _MODULES
    for name, function in vars(module).items()
    if isfunction(function) and function.__module__ == module.__name__ and name[0].isupper()
}
"""The functions of these modules whose names begin with a capital. `PutRecords` is among them, but reads its body itself."""


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
    request = request_model.check_request(call.operation, call.wire.decode(body))
    # operations with a limit per stream count their calls themselves
    if call.operation not in STREAM_CALLS_PER_S and not call.service.quotas.try_call(
        call.operation, call.now_ms, call.region
    ):
        call.resource = request.get("StreamName", "")
        raise call.rate_refusal()
    try:
        result = operation(call, request)
    except RequestRefused as refusal:
        call.count_refusal(refusal)
        raise
    return call.wire.encode(result) if isinstance(result, dict) else result
