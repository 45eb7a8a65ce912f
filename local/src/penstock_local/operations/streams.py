"""Operations on whole streams: create, describe, list, delete, retention."""

from __future__ import annotations

from itertools import islice

from penstock_local import quotas
from penstock_local.documents import Timestamp
from penstock_local.operations import settings
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.operations.on_demand import require_no_channels, require_no_queues
from penstock_local.operations.tags import check_tags
from penstock_local.service_errors import in_use, invalid_argument, limit_exceeded, validation
from penstock_local.store import ACCOUNT
from penstock_local.stream import Stream, StreamSettings

_ON_DEMAND_SHARDS = 4
_RETENTION_MIN_H, _RETENTION_MAX_H = 24, 8760
_DESCRIBE_PAGE_MAX = 100
_LIST_PAGE_MAX = 100


def CreateStream(call: ServiceCall, request: Document) -> Document:
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
    is_new = store.get(call.region, request["StreamName"], call.now_ms) is None
    check_tags(request.get("Tags", {}))
    is_auto = settings.is_distributed_in_turn(mode, request.get("RecordDistributionStrategy"))
    warm_mibps = request.get("WarmThroughputMiBps")
    if warm_mibps is not None:
        settings.check_warm_throughput(call, mode, warm_mibps)
        shard_count = max(shard_count, warm_mibps)
    if mode == "ON_DEMAND" and is_new:
        settings.require_on_demand_room(call)
    if call.service.quotas.enforced:
        creating = sum(s.status == "CREATING" for s in store.of_region(call.region, call.now_ms))
        if creating >= quotas.CREATING_STREAMS_MAX and is_new:
            raise limit_exceeded(
                f"Account {ACCOUNT} has {creating} streams in CREATING; at most {quotas.CREATING_STREAMS_MAX} may be."
            )
    if is_new:
        store.require_shard_room(shard_count, call.region)
    attributes: Document = {
        "tags": dict(request.get("Tags", {})),
        "settings": StreamSettings(warm_mibps=warm_mibps, is_auto=is_auto),
    }
    if "MaxRecordSizeInKiB" in request:
        attributes["record_kib_max"] = request["MaxRecordSizeInKiB"]
    store.create(request["StreamName"], shard_count, call.now_ms, mode=mode, region=call.region, **attributes)
    return {}


def DeleteStream(call: ServiceCall, request: Document) -> Document:
    """Begin to delete a stream with all its records."""
    stream = call.stream(request)
    call.admit(stream)
    require_no_queues(call, stream)
    require_no_channels(call, stream)
    if stream.consumers and not request.get("EnforceConsumerDeletion"):
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} has {len(stream.consumers)} registered consumers: "
            "deregister them, or set EnforceConsumerDeletion."
        )
    if stream.status != "DELETING":
        store = call.service.store
        store.begin_change(stream, "delete", (), "DELETING", call.now_ms)
        call.service.quotas.forget(stream.uid)
    return {}


def _description(stream: Stream) -> Document:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": stream.mode},
        "RetentionPeriodHours": stream.retention_h,
        "StreamCreationTimestamp": Timestamp(stream.created_ms),
        "EnhancedMonitoring": [{"ShardLevelMetrics": stream.settings.shard_metrics}],
        **settings.encryption(stream),
    }


def DescribeStream(call: ServiceCall, request: Document) -> Document:
    """Describe a stream with a page of its shards, at most 100."""
    stream = call.stream(request)
    call.admit(stream)
    limit = min(request.get("Limit", _DESCRIBE_PAGE_MAX), _DESCRIBE_PAGE_MAX)
    after = request.get("ExclusiveStartShardId", "")
    call.service.store.forget_expired(stream, call.now_ms)
    if call.find_hit("stale"):
        shards = [s for s in stream.earlier_view() if s["ShardId"] > after]
    else:
        following = (s for s in stream.shards.values() if s.id > after)
        shards = [stream.describe_shard(s) for s in islice(following, limit + 1)]
    return {
        "StreamDescription": {
            **_description(stream),
            "Shards": shards[:limit],
            "HasMoreShards": len(shards) > limit,
        }
    }


def DescribeStreamSummary(call: ServiceCall, request: Document) -> Document:
    """Describe a stream without its shards."""
    stream = call.stream(request)
    call.admit(stream)
    return {
        "StreamDescriptionSummary": {
            **_description(stream),
            "OpenShardCount": len(stream.open_shards),
            "ConsumerCount": len(stream.consumers),
            "ChannelCount": len(call.service.store.channels.of_stream(stream.uid, call.now_ms)),
            "QueueCount": len(call.service.store.queues.of_stream(stream, call.now_ms)),
            "MaxRecordSizeInKiB": stream.record_kib_max,
            **settings.warm_throughput(stream),
            **settings.distribution(stream),
        }
    }


def ListStreams(call: ServiceCall, request: Document) -> Document:
    """List the region's streams by name, a page at a time."""
    call.admit()
    after = request.get("ExclusiveStartStreamName", "")
    if "NextToken" in request:
        after = call.service.tokens.read_page("ListStreams", request["NextToken"], call.now_ms)["after"]
    limit = min(request.get("Limit", _LIST_PAGE_MAX), _LIST_PAGE_MAX)
    streams = call.service.store.of_region(call.region, call.now_ms)
    found = sorted((s for s in streams if s.name > after), key=lambda s: s.name)
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


def IncreaseStreamRetentionPeriod(call: ServiceCall, request: Document) -> Document:
    """Keep records longer."""
    stream = call.active_stream(request)
    call.admit(stream)
    hours = _retention_hours(request)
    if hours < stream.retention_h:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be shorter than existing "
            f"retention period ({stream.retention_h} hours). Use DecreaseRetentionPeriod API."
        )
    # records past the old period are gone for ever
    _trim_all(call, stream)
    stream.retention_h = hours
    call.service.store.journal.stream_changed(stream)
    return {}


def DecreaseStreamRetentionPeriod(call: ServiceCall, request: Document) -> Document:
    """Keep records for a shorter time; older ones go at once."""
    stream = call.active_stream(request)
    call.admit(stream)
    hours = _retention_hours(request)
    if hours > stream.retention_h:
        raise invalid_argument(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be longer than existing "
            f"retention period ({stream.retention_h} hours). Use IncreaseRetentionPeriod API."
        )
    stream.retention_h = hours
    # first, because it may be refused, and trimmed records do not return
    call.service.store.journal.stream_changed(stream)
    _trim_all(call, stream)
    return {}


def _trim_all(call: ServiceCall, stream: Stream) -> None:
    for shard in stream.shards.values():
        call.service.store.trim(stream, shard, call.now_ms)


def _retention_hours(request: Document) -> int:
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
