"""A client of the data plane: the calls that a worker repeats all day, at a tenth of the CPU time that boto3 takes for each.

boto3 makes the first call of an operation. Its request shows the address, the headers and the signature's scope. Later calls reuse
them with a body, a signature (`request_signing`) and a connection (`pooled_exchange`) of Penstock's. Every other method is boto3's.

boto3 also makes each call that this module does not cover: through a proxy, with another kind of signature, with a stream or table
named by its ARN, or while tracing wraps botocore's functions. Handlers of `before-send` (moto) and `after-call` get every call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import msgspec
from botocore.awsrequest import AWSPreparedRequest, AWSResponse, HeadersDict
from botocore.client import BaseClient
from botocore.endpoint import Endpoint
from botocore.exceptions import ClientError
from botocore.handlers import add_recursion_detection_header
from botocore.httpsession import URLLib3Session
from botocore.parsers import create_parser
from msgspec import Struct

from penstock.aws.data_plane import DataPlaneParser, EncodedRecords
from penstock.aws.pooled_exchange import Answer, PooledExchange
from penstock.aws.request_signing import Signing, header_text, host_of, signing_from

_log: Final = logging.getLogger("penstock.aws")
OPERATIONS: Final = {
    "kinesis": {
        "get_records": "GetRecords",
        "get_shard_iterator": "GetShardIterator",
        "put_records": "PutRecords",
        "receive_queue_records": "ReceiveQueueRecords",
        "acknowledge_queue_records": "AcknowledgeQueueRecords",
        "update_queue_records_visibility": "UpdateQueueRecordsVisibility",
    },
    "dynamodb": {
        "put_item": "PutItem",
        "update_item": "UpdateItem",
        "get_item": "GetItem",
        "batch_get_item": "BatchGetItem",
        "scan": "Scan",
    },
}
"""For each service: the methods of a client and the names of their operations."""
_HEADERS_OF_ONE_CALL: Final = frozenset(
    {
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "authorization",
        "content-length",
        "x-amz-date",
        "x-amz-security-token",
        "x-amzn-trace-id",
    }
)
_REFUSED_SIGNATURES: Final = frozenset(
    {
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    }
)
_WRAPPED_BY_TRACING: Final = (
    (BaseClient, "__init__"),
    (BaseClient, "_make_api_call"),
    (Endpoint, "make_request"),
    (Endpoint, "prepare_request"),
    (URLLib3Session, "send"),
)
"""The functions that OpenTelemetry, X-Ray, Sentry and others wrap to see each call."""
_ADDRESSES_MAX: Final = 8
_QUEUES_MAX: Final = 64
_LAMBDA: Final = "AWS_LAMBDA_FUNCTION_NAME"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def _plain_str(value: object) -> str:
    """Return a subclass of `str`, which msgspec does not encode, as plain text."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


_encode: Final = msgspec.json.Encoder(enc_hook=_plain_str).encode


class DataPlaneClient:
    """A client of Kinesis or DynamoDB; safe to use from several threads.

    Args:
        client: boto3's.
        credentials: The credentials of the client's session; None if it has none.
        open_exchange: Returns the exchange for an address; None if the address is behind a proxy.
    """

    def __init__(
        self, client: Any, credentials: Any, open_exchange: Callable[[str], PooledExchange | None]
    ) -> None:
        self._client = client
        open_exchange = lru_cache(maxsize=_ADDRESSES_MAX)(open_exchange)
        for method, operation in OPERATIONS[client.meta.service_model.service_name].items():
            if hasattr(client, method):  # an older botocore has no queues
                setattr(self, method, _Operation(client, method, operation, credentials, open_exchange))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of boto3's client."""
        return getattr(self._client, name)


class _RequestPattern(Struct, frozen=True):
    """The common part of an operation's requests, as boto3's request shows it."""

    url: str
    host: str
    headers: Mapping[str, str]
    context: dict[str, Any]
    signing: Signing
    exchange: PooledExchange

    def head(self, headers: Mapping[str, Any]) -> bytes:
        """Return the head of a request as it is sent."""
        lines = "".join(f"{name}: {header_text(value)}\r\n" for name, value in headers.items())
        start = f"POST / HTTP/1.1\r\nHost: {self.host}\r\nAccept-Encoding: identity\r\n"
        return f"{start}{lines}\r\n".encode("latin-1")


