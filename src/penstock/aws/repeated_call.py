"""The calls that a worker makes again and again, without what botocore works out anew for each: nine tenths of their CPU time.

The first call of an operation goes through botocore. Later ones take the address and the headers that botocore gave it, with a body
and a signature of their own (`request_signing`), and go over the connections of botocore's pool (`pooled_exchange`). Credentials,
certificates, connections and time limits are the client's. Whoever answers or refuses requests before they are sent (moto does) is
asked as ever, and whoever looks at answers sees them. What is not known here (a proxy, another way to sign, tracing that wraps
botocore's own functions) is left to botocore.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from datetime import datetime
from types import FunctionType
from typing import Any, Final

import msgspec
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse, HeadersDict
from botocore.client import BaseClient
from botocore.endpoint import Endpoint
from botocore.exceptions import ClientError
from botocore.handlers import add_recursion_detection_header
from botocore.httpsession import URLLib3Session
from botocore.parsers import ResponseParserError, create_parser

from penstock.aws.data_plane import (
    EncodedRecords,
    PageParser,
    check_sender,
    check_sum,
    decode_answers,
    decode_page,
)
from penstock.aws.pooled_exchange import Answer, PooledExchange
from penstock.aws.request_signing import Signing, host_of, signing_like

_log: Final = logging.getLogger("penstock.aws")
_GET_RECORDS: Final = "GetRecords"
_PUT_RECORDS: Final = "PutRecords"
_REPEATED: Final = {
    "kinesis": {
        "get_records": _GET_RECORDS,
        "get_shard_iterator": "GetShardIterator",
        "put_records": _PUT_RECORDS,
    },
    "dynamodb": {
        "put_item": "PutItem",
        "update_item": "UpdateItem",
        "get_item": "GetItem",
        "batch_get_item": "BatchGetItem",
        "scan": "Scan",
    },
}
"""By service: methods of a client, and the service's names of them."""
_OF_ONE_CALL: Final = frozenset(
    {"content-length", "amz-sdk-invocation-id", "amz-sdk-request", "x-amzn-trace-id"}
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
"""Where OpenTelemetry, X-Ray, Sentry and others put functions of their own to see each call."""
_LAMBDA: Final = "AWS_LAMBDA_FUNCTION_NAME"
_COMPARISONS_MAX: Final = 3  # the credentials may be renewed between the two signatures of one
_BINARY: Final = re.compile(rb'"BS?"\s*:')
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def repeat_calls(client: Any) -> bool:
    """Make a client of Kinesis or DynamoDB repeat its first call of some operations instead of building each anew.

    Returns:
        False where this botocore has not what that takes. Then the client stays as it is, and a warning is logged.
    """
    service = client.meta.service_model.service_name
    try:
        calls = {method: _RepeatedCall(client, method, name) for method, name in _REPEATED[service].items()}
    except AttributeError as error:
        _log.warning(
            "this botocore shows no signer or connections (%s): calls of %s cost more", error, service
        )
        return False
    for method, call in calls.items():
        client.meta.events.register_first(f"request-created.{service}.{call.operation}", call.note)
        setattr(client, method, call)
    return True


class _RepeatedCall:
    """One operation of one client; safe to use from several threads.

    Args:
        client: The client.
        method: Of the client.
        operation: The service's name of it.
    """

    def __init__(self, client: Any, method: str, operation: str) -> None:
        self.operation = operation
        self._events = client.meta.events
        self._service = client.meta.service_model.service_name
        self._build = getattr(client, method)
        self._signer = client._request_signer  # noqa: SLF001 - docs/internals-used.md
        self._sign = self._signer.sign
        self._session = client._endpoint.http_session  # noqa: SLF001 - docs/internals-used.md
        self._send = self._session.send
        self._parser = PageParser(create_parser("json"))
        self._model = client.meta.service_model.operation_model(operation)
        self._first: _First | None = None

    def note(self, request: Any, **_: Any) -> None:
        """Keep the address, the headers and the context of a request that botocore has built and not signed yet."""
        if self._first is None and not _names_an_arn(_decode(request.data)):
            headers = {
                key: value for key, value in request.headers.items() if key.lower() not in _OF_ONE_CALL
            }
            self._first = _First(request.url, headers, dict(request.context))

    def __call__(self, **arguments: Any) -> Any:
        """Make the call, as the client's method does.

        Raises:
            ClientError, BotoCoreError: As the client's method does.
        """
        first = self._first
        records = arguments.get("Records")
        is_encoded = records is None or isinstance(records, EncodedRecords)
        if first is None or not is_encoded or _names_an_arn(arguments) or _is_botocore_wrapped():
            return self._build(**arguments)
        given = dict(arguments)
        if records is not None:
            arguments["Records"] = msgspec.Raw(records.body)
        moment = arguments.get("Timestamp")
        if isinstance(moment, datetime):
            arguments["Timestamp"] = moment.timestamp()
        body = _encode(arguments)
        prepared = self._signed(first, body)
        asked = self._events.emit(f"before-send.{self._service}.{self.operation}", request=prepared)
        answered = [answer for _, answer in asked if answer is not None]
        if answered:
            answer = _answer_of(answered[0])
        elif first.exchange is not None:
            answer = first.exchange.exchange(first.head(prepared.headers) + body)
        else:
            answer = _answer_of(self._send(prepared))
        parsed = self._parsed(answer)
        code = parsed.get("Error", {}).get("Code") if answer.status >= 300 else None
        if code in _REFUSED_SIGNATURES and first.signing is not None:
            _log.info("%s: %s: the signature is left to botocore this time", self.operation, code)
            self._first = None
            return self._build(**given)
        return self._told(answer, parsed, first)

    def _signed(self, first: _First, body: bytes) -> Any:
        """Return a request that is ready to be sent."""
        keys: Any = None
        if first.signing is not None:
            keys = self._signer._credentials.get_frozen_credentials()  # noqa: SLF001 - docs/internals-used.md
        if first.signing is not None and first.signing.fits(keys):
            signed = first.signing.headers(body, keys)
            length = str(len(body))
            headers: Any = HeadersDict({**first.headers, **_trace(), **signed, "Content-Length": length})
            prepared: Any = AWSPreparedRequest("POST", first.url, headers, body, False)
            prepared.context = dict(first.context)  # as newer versions of botocore have it
            return prepared
        request = AWSRequest("POST", first.url, {**first.headers, **_trace()}, body)
        request.context.update(first.context)
        self._sign(self.operation, request)
        if first.comparisons_left:
            first.comparisons_left -= 1
            self._take_over(first, request)
        return request.prepare()

    def _take_over(self, first: _First, request: Any) -> None:
        """Sign and send further requests without botocore, if that is the same."""
        try:
            keys = self._signer._credentials.get_frozen_credentials()  # noqa: SLF001 - docs/internals-used.md
            signing = signing_like(request, keys)
            exchange = PooledExchange(self._session, first.url)
        except AttributeError as error:
            _log.debug("%s is signed and sent by botocore: %s", self.operation, error)
            return
        if signing is not None:
            first.exchange = exchange
            first.signing = signing

    def _told(self, answer: Answer, parsed: Any, first: _First) -> Any:
        """Tell whoever looks at answers, and return this one or raise its error."""
        self._events.emit(
            f"after-call.{self._service}.{self.operation}",
            http_response=_response_of(first.url, answer),
            parsed=parsed,
            model=self._model,
            context=first.context,
        )
        if answer.status >= 300:
            raise ClientError(parsed, self.operation)
        return parsed

    def _parsed(self, answer: Answer) -> Any:
        try:
            return self._parse(answer)
        except ResponseParserError:
            raise
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
            msgspec.MsgspecError,
        ) as error:
            raise ResponseParserError(
                f"the answer (status {answer.status}, {len(answer.body)} bytes) cannot be read: {error!r:.200}"
            ) from error

    def _parse(self, answer: Answer) -> Any:
        if answer.status == 200:
            check_sum(answer.headers, answer.body)
            check_sender(answer.headers, answer.body)
            if self.operation == _GET_RECORDS:
                return {"Page": decode_page(answer.body), "ResponseMetadata": _metadata(answer)}
            if self.operation == _PUT_RECORDS:
                return {"Answers": decode_answers(answer.body), "ResponseMetadata": _metadata(answer)}
            if not _BINARY.search(answer.body):  # which botocore decodes
                found = {name: value for name, value in _decode(answer.body).items() if value is not None}
                return {**found, "ResponseMetadata": _metadata(answer)}
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
                if code in (
                    shape.error_code,
                    shape.name,
                ):  # it may have more, as the row that a condition failed on
                    parsed.update(self._parser.parse(response, shape))
        return parsed


