"""Checks before moto sees a request: requests that the service refuses, and moto would accept or fail on.

The types and required members of every request are those of the service's model, as botocore has it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from penstock_local import request_model
from penstock_local.documents import read_json
from penstock_local.service_errors import RequestRefused, serialization, validation

VALUES_MAX = 500_000
"""Values in a document at most; 25 items of 400 KB can have many."""
_DEPTH_MAX = 32
_LEVELS_MAX = 8 + 2 * _DEPTH_MAX
"""Levels of a document whose attributes are nested as deep as they may be: each takes a type and a value."""
_EXPRESSION_BYTES_MAX = 4096
_BATCH_WRITES_MAX = 25
_METRICS_MAX = 1000
_SHOWN_PROBLEMS_MAX = 10
_LEGACY_PARAMETERS = {
    "AttributesToGet",
    "AttributeUpdates",
    "ConditionalOperator",
    "Expected",
    "KeyConditions",
    "QueryFilter",
    "ScanFilter",
}
_TABLE_NAME = request_model.Shape("string", 3, 255, "[a-zA-Z0-9_.-]+")


def dynamodb_document(service: str, operation: str, body: bytes) -> dict[str, Any]:
    """Return the document of a DynamoDB request after the checks that the service makes first.

    Args:
        service: `dynamodb` or `dynamodbstreams`.
        body: The request's body.

    Raises:
        RequestRefused: The service would refuse it.
    """
    document = read_json(body, values_max=VALUES_MAX)
    if _levels(document) > _LEVELS_MAX:
        raise validation(
            "Nesting Levels have exceeded supported limits: Attributes may be nested up to 32 levels."
        )
    check_by_model(service, operation, document)
    found: dict[str, Any] = document
    _check_expressions(found)
    _refuse_mixed_parameters(found)
    match operation:
        case "CreateTable":
            problems: list[str] = []
            request_model.check(_TABLE_NAME, document["TableName"], "tableName", problems)
            request_model.refuse_if(problems)
        case "BatchWriteItem":
            _check_batch(document["RequestItems"])
        case "TransactWriteItems":
            for item in document["TransactItems"]:
                for action in item.values():
                    _check_expressions(action or {})
    return found


def check_metrics(document: Any) -> None:
    """Refuse a PutMetricData of more metrics than one call may carry.

    Raises:
        RequestRefused: `ValidationError`.
    """
    metrics = document.get("MetricData") if isinstance(document, dict) else None
    if isinstance(metrics, list) and len(metrics) > _METRICS_MAX:
        raise RequestRefused(
            "ValidationError", f"The collection MetricData must not have a size greater than {_METRICS_MAX}."
        )


def check_by_model(service: str, operation: str, document: Any) -> None:
    """Refuse a document that violates the service's model.

    Raises:
        RequestRefused: `UnknownOperationException` for no operation of the service, `SerializationException` for a
            wrong type, `ValidationException` for a missing member or one that is too short or small.
    """
    # imported late, as moto is
    from botocore.validate import ParamValidator

    model = service_model(service)
    if operation not in model.operation_names:
        raise RequestRefused("UnknownOperationException", f"{service} has no operation {operation[:100]!r}.")
    if not isinstance(document, dict):
        raise serialization(f"the body must be a structure, not {type(document).__name__}")
    shape = model.operation_model(operation).input_shape
    if shape is None:
        return
    report = ParamValidator().validate(_known_members(document, shape), shape)
    if not report.has_errors():
        return
    lines = report.generate_report().split("\n")
    type_errors = [line for line in lines if line.startswith("Invalid type")]
    if type_errors:
        raise serialization(_shorten(type_errors[0]))
    if lines:
        plural = "error" if len(lines) == 1 else "errors"
        shown = "; ".join(_shorten(line) for line in lines[:_SHOWN_PROBLEMS_MAX])
        raise validation(f"{len(lines)} validation {plural} detected: {shown}")


def check_action(service: str, operation: str) -> None:
    """Refuse a form whose action is not an operation of its service.

    Raises:
        RequestRefused: `InvalidAction`.
    """
    if operation not in service_model(service).operation_names:
        raise RequestRefused("InvalidAction", f"{service} has no operation {operation[:100]!r}.")


@cache
def service_model(service: str) -> Any:
    """Return botocore's model of a service."""
    from botocore.session import Session

    return Session().get_service_model(service)


