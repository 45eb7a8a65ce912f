"""Operations on a stream's settings: encryption, monitoring, policy, mode, warm throughput, record size.

Settings are kept and shown as on the service, with its states and quotas. Data is not encrypted, no
metrics are published, and policies are not enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from penstock_local import quotas
from penstock_local.operations.account import is_committed
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.operations.on_demand import require_no_channels, require_no_queues
from penstock_local.service_errors import (
    invalid_argument,
    limit_exceeded,
    not_found,
    validation,
)
from penstock_local.store import ACCOUNT
from penstock_local.stream import Stream

SHARD_METRICS = (
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
)
_WARM_MIBPS_MAX = 10 * 1024
_ON_DEMAND_WRITE_MIBPS = 4
_POLICY_BYTES_MAX = 20 * 1024


# -- encryption ---------------------------------------------------------------------------------------------


def encryption(stream: Stream) -> Document:
    """Return how a stream is encrypted, as descriptions show it."""
    key_id = stream.settings.key_id
    return {"EncryptionType": "NONE"} if key_id is None else {"EncryptionType": "KMS", "KeyId": key_id}


def StartStreamEncryption(call: ServiceCall, request: Document) -> Document:
    """Begin to encrypt a stream, or to use another key."""
    stream = _stream_to_encrypt(call, request)
    recent = call.recent_changes(
        stream.settings.encrypted_ms,
        quotas.ENCRYPTION_CHANGES_PER_DAY_MAX,
        f"Encryption of stream {stream.name} has been started",
    )
    change = {"encrypted_ms": (*recent, call.now_ms), "key_id": request["KeyId"]}
    stream.settings = replace(stream.settings, **change)
    call.service.store.begin_change(stream, "setting", (), "UPDATING", call.now_ms)
    return {}


def StopStreamEncryption(call: ServiceCall, request: Document) -> Document:
    """Begin to stop a stream's encryption."""
    stream = _stream_to_encrypt(call, request)
    recent = call.recent_changes(
        stream.settings.decrypted_ms,
        quotas.ENCRYPTION_CHANGES_PER_DAY_MAX,
        f"Encryption of stream {stream.name} has been stopped",
    )
    stream.settings = replace(stream.settings, decrypted_ms=(*recent, call.now_ms), key_id=None)
    call.service.store.begin_change(stream, "setting", (), "UPDATING", call.now_ms)
    return {}


def _stream_to_encrypt(call: ServiceCall, request: Document) -> Stream:
    stream = call.active_stream(request)
    call.admit(stream)
    if request["EncryptionType"] != "KMS":
        raise invalid_argument("The only valid EncryptionType is KMS.")
    return stream


# -- monitoring ---------------------------------------------------------------------------------------------


def EnableEnhancedMonitoring(call: ServiceCall, request: Document) -> Document:
    """Add metrics to those that a stream publishes by shard."""
    stream = call.active_stream(request)
    return _set_shard_metrics(call, stream, {*stream.settings.shard_metrics, *_named_metrics(request)})


def DisableEnhancedMonitoring(call: ServiceCall, request: Document) -> Document:
    """Take metrics from those that a stream publishes by shard."""
    stream = call.active_stream(request)
    return _set_shard_metrics(call, stream, {*stream.settings.shard_metrics} - {*_named_metrics(request)})


def _named_metrics(request: Document) -> tuple[str, ...]:
    asked: list[str] = request["ShardLevelMetrics"]
    return SHARD_METRICS if "ALL" in asked else tuple(asked)


def _set_shard_metrics(call: ServiceCall, stream: Stream, desired: set[str]) -> Document:
    call.admit(stream)
    before = stream.settings.shard_metrics
    after = tuple(name for name in SHARD_METRICS if name in desired)
    stream.settings = replace(stream.settings, shard_metrics=after)
    call.service.store.journal.stream_changed(stream)
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": after,
    }


# -- policy -------------------------------------------------------------------------------------------------


