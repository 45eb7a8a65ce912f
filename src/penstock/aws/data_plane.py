"""The fast data plane: botocore signs and sends, msgspec reads and writes the bodies.

botocore's own parser makes a dictionary, a `datetime` and a base64 text for every record. Here the bytes of the body
become flat structs at once, and base64 is decoded on the way. botocore also looks up each attribute of a DynamoDB row in its model:
a tenth of a millisecond, most of the cost of a scan. All other operations, and errors, are left to botocore.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec
from botocore.parsers import ResponseParserError
from msgspec import Struct

from penstock.core.hash_key import HashRange
from penstock.core.put_entry import EntryAnswer
from penstock.core.shard import ChildShard
from penstock.errors import RecordError
from penstock.ports.kinesis import PutEntry

_SHOWN_BYTES: Final = 80
_COMPONENT: Final = "response_parser_factory"


class WireRecord(msgspec.Struct, gc=False):
    """One record of the answer; implements `penstock.ports.kinesis.RawRecord`."""

    sequence_number: str = msgspec.field(name="SequenceNumber")
    data: bytes = msgspec.field(name="Data")
    partition_key: str | None = msgspec.field(name="PartitionKey", default=None)
    arrival_s: float = msgspec.field(name="ApproximateArrivalTimestamp", default=0.0)


class WireHashRange(msgspec.Struct):
    """The hash keys of a child shard."""

    start: str = msgspec.field(name="StartingHashKey")
    end: str = msgspec.field(name="EndingHashKey")


class WireChild(msgspec.Struct):
    """A child shard in the last answer of its parent."""

    shard_id: str = msgspec.field(name="ShardId")
    parents: list[str] = msgspec.field(name="ParentShards")
    hash_range: WireHashRange = msgspec.field(name="HashKeyRange")


class WirePage(msgspec.Struct):
    """The answer of GetRecords."""

    records: list[WireRecord] = msgspec.field(name="Records")
    next_iterator: str | None = msgspec.field(name="NextShardIterator", default=None)
    millis_behind_latest: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: list[WireChild] | None = msgspec.field(name="ChildShards", default=None)


class WireAnswers(msgspec.Struct):
    """The answer of PutRecords."""

    records: list[EntryAnswer] = msgspec.field(name="Records")


# Each raises `MsgspecError` if the body is not a whole answer.
decode_page: Final = msgspec.json.Decoder(WirePage).decode
decode_answers: Final = msgspec.json.Decoder(WireAnswers).decode


def child_shards(children: list[WireChild] | None) -> tuple[ChildShard, ...]:
    """Return the children that the last answer of a shard names."""
    return tuple(
        ChildShard(
            child.shard_id,
            tuple(child.parents),
            HashRange(int(child.hash_range.start), int(child.hash_range.end)),
        )
        for child in children or ()
    )


def _check_checksum(headers: dict[str, Any], body: bytes) -> None:
    """Raise an error if the body of DynamoDB's answer does not match its checksum.

    Plain boto3 makes the same check, and repeats the request.

    Raises:
        ResponseParserError: The body was changed or cut on the way.
    """
    expected = headers.get("x-amz-crc32")
    if expected is not None and "content-encoding" not in headers and crc32(body) != int(expected):
        raise ResponseParserError(
            f"the answer ({len(body)} bytes) has the checksum {crc32(body)}, and was sent with {expected}"
        )


def _check_is_of_service(headers: dict[str, Any], body: bytes) -> None:
    """Refuse an answer of success that is not the service's, such as the page of a network that wants a login first.

    Raises:
        ResponseParserError: It is not a JSON object. The message quotes only a web page, since another body may hold data of records.
    """
    if not body or body.lstrip()[:1] == b"{":
        return
    kind = headers.get("content-encoding") or headers.get("content-type") or "no content type"
    begin = f", it begins with {body[:_SHOWN_BYTES]!r}" if body.lstrip()[:1] == b"<" else ""
    raise ResponseParserError(
        f"the answer ({len(body)} bytes, {kind}) is not the service's{begin}: check the endpoint, and what answers in between "
        "(a proxy, the login of a network)"
    )


def _check_complete(response: dict[str, Any], headers: dict[str, Any], shape: Any) -> None:
    """Refuse an answer that was cut off or is not a JSON document. Only an operation without output may have an empty answer.

    If the status is success, botocore reads a body that was cut off as an empty document: an existing lease would look
    missing, and an open shard would look ended.

    Raises:
        ResponseParserError, MsgspecError: It is not whole.
    """
    body = response["body"]
    length = headers.get("content-length")
    if length is not None and "content-encoding" not in headers and int(length) != len(body):
        raise ResponseParserError(f"the answer was cut off: {len(body)} of {length} bytes arrived")
    has_output = shape is not None and shape.members
    if body or has_output:
        msgspec.json.decode(body, type=msgspec.Raw)


def read_document(body: bytes) -> dict[str, Any]:
    """Return the document of an answer as botocore's parser would, with bytes for Base64.

    Raises:
        MsgspecError: The body is not JSON.
        ValueError: Bytes are not Base64.
        TypeError, AttributeError, KeyError: The document has another form.
    """
    document = {name: value for name, value in msgspec.json.decode(body).items() if value is not None}
    for name in ("Item", "Attributes", "LastEvaluatedKey"):
        _read_values(document.get(name, {}).values())
    for row in document.get("Items", ()):
        _read_values(row.values())
    for rows in document.get("Responses", {}).values():
        for row in rows:
            _read_values(row.values())
    for unprocessed in document.get("UnprocessedKeys", {}).values():
        for key in unprocessed["Keys"]:
            _read_values(key.values())
    return document


def _read_values(values: Iterable[dict[str, Any]]) -> None:
    """Decode the bytes in attribute values, in place."""
    for value in values:
        for kind, content in value.items():
            if kind == "B":
                value[kind] = b64decode(content)
            elif kind == "M":
                _read_values(content.values())
            elif kind == "L":
                _read_values(content)
            elif kind == "BS":
                value[kind] = [b64decode(each) for each in content]


_READ_HERE: Final[dict[str, Callable[[bytes], dict[str, Any]]]] = {
    "GetRecordsOutput": lambda body: {"Page": decode_page(body)},
    "PutRecordsOutput": lambda body: {"Answers": decode_answers(body)},
    **dict.fromkeys(
        (
            "GetShardIteratorOutput",
            "ReceiveQueueRecordsOutput",
            "AcknowledgeQueueRecordsOutput",
            "UpdateQueueRecordsVisibilityOutput",
            "PutItemOutput",
            "UpdateItemOutput",
            "GetItemOutput",
            "BatchGetItemOutput",
            "ScanOutput",
            "QueryOutput",
        ),
        read_document,
    ),
}
"""The output shapes of the answers that are not left to botocore's parser, and the functions that read them."""


