"""Answers HTTP requests: finds service and operation, applies faults, adds headers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate

import msgspec

from penstock_local import event_stream, moto_bridge
from penstock_local.about import ServerDescription
from penstock_local.access import Access, allow_page, preflight_answer
from penstock_local.calls import CallLog
from penstock_local.content import unpack
from penstock_local.control import PREFIX, Control
from penstock_local.credentials import credential_of
from penstock_local.error_answers import error_answer, kinesis_error
from penstock_local.faults import Hit
from penstock_local.http import Request, Response
from penstock_local.moto_bridge import MotoBridge
from penstock_local.operations import dispatch
from penstock_local.operations.call import DropConnection, Service, ServiceCall, scripted_error
from penstock_local.operations.consumers import EventStream
from penstock_local.replay.player import Player
from penstock_local.service_errors import RequestRefused
from penstock_local.virtual_clock import VirtualClock
from penstock_local.wire import wire_for

log = logging.getLogger("penstock_local")

_EVENTS_TIMEOUT_S = 330.0
"""A subscriber may leave its events unread for as long as its subscription lasts, and a little longer."""
_TARGET_PREFIX = "Kinesis_20131202."
_RATE_ERRORS = ("ProvisionedThroughputExceededException", "LimitExceededException")
_THROTTLES = {
    "dynamodb": (
        "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
        "The level of configured provisioned throughput for the table was exceeded.",
    ),
    "dynamodbstreams": ("LimitExceededException", "Too many requests."),
    "cloudwatch": ("Throttling", "Rate exceeded"),
    "sts": ("Throttling", "Rate exceeded"),
}


class KinesisApplication:
    """Answers every request of the server.

    Args:
        service: The parts that all Kinesis calls share.
        clock: The server's clock.
        calls: The server's call log.
        bridge: Serves DynamoDB, CloudWatch and STS.
        about: Returns the description of the server.
        allow_hosts: Host names to answer to beside those of loopback.
        player: The replays of recordings; None if the server has none.
    """

    def __init__(
        self,
        service: Service,
        clock: VirtualClock,
        calls: CallLog,
        bridge: MotoBridge,
        about: Callable[[], ServerDescription],
        *,
        allow_hosts: Sequence[str] = (),
        player: Player | None = None,
    ) -> None:
        self._access = Access(allow_hosts)
        self._service = service
        self._clock = clock
        self._calls = calls
        self._bridge = bridge
        self._has_warned_of_clock = False
        self.control: Control = Control(service, clock, calls, about, player)

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        """Return the response to a request; an awaitable of it if the answer takes time."""
        reason = self._access.refusal(request.headers)
        if reason is not None:
            return self._add_headers(error_answer(request, "AccessDeniedException", reason, 403))
        origin = request.headers.get("origin")
        if origin is None:
            return self._answer(request)
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            return self._add_headers(allow_page(preflight_answer(request), origin))
        answer = self._answer(request)
        return (
            allow_page(answer, origin) if isinstance(answer, Response) else _allow_page_later(answer, origin)
        )

    def _answer(self, request: Request) -> Response | Awaitable[Response]:
        try:
            unpack(request)
        except RequestRefused as refusal:
            return self._add_headers(error_answer(request, refusal.code, refusal.message, refusal.status))
        if request.target.startswith(PREFIX):
            return self.control.answer(request)
        target = request.headers.get("x-amz-target", "")
        if target.startswith(_TARGET_PREFIX) and request.method == "POST":
            return self._answer_kinesis(target.removeprefix(_TARGET_PREFIX), request)
        other = moto_bridge.service_and_operation(request)
        if other is not None:
            return self._answer_other_service(*other, request)
        message = (
            f"{request.method} {request.target[:200]} is no call of Kinesis, DynamoDB, CloudWatch or STS; "
            f"this endpoint serves those and {PREFIX}*. Clients of another service go elsewhere by a variable of "
            "their own, such as AWS_ENDPOINT_URL_S3."
        )
        return self._add_headers(error_answer(request, "UnknownOperationException", message, 404))

    # -- Kinesis --------------------------------------------------------------------------------------------

    def _answer_kinesis(self, operation: str, request: Request) -> Response | Awaitable[Response]:
        wire = wire_for(request.headers.get("content-type", ""))
        credential = credential_of(request.headers.get("authorization", ""))
        call = ServiceCall(self._service, operation, wire, self._clock.now_ms(), credential.region)
        try:
            answer = dispatch.answer(call, request.body)
        except Exception as error:  # noqa: BLE001 - each is answered
            return self._finish_call(call, credential.access_key, error)
        if isinstance(answer, Awaitable):
            request.may_wait = True
            return self._finish_call_later(call, credential.access_key, answer)
        return self._finish_call(call, credential.access_key, answer)

    async def _finish_call_later(self, call: ServiceCall, caller: str, answer: Awaitable[bytes]) -> Response:
        result: bytes | Exception
        try:
            result = await answer
        except Exception as error:  # noqa: BLE001 - each is answered
            result = error
        response = self._finish_call(call, caller, result)
        return response if isinstance(response, Response) else await response

    def _finish_call(
        self, call: ServiceCall, caller: str, result: bytes | EventStream | Exception
    ) -> Response | Awaitable[Response]:
        """Return the response of a call, and log the call."""
        outcome, response = _outcome_and_response(call, result)
        applied = next((hit.fault for hit in call.sending_hits if hit.fault.kind == "error"), None)
        if outcome == "ok" and applied is not None:
            outcome, response = _outcome_and_response(call, scripted_error(applied))
        if outcome == "ok" and call.sending_hits:
            outcome = "+".join(hit.fault.kind for hit in call.sending_hits)
        self._calls.add(
            call.now_ms,
            "kinesis",
            call.operation,
            resource=call.resource,
            shards=call.shards,
            outcome=outcome,
            caller=caller,
        )
        if outcome in _RATE_ERRORS and not self._clock.factor:
            self._warn_of_stopped_clock(call.operation)
        self._add_headers(response)
        return _with_sending_faults(response, call.sending_hits) if call.sending_hits else response

    def _warn_of_stopped_clock(self, operation: str) -> None:
        """Warn once that a used-up quota cannot recover, because the clock is stopped: a caller may retry without end."""
        if self._has_warned_of_clock or not self._service.quotas.enforced or self._service.faults.describe():
            return
        self._has_warned_of_clock = True
        log.warning(
            "%s is refused for its rate while the clock is stopped (time_factor=0): it is refused until clock.advance moves the clock. "
            "limits=False switches the quotas off",
            operation,
        )

    # -- the others -----------------------------------------------------------------------------------------

    async def _answer_other_service(self, service: str, operation: str, request: Request) -> Response:
        """Answer a request to another service than Kinesis by a fault or by moto. A fault with `applied` replaces moto's answer."""
        body_bytes_max = moto_bridge.body_bytes_max(request)
        if len(request.body) > body_bytes_max:
            message = f"this request to {service} may have at most {body_bytes_max} bytes"
            return self._add_headers(error_answer(request, "RequestEntityTooLargeException", message, 413))
        tables = moto_bridge.tables_of(request.body) if service == "dynamodb" else ()
        hits = self._service.faults.hits(service, operation, tables=tables)
        response = _scripted_answer(service, request, hits)
        if response is None:
            response = await self._bridge.answer(service, operation, request)
            response = _scripted_answer(service, request, hits, applied=True) or response
        outcome = "+".join(hit.fault.kind for hit in hits) if hits else _outcome(response)
        self._calls.add(
            self._clock.now_ms(),
            service,
            operation,
            resource=",".join(tables),
            shards=(),
            outcome=outcome,
            caller=credential_of(request.headers.get("authorization", "")).access_key,
        )
        self._add_headers(response)
        sending_hits = [hit for hit in hits if hit.is_sending or hit.fault.kind == "delay"]
        if not sending_hits:
            return response
        sent = _with_sending_faults(response, sending_hits)
        return sent if isinstance(sent, Response) else await sent

    def _add_headers(self, response: Response) -> Response:
        response.headers.append(("x-amzn-RequestId", str(uuid.uuid4())))
        response.headers.append(("Date", formatdate(self._clock.now_ms() / 1000, usegmt=True)))
        return response


