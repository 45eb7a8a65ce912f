"""Operations on whole streams: create, describe, list, delete, retention, mode, tags."""

from __future__ import annotations

from typing import Any

from penstock.local import quotas
from penstock.local.operations.call import Call
from penstock.local.replies import Timestamp, invalid_argument, limit_exceeded, validation
from penstock.local.store import ACCOUNT
from penstock.local.stream import Stream

_ON_DEMAND_SHARDS = 4
_TAGS_MAX = 50
_RETENTION_MIN_H, _RETENTION_MAX_H = 24, 8760
_DESCRIBE_PAGE_MAX = 100
_LIST_PAGE = 100
_ON_DEMAND_STREAMS_MAX = 50

Document = dict[str, Any]


def CreateStream(call: Call, request: Document) -> Document:
    """Begin to create a stream."""
    call.resource = request["StreamName"]
    call.admit()
    store = call.service.store
    mode = request.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
    count = request.get("ShardCount")
    if mode == "PROVISIONED" and count is None:
        raise validation("ShardCount must be given for a stream in PROVISIONED mode.")
    if mode == "ON_DEMAND" and count is not None:
        raise validation("ShardCount must not be given for a stream in ON_DEMAND mode.")
    shard_count = _ON_DEMAND_SHARDS if count is None else count
    _check_tags(request.get("Tags", {}))
    if call.service.quotas.enforced:
        creating = sum(s.status == "CREATING" for s in _settled(call))
        if creating >= quotas.CREATING_STREAMS_MAX and request["StreamName"] not in store.streams:
            raise limit_exceeded(
                f"Account {ACCOUNT} has {creating} streams in CREATING; at most {quotas.CREATING_STREAMS_MAX} may be."
            )
    if request["StreamName"] not in store.streams:
        store.require_shard_room(shard_count)
    settings: Document = {"tags": dict(request.get("Tags", {}))}
    if "MaxRecordSizeInKiB" in request:
        settings["record_kib_max"] = request["MaxRecordSizeInKiB"]
    store.create(request["StreamName"], shard_count, call.now_ms, mode=mode, **settings)
    return {}


def DeleteStream(call: Call, request: Document) -> Document:
    """Begin to delete a stream with all its records."""
    stream = call.stream(request)
    call.admit(stream)
    if stream.status != "DELETING":
        store = call.service.store
        store.begin(stream, "delete", (), "DELETING", call.now_ms)
        call.service.quotas.forget(stream.uid)
    return {}


def _described(stream: Stream) -> Document:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": stream.mode},
        "RetentionPeriodHours": stream.retention_h,
        "StreamCreationTimestamp": Timestamp(stream.created_ms),
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }


def DescribeStream(call: Call, request: Document) -> Document:
    """Describe a stream with a page of its shards, at most 100."""
    stream = call.stream(request)
    call.admit(stream)
    limit = min(request.get("Limit", _DESCRIBE_PAGE_MAX), _DESCRIBE_PAGE_MAX)
    after = request.get("ExclusiveStartShardId", "")
    call.service.store.forget_expired(stream, call.now_ms)
    if call.has("stale"):
        shards = [s for s in stream.earlier_view() if s["ShardId"] > after]
    else:
        shards = [stream.describe_shard(s) for s in stream.shards.values() if s.id > after]
    return {
        "StreamDescription": {
            **_described(stream),
            "Shards": shards[:limit],
            "HasMoreShards": len(shards) > limit,
        }
    }


def DescribeStreamSummary(call: Call, request: Document) -> Document:
    """Describe a stream without its shards."""
    stream = call.stream(request)
    call.admit(stream)
    return {
        "StreamDescriptionSummary": {
            **_described(stream),
            "OpenShardCount": len(stream.open_shards),
            "ConsumerCount": 0,
            "MaxRecordSizeInKiB": stream.record_kib_max,
        }
    }


def _settled(call: Call) -> list[Stream]:
    store = call.service.store
    for stream in list(store.streams.values()):
        store.settle(stream, call.now_ms)
    return list(store.streams.values())


def ListStreams(call: Call, request: Document) -> Document:
    """List streams by name, a page at a time."""
    call.admit()
    after = request.get("ExclusiveStartStreamName", "")
    if "NextToken" in request:
        after = call.service.tokens.read_page("ListStreams", request["NextToken"], call.now_ms)["after"]
    limit = request.get("Limit", _LIST_PAGE)
    found = sorted((s for s in _settled(call) if s.name > after), key=lambda s: s.name)
    page = found[:limit]
    answer: Document = {
        "StreamNames": [s.name for s in page],
        "HasMoreStreams": len(found) > limit,
        "StreamSummaries": [
            {
                "StreamName": s.name,
                "StreamARN": s.arn,
                "StreamStatus": s.status,
                "StreamModeDetails": {"StreamMode": s.mode},
                "StreamCreationTimestamp": Timestamp(s.created_ms),
            }
            for s in page
        ],
    }
    if len(found) > limit:
        answer["NextToken"] = call.service.tokens.page("ListStreams", {"after": page[-1].name}, call.now_ms)
    return answer


def DescribeLimits(call: Call, request: Document) -> Document:  # noqa: ARG001 - it has no members
    """Give the account's quotas."""
    call.admit()
    streams = _settled(call)
    return {
        "ShardLimit": call.service.store.options.shard_count_max,
        "OpenShardCount": sum(len(s.open_shards) for s in streams if s.mode == "PROVISIONED"),
        "OnDemandStreamCount": sum(s.mode == "ON_DEMAND" for s in streams),
        "OnDemandStreamCountLimit": _ON_DEMAND_STREAMS_MAX,
    }