class DataPlaneParser:
    """Reads the answers of the data plane. Checks that any other answer is whole and leaves it to botocore's parser."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        """Behave as botocore's parser in everything else."""
        return getattr(self._parser, name)

    def parse(self, response: dict[str, Any], shape: Any) -> dict[str, Any]:
        """Return an answer as botocore's parser does. The answer of GetRecords or PutRecords is one struct, under one key.

        Raises:
            ResponseParserError: The answer cannot be read.
        """
        try:
            return self._read(response, shape)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            msgspec.MsgspecError,
        ) as error:
            raise ResponseParserError(
                f"the answer (status {response['status_code']}, {len(response['body'])} bytes) cannot be read: {error!r:.200}"
            ) from error

    def _read(self, response: dict[str, Any], shape: Any) -> dict[str, Any]:
        status, body = response["status_code"], response["body"]
        headers = {str(key).lower(): value for key, value in response["headers"].items()}
        _check_checksum(headers, body)
        if status < 300:
            _check_is_of_service(headers, body)
        is_success = status <= 300  # as botocore counts it; a proxy that changes headers may answer 203
        read = _READ_HERE.get(shape.name) if is_success and shape is not None else None
        if read is None:  # an error, or an operation that is left to botocore
            if status < 300:
                _check_complete(response, headers, shape)
            parsed: dict[str, Any] = self._parser.parse(response, shape)
            return parsed
        metadata = {
            "HTTPStatusCode": status,
            "HTTPHeaders": headers,
            "RequestId": headers.get("x-amzn-requestid", ""),
        }
        return {**read(body), "ResponseMetadata": metadata}


class _ParserFactory:
    """Wraps the JSON parsers that botocore's factory makes."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory

    def __getattr__(self, name: str) -> Any:
        """Behave as botocore's factory in everything else."""
        return getattr(self._factory, name)

    def create_parser(self, protocol_name: str) -> Any:
        """Return a parser for a protocol."""
        parser = self._factory.create_parser(protocol_name)
        return DataPlaneParser(parser) if protocol_name == "json" else parser


