"""The names of all operations that the server may be asked for, so that a misspelt one is refused.

Source: the service models that botocore ships.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import Any, Final

import msgspec

from penstock_local.errors import OptionError
from penstock_local.request_model import KINESIS, read_model

_MODELS: Final = {
    "kinesis": KINESIS,
    "dynamodb": "dynamodb/2012-08-10",
    "dynamodbstreams": "dynamodbstreams/2012-08-10",
    "cloudwatch": "cloudwatch/2010-08-01",
    "sts": "sts/2011-06-15",
}


class _Names(msgspec.Struct, frozen=True):
    operations: dict[str, Any]


@cache
def _names_of(service: str) -> frozenset[str]:
    return frozenset(read_model(_MODELS[service], _Names).operations)


def check_operation(operation: str, place: str = "a fault is for") -> None:
    """Make sure that the operation of a fault or a count exists.

    Args:
        operation: A name, alone or with its service in front (`dynamodb.UpdateItem`), or `*`.
        place: The beginning of the error message.

    Raises:
        OptionError: No service here has it; the message has the nearest name that there is.
    """
    if not isinstance(operation, str):
        raise OptionError(f"{place} {operation!r}: expected the name of an operation, or '*'")
    if operation == "*":
        return
    service, has_service, name = operation.rpartition(".")
    if has_service and service not in _MODELS:
        raise OptionError(f"{place} {operation}: no service {service}; known are {', '.join(_MODELS)}")
    services = [service] if has_service else list(_MODELS)
    if any(name in _names_of(each) for each in services):
        return
    near = difflib.get_close_matches(name, [known for each in services for known in _names_of(each)], 1)
    hint = f"; did you mean {service}{has_service}{near[0]}?" if near else ""
    raise OptionError(f"{place} {operation}, which is not an operation of {', '.join(services)}{hint}")
