"""Operations on the topology of a stream: list, split, merge, rescale."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from penstock_local import quotas
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.service_errors import in_use, invalid_argument, not_found, validation
from penstock_local.shard import Shard
from penstock_local.store import ACCOUNT, not_active
from penstock_local.stream import Stream

_LIST_SHARDS_PAGE_MAX = 1000
_RESCALE_SHARDS_MAX = 10_000


def ListShards(call: ServiceCall, request: Document) -> Document:
    """List the shards that a filter selects, a page at a time."""
    page = _first_page(call, request) if "NextToken" not in request else _next_page(call, request)
    stream = call.service.store.by_uid.get(page["uid"])
    if stream is None or stream.region != call.region:
        raise not_found(f"Stream {page['name']} under account {ACCOUNT} not found.")
    if stream.status == "CREATING":
        raise in_use(not_active(f"Stream {stream.name}", stream.status))
    call.resource = stream.name
    if not call.service.quotas.try_call("ListShards", call.now_ms, stream.uid):
        raise call.rate_refusal()
    call.admit(stream)
    limit = min(request.get("MaxResults", _LIST_SHARDS_PAGE_MAX), _LIST_SHARDS_PAGE_MAX)
    shown, more = _shard_page(call, stream, page, limit)
    answer: Document = {"Shards": shown}
    if more:
        after = shown[-1]["ShardId"]
        answer["NextToken"] = call.service.tokens.page("ListShards", {**page, "after": after}, call.now_ms)
    return _with_listing_faults(call, answer)


def _first_page(call: ServiceCall, request: Document) -> Document:
    """Check a request without a token; return the state of the listing that tokens carry from page to page."""
    stream = call.stream_created_at(request)
    shard_filter = request.get("ShardFilter", {"Type": "FROM_TRIM_HORIZON"})
    kind = shard_filter["Type"]
    after = request.get("ExclusiveStartShardId", "")
    if kind == "AFTER_SHARD_ID":
        if "ShardId" not in shard_filter:
            raise invalid_argument("ShardFilter of type AFTER_SHARD_ID needs ShardId.")
        after = max(after, shard_filter["ShardId"])
    elif "ShardId" in shard_filter:
        raise invalid_argument(f"ShardFilter of type {kind} takes no ShardId.")
    at_ms = shard_filter.get("Timestamp")
    if kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP"):
        if at_ms is None:
            raise invalid_argument(f"ShardFilter of type {kind} needs Timestamp.")
        if at_ms > call.now_ms:
            raise invalid_argument(
                f"The Timestamp of the ShardFilter ({at_ms} ms) is after the current time ({call.now_ms} ms)."
            )
    elif at_ms is not None:
        raise invalid_argument(f"ShardFilter of type {kind} takes no Timestamp.")
    return {"uid": stream.uid, "name": stream.name, "kind": kind, "at_ms": at_ms, "after": after}


def _next_page(call: ServiceCall, request: Document) -> Document:
    """Check a request with a token; return the state of the listing that the token carries."""
    for member in ("StreamName", "StreamCreationTimestamp", "ExclusiveStartShardId"):
        if member in request:
            raise invalid_argument(f"NextToken and {member} cannot be provided together.")
    page = call.service.tokens.read_page("ListShards", request["NextToken"], call.now_ms)
    stream = call.service.store.by_uid.get(page["uid"])
    if stream is not None:
        call.service.store.settle(stream, call.now_ms)
        if request.get("StreamARN", stream.arn) != stream.arn:
            raise invalid_argument("NextToken is of another stream than StreamARN.")
    return page


def _shard_page(call: ServiceCall, stream: Stream, page: Document, limit: int) -> tuple[list[Document], bool]:
    """Describe one page of the shards that a filter selects; True when there are more."""
    call.service.store.forget_expired(stream, call.now_ms)
    after = page["after"]
    if call.find_hit("stale"):
        earlier = [s for s in stream.earlier_view() if s["ShardId"] > after]
        return earlier[:limit], len(earlier) > limit
    selects = _filter_condition(stream, page["kind"], page["at_ms"], call.now_ms)
    found = list(islice((s for s in stream.shards.values() if s.id > after and selects(s)), limit + 1))
    return [stream.describe_shard(shard) for shard in found[:limit]], len(found) > limit


def _filter_condition(stream: Stream, kind: str, at_ms: int | None, now_ms: int) -> Callable[[Shard], bool]:
    """Return the condition of a filter; a shard takes records from `opened_ms` to `closed_ms`, inclusive."""
    # a moment before the stream's first shards means the moment when these opened
    first_ms = min((shard.opened_ms for shard in stream.shards.values()), default=stream.created_ms)
    horizon_ms = max(now_ms - stream.retention_ms, first_ms)
    match kind:
        case "AT_LATEST":
            return lambda shard: shard.closed_ms is None
        case "AT_TRIM_HORIZON":
            return lambda shard: _is_open_at(shard, horizon_ms)
        case "AT_TIMESTAMP":
            moment_ms = max(at_ms or 0, horizon_ms)
            return lambda shard: _is_open_at(shard, moment_ms)
        case "FROM_TIMESTAMP":
            from_ms = max(at_ms or 0, horizon_ms)
            return lambda shard: shard.closed_ms is None or shard.closed_ms >= from_ms
        case _:
            return lambda _: True


def _is_open_at(shard: Shard, at_ms: int) -> bool:
    return shard.opened_ms <= at_ms and (shard.closed_ms is None or shard.closed_ms >= at_ms)


def _with_listing_faults(call: ServiceCall, answer: Document) -> Document:
    """Apply the faults that change a listing."""
    for hit in call.answering_hits:
        if hit.fault.kind == "omit":
            answer["Shards"] = [s for s in answer["Shards"] if s["ShardId"] != hit.fault.shard]
        elif hit.fault.kind == "shuffle":
            hit.chance.shuffle(answer["Shards"])
    return answer


def SplitShard(call: ServiceCall, request: Document) -> Document:
    """Begin to split a shard in two at a hash key."""
    stream = call.active_stream(request)
    _require_provisioned(stream)
    shard = stream.check_split(request["ShardToSplit"], int(request["NewStartingHashKey"]))
    call.admit(stream, (shard.id,))
    call.service.store.require_shard_room(1, call.region)
    args = (shard.index, int(request["NewStartingHashKey"]))
    call.service.store.begin_change(stream, "split", args, "UPDATING", call.now_ms)
    return {}


def MergeShards(call: ServiceCall, request: Document) -> Document:
    """Begin to merge two adjacent shards."""
    stream = call.active_stream(request)
    _require_provisioned(stream)
    one, other = stream.check_merge(request["ShardToMerge"], request["AdjacentShardToMerge"])
    call.admit(stream, (one.id, other.id))
    call.service.store.begin_change(stream, "merge", (one.index, other.index), "UPDATING", call.now_ms)
    return {}


def UpdateShardCount(call: ServiceCall, request: Document) -> Document:
    """Begin to rescale a stream to evenly wide shards, by splits and merges."""
    stream = call.active_stream(request)
    target = request["TargetShardCount"]
    current = len(stream.open_shards)
    _require_provisioned(stream)
    if call.service.quotas.enforced:
        _check_rescale(current, target)
    recent = call.recent_changes(
        stream.rescaled_ms, quotas.RESCALES_PER_DAY_MAX, f"Stream {stream.name} has been rescaled"
    )
    call.admit(stream)
    call.service.store.require_shard_room(max(0, target - current), call.region)
    stream.rescaled_ms = [*recent, call.now_ms]
    call.service.store.begin_change(stream, "scale", (target,), "UPDATING", call.now_ms)
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def _require_provisioned(stream: Stream) -> None:
    """Refuse to reshard an on-demand stream: the service does that itself."""
    if stream.mode == "ON_DEMAND":
        raise validation(
            f"Request is invalid. Stream {stream.name} under account {ACCOUNT} is in On-Demand mode."
        )


def _check_rescale(current: int, target: int) -> None:
    if target > 2 * current:
        raise invalid_argument(
            "UpdateShardCount cannot scale up over double your current open shard count. "
            f"Current open shard count: {current} Target shard count: {target}"
        )
    if target * 2 < current:
        raise invalid_argument(
            "UpdateShardCount cannot scale down below half your current open shard count. "
            f"Current open shard count: {current} Target shard count: {target}"
        )
    if target > _RESCALE_SHARDS_MAX:
        raise invalid_argument(f"UpdateShardCount cannot scale up to more than {_RESCALE_SHARDS_MAX} shards.")