def install_parser(session: Any) -> None:
    """Install `DataPlaneParser` in a botocore session, also for the operations of clients that make their own calls."""
    session.register_component(_COMPONENT, _ParserFactory(session.get_component(_COMPONENT)))


def keep_milliseconds(client: Any) -> None:
    """Make a client send starting timestamps with milliseconds; botocore sends whole seconds."""
    for operation in ("GetShardIterator", "ListShards", "SubscribeToShard", "CreateQueue"):
        client.meta.events.register(f"before-parameter-build.kinesis.{operation}", _keep_timestamp)
        client.meta.events.register(f"before-call.kinesis.{operation}", _restore_timestamp)


def _keep_timestamp(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    moment = next(
        (found["Timestamp"] for found in _timestamp_holders(params) if found.get("Timestamp")), None
    )
    if moment is not None:
        context["penstock_timestamp_s"] = moment.timestamp()


def _timestamp_holders(document: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the parts of a request that may hold a timestamp."""
    queue_streams: Any = document.get("StreamConfigurationList") or ({},)
    return (
        document,
        document.get("ShardFilter", {}),
        document.get("StartingPosition", {}),
        queue_streams[0].get("StartingPosition", {}),
    )


def _restore_timestamp(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    moment_s = context.get("penstock_timestamp_s")
    if moment_s is None:
        return
    document = msgspec.json.decode(params["body"])
    holder = next(found for found in _timestamp_holders(document) if "Timestamp" in found)
    holder["Timestamp"] = moment_s
    params["body"] = msgspec.json.encode(document)


# --- subscribing --------------------------------------------------------------------------------------------------


class InterceptedRequest(Exception):  # noqa: N818 - no error: a request as it would have been sent
    """A request that botocore has made and signed, but does not send.

    Attributes:
        request: With its method, URL, headers and body.
    """

    def __init__(self, request: Any) -> None:
        super().__init__("the request is sent over HTTP/2 instead")
        self.request = request


def intercept_subscriptions(client: Any) -> None:
    """Make a client raise `InterceptedRequest` with each SubscribeToShard request instead of sending it: botocore has no HTTP/2."""
    client.meta.events.register_last("before-send.kinesis.SubscribeToShard", _intercept)


def _intercept(request: Any, **_: Any) -> None:
    raise InterceptedRequest(request)


# --- writing ------------------------------------------------------------------------------------------------------


class _WireEntry(msgspec.Struct, gc=False, omit_defaults=True):
    """One entry of PutRecords."""

    data: bytes | bytearray | memoryview = msgspec.field(name="Data")
    partition_key: str = msgspec.field(name="PartitionKey")
    explicit_hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)


_encode: Final = msgspec.json.Encoder().encode


class EncodedRecords(Struct, frozen=True):
    """The `Records` of a PutRecords call, encoded as JSON."""

    body: bytes


_PLACEHOLDER: Final = {
    "Data": b"",
    "PartitionKey": "-",
    "ExplicitHashKey": "placeholder of the encoded records",
}
"""The record that botocore serializes in place of the encoded ones. The service would refuse it."""


def encode_entries(entries: Sequence[PutEntry]) -> EncodedRecords:
    """Encode the entries of PutRecords.

    Raises:
        RecordError: The data of an entry is not bytes; nothing was sent.
    """
    for place, entry in enumerate(entries):
        data = entry.data
        # msgspec would send text as it is, and the service would take it for base64.
        if type(data) is not bytes and not isinstance(data, bytes | bytearray | memoryview):
            raise RecordError(
                f"entry {place} (partition key {entry.partition_key[:60]!r}): data is {type(data).__name__}, "
                "not bytes"
            )
    return EncodedRecords(
        _encode([_WireEntry(entry.data, entry.partition_key, entry.explicit_hash_key) for entry in entries])
    )


def send_encoded(client: Any) -> None:
    """Make a client also accept `EncodedRecords` as the `Records` of PutRecords."""
    client.meta.events.register("before-parameter-build.kinesis.PutRecords", _set_records_aside)
    client.meta.events.register("before-call.kinesis.PutRecords", _place_records)


def _set_records_aside(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if isinstance(params.get("Records"), EncodedRecords):
        context["penstock_records"] = params["Records"]
        params["Records"] = [_PLACEHOLDER]


def _place_records(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Put the encoded records that were set aside into the body that botocore has made with a placeholder."""
    records = context.get("penstock_records")
    if records is not None:
        document = msgspec.json.decode(params["body"])
        document["Records"] = msgspec.Raw(records.body)
        params["body"] = msgspec.json.encode(document)
