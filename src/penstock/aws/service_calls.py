"""One call to AWS: the meaning of its errors, and when it is retried.

Two facts decide which error is raised: the service's error code, and whether the request may have been applied. A
request that was throttled or never sent did nothing. The outcome of one that was sent and not answered is unknown; that
matters for a write only.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import botocore.exceptions as sdk
from botocore import xform_name
from botocore.parsers import ResponseParserError

from penstock.aws.aws_options import AwsOptions
from penstock.aws.config_files import parse_remedy, unread_files
from penstock.aws.connecting import (
    PROXY_REMEDY,
    TRUST_REMEDY,
    is_certificate_error,
    is_connection_error,
    is_refused_by_proxy,
    reason_of,
)
from penstock.aws.connection import client_for, client_region, count_renewals, renew_credentials
from penstock.aws.credential_errors import is_credentials_error, sdk_error
from penstock.core.service_codes import EXPIRED_CREDENTIALS, STALE_CREDENTIALS, is_of_kms_key, kind_of
from penstock.errors import (
    AccessDenied,
    NotFound,
    Rejected,
    ServiceError,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)

_log: Final = logging.getLogger("penstock.aws")
_Answer = TypeVar("_Answer")

_ACCESS_REMEDY: Final = "check the credentials, the role and its policy"
_KMS_REMEDY: Final = "check the KMS key that encrypts it: its state, and whether its policy permits its use"
_SENDER_REMEDY: Final = "the answer has no code of the service: check the endpoint, and what answers in between (a proxy, a gateway)"
_MISSING_KEYS_REMEDY: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or run where a role is attached; those of an embedded Kinesis: "
    'eval "$(penstock local --export)"'
)
_EXPIRY_REMEDY: Final = "log in again, or fetch new keys; a program that has its keys from its environment or its options has to be started again with new ones"
_PROFILE_REMEDY: Final = "check its name (AWS_PROFILE, profile), and ~/.aws/config and ~/.aws/credentials"
_CONNECTION_REMEDY: Final = "check the region and the endpoint, and whether it can be reached from here"
_STATUS_OF_PROXY: Final = 407
_STATUS_KINDS: Final[dict[int, type[ServiceError]]] = {
    401: AccessDenied,
    403: AccessDenied,
    _STATUS_OF_PROXY: AccessDenied,
    408: Unavailable,
    429: Throttled,
}
"""Statuses of load balancers and gateways, whose answers have no code of the service."""
_CLOCK_CODES: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_CLOCK_WORDS: Final = ("Signature expired", "Signature not yet current")
_MESSAGE_CHARACTERS_MAX: Final = 2_000
_WARNED_ATTEMPT: Final = 5
"""At this attempt a refusal that may be permanent is logged, long before the deadline."""
_TOKEN_PAGING: Final = ("NextToken", "NextToken")
TABLE_PAGING: Final = ("LastEvaluatedKey", "ExclusiveStartKey")
"""How DynamoDB leads from one page to the next, for `pages_of`."""
_CREDENTIALS_ERRORS: Final = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.ProfileNotFound,
    sdk.TokenRetrievalError,
)
_UNSENT_ERRORS: Final = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError)
_UNANSWERED_ERRORS: Final = (
    sdk.HTTPClientError,
    sdk.IncompleteReadError,
    sdk.ResponseStreamingError,
    ResponseParserError,
    OSError,
)
TRANSIENT: Final = (Throttled, Unavailable, UnknownRefusal)
"""Errors after which a call that did nothing is repeated."""


def pages_of(
    send: Callable[..., Any], paging: tuple[str, str] = _TOKEN_PAGING, **arguments: Any
) -> Iterator[Any]:
    """Yield every page of an answer.

    Args:
        send: Makes one call with these arguments.
        paging: The name of a page's token, which the last page lacks; and the name of the argument that takes the token.
        arguments: Arguments of the first call and of all that follow.
    """
    token, argument = paging
    token_argument: dict[str, Any] = {}
    while True:
        page = send(**arguments, **token_argument)
        yield page
        if not page.get(token):
            return
        token_argument = {argument: page[token]}


def call_with_rows(
    operation: str, resource: str, request: Any, options: AwsOptions, **call_options: Any
) -> list[Any]:
    """Call BatchGetItem or BatchWriteItem, again with the rows that DynamoDB leaves out; return all answers.

    Args:
        request: Its `RequestItems`.
        call_options: As for `call_operation`.

    Raises:
        Throttled: DynamoDB took none of the remaining rows in time.
    """
    answers: list[Any] = []
    began_s, attempt = time.monotonic(), 0
    while True:
        answers.append(
            call_operation("dynamodb", operation, resource, options, RequestItems=request, **call_options)
        )
        # Rows are left out if they were throttled, or if the answer would exceed 16 MB.
        remaining_rows = answers[-1].get("UnprocessedKeys") or answers[-1].get("UnprocessedItems")
        if not remaining_rows:
            return answers
        attempt = 1 if _row_count(remaining_rows) < _row_count(request) else attempt + 1
        passed_s = time.monotonic() - began_s
        delay_s = options.retry_plan.delay_s(attempt, passed_s, random.random())
        if delay_s is None:
            raise Throttled(
                f"{resource}: {operation} left {_row_count(remaining_rows)} of {_row_count(request)} rows out for {passed_s:.0f} s; raise the "
                "table's capacity",
                operation=operation,
                resource=resource,
            )
        time.sleep(delay_s)
        request = remaining_rows


def _row_count(request: dict[str, Any]) -> int:
    return sum(len(rows["Keys"] if isinstance(rows, dict) else rows) for rows in request.values())


def translate_error(
    error: Exception, operation: str, resource: str, *, is_write: bool, options: AwsOptions | None = None
) -> ServiceError:
    """Return Penstock's error for one of the SDK's.

    Args:
        operation: The service's name of the call.
        resource: Stream, shard or table.
        is_write: Whether a request that was sent may have changed something.
        options: Of the client that made the call: the text names their region or profile. None leaves both out.
    """
    call_text = f"{operation} on {resource}" if resource else operation
    if isinstance(error, sdk.ClientError):
        region = None if options is None else client_region(options)
        return _error_of_answer(error, call_text, operation, resource, is_write=is_write, region=region)
    if isinstance(error, _UNSENT_ERRORS) or (
        isinstance(error, _UNANSWERED_ERRORS) and is_connection_error(error)
    ):
        return _error_of_connecting(error, call_text, operation, resource)
    if isinstance(error, _UNANSWERED_ERRORS):
        kind = UnknownOutcome if is_write else Unavailable
        return kind(
            f"{call_text}: sent, and no whole answer came: {error!r:.300}{reason_of(error)}",
            operation=operation,
            resource=resource,
        )
    if isinstance(error, _CREDENTIALS_ERRORS) or is_credentials_error(error):
        # A credential_process prints lines, such as those of `aws configure export-credentials`.
        message = _in_one_line(error).removesuffix(".")
        return AccessDenied(
            f"{call_text}: {message}; {_credentials_remedy(error, options)}",
            operation=operation,
            resource=resource,
        )
    remedy = f": {parse_remedy(error)}" if isinstance(error, sdk.ConfigParseError) else ""
    # botocore lists the faults of a parameter in lines of their own.
    return Rejected(f"{call_text}: {_in_one_line(error)}{remedy}", operation=operation, resource=resource)


def _in_one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(filter(None, lines)).replace(":; ", ": ")


def _credentials_remedy(error: Exception, options: AwsOptions | None) -> str:
    if isinstance(error, sdk.NoCredentialsError):
        return f"{_MISSING_KEYS_REMEDY}{unread_files()}"
    if isinstance(error, (sdk.SSOError, sdk.TokenRetrievalError)):
        named = options.profile if options is not None else None
        name = named or os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE")  # as botocore
        return "log in again: aws sso login" + (f" --profile {shlex.quote(name)}" if name else "")
    return f"{_PROFILE_REMEDY}{unread_files()}" if isinstance(error, sdk.ProfileNotFound) else _ACCESS_REMEDY


def _error_of_connecting(error: Exception, call_text: str, operation: str, resource: str) -> ServiceError:
    message = f"{call_text}: no connection: {error}{reason_of(error)}"
    if is_refused_by_proxy(error):
        return AccessDenied(f"{message}; {PROXY_REMEDY}", operation=operation, resource=resource)
    remedy = TRUST_REMEDY if is_certificate_error(error) else _CONNECTION_REMEDY
    return Unavailable(f"{message}; {remedy}", operation=operation, resource=resource)


def _error_of_answer(
    error: sdk.ClientError,
    call_text: str,
    operation: str,
    resource: str,
    *,
    is_write: bool,
    region: str | None,
) -> ServiceError:
    answer: dict[str, Any] = dict(error.response)
    code = str(answer.get("Error", {}).get("Code", "")).rpartition("#")[2]
    message = str(answer.get("Error", {}).get("Message", ""))
    metadata = answer.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0) or 0)
    kind = kind_of(code) or _STATUS_KINDS.get(status) or (Unavailable if status >= 500 else UnknownRefusal)
    if kind is Unavailable and is_write:
        # A server that failed may have failed after the write.
        kind = UnknownOutcome
    has_code = code not in ("", str(status))
    redirected_to = metadata.get("HTTPHeaders", {}).get("location")
    if not has_code and redirected_to and 300 <= status < 400:
        message = f"redirected to {redirected_to:.200}"
        remedy = "check the endpoint, and what answers in between (a proxy, the login of a network)"
    else:
        remedy = _answer_remedy(kind, code if has_code else "", status, message, region)
    if len(message) > _MESSAGE_CHARACTERS_MAX:  # a page in HTML, of a gateway in between
        message = f"{message[:_MESSAGE_CHARACTERS_MAX]}..."
    elif remedy:
        message = message.removesuffix(".")
    text = f"{call_text}: {code or status}: {message}" + (f"; {remedy}" if remedy else "")
    return kind(text, operation=operation, code=code, resource=resource)


def _answer_remedy(kind: type[ServiceError], code: str, status: int, message: str, region: str | None) -> str:
    """Return the remedy for an answer of this kind; empty if there is none. `code` is the service's, or empty."""
    if status == _STATUS_OF_PROXY:
        return PROXY_REMEDY
    if code in _CLOCK_CODES or any(words in message for words in _CLOCK_WORDS):
        return "check this machine's clock: requests are signed with its time"
    if kind is NotFound:
        place = "the region" if region is None else f"the region ({region})"
        return f"check the name, {place} and the account (what was just created is there when it is ACTIVE)"
    if kind is AccessDenied:
        if is_of_kms_key(code):
            return _KMS_REMEDY
        return _EXPIRY_REMEDY if code in EXPIRED_CREDENTIALS else _ACCESS_REMEDY
    return "" if code or status >= 500 else _SENDER_REMEDY