def _is_botocore_wrapped() -> bool:
    """Return whether somebody watches botocore's calls by wrapping its functions, who would not see repeated ones."""
    for owner, name in _WRAPPED_BY_TRACING:
        function = owner.__dict__.get(name)
        # A wrapper is no function, or one of another package, whatever name it bears.
        if type(function) is not FunctionType or not function.__globals__["__name__"].startswith("botocore."):
            return True
    return False


def _trace() -> dict[str, str]:
    """Return the header by which a Lambda function's calls are told from each other's; each invocation has its own."""
    if _LAMBDA not in os.environ:
        return {}
    params: dict[str, Any] = {"headers": {}}
    add_recursion_detection_header(params)
    return dict(params["headers"])


def _metadata(answer: Answer) -> dict[str, Any]:
    return {
        "HTTPStatusCode": answer.status,
        "HTTPHeaders": answer.headers,
        "RequestId": answer.headers.get("x-amzn-requestid", ""),
    }


def _names_an_arn(arguments: Mapping[str, Any]) -> bool:
    """Return whether a stream or a table is named by its ARN, which may decide about the address."""
    named = (arguments.get("StreamARN"), arguments.get("TableName"), *arguments.get("RequestItems", ()))
    return any(str(name).startswith("arn:") for name in named)


def _answer_of(response: Any) -> Answer:
    headers = {str(name).lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.content)


def _response_of(url: str, answer: Answer) -> Any:
    """Return an answer as botocore has it."""
    headers: Any = answer.headers
    response: Any = AWSResponse(url, answer.status, headers, None)
    response._content = answer.body  # noqa: SLF001 - docs/internals-used.md
    return response


class _First:
    """What the calls of an operation have of the first one.

    Args:
        url: The address.
        headers: Without those that each call has anew.
        context: botocore's.
    """

    def __init__(self, url: str, headers: Mapping[str, Any], context: dict[str, Any]) -> None:
        self.url = url
        self.headers = headers
        self.context = context
        self.comparisons_left = _COMPARISONS_MAX
        self.signing: Signing | None = None
        self.exchange: PooledExchange | None = None
        self._host = host_of(url)

    def head(self, headers: Mapping[str, Any]) -> bytes:
        """Return the head of a request, as it goes over the wire."""
        lines = [
            f"{name}: {value.decode() if isinstance(value, bytes) else value}\r\n"
            for name, value in headers.items()
        ]
        return (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: identity\r\n{''.join(lines)}\r\n"
        ).encode("latin-1")
