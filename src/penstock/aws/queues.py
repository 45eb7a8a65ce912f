"""The queues port over boto3."""

from __future__ import annotations

import dataclasses
from binascii import a2b_base64
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import botocore
from botocore import xform_name

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.service_calls import TRANSIENT, call, pages_of
from penstock.core.queueing.queue_events import EntryOutcome
from penstock.core.queueing.queue_limits import VISIBILITY_S_DEFAULT, WAIT_S_MAX
from penstock.core.service_codes import kind_of
from penstock.errors import NotFound, Rejected, Throttled, UsageError
from penstock.ports.queues import (
    DeadLetterRule,
    EntryResult,
    QueueDescription,
    QueueStart,
    QueueSummary,
    ReceivedRecord,
)

_SDK_WITH_QUEUES: Final = "1.44.8"
"""The oldest boto3 and botocore that are known to have the operations."""
_POLL_SLACK_S: Final = 10.0
_ANSWER_WITHIN_S: Final = 5.0
"""A renewal that waits longer for its answer would be too late for a visibility of 30 s; it is sent again instead."""


class AwsQueues:
    """Implements `penstock.ports.queues.Queues`; safe to use from several threads."""

    def __init__(self, options: AwsOptions) -> None:
        # A receive may wait for 20 s for records, so it needs a longer timeout than the other calls.
        self._poll_options = dataclasses.replace(
            options, read_timeout_s=max(options.read_timeout_s, WAIT_S_MAX + _POLL_SLACK_S)
        )
        self._options = dataclasses.replace(
            options,
            connect_timeout_s=min(options.connect_timeout_s, _ANSWER_WITHIN_S),
            read_timeout_s=min(options.read_timeout_s, _ANSWER_WITHIN_S),
        )
        self._control_options = options

    def __repr__(self) -> str:
        """Show the endpoint, never the credentials."""
        return f"AwsQueues({self._control_options!r})"

    # --- records ---

    def receive(
        self,
        queue_arn: str,
        limit: int,
        wait_s: int,
        visibility_s: int | None = None,
        *,
        is_dead: bool = False,
    ) -> Sequence[ReceivedRecord]:
        arguments: dict[str, Any] = {"QueueARN": queue_arn, "Limit": limit, "WaitTimeSeconds": wait_s}
        if visibility_s is not None:
            arguments["VisibilityTimeoutSeconds"] = visibility_s
        answer = _call_on_records(f"Receive{_kind(is_dead)}QueueRecords", arguments, self._poll_options)
        return [_record_of(each) for each in answer["QueueRecords"]]

    def acknowledge(
        self, queue_arn: str, handles: Sequence[str], *, is_dead: bool = False
    ) -> Sequence[EntryResult]:
        entries = [{"ReceiptHandle": handle} for handle in handles]
        return self._call_on_entries(f"Acknowledge{_kind(is_dead)}QueueRecords", queue_arn, entries)

    def set_visibility(
        self, queue_arn: str, handles: Sequence[str], seconds: Sequence[int], *, is_dead: bool = False
    ) -> Sequence[EntryResult]:
        entries = [
            {"ReceiptHandle": handle, "VisibilityTimeoutSeconds": each}
            for handle, each in zip(handles, seconds, strict=True)
        ]
        return self._call_on_entries(f"Update{_kind(is_dead)}QueueRecordsVisibility", queue_arn, entries)

    def restore(self, queue_arn: str, handles: Sequence[str]) -> Sequence[EntryResult]:
        entries = [{"ReceiptHandle": handle} for handle in handles]
        return self._call_on_entries("RestoreDeadLetterQueueRecords", queue_arn, entries)

    def _call_on_entries(
        self, operation: str, queue_arn: str, entries: list[dict[str, Any]]
    ) -> list[EntryResult]:
        """Make a call for several receipt handles; return one result for each, in order."""
        arguments = {"QueueARN": queue_arn, "Entries": entries}
        answer = _call_on_records(operation, arguments, self._options)
        results = {each["ReceiptHandle"]: _APPLIED_RESULT for each in answer.get("Successful") or ()}
        for each in answer.get("Failed") or ():
            results[each["ReceiptHandle"]] = _failed_entry(each["ErrorCode"], each.get("ErrorMessage") or "")
        return [results.get(entry["ReceiptHandle"], _UNKNOWN_RESULT) for entry in entries]

    # --- queues ---

    def create_queue(
        self,
        name: str,
        stream_arn: str,
        start: QueueStart,
        *,
        visibility_s: int | None = None,
        dead_letters: DeadLetterRule | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> QueueDescription:
        position: dict[str, Any] = {"Type": start.type}
        if start.timestamp_ms is not None:
            position["Timestamp"] = datetime.fromtimestamp(start.timestamp_ms / 1000, UTC)
        arguments: dict[str, Any] = {
            "QueueName": name,
            "StreamConfigurationList": [{"StreamARN": stream_arn, "StartingPosition": position}],
        }
        attributes = _attributes(visibility_s, dead_letters)
        if attributes:
            arguments["QueueAttributes"] = attributes
        if tags:
            arguments["Tags"] = dict(tags)
        answer = self._call_control_plane("CreateQueue", f"queue {name}", arguments, is_write=True)
        return _description_of(answer["QueueDescription"])

    def describe_queue(self, queue_arn: str) -> QueueDescription:
        answer = self._call_control_plane("DescribeQueue", f"queue {queue_arn}", {"QueueARN": queue_arn})
        return _description_of(answer["QueueDescription"])

    def list_queues(self, stream_arn: str | None = None) -> Collection[QueueSummary]:
        arguments: dict[str, Any] = {}
        if stream_arn is not None:
            arguments["StreamFilter"] = [{"StreamARN": stream_arn}]

        def fetch_page(**page_arguments: Any) -> Any:
            return self._call_control_plane("ListQueues", "", page_arguments)

        pages = pages_of(fetch_page, **arguments)
        return [
            QueueSummary(
                each["QueueName"],
                each["QueueARN"],
                each["QueueStatus"],
                round(each["QueueCreationTimestamp"].timestamp() * 1000),
                each["Streams"][0]["StreamARN"],
            )
            for page in pages
            for each in page["QueueSummaries"]
        ]

    def update_queue(
        self, queue_arn: str, *, visibility_s: int | None = None, dead_letters: DeadLetterRule | None = None
    ) -> QueueDescription:
        arguments = {"QueueARN": queue_arn, "QueueAttributes": _attributes(visibility_s, dead_letters)}
        answer = self._call_control_plane("UpdateQueue", f"queue {queue_arn}", arguments, is_write=True)
        return _description_of(answer["QueueDescription"])

    def delete_queue(self, queue_arn: str) -> None:
        self._call_control_plane("DeleteQueue", f"queue {queue_arn}", {"QueueARN": queue_arn}, is_write=True)

    def _call_control_plane(
        self, operation: str, resource: str, arguments: Mapping[str, Any], *, is_write: bool = False
    ) -> Any:
        retried = (Throttled,) if is_write else TRANSIENT
        return _call(
            operation, arguments, resource, self._control_options, is_write=is_write, retried=retried
        )


_APPLIED_RESULT: Final = EntryResult(EntryOutcome.APPLIED)
_UNKNOWN_RESULT: Final = EntryResult(EntryOutcome.UNKNOWN, "", "the answer names the handle nowhere")


def _kind(is_dead: bool) -> str:
    """Return the part of an operation's name that distinguishes dead letters."""
    return "DeadLetter" if is_dead else ""


def _call_on_records(operation: str, arguments: Mapping[str, Any], options: AwsOptions) -> Any:
    """Make a call once, without retries."""
    return _call(operation, arguments, f"queue {arguments['QueueARN']}", options, is_write=True, retried=())


def _call(
    operation: str, arguments: Mapping[str, Any], resource: str, options: AwsOptions, **call_options: Any
) -> Any:
    def send() -> Any:
        return getattr(_client_of(options), xform_name(operation))(**arguments)

    return call(send, operation, resource, options, **call_options)


def _client_of(options: AwsOptions) -> Any:
    """Return the client.

    Raises:
        UsageError: The installed botocore has no operations of queues.
    """
    client = client_for("kinesis", options)
    if not hasattr(client, "receive_queue_records"):
        raise UsageError(
            f"botocore {botocore.__version__} does not know the queues of Kinesis: pip install "
            f"'boto3>={_SDK_WITH_QUEUES}' 'botocore>={_SDK_WITH_QUEUES}'"
        )
    return client


def _failed_entry(code: str, message: str) -> EntryResult:
    is_void = kind_of(code) in (NotFound, Rejected)
    return EntryResult(EntryOutcome.VOID if is_void else EntryOutcome.REFUSED, code, message)


def _record_of(record: Mapping[str, Any]) -> ReceivedRecord:
    data = record["Data"]  # as boto3 parses the answer, or as it is in the JSON of the fast data plane
    return ReceivedRecord(
        record["ReceiptHandle"],
        record["RecordId"],
        record.get("PartitionKey"),
        data if isinstance(data, bytes) else a2b_base64(data),
        _seconds(record["ApproximateArrivalTimestamp"]),
        _seconds(record["FirstReceiveTimestamp"]),
        record["ReceiveCount"],
    )


def _seconds(moment: datetime | float) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else float(moment)


def _attributes(visibility_s: int | None, dead_letters: DeadLetterRule | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if visibility_s is not None:
        attributes["VisibilityTimeoutSeconds"] = visibility_s
    if dead_letters is not None:
        count_max = dead_letters.receive_count_max
        attributes["DeadLetterConfiguration"] = (
            {"TargetType": "NONE"}
            if count_max is None
            else {"TargetType": "BUILT_IN", "MaxReceiveCount": count_max}
        )
    return attributes


def _description_of(description: Mapping[str, Any]) -> QueueDescription:
    (stream,) = description["StreamConfigurationList"]
    position = stream.get("StartingPosition", {"Type": "LATEST"})
    moment = position.get("Timestamp")
    attributes = description.get("QueueAttributes", {})
    dead_letters = attributes.get("DeadLetterConfiguration", {})
    is_on = dead_letters.get("TargetType", "NONE") == "BUILT_IN"
    return QueueDescription(
        name=description["QueueName"],
        arn=description["QueueARN"],
        status=description["QueueStatus"],
        created_ms=round(description["QueueCreationTimestamp"].timestamp() * 1000),
        stream_arn=stream["StreamARN"],
        start=QueueStart(position["Type"], None if moment is None else round(moment.timestamp() * 1000)),
        visibility_s=attributes.get("VisibilityTimeoutSeconds", VISIBILITY_S_DEFAULT),
        dead_letters=DeadLetterRule(dead_letters.get("MaxReceiveCount") if is_on else None),
    )