async def _allow_page_later(answer: Awaitable[Response], origin: str) -> Response:
    return allow_page(await answer, origin)


def _outcome_and_response(call: ServiceCall, result: bytes | EventStream | Exception) -> tuple[str, Response]:
    """Return the outcome of a call, and its response."""
    match result:
        case bytes():
            return "ok", Response(200, result, [("Content-Type", call.wire.content_type)])
        case EventStream():
            return "ok", _event_stream(result)
        case RequestRefused():
            return result.code, kinesis_error(call.wire, result)
        case DropConnection():
            return "drop_before", Response(drop=True)
    # this server or its disk has failed: the client gets the service's error, the log has the cause
    log.error("Kinesis %s failed", call.operation, exc_info=result)
    failure = RequestRefused(
        "InternalFailure", f"penstock-local failed in {call.operation}; see its log", 500
    )
    return failure.code, kinesis_error(call.wire, failure)


def _event_stream(answer: EventStream) -> Response:
    headers = [("Content-Type", event_stream.CONTENT_TYPE)]
    return Response(200, answer.head, headers, answer.events, send_timeout_s=_EVENTS_TIMEOUT_S)


def _scripted_answer(
    service: str, request: Request, hits: Sequence[Hit], *, applied: bool = False
) -> Response | None:
    """Return the answer of the first fault that has one; None if none has. Only faults with this value of `applied` count."""
    for hit in hits:
        fault = hit.fault
        if fault.applied != applied:
            continue
        if fault.kind == "drop_before":
            return Response(drop=True)
        if fault.kind == "throttle":
            code, message = _THROTTLES[service]
            return error_answer(request, fault.code or code, fault.message or message, 400)
        if fault.kind == "error":
            return error_answer(
                request, fault.code or "InternalServerError", fault.message or "scripted fault", fault.status
            )
    return None


def _with_sending_faults(response: Response, hits: Sequence[Hit]) -> Response | Awaitable[Response]:
    """Apply the faults by which an answer is sent late, in part, not at all, or unreadable."""
    delay_s = 0.0
    for hit in hits:
        match hit.fault.kind:
            case "drop_after":
                response.drop = True
            case "truncate":
                response.cut_at = len(response.body) // 2
            case "garbage":
                response.body = b"\x00<garbage>" + response.body[: len(response.body) // 2]
            case "delay":
                delay_s += hit.fault.delay_s
    return _after_delay(response, delay_s) if delay_s else response


async def _after_delay(response: Response, delay_s: float) -> Response:
    await asyncio.sleep(delay_s)
    return response


def _outcome(response: Response) -> str:
    if response.status < 400:
        return "ok"
    try:
        document = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return str(response.status)
    kind = document.get("__type", "") if isinstance(document, dict) else ""
    return str(kind).rpartition("#")[2] or str(response.status)
