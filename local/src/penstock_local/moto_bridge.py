"""DynamoDB, CloudWatch and STS on the same endpoint: requests are handed to moto, in this process.

A separate thread carries them out, one at a time, so that Kinesis stays prompt.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from penstock_local import cloudwatch_wire, moto_repairs, moto_rules
from penstock_local.credentials import credential_of, is_region
from penstock_local.documents import read_json
from penstock_local.error_answers import error_answer
from penstock_local.http import Request, Response
from penstock_local.idempotent_writes import IdempotentWrites
from penstock_local.moto_account import MotoAccount
from penstock_local.service_errors import RequestRefused
from penstock_local.state_folder import StateFolder
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.tables import TableJournal

log = logging.getLogger("penstock_local")

_HOSTS = {
    "dynamodb": "dynamodb.{}.amazonaws.com",
    "dynamodbstreams": "streams.dynamodb.{}.amazonaws.com",
    "cloudwatch": "monitoring.{}.amazonaws.com",
    "sts": "sts.{}.amazonaws.com",
}
_TARGETS = {
    "DynamoDB_20120810": "dynamodb",
    "DynamoDBStreams_20120810": "dynamodbstreams",
    "GraniteServiceVersion20100801": "cloudwatch",
}
_VERSIONS = {"2010-08-01": "cloudwatch", "2011-06-15": "sts"}
BODY_BYTES_MAX = 16 * 1024 * 1024
FORM_BYTES_MAX = 2 * 1024 * 1024
_FORM = re.compile(rb"(?:^|&)(Action|Version)=([^&]*)")


def service_and_operation(request: Request) -> tuple[str, str] | None:
    """Return the service and the operation that a request is for; None if the bridge does not serve them."""
    prefix, _, operation = request.headers.get("x-amz-target", "").partition(".")
    if prefix in _TARGETS:
        return _TARGETS[prefix], operation
    if request.target.startswith("/service/GraniteServiceVersion20100801/operation/"):
        return "cloudwatch", request.target.rsplit("/", 1)[1]
    if _is_form(request):
        form = {name: value.decode("latin-1") for name, value in _FORM.findall(request.body[:FORM_BYTES_MAX])}
        service = _VERSIONS.get(form.get(b"Version", ""))
        if service is not None and b"Action" in form:
            return service, form[b"Action"]
    return None


def body_bytes_max(request: Request) -> int:
    """Return how large the body of a request to one of these services may be."""
    return FORM_BYTES_MAX if _is_form(request) else BODY_BYTES_MAX


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")


def tables_of(body: bytes) -> tuple[str, ...]:
    """Return the tables that a DynamoDB request names; none if it cannot be read."""
    try:
        document = read_json(body, values_max=moto_rules.VALUES_MAX)
    except RequestRefused:
        return ()
    if not isinstance(document, dict):
        return ()
    named: list[Any] = [document.get("TableName")]
    requests = document.get("RequestItems")
    named += requests if isinstance(requests, dict) else ()
    items = document.get("TransactItems")
    for item in items if isinstance(items, list) else ():
        actions = item.values() if isinstance(item, dict) else ()
        named += (action.get("TableName") for action in actions if isinstance(action, dict))
    return tuple(sorted({name for name in named if isinstance(name, str)}))


class MotoBridge:
    """Carries requests to moto, one at a time.

    Args:
        region: Region to use for requests that are not signed.
        metrics: The streams' metrics, for CloudWatch.
        folder: Folder to keep DynamoDB tables in; None keeps nothing.
        now_ms: Reads the time by which tokens of transactions expire; None for the wall clock.
    """

    def __init__(
        self,
        region: str,
        metrics: StreamMetrics,
        folder: StateFolder | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._region = region
        self._metrics = metrics
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._transactions = IdempotentWrites()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-moto")
        self._account = MotoAccount()
        self._journal = None if folder is None else TableJournal(folder, self._account.tables)

    async def start(self) -> None:
        """Load the tables that the state folder keeps."""
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._journal.load)

    async def answer(self, service: str, operation: str, request: Request) -> Response:
        """Return moto's answer to a request."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._answer, service, operation, request)

    def close(self) -> None:
        """Finish the requests that were passed on, and stop the thread."""
        self._thread.shutdown(wait=True)
        self._account.release()
        if self._journal is not None:
            self._journal.close()

    def _answer(self, service: str, operation: str, request: Request) -> Response:
        named = credential_of(request.headers.get("authorization", "")).region
        region = named or self._region
        try:
            self._require_region(service, region)
            if service == "cloudwatch":
                return cloudwatch_wire.answer(
                    operation,
                    request,
                    lambda r: self._ask_moto(service, operation, region, r),
                    cloudwatch_wire.RegionMetrics(region, self._metrics),
                )
            if service == "sts":
                moto_rules.check_action(service, operation)
                return self._ask_moto(service, operation, region, request)
            document = moto_rules.dynamodb_document(service, operation, request.body)
            if service == "dynamodb":
                return self._answer_dynamodb(operation, region, request, document)
            return self._ask_moto(service, operation, region, request)
        except RequestRefused as refusal:
            return error_answer(request, refusal.code, refusal.message, refusal.status)

    def _require_region(self, service: str, region: str) -> None:
        if not is_region(region) or self._account.tables(region) is None:
            raise RequestRefused(
                "InvalidSignatureException", f"moto, which serves {service} here, has no region {region!r}."
            )

    def _answer_dynamodb(
        self, operation: str, region: str, request: Request, document: dict[str, Any]
    ) -> Response:
        is_transaction = operation == "TransactWriteItems"
        if is_transaction:
            earlier_answer = self._transactions.answer(region, document, self._now_ms())
            if earlier_answer is not None:
                return earlier_answer
        backend = self._account.tables(region)
        if backend is not None:
            moto_rules.check_by_tables(operation, document, backend.tables)
        request.body = moto_repairs.repair_body(operation, request.body)
        if self._journal is None:
            response = self._ask_moto("dynamodb", operation, region, request)
        else:
            response = self._journal.carry_out(
                region,
                operation,
                request.body,
                lambda: self._ask_moto("dynamodb", operation, region, request),
            )
        if is_transaction:
            self._transactions.keep(region, document, response, self._now_ms())
        return response

    def _ask_moto(self, service: str, operation: str, region: str, request: Request) -> Response:
        """Have moto answer a request. Its exceptions are answered with an error: the request's fault unless memory or IO failed."""
        try:
            status, headers, raw = self._account.dispatch(_HOSTS[service].format(region), request)
        except Exception as error:
            # moto lets exceptions of its parsers through; the service refuses the request
            refused = moto_repairs.refusal_for(request.body, error) if service == "dynamodb" else None
            if refused is not None:
                return Response(
                    refused[0],
                    msgspec.json.encode(refused[1]),
                    [("Content-Type", "application/x-amz-json-1.0")],
                )
            if isinstance(error, ValueError) and service == "cloudwatch":
                return error_answer(request, "MalformedInput", str(error)[:1000], 400)
            log.exception("moto failed on %s.%s", service, operation)
            if not isinstance(error, OSError | MemoryError):
                # moto works in memory, so the request itself is the cause: sent again, it would fail in the same way
                code = "ValidationException" if service.startswith("dynamodb") else "ValidationError"
                return error_answer(request, code, f"moto cannot carry this out: {error!r}"[:1000], 400)
            return error_answer(request, "InternalServerError", f"moto failed: {error!r}"[:1000], 500)
        return Response(status, raw, headers)