def IncreaseStreamRetentionPeriod(call: Call, request: Document) -> Document:
    """Keep records longer."""
    stream = call.active_stream(request)
    call.admit(stream)
    hours = _retention(request)
    if hours < stream.retention_h:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be shorter than existing "
            f"retention period ({stream.retention_h} hours). Use DecreaseRetentionPeriod API."
        )
    # what is past the old period is gone for good
    _trim_all(call, stream)
    stream.retention_h = hours
    call.service.store.journal.stream_changed(stream)
    return {}


def DecreaseStreamRetentionPeriod(call: Call, request: Document) -> Document:
    """Keep records for a shorter time; older ones go at once."""
    stream = call.active_stream(request)
    call.admit(stream)
    hours = _retention(request)
    if hours > stream.retention_h:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be longer than existing "
            f"retention period ({stream.retention_h} hours). Use IncreaseRetentionPeriod API."
        )
    stream.retention_h = hours
    # first, because it may be refused, and what was trimmed does not come back
    call.service.store.journal.stream_changed(stream)
    _trim_all(call, stream)
    return {}


def _trim_all(call: Call, stream: Stream) -> None:
    for shard in stream.shards.values():
        call.service.store.trim(stream, shard, call.now_ms)


def _retention(request: Document) -> int:
    hours: int = request["RetentionPeriodHours"]
    if hours < _RETENTION_MIN_H:
        raise invalid_argument(
            f"Minimum allowed retention period is {_RETENTION_MIN_H} hours. "
            f"Requested retention period ({hours} hours) is too short."
        )
    if hours > _RETENTION_MAX_H:
        raise invalid_argument(
            f"Maximum allowed retention period is {_RETENTION_MAX_H} hours. "
            f"Requested retention period ({hours} hours) is too long."
        )
    return hours


def UpdateMaxRecordSize(call: Call, request: Document) -> Document:
    """Set how large a record may be."""
    stream = call.active_stream(request)
    call.admit(stream)
    stream.record_kib_max = request["MaxRecordSizeInKiB"]
    call.service.store.journal.stream_changed(stream)
    return {}


def UpdateStreamMode(call: Call, request: Document) -> Document:
    """Switch between PROVISIONED and ON_DEMAND."""
    stream = call.active_stream(request)
    call.admit(stream)
    mode = request["StreamModeDetails"]["StreamMode"]
    if mode == stream.mode:
        return {}
    recent = [at for at in stream.mode_switched_ms if call.now_ms - at < quotas.DAY_MS]
    if call.service.quotas.enforced and len(recent) >= quotas.MODE_SWITCHES_PER_DAY_MAX:
        raise limit_exceeded(
            f"Stream {stream.name} has changed its mode {len(recent)} times in 24 hours; "
            f"at most {quotas.MODE_SWITCHES_PER_DAY_MAX} are allowed."
        )
    stream.mode_switched_ms = [*recent, call.now_ms]
    stream.mode = mode
    call.service.store.begin(stream, "mode", (), "UPDATING", call.now_ms)
    return {}


# -- tags ---------------------------------------------------------------------------------------------------


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > _TAGS_MAX:
        raise invalid_argument(f"A stream may have at most {_TAGS_MAX} tags, not {len(tags)}.")


def _add_tags(call: Call, stream: Stream, tags: dict[str, str]) -> None:
    merged = {**stream.tags, **tags}
    _check_tags(merged)
    stream.tags = merged
    call.service.store.journal.stream_changed(stream)


def _remove_tags(call: Call, stream: Stream, keys: list[str]) -> None:
    stream.tags = {key: value for key, value in stream.tags.items() if key not in keys}
    call.service.store.journal.stream_changed(stream)


def _tag_list(tags: list[tuple[str, str]]) -> list[Document]:
    return [{"Key": key, "Value": value} for key, value in tags]


def AddTagsToStream(call: Call, request: Document) -> Document:
    """Add or change tags."""
    stream = call.stream(request)
    call.admit(stream)
    _add_tags(call, stream, request["Tags"])
    return {}


def RemoveTagsFromStream(call: Call, request: Document) -> Document:
    """Remove tags."""
    stream = call.stream(request)
    call.admit(stream)
    _remove_tags(call, stream, request["TagKeys"])
    return {}


def ListTagsForStream(call: Call, request: Document) -> Document:
    """List tags by key, a page at a time."""
    stream = call.stream(request)
    call.admit(stream)
    after = request.get("ExclusiveStartTagKey", "")
    limit = request.get("Limit", _TAGS_MAX)
    found = sorted((key, value) for key, value in stream.tags.items() if key > after)
    return {"Tags": _tag_list(found[:limit]), "HasMoreTags": len(found) > limit}


def TagResource(call: Call, request: Document) -> Document:
    """Add or change tags, by ARN."""
    stream = call.stream({"StreamARN": request["ResourceARN"]})
    call.admit(stream)
    _add_tags(call, stream, request["Tags"])
    return {}


def UntagResource(call: Call, request: Document) -> Document:
    """Remove tags, by ARN."""
    stream = call.stream({"StreamARN": request["ResourceARN"]})
    call.admit(stream)
    _remove_tags(call, stream, request["TagKeys"])
    return {}


def ListTagsForResource(call: Call, request: Document) -> Document:
    """List all tags, by ARN."""
    stream = call.stream({"StreamARN": request["ResourceARN"]})
    call.admit(stream)
    return {"Tags": _tag_list(sorted(stream.tags.items()))}
