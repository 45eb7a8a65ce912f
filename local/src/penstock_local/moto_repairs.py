"""Repairs of known differences between moto's DynamoDB and the service.

* A legacy `Expected` on DeleteItem is ignored by moto: it is rewritten as a condition expression.
* A malformed expression makes moto raise: the service answers a ValidationException.
"""

from __future__ import annotations

from typing import Any

import msgspec

_TERMS = {
    "EQ": "{0} = {1}",
    "NE": "{0} <> {1}",
    "LT": "{0} < {1}",
    "LE": "{0} <= {1}",
    "GT": "{0} > {1}",
    "GE": "{0} >= {1}",
    "NULL": "attribute_not_exists({0})",
    "NOT_NULL": "attribute_exists({0})",
    "IN": "{0} IN ({all})",
    "BETWEEN": "{0} BETWEEN {1} AND {2}",
    "BEGINS_WITH": "begins_with({0}, {1})",
    "CONTAINS": "contains({0}, {1})",
    "NOT_CONTAINS": "NOT contains({0}, {1})",
}


def repair_body(operation: str, body: bytes) -> bytes:
    """Return a body with a legacy `Expected` as a condition expression; a body without one is returned as it is."""
    if operation != "DeleteItem" or b'"Expected"' not in body:
        return body
    try:
        document = msgspec.json.decode(body)
        expected = document.pop("Expected")
        joint = f" {document.pop('ConditionalOperator', 'AND')} "
        names: dict[str, str] = {}
        values: dict[str, Any] = {}
        terms = [_term(i, name, test, names, values) for i, (name, test) in enumerate(expected.items())]
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, IndexError):
        # moto cannot read this request either, and refuses it
        return body
    if not terms:
        return msgspec.json.encode(document)
    document["ConditionExpression"] = joint.join(terms)
    document["ExpressionAttributeNames"] = names
    if values:
        document["ExpressionAttributeValues"] = values
    return msgspec.json.encode(document)


def _term(i: int, name: str, test: dict[str, Any], names: dict[str, str], values: dict[str, Any]) -> str:
    """Return one legacy condition as a term of an expression; add its placeholders to `names` and `values`."""
    attribute = f"#expected{i}"
    names[attribute] = name
    operator = test.get("ComparisonOperator")
    if operator is None and test.get("Exists") is False:
        operator = "NULL"
    given = (
        test["AttributeValueList"]
        if "AttributeValueList" in test
        else [test[k] for k in ("Value",) if k in test]
    )
    operands = []
    for j, value in enumerate(given):
        operands.append(f":expected{i}_{j}")
        values[operands[-1]] = value
    return _TERMS[operator or "EQ"].format(attribute, *operands, all=", ".join(operands))


def refusal_for(body: bytes, error: Exception) -> tuple[int, dict[str, str]] | None:
    """Return status and document of the service's refusal; None if the exception is not due to a malformed request."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return 400, {"__type": "SerializationException", "message": "the body is not JSON"}
    names = [name for name in document if name.endswith("Expression")] if isinstance(document, dict) else []
    if not names:
        return None
    reason = str(error) or type(error).__name__
    return 400, {
        "__type": "com.amazon.coral.validate#ValidationException",
        "message": f"Invalid {' or '.join(names)}: {reason}",
    }