def PutResourcePolicy(call: ServiceCall, request: Document) -> Document:
    """Keep the policy of a stream, consumer or queue."""
    _, put = _policy_and_setter(call, request, call.active_stream)
    policy: str = request["Policy"]
    if len(policy.encode()) > _POLICY_BYTES_MAX:
        raise limit_exceeded(f"The policy has more than {_POLICY_BYTES_MAX} bytes.")
    try:
        document = msgspec.json.decode(policy)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_argument(f"The policy is not JSON: {error}") from error
    if not isinstance(document, dict) or "Statement" not in document:
        raise invalid_argument("The policy is not a JSON object with a Statement.")
    put(policy)
    return {}


def GetResourcePolicy(call: ServiceCall, request: Document) -> Document:
    """Return the policy of a stream, consumer or queue; an empty one if none was put."""
    policy, _ = _policy_and_setter(call, request, call.stream)
    return {"Policy": policy or "{}"}


def DeleteResourcePolicy(call: ServiceCall, request: Document) -> Document:
    """Forget the policy of a stream, consumer or queue."""
    policy, put = _policy_and_setter(call, request, call.active_stream)
    if policy is None:
        raise not_found(f"No resource policy found for resource ARN {request['ResourceARN']}.")
    put(None)
    return {}


def _policy_and_setter(
    call: ServiceCall, request: Document, find_stream: Callable[[Document], Stream]
) -> tuple[str | None, Callable[[str | None], None]]:
    """Return the policy of the resource that the request names, and the function that replaces it."""
    arn: str = request["ResourceARN"]
    store = call.service.store
    if ":queue/" in arn:
        queue = call.queue(arn)
        call.admit(store.queues.stream_of(queue))
        return queue.settings.policy, lambda policy: store.queues.put_settings(
            queue, replace(queue.settings, policy=policy)
        )
    if "/consumer/" in arn:
        of_consumer, consumer = call.consumer({"ConsumerARN": arn})
        call.admit(of_consumer)
        return consumer.policy, lambda policy: store.put_consumer(
            of_consumer, replace(consumer, policy=policy), call.now_ms
        )
    stream = find_stream({"StreamARN": arn})
    call.admit(stream)

    def put(policy: str | None) -> None:
        stream.settings = replace(stream.settings, policy=policy)
        store.journal.stream_changed(stream)

    return stream.settings.policy, put


# -- capacity -----------------------------------------------------------------------------------------------


def UpdateStreamMode(call: ServiceCall, request: Document) -> Document:
    """Switch between PROVISIONED and ON_DEMAND."""
    stream = call.active_stream(request)
    call.admit(stream)
    mode = request["StreamModeDetails"]["StreamMode"]
    warm_mibps = request.get("WarmThroughputMiBps")
    if warm_mibps is not None:
        check_warm_throughput(call, mode, warm_mibps)
    if mode != stream.mode:
        recent = call.recent_changes(
            stream.mode_switched_ms,
            quotas.MODE_SWITCHES_PER_DAY_MAX,
            f"Stream {stream.name} has changed its mode",
        )
        if mode == "ON_DEMAND":
            require_on_demand_room(call)
        else:
            require_no_queues(call, stream)
            require_no_channels(call, stream)
        _require_warm_room(call, stream, warm_mibps or 0)
        stream.mode_switched_ms = [*recent, call.now_ms]
        stream.mode = mode
        stream.settings = replace(stream.settings, is_auto=False)
        if warm_mibps is None:
            stream.settings = replace(stream.settings, warm_mibps=None)
            call.service.store.begin_change(stream, "mode", (), "UPDATING", call.now_ms)
    if warm_mibps is not None:
        _warm_up(call, stream, warm_mibps)
    return {}


def require_on_demand_room(call: ServiceCall) -> None:
    """Refuse one more on-demand stream if there are as many as an account may have."""
    present = sum(s.mode == "ON_DEMAND" for s in call.service.store.of_region(call.region, call.now_ms))
    if call.service.quotas.enforced and present >= quotas.ON_DEMAND_STREAMS_MAX:
        raise limit_exceeded(
            f"Account {ACCOUNT} has {present} streams in On-Demand mode in region {call.region}; "
            f"at most {quotas.ON_DEMAND_STREAMS_MAX} are allowed."
        )


