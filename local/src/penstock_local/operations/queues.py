"""Control operations on queues: create, describe, list, update, delete."""

from __future__ import annotations

from dataclasses import replace

from penstock_local import quotas
from penstock_local.documents import Timestamp
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.operations.consumers import require_consumer_room
from penstock_local.operations.on_demand import require_on_demand, single_entry
from penstock_local.operations.tags import check_tags
from penstock_local.queues.queue import ACTIVE, CREATING, DELETING, Queue, QueueAttributes
from penstock_local.service_errors import in_use, invalid_argument, limit_exceeded, validation
from penstock_local.store import ACCOUNT, not_active
from penstock_local.stream import Stream


def CreateQueue(call: ServiceCall, request: Document) -> Document:
    """Begin to create a queue on an on-demand stream."""
    name = request["QueueName"]
    configuration = single_entry(request["StreamConfigurationList"], "StreamConfigurationList")
    start = _start_position(call, configuration.get("StartingPosition", {"Type": "LATEST"}))
    attributes = _attributes(request.get("QueueAttributes", {}), QueueAttributes())
    check_tags(request.get("Tags", {}))
    stream = call.stream(configuration)
    call.admit(stream)
    require_on_demand(stream, "queues")
    queues = call.service.store.queues
    present = queues.of_region(call.region, call.now_ms)
    if any(each.name == name for each in present):
        raise in_use(f"Queue {name} under account {ACCOUNT} already exists.")
    if call.service.quotas.enforced:
        _require_room(call, stream, present)
    uid = call.service.store.next_uid(call.now_ms)
    queue = queues.create(
        name,
        stream,
        uid,
        call.now_ms,
        start=start,
        attributes=attributes,
        tags=dict(request.get("Tags", {})),
    )
    return {"QueueDescription": _description(call, queue)}


def _start_position(call: ServiceCall, position: Document) -> tuple[str, int | None]:
    kind, at_ms = position["Type"], position.get("Timestamp")
    if kind != "AT_TIMESTAMP":
        if at_ms is not None:
            raise validation(f"Timestamp must not be given for a StartingPosition of Type {kind}.")
    elif at_ms is None:
        raise validation("Timestamp must be given for a StartingPosition of Type AT_TIMESTAMP.")
    elif at_ms > call.now_ms:
        raise invalid_argument(
            f"Timestamp of StartingPosition is in the future: {at_ms} ms, and it is {call.now_ms} ms now."
        )
    return kind, at_ms


def _attributes(asked: Document, before: QueueAttributes) -> QueueAttributes:
    """Return the attributes of before with those that a request names replaced."""
    after = before
    if "VisibilityTimeoutSeconds" in asked:
        after = replace(after, visibility_s=asked["VisibilityTimeoutSeconds"])
    dead_letters = asked.get("DeadLetterConfiguration")
    if dead_letters is not None:
        limit = dead_letters.get("MaxReceiveCount")
        if dead_letters["TargetType"] == "BUILT_IN" and limit is None:
            raise validation("MaxReceiveCount must be given for a TargetType of BUILT_IN.")
        if dead_letters["TargetType"] == "NONE" and limit is not None:
            raise validation("MaxReceiveCount must not be given for a TargetType of NONE.")
        after = replace(after, receive_count_max=limit)
    return after


def _require_room(call: ServiceCall, stream: Stream, present: list[Queue]) -> None:
    changing = sum(each.settings.status in (CREATING, DELETING) for each in present)
    if changing >= quotas.CHANGING_QUEUES_MAX:
        raise limit_exceeded(
            f"Account {ACCOUNT} has {changing} queues in CREATING or DELETING; "
            f"at most {quotas.CHANGING_QUEUES_MAX} may be."
        )
    require_consumer_room(call, stream)


def DescribeQueue(call: ServiceCall, request: Document) -> Document:
    """Describe a queue."""
    queue = _admitted_queue(call, request)
    return {"QueueDescription": _description(call, queue)}


def ListQueues(call: ServiceCall, request: Document) -> Document:
    """List the region's queues by name, or those of streams, a page at a time."""
    call.admit()
    found = call.service.store.queues.of_region(call.region, call.now_ms)
    page, rest = call.list_page(request, found)
    return {"QueueSummaries": [_summary(call, queue) for queue in page], **rest}


def UpdateQueue(call: ServiceCall, request: Document) -> Document:
    """Begin to change a queue's attributes; those that are not named stay."""
    queue = _admitted_queue(call, request)
    if queue.settings.status != ACTIVE:
        raise in_use(not_active(f"Queue {queue.name}", queue.settings.status))
    attributes = _attributes(request["QueueAttributes"], queue.settings.attributes)
    call.service.store.queues.update(queue, attributes, call.now_ms)
    return {"QueueDescription": _description(call, queue)}


def DeleteQueue(call: ServiceCall, request: Document) -> Document:
    """Begin to delete a queue, whatever its state."""
    queue = _admitted_queue(call, request)
    if queue.settings.status != DELETING:
        call.service.store.queues.delete(queue, call.now_ms)
    return {}


def _admitted_queue(call: ServiceCall, request: Document) -> Queue:
    queue = call.queue(request["QueueARN"])
    call.admit(call.service.store.queues.stream_of(queue))
    return queue


def _description(call: ServiceCall, queue: Queue) -> Document:
    settings = queue.settings
    position: Document = {"Type": queue.start_kind}
    start_ms = queue.start_ms if settings.effective_ms is None else settings.effective_ms
    if start_ms is not None:
        position["Timestamp"] = Timestamp(start_ms)
    limit = settings.shown_attributes.receive_count_max
    return {
        "QueueName": queue.name,
        "QueueARN": queue.arn,
        "QueueStatus": settings.status,
        "QueueCreationTimestamp": Timestamp(queue.created_ms),
        "StreamConfigurationList": [
            {
                "StreamARN": call.service.store.queues.stream_of(queue).arn,
                "StartingPosition": position,
            }
        ],
        "QueueAttributes": {
            "VisibilityTimeoutSeconds": settings.shown_attributes.visibility_s,
            "DeadLetterConfiguration": {"TargetType": "NONE"}
            if limit is None
            else {"TargetType": "BUILT_IN", "MaxReceiveCount": limit},
        },
    }


def _summary(call: ServiceCall, queue: Queue) -> Document:
    stream = call.service.store.queues.stream_of(queue)
    return {
        "QueueName": queue.name,
        "QueueARN": queue.arn,
        "QueueStatus": queue.settings.status,
        "QueueCreationTimestamp": Timestamp(queue.created_ms),
        "Streams": [
            {"StreamARN": stream.arn, "StreamCreationTimestamp": Timestamp(stream.created_ms)},
        ],
    }