class _Operation:
    """One operation of a client, called as the client's method. Safe to use from several threads."""

    def __init__(
        self,
        client: Any,
        method: str,
        operation: str,
        credentials: Any,
        open_exchange: Callable[[str], PooledExchange | None],
    ) -> None:
        self._name = operation
        self._is_of_queues = "Queue" in operation
        self._events = client.meta.events
        self._event = f"{client.meta.service_model.service_name}.{operation}"
        self._ask_boto3 = getattr(client, method)
        self._credentials = credentials
        self._open_exchange = open_exchange
        self._parser = DataPlaneParser(create_parser("json"))
        self._model = client.meta.service_model.operation_model(operation)
        # The key is the ARN of a call's queue, on which the address may depend; None without a queue.
        self._patterns: dict[str | None, _RequestPattern] = {}
        self._events.register_first(f"before-send.{self._event}", self._on_request)

    def _on_request(self, request: Any, **_: Any) -> None:
        """Take the pattern of later requests from one that boto3 has signed."""
        if self._credentials is None or (None in self._patterns and not self._is_of_queues):
            return
        # Check this first: behind a proxy boto3 makes every call, and it would be useless to parse and hash a body of some MiB.
        exchange = self._open_exchange(request.url)
        if exchange is None:
            return
        arguments = _decode(request.body)
        queue = arguments.get("QueueARN")
        if queue in self._patterns or _names_an_arn(arguments):
            return
        signing = signing_from(request, self._credentials.get_frozen_credentials(), _HEADERS_OF_ONE_CALL)
        if signing is None:
            return
        headers = {
            name: header_text(value)
            for name, value in request.headers.items()
            if name.lower() not in _HEADERS_OF_ONE_CALL
        }
        if len(self._patterns) >= _QUEUES_MAX:
            self._patterns.clear()
        self._patterns[queue] = _RequestPattern(
            request.url,
            host_of(request.url),
            headers,
            dict(getattr(request, "context", {})),
            signing,
            exchange,
        )

    def __call__(self, **arguments: Any) -> Any:
        """Make the call, as the client's method does.

        Raises:
            ClientError, BotoCoreError: As the client's method does.
        """
        queue = arguments.get("QueueARN")
        pattern = self._patterns.get(queue)
        records = arguments.get("Records")
        is_encoded = records is None or isinstance(records, EncodedRecords)
        if pattern is None or not is_encoded or _names_an_arn(arguments) or _is_botocore_wrapped():
            return self._ask_boto3(**arguments)
        keys = self._credentials.get_frozen_credentials()
        if not pattern.signing.can_sign_with(keys):
            self._patterns.pop(queue, None)
            return self._ask_boto3(**arguments)
        body = _body_of(arguments)
        request = _request_of(pattern, body, pattern.signing.headers(body, keys))
        answer = self._send(pattern, request)
        parsed = self._parse(answer)
        code = parsed.get("Error", {}).get("Code") if answer.status >= 300 else None
        if code in _REFUSED_SIGNATURES:
            _log.info("%s: %s: boto3 signs this call", self._name, code)
            self._patterns.pop(queue, None)
            return self._ask_boto3(**arguments)
        headers: Any = answer.headers
        raw: Any = SimpleNamespace(stream=lambda: iter([answer.body]))  # as `AWSResponse` reads it
        self._events.emit(
            f"after-call.{self._event}",
            http_response=AWSResponse(pattern.url, answer.status, headers, raw),
            parsed=parsed,
            model=self._model,
            context=pattern.context,
        )
        if answer.status >= 300:
            raise ClientError(parsed, self._name)
        return parsed

    def _send(self, pattern: _RequestPattern, request: Any) -> Answer:
        """Return the answer of a `before-send` handler if there is one; otherwise send the request and return the service's answer."""
        for _, answer in self._events.emit(f"before-send.{self._event}", request=request):
            if answer is not None:
                headers = {str(name).lower(): value for name, value in answer.headers.items()}
                return Answer(answer.status_code, headers, answer.content)
        return pattern.exchange.exchange(pattern.head(request.headers) + request.body)

    def _parse(self, answer: Answer) -> Any:
        """Return an answer as botocore would, with the members of a modelled error."""
        response = {
            "headers": answer.headers,
            "status_code": answer.status,
            "body": answer.body,
            "context": {},
        }
        parsed = self._parser.parse(response, self._model.output_shape)
        if answer.status >= 300:
            code = parsed.get("Error", {}).get("Code")
            for shape in self._model.error_shapes:
                # The error may have more members, such as the row that failed a condition.
                if code in (shape.error_code, shape.name):
                    parsed.update(self._parser.parse(response, shape))
        return parsed


def _body_of(arguments: Mapping[str, Any]) -> bytes:
    given = dict(arguments)
    if "Records" in given:
        given["Records"] = msgspec.Raw(given["Records"].body)
    if isinstance(given.get("Timestamp"), datetime):
        given["Timestamp"] = given["Timestamp"].timestamp()
    return _encode(given)


def _request_of(pattern: _RequestPattern, body: bytes, signed: Mapping[str, str]) -> Any:
    headers: Any = HeadersDict(
        {**pattern.headers, **_trace_header(), **signed, "Content-Length": str(len(body))}
    )
    request: Any = AWSPreparedRequest("POST", pattern.url, headers, body, False)
    request.context = dict(pattern.context)  # newer versions of botocore read it
    return request


def _is_botocore_wrapped() -> bool:
    """Return whether tracing wraps botocore's functions. Tracing would not see calls that bypass these functions."""
    for owner, name in _WRAPPED_BY_TRACING:
        function = owner.__dict__.get(name)
        # A wrapper is not a function, or it is a function of another package under the same name.
        if type(function) is not FunctionType or not function.__globals__["__name__"].startswith("botocore."):
            return True
    return False


def _trace_header() -> dict[str, str]:
    """Return the header with the trace id of this invocation of a Lambda function; empty outside of Lambda."""
    if _LAMBDA not in os.environ:
        return {}
    params: dict[str, Any] = {"headers": {}}
    add_recursion_detection_header(params)
    return dict(params["headers"])


def _names_an_arn(arguments: Mapping[str, Any]) -> bool:
    """Return whether a stream or a table is named by its ARN, on which the address may depend."""
    named = (arguments.get("StreamARN"), arguments.get("TableName"), *arguments.get("RequestItems", ()))
    return any(str(name).startswith("arn:") for name in named)