def UpdateStreamWarmThroughput(call: ServiceCall, request: Document) -> Document:
    """Begin to scale an on-demand stream for an announced write throughput."""
    stream = call.active_stream(request)
    call.admit(stream)
    check_warm_throughput(call, stream.mode, request["WarmThroughputMiBps"])
    _warm_up(call, stream, request["WarmThroughputMiBps"])
    return {"StreamName": stream.name, "StreamARN": stream.arn, **warm_throughput(stream)}


def check_warm_throughput(call: ServiceCall, mode: str, mibps: int) -> None:
    """Refuse a warm throughput that the service does not grant."""
    if mode != "ON_DEMAND":
        raise validation("Warm throughput is for streams in On-Demand mode only.")
    if not is_committed(call):
        raise validation(
            f"Account {ACCOUNT} has no MinimumThroughputBillingCommitment; enable it with UpdateAccountSettings."
        )
    if mibps > _WARM_MIBPS_MAX:
        raise limit_exceeded(f"Warm throughput of {mibps} MiBps is over the limit of {_WARM_MIBPS_MAX}.")


def _warm_up(call: ServiceCall, stream: Stream, mibps: int) -> None:
    """Begin to scale a stream to one shard for each MiB per second. A stream that has more shards keeps them."""
    _require_warm_room(call, stream, mibps)
    current = len(stream.open_shards)
    target = max(current, mibps)
    before_mibps = _current_mibps(stream)
    stream.settings = replace(stream.settings, warm_mibps=mibps, warm_before_mibps=before_mibps)
    kind, args = ("scale", (target,)) if target > current else ("setting", ())
    call.service.store.begin_change(stream, kind, args, "UPDATING", call.now_ms)


def _require_warm_room(call: ServiceCall, stream: Stream, mibps: int) -> None:
    call.service.store.require_shard_room(max(0, mibps - len(stream.open_shards)), call.region)


def _current_mibps(stream: Stream) -> int:
    settings = stream.settings
    if settings.warm_mibps is None:
        return _ON_DEMAND_WRITE_MIBPS
    return settings.warm_mibps if stream.status == "ACTIVE" else settings.warm_before_mibps


def warm_throughput(stream: Stream) -> Document:
    """Return a stream's warm throughput, as the summary shows it; nothing if none was asked for."""
    if stream.settings.warm_mibps is None:
        return {}
    return {
        "WarmThroughput": {"TargetMiBps": stream.settings.warm_mibps, "CurrentMiBps": _current_mibps(stream)}
    }


def UpdateStreamRecordDistributionStrategy(call: ServiceCall, request: Document) -> Document:
    """Set how a stream's records are distributed over its shards, from now on."""
    stream = call.active_stream(request)
    call.admit(stream)
    is_auto = is_distributed_in_turn(stream.mode, request["RecordDistributionStrategy"])
    stream.settings = replace(stream.settings, is_auto=is_auto)
    call.service.store.journal.stream_changed(stream)
    return {}


def is_distributed_in_turn(mode: str, strategy: str | None) -> bool:
    """Return whether a strategy is AUTO; refuse that for a stream that is not in on-demand mode."""
    if strategy != "AUTO":
        return False
    if mode != "ON_DEMAND":
        raise invalid_argument("RecordDistributionStrategy AUTO is for streams in On-Demand mode only.")
    return True


def distribution(stream: Stream) -> Document:
    """Return how records are distributed, as the summary of an on-demand stream shows it."""
    if stream.mode != "ON_DEMAND":
        return {}
    return {"RecordDistributionStrategy": "AUTO" if stream.settings.is_auto else "USER_PARTITION_KEY"}


def UpdateMaxRecordSize(call: ServiceCall, request: Document) -> Document:
    """Set how large a record may be."""
    stream = call.active_stream(request)
    call.admit(stream)
    stream.record_kib_max = request["MaxRecordSizeInKiB"]
    call.service.store.journal.stream_changed(stream)
    return {}
