"""Translates CloudWatch's protocols to JSON, which moto handles best. The metrics of streams are answered without moto.

moto does not speak rpc-v2-cbor, and takes seconds over the thousand metrics of a form. Other operations in
forms are left to moto, which answers them in XML.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock_local import cbor
from penstock_local.documents import Timestamp, read_json
from penstock_local.error_answers import RPC_V2_CBOR, error_answer
from penstock_local.http import Request, Response
from penstock_local.moto_rules import (
    VALUES_MAX,
    check_action,
    check_by_model,
    check_metrics,
    service_model,
)
from penstock_local.service_errors import RequestRefused, serialization, validation
from penstock_local.stream_metrics import NAMESPACE, StreamMetrics

_JSON = "application/x-amz-json-1.0"
_TARGET = "GraniteServiceVersion20100801"
_NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_OWN_PAGE_PREFIX = "streams-"
_TOKEN_DIGITS_MAX = 10
_METRICS_PER_PAGE = 500
_FIELDS_MAX = 50_000
_OTHER_FIELDS_MAX = 5_000
_ESCAPES_MAX = 200_000
_INDEX = re.compile(r"[1-9][0-9]{0,5}")

Send = Callable[[Request], Response]
"""Passes a request to moto, and returns its response."""


class RegionMetrics(NamedTuple):
    """The metrics that the streams of a region publish."""

    region: str
    metrics: StreamMetrics


def answer(operation: str, request: Request, send: Send, streams: RegionMetrics) -> Response:
    """Return the answer to a CloudWatch request, in the protocol that it is written in.

    Args:
        send: Passes a request to moto.
        streams: The metrics that streams publish.

    Raises:
        RequestRefused: The service would refuse it.
    """
    if request.headers.get("smithy-protocol") == RPC_V2_CBOR:
        document = cbor.decode(request.body, times_in_seconds=True) if request.body else {}
        return _cbor_answer(operation, _carry_out(operation, request, document, send, streams), request)
    if "x-www-form-urlencoded" not in request.headers.get("content-type", ""):
        document = read_json(request.body, values_max=VALUES_MAX) if request.body else {}
        return _carry_out(operation, request, document, send, streams)
    check_action("cloudwatch", operation)
    _check_fields(request.body, _FIELDS_MAX if operation == "PutMetricData" else _OTHER_FIELDS_MAX)
    if operation != "PutMetricData":
        return send(request)
    response = _carry_out(operation, request, put_metric_data(request.body), send, streams)
    if response.status != 200:
        code, message = _error_of(response)
        return error_answer(request, code, message, response.status)
    xml = f'<PutMetricDataResponse xmlns="{_NAMESPACE}"><ResponseMetadata/></PutMetricDataResponse>'
    return Response(200, xml.encode(), [("Content-Type", "text/xml")])


def _carry_out(
    operation: str, request: Request, document: Any, send: Send, streams: RegionMetrics
) -> Response:
    """Check a request, and answer it by the metrics of the streams, by moto, or by both."""
    plain = _with_times_in_seconds(document)
    if operation == "PutMetricData":
        check_metrics(plain)
    check_by_model("cloudwatch", operation, plain)
    if operation == "GetMetricData":
        return _metric_data(request, plain, send, streams)
    if operation == "ListMetrics" and plain.get("Namespace") in (None, NAMESPACE):
        return _list_metrics(request, plain, send, streams)
    return _send_as_json(operation, request, plain, send)


def _metric_data(request: Request, document: dict[str, Any], send: Send, streams: RegionMetrics) -> Response:
    query_ids = [each["Id"] for each in document["MetricDataQueries"]]
    found, rest = streams.metrics.answer(streams.region, document)
    if rest:
        response = _send_as_json("GetMetricData", request, {**document, "MetricDataQueries": rest}, send)
        if response.status != 200 or not found:
            return response
        found |= {each["Id"]: each for each in msgspec.json.decode(response.body)["MetricDataResults"]}
    body = {"MetricDataResults": [found[name] for name in query_ids if name in found], "Messages": []}
    return Response(200, msgspec.json.encode(body), [("Content-Type", _JSON)])


def _list_metrics(request: Request, document: dict[str, Any], send: Send, streams: RegionMetrics) -> Response:
    """List the metrics of streams page by page, and then those that moto has."""
    token = document.get("NextToken")
    if token is not None and not token.startswith(_OWN_PAGE_PREFIX):
        return _send_as_json("ListMetrics", request, document, send)
    place = "0" if token is None else token.removeprefix(_OWN_PAGE_PREFIX)
    if not (place.isascii() and place.isdigit() and len(place) < _TOKEN_DIGITS_MAX):
        raise RequestRefused("InvalidParameterValue", "The next token is none that was returned.")
    found, begin = streams.metrics.metrics(streams.region, document), int(place)
    body: dict[str, Any] = {"Metrics": found[begin : begin + _METRICS_PER_PAGE]}
    if begin + _METRICS_PER_PAGE < len(found):
        body["NextToken"] = f"{_OWN_PAGE_PREFIX}{begin + _METRICS_PER_PAGE}"
    elif "Namespace" not in document:
        rest = {key: value for key, value in document.items() if key != "NextToken"}
        response = _send_as_json("ListMetrics", request, rest, send)
        if response.status != 200:
            return response
        others = msgspec.json.decode(response.body)
        body = {**others, "Metrics": [*body["Metrics"], *others.get("Metrics", ())]}
    return Response(200, msgspec.json.encode(body), [("Content-Type", _JSON)])


def _send_as_json(operation: str, request: Request, document: Any, send: Send) -> Response:
    headers = {"content-type": _JSON, "x-amz-target": f"{_TARGET}.{operation}"}
    if "authorization" in request.headers:
        headers["authorization"] = request.headers["authorization"]
    return send(Request("POST", "/", headers, msgspec.json.encode(document)))


def _with_times_in_seconds(value: Any) -> Any:
    """Return a document with times as seconds."""
    if isinstance(value, Timestamp):
        return value.ms / 1000
    if isinstance(value, dict):
        return {key: _with_times_in_seconds(item) for key, item in value.items()}
    return [_with_times_in_seconds(item) for item in value] if isinstance(value, list) else value


# -- rpc-v2-cbor --------------------------------------------------------------------------------------------


def _cbor_answer(operation: str, response: Response, request: Request) -> Response:
    if response.status != 200:
        code, message = _error_of(response)
        return error_answer(request, code, message, response.status)
    shape = service_model("cloudwatch").operation_model(operation).output_shape
    document = msgspec.json.decode(response.body) if response.body else {}
    body = cbor.encode(_cbor_value(document, shape))
    return Response(200, body, [("Content-Type", "application/cbor"), ("smithy-protocol", RPC_V2_CBOR)])


def _cbor_value(value: Any, shape: Any) -> Any:
    """Return a JSON value as CBOR has it: times are tagged."""
    match None if value is None or shape is None else shape.type_name:
        case "structure":
            return {
                key: _cbor_value(item, shape.members.get(key))
                for key, item in value.items()
                if item is not None
            }
        case "list":
            return [_cbor_value(item, shape.member) for item in value]
        case "map":
            return {key: _cbor_value(item, shape.value) for key, item in value.items()}
        case "timestamp":
            return cbor.Tagged(1, float(value))
        case _:
            return value


def _error_of(response: Response) -> tuple[str, str]:
    """Return code and message of a JSON error of moto."""
    try:
        document = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, dict):
        return "InternalFailure", response.body[:1000].decode("utf-8", "replace")
    code = str(document.get("__type", "InternalFailure")).rpartition("#")[2]
    return code, str(document.get("message") or document.get("Message") or "")


# -- forms --------------------------------------------------------------------------------------------------


def put_metric_data(body: bytes) -> dict[str, Any]:
    """Return the document of a PutMetricData that was sent as a form.

    Raises:
        RequestRefused: A value cannot be read, or there are too many.
    """
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise serialization(f"the body is not a form that can be read: {error}") from error
    tree: dict[str, Any] = {}
    for name, value in fields:
        *path, last = name.split(".")
        if len(path) > 8:
            raise validation(f"{name[:100]} is not a parameter of PutMetricData")
        place = tree
        for step in path:
            found = place.setdefault(step, {})
            if not isinstance(found, dict):
                raise validation(f"{name[:100]} is given twice, in two forms")
            place = found
        place[last] = value
    shape = service_model("cloudwatch").operation_model("PutMetricData").input_shape
    found = _typed_value(tree, shape, "")
    return dict(found)


def _check_fields(body: bytes, fields_max: int) -> None:
    if body.count(b"&") >= fields_max or body.count(b"%") > _ESCAPES_MAX:
        raise serialization(f"the form has more than {fields_max} fields or {_ESCAPES_MAX} escaped bytes")


def _typed_value(value: Any, shape: Any, path: str) -> Any:
    """Return a value of a form in the type that the model has for it."""
    match shape.type_name:
        case "structure":
            members = _tree(value, path)
            return {
                key: _typed_value(members[key], member, f"{path}.{key}")
                for key, member in shape.members.items()
                if key in members
            }
        case "list":
            return _list_value(_tree(value, path), shape, path)
        case kind:
            if isinstance(value, dict):
                raise validation(f"{path[1:200]} must be a value")
            return _scalar(value, kind, path)


def _list_value(value: dict[str, Any], shape: Any, path: str) -> list[Any]:
    # a list is `Name.member.1`, or empty as `Name=`
    members = _tree(value.get("member", {}), path)
    wrong = next((index for index in members if not _INDEX.fullmatch(index)), None)
    if wrong is not None:
        raise validation(f"{path[1:200]}.member.{wrong[:50]} is no place in a list")
    return [_typed_value(members[index], shape.member, path) for index in sorted(members, key=int)]


def _tree(value: Any, path: str) -> dict[str, Any]:
    if value == "":
        return {}
    if not isinstance(value, dict):
        raise validation(f"{path[1:200]} must have members")
    return value


def _scalar(text: str, kind: str, path: str) -> Any:
    try:
        match kind:
            case "double" | "float":
                return float(text)
            case "integer" | "long":
                return int(text[:30])
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case _:
                return text
    except (ValueError, KeyError) as error:
        raise RequestRefused("MalformedInput", f"{path[1:200]}: {text[:50]!r} is no {kind}") from error
