"""Control operations on channels: create, describe, list, update, delete. Nothing is delivered to a destination."""

from __future__ import annotations

from dataclasses import replace

from penstock_local.channels import ACTIVE, CREATING, DELETING, UPDATING, Channel, channel_id
from penstock_local.documents import Timestamp
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.operations.on_demand import require_on_demand, single_entry
from penstock_local.operations.tags import check_tags
from penstock_local.service_errors import in_use, invalid_argument, limit_exceeded, validation
from penstock_local.store import ACCOUNT, not_active
from penstock_local.stream import Stream

_FRESHNESS_S = 300
_ERROR_PREFIX = "errors/"
_FORMATS = {"S3": ("JSON", "STRING", "BYTE_ARRAY"), "S3_TABLES": ("GSR_JSON", "JSON")}
_DESTINATIONS = {"S3": "S3DestinationConfiguration", "S3_TABLES": "S3TablesDestinationConfiguration"}


def CreateChannel(call: ServiceCall, request: Document) -> Document:
    """Begin to create a channel from an on-demand stream to S3 or a streaming table."""
    name = request["ChannelName"]
    configuration = single_entry(request["StreamConfigurationList"], "StreamConfigurationList")
    record = configuration["RecordConfiguration"]
    kind, destination = _destination(request)
    destination = _complete_destination(kind, destination, record)
    encryption = request.get("EncryptionConfiguration")
    if encryption is not None and encryption["KeyId"].endswith("alias/aws/kinesis"):
        raise invalid_argument("KeyId of EncryptionConfiguration must be a customer managed key.")
    check_tags(request.get("Tags", {}))
    stream = call.stream(configuration)
    call.admit(stream)
    require_on_demand(stream, "channels")
    store = call.service.store
    if any(each.name == name for each in store.channels.of_region(call.region, call.now_ms)):
        raise in_use(f"Channel {name} under account {ACCOUNT} already exists.")
    of_stream = store.channels.of_stream(stream.uid, call.now_ms)
    if call.service.quotas.enforced and any(each.destination_type == kind for each in of_stream):
        raise limit_exceeded(f"Stream {stream.name} under account {ACCOUNT} has a channel to {kind} already.")
    uid = store.next_uid(call.now_ms)
    identifier = channel_id(stream.arn, name, uid)
    channel = Channel(
        name=name,
        uid=uid,
        id=identifier,
        arn=stream.arn.partition(":stream/")[0] + f":channel/{identifier}",
        region=stream.region,
        stream_uid=stream.uid,
        created_ms=call.now_ms,
        role_arn=request["ServiceExecutionRoleARN"],
        record=record,
        destination_type=kind,
        destination=destination,
        encryption=encryption,
        logging=_logging(request.get("LoggingConfiguration"), name, identifier),
        status=CREATING,
        due_ms=call.now_ms,
        tags=dict(request.get("Tags", {})),
    )
    return {"ChannelDescription": _description(call, store.channels.put(channel, call.now_ms, CREATING))}


def _destination(request: Document) -> tuple[str, Document]:
    given = {kind: request[name] for kind, name in _DESTINATIONS.items() if name in request}
    if len(given) != 1:
        raise validation(f"Either {' or '.join(_DESTINATIONS.values())} must be given, and not both.")
    return next(iter(given.items()))


def _complete_destination(kind: str, asked: Document, record: Document) -> Document:
    """Return a destination with its defaults."""
    record_format = record["RecordFormatType"]
    if record_format not in _FORMATS[kind]:
        raise invalid_argument(
            f"RecordFormatType {record_format} is not for a destination of type {kind}, which takes "
            f"{', '.join(_FORMATS[kind])}."
        )
    found = {"DataFreshnessInSeconds": _FRESHNESS_S, **asked}
    _check_freshness(found)
    if kind == "S3_TABLES":
        single_entry(asked["S3TablesConfigurationList"], "S3TablesConfigurationList")
        if "GSRSchemaARN" not in record:
            raise validation("GSRSchemaARN must be given for a streaming table.")
    else:
        storage = asked["StorageConfiguration"]
        found.setdefault(
            "DeadLetterQueueS3Configuration",
            {
                "BucketARN": storage["BucketARN"],
                "ExpectedBucketOwner": storage["ExpectedBucketOwner"],
                "ErrorOutputPrefix": _ERROR_PREFIX,
            },
        )
    return found