def _check_expressions(document: dict[str, Any]) -> None:
    for name, value in document.items():
        if name.endswith("Expression") and isinstance(value, str):
            size = len(value.encode())
            if size > _EXPRESSION_BYTES_MAX:
                raise validation(
                    f"Invalid {name}: Expression size has exceeded the maximum allowed size; expression size: {size}"
                )


def _refuse_mixed_parameters(document: dict[str, Any]) -> None:
    """Refuse legacy parameters beside expressions: moto would ignore one of the two, such as a condition."""
    given = [name for name, value in document.items() if value is not None]
    legacy = [name for name in given if name in _LEGACY_PARAMETERS]
    expressions = [name for name in given if name.endswith("Expression")]
    if legacy and expressions:
        raise validation(
            "Can not use both expression and non-expression parameters in the same request: Non-expression "
            f"parameters: {{{', '.join(legacy)}}} Expression parameters: {{{', '.join(expressions)}}}"
        )


def check_by_tables(operation: str, document: dict[str, Any], tables: Any) -> None:
    """Refuse a request that the service refuses because of the tables that it is for.

    Args:
        document: A document that passed `dynamodb_document`.
        tables: moto's tables by name.

    Raises:
        RequestRefused: A batch writes an item twice, or time to live is set to its present state.
    """
    match operation:
        case "BatchWriteItem":
            for name, writes in document["RequestItems"].items():
                if name in tables:
                    _refuse_repeated_keys(writes, tables[name].table_key_attrs)
        case "UpdateTimeToLive" if document["TableName"] in tables:
            is_enabled = tables[document["TableName"]].ttl["TimeToLiveStatus"] == "ENABLED"
            if document["TimeToLiveSpecification"]["Enabled"] == is_enabled:
                raise validation(f"TimeToLive is already {'enabled' if is_enabled else 'disabled'}")


def _refuse_repeated_keys(writes: list[dict[str, Any]], names: list[str]) -> None:
    items = [
        request.get("Key") or request.get("Item") or {} for write in writes for request in write.values()
    ]
    keys = [str([item[name] for name in names]) for item in items if item.keys() >= set(names)]
    if len(set(keys)) < len(keys):
        raise validation("Provided list of item keys contains duplicates")


def _check_batch(tables: dict[str, list[Any]]) -> None:
    if not tables:
        raise validation(
            "1 validation error detected: Value '{}' at 'requestItems' failed to satisfy constraint: "
            "Member must have length greater than or equal to 1"
        )
    for table, writes in tables.items():
        if not 1 <= len(writes) <= _BATCH_WRITES_MAX:
            raise validation(
                f"1 validation error detected: Value at 'requestItems.{table[:255]}.member' failed to satisfy "
                "constraint: Map value must satisfy constraint: [Member must have length less than or equal to "
                f"{_BATCH_WRITES_MAX}, Member must have length greater than or equal to 1]"
            )
    if sum(map(len, tables.values())) > _BATCH_WRITES_MAX:
        raise validation("Too many items requested for the BatchWriteItem call")


def _levels(document: Any) -> int:
    """Return how deep a document is nested, walked level by level."""
    level = [document]
    for depth in range(_LEVELS_MAX + 1):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return depth
    return _LEVELS_MAX + 1


def _known_members(value: Any, shape: Any) -> Any:
    """Return a document without the members that the service ignores: null, or not in the model."""
    match shape.type_name:
        case "structure" if isinstance(value, dict):
            return {
                key: _known_members(item, shape.members[key])
                for key, item in value.items()
                if item is not None and key in shape.members
            }
        case "map" if isinstance(value, dict):
            return {key: _known_members(item, shape.value) for key, item in value.items()}
        case "list" if isinstance(value, list):
            return [_known_members(item, shape.member) for item in value]
        case _:
            return value


def _shorten(line: str) -> str:
    return line if len(line) <= 300 else f"{line[:300]}..."