def call_operation(
    service: str,
    operation: str,
    resource: str,
    options: AwsOptions,
    *,
    is_write: bool = False,
    retried: tuple[type[ServiceError], ...] = TRANSIENT,
    **arguments: Any,
) -> Any:
    """Call an operation of a service, as `call` does.

    Args:
        service: As botocore names it.
        operation: As the service names it.
        arguments: Of the operation.
    """

    def send() -> Any:
        return getattr(client_for(service, options), xform_name(operation))(**arguments)

    return call(send, operation, resource, options, is_write=is_write, retried=retried)


def call(
    send: Callable[[], _Answer],
    operation: str,
    resource: str,
    options: AwsOptions,
    *,
    is_write: bool = False,
    retried: tuple[type[ServiceError], ...] = TRANSIENT,
) -> _Answer:
    """Send a request, and retry it while that can help, with full jitter, a bound and a deadline.

    Credentials that the service no longer accepts are fetched again, once, before they are an error.

    Raises:
        ServiceError: The error of the last attempt; its cause is the SDK's error.
    """
    plan = options.retry_plan
    began_s = time.monotonic()
    renewal_count = count_renewals(options)
    is_renewed = False
    for attempt in itertools.count(1):
        try:
            return send()
        except Exception as raised:
            error = sdk_error(raised)
            if error is None:
                raise
            may_be_applied = is_write and not is_credentials_error(raised)
            service_error = translate_error(
                error, operation, resource, is_write=may_be_applied, options=options
            )
            if service_error.code in STALE_CREDENTIALS and not is_renewed:
                is_renewed = True
                if renew_credentials(options, renewal_count):
                    _log.info("the credentials are fetched again: %s", service_error)
                    continue
            delay_s = plan.delay_s(attempt, time.monotonic() - began_s, random.random())
            if delay_s is None or not isinstance(service_error, retried) or is_certificate_error(error):
                raise service_error from error
            is_warned = isinstance(service_error, UnknownRefusal) and attempt == _WARNED_ATTEMPT
            text = "attempt %d failed, the next one in %.2f s: %s"
            _log.log(logging.WARNING if is_warned else logging.DEBUG, text, attempt, delay_s, service_error)
            time.sleep(delay_s)
    raise AssertionError("counting has no end")