def _check_freshness(destination: Document) -> None:
    if destination["DataFreshnessInSeconds"] < 1:
        raise invalid_argument("DataFreshnessInSeconds must be at least 1.")


def _logging(asked: Document | None, name: str, identifier: str) -> Document:
    """Return a logging configuration with the default names of group and stream."""
    logs = {"Enabled": False} if asked is None else asked["CloudWatchLogs"]
    if logs["Enabled"]:
        defaults = {
            "LogGroupName": f"/aws/kinesis/{name}/{identifier}",
            "LogStreamName": "DestinationDelivery",
        }
        logs = {**defaults, **logs}
    return {"CloudWatchLogs": logs}


def _stream_of(call: ServiceCall, channel: Channel) -> Stream:
    return call.service.store.by_uid[channel.stream_uid]


def _admitted_channel(call: ServiceCall, request: Document) -> Channel:
    channel, stream = call.channel(request["ChannelARN"])
    call.admit(stream)
    return channel


def DescribeChannel(call: ServiceCall, request: Document) -> Document:
    """Describe a channel."""
    return {"ChannelDescription": _description(call, _admitted_channel(call, request))}


def ListChannels(call: ServiceCall, request: Document) -> Document:
    """List the region's channels by name, or those of streams, a page at a time."""
    call.admit()
    found = call.service.store.channels.of_region(call.region, call.now_ms)
    page, rest = call.list_page(request, found)
    return {"ChannelSummaries": [_summary(call, channel) for channel in page], **rest}


def UpdateChannel(call: ServiceCall, request: Document) -> Document:
    """Begin to change a channel's data freshness or logging."""
    channel = _admitted_channel(call, request)
    given = [kind for kind, name in _DESTINATIONS.items() if name in request]
    if not given and "LoggingConfiguration" not in request:
        raise validation(
            "Nothing to update: give a destination's DataFreshnessInSeconds or LoggingConfiguration."
        )
    if given not in ([], [channel.destination_type]):
        raise invalid_argument(
            f"Channel {channel.name} delivers to {channel.destination_type}, not to {' and '.join(given)}."
        )
    if channel.status != ACTIVE:
        raise in_use(not_active(f"Channel {channel.name}", channel.status))
    if given:
        change = request[_DESTINATIONS[channel.destination_type]]
        _check_freshness(change)
        channel = replace(channel, destination={**channel.destination, **change})
    if "LoggingConfiguration" in request:
        channel = replace(
            channel, logging=_logging(request["LoggingConfiguration"], channel.name, channel.id)
        )
    updated = call.service.store.channels.put(channel, call.now_ms, UPDATING)
    return {"ChannelDescription": _description(call, updated)}


def DeleteChannel(call: ServiceCall, request: Document) -> Document:
    """Begin to delete a channel, whatever its state."""
    channel = _admitted_channel(call, request)
    if channel.status != DELETING:
        call.service.store.channels.put(channel, call.now_ms, DELETING)
    return {}


def _description(call: ServiceCall, channel: Channel) -> Document:
    stream = _stream_of(call, channel)
    found: Document = {
        "ChannelName": channel.name,
        "ChannelARN": channel.arn,
        "ChannelId": channel.id,
        "ChannelStatus": channel.status,
        "ChannelCreationTimestamp": Timestamp(channel.created_ms),
        "ServiceExecutionRoleARN": channel.role_arn,
        "StreamConfigurationList": [
            {
                "StreamARN": stream.arn,
                "StreamCreationTimestamp": Timestamp(stream.created_ms),
                "RecordConfiguration": channel.record,
            }
        ],
        _DESTINATIONS[channel.destination_type]: channel.destination,
        "LoggingConfiguration": channel.logging,
    }
    if channel.encryption is not None:
        found["EncryptionConfiguration"] = channel.encryption
    return found


def _summary(call: ServiceCall, channel: Channel) -> Document:
    stream = _stream_of(call, channel)
    return {
        "ChannelName": channel.name,
        "ChannelARN": channel.arn,
        "ChannelId": channel.id,
        "ChannelStatus": channel.status,
        "ChannelCreationTimestamp": Timestamp(channel.created_ms),
        "ChannelDestinationType": channel.destination_type,
        "Streams": [{"StreamARN": stream.arn, "StreamCreationTimestamp": Timestamp(stream.created_ms)}],
    }
