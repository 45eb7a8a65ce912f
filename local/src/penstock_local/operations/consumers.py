"""Operations on consumers with enhanced fan-out: register, describe, list, deregister, subscribe."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import NamedTuple

from penstock_local import quotas
from penstock_local.documents import Timestamp
from penstock_local.operations.account import is_committed
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.operations.on_demand import require_present
from penstock_local.operations.positions import SUBSCRIPTION_NAMES, position_of
from penstock_local.operations.tags import check_tags
from penstock_local.service_errors import in_use, invalid_argument, limit_exceeded
from penstock_local.store import ACCOUNT
from penstock_local.stream import ACTIVE, CREATING, DELETING, Consumer, Stream
from penstock_local.subscription_faults import with_faults

_LIST_PAGE_MAX = 100


class EventStream(NamedTuple):
    """A streamed answer: its first bytes, and those that follow."""

    head: bytes
    events: AsyncGenerator[bytes, None]


def RegisterStreamConsumer(call: ServiceCall, request: Document) -> Document:
    """Begin to register a consumer."""
    stream = call.stream(request)
    name = request["ConsumerName"]
    check_tags(request.get("Tags", {}))
    call.admit(stream)
    require_present(stream)
    if name in stream.consumers:
        raise in_use(f"Consumer {name} under stream {stream.name} already exists for account {ACCOUNT}.")
    if call.service.quotas.enforced:
        _require_room_in_creating(call)
        require_consumer_room(call, stream)
    created_s = call.now_ms // 1000
    if name in stream.consumers_gone:
        created_s = max(created_s, stream.consumers_gone[name] + 1)
    consumer = Consumer(
        name,
        created_s,
        CREATING,
        due_ms=call.now_ms + call.service.store.options.settle_ms,
        tags=dict(request.get("Tags", {})),
    )
    answer = _description(stream, consumer)
    call.service.store.put_consumer(stream, consumer, call.now_ms)
    return {"Consumer": answer}


def _require_room_in_creating(call: ServiceCall) -> None:
    streams = call.service.store.of_region(call.region, call.now_ms)
    creating = sum(consumer.status == CREATING for each in streams for consumer in each.consumers.values())
    if creating >= quotas.CREATING_CONSUMERS_MAX:
        raise limit_exceeded(
            f"Account {ACCOUNT} has {creating} consumers in CREATING; "
            f"at most {quotas.CREATING_CONSUMERS_MAX} may be."
        )


def require_consumer_room(call: ServiceCall, stream: Stream) -> None:
    """Refuse one more registered consumer or queue if the stream has its maximum."""
    has_advantage = stream.mode == "ON_DEMAND" and is_committed(call)
    most = quotas.COMMITTED_CONSUMERS_MAX if has_advantage else quotas.CONSUMERS_MAX
    queue_count = len(call.service.store.queues.of_stream(stream, call.now_ms))
    if len(stream.consumers) + queue_count >= most:
        raise limit_exceeded(
            f"Stream {stream.name} under account {ACCOUNT} has {len(stream.consumers)} registered consumers and "
            f"{queue_count} queues; at most {most} together are allowed."
        )


def DescribeStreamConsumer(call: ServiceCall, request: Document) -> Document:
    """Describe a consumer."""
    stream, consumer = call.consumer(request)
    _require_rate(call, stream)
    call.admit(stream)
    return {"ConsumerDescription": {**_description(stream, consumer), "StreamARN": stream.arn}}


def ListStreamConsumers(call: ServiceCall, request: Document) -> Document:
    """List a stream's consumers by name, a page at a time."""
    stream = call.stream_created_at(request)
    after = ""
    if "NextToken" in request:
        page = call.service.tokens.read_page("ListStreamConsumers", request["NextToken"], call.now_ms)
        if page["uid"] != stream.uid:
            raise invalid_argument("NextToken is of another stream than StreamARN.")
        after = page["after"]
    _require_rate(call, stream)
    call.admit(stream)
    limit = min(request.get("MaxResults", _LIST_PAGE_MAX), _LIST_PAGE_MAX)
    names = sorted(name for name in stream.consumers if name > after)
    answer: Document = {"Consumers": [_description(stream, stream.consumers[name]) for name in names[:limit]]}
    if len(names) > limit:
        fields = {"uid": stream.uid, "after": names[limit - 1]}
        answer["NextToken"] = call.service.tokens.page("ListStreamConsumers", fields, call.now_ms)
    return answer


def DeregisterStreamConsumer(call: ServiceCall, request: Document) -> Document:
    """Begin to remove a consumer; its subscriptions end."""
    stream, consumer = call.consumer(request)
    _require_rate(call, stream)
    call.admit(stream)
    if consumer.status == CREATING:
        raise in_use(_not_active_message(stream, consumer))
    if consumer.status == ACTIVE:
        store = call.service.store
        leaving = replace(consumer, status=DELETING, due_ms=call.now_ms + store.options.settle_ms)
        store.put_consumer(stream, leaving, call.now_ms)
    return {}


def SubscribeToShard(call: ServiceCall, request: Document) -> EventStream:
    """Begin to push a shard's records from a position on."""
    stream, consumer = call.consumer(request)
    shard = stream.shard(request["ShardId"])
    ordinal = position_of(call, stream, shard, request["StartingPosition"], SUBSCRIPTION_NAMES)
    call.admit(stream, (shard.id,))
    if consumer.status != ACTIVE:
        raise in_use(_not_active_message(stream, consumer))
    subscriptions = call.service.subscriptions
    pair = subscriptions.pair(stream, consumer, shard)
    if not subscriptions.try_call(pair, call.now_ms):
        raise call.rate_refusal()
    subscriptions.require_free(pair, call.now_ms)
    call.end_dry_run(request)
    subscription = subscriptions.open(pair, ordinal, call.wire, call.now_ms)
    faults = [hit.fault for hit in call.answering_hits]
    events = with_faults(subscription, faults) if faults else subscription.events()
    return EventStream(subscription.initial_response(), events)


def _require_rate(call: ServiceCall, stream: Stream) -> None:
    if not call.service.quotas.try_call(call.operation, call.now_ms, stream.uid):
        raise call.rate_refusal()


def _not_active_message(stream: Stream, consumer: Consumer) -> str:
    return (
        f"Consumer {consumer.name} with creation timestamp {consumer.created_s} under stream: {stream.name}, "
        f"account {ACCOUNT} is not in ACTIVE status."
    )


def _description(stream: Stream, consumer: Consumer) -> Document:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn(stream.arn),
        "ConsumerStatus": consumer.status,
        "ConsumerCreationTimestamp": Timestamp(consumer.created_s * 1000),
    }
