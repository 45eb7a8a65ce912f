"""A fix of conditions that compare values of different types.

The service calls such a condition false. moto raises, so that a scan of rows of several kinds failed with its filter; it also raises for
the size of a missing attribute, and takes true for the number 1 and a missing attribute for a NULL.
"""

from __future__ import annotations

import logging
from functools import wraps
from typing import Any

_log = logging.getLogger("penstock_local")


def install_comparisons() -> bool:
    """Install the fix in this process's moto; a second call changes nothing.

    Returns:
        False if this moto has no place for it: then such a condition is refused.
    """
    try:
        from moto.dynamodb import comparisons
        from moto.dynamodb.models.dynamo_type import DynamoType

        ordered = [*comparisons.COMPARATOR_CLASS.values(), comparisons.FuncBetween]
    except (ImportError, AttributeError):
        _log.info("this moto compares in another way: conditions on values of different types are refused")
        return False
    for owner, name in [*((each, "expr") for each in ordered), (DynamoType, "compare")]:
        original = getattr(owner, name)
        if not getattr(original, "is_of_penstock", False):
            if owner in (comparisons.OpEqual, comparisons.OpNotEqual):
                original = _with_types_compared(original, differ=owner is comparisons.OpNotEqual)
            setattr(owner, name, _false_between_types(original))
    return True


def _with_types_compared(original: Any, *, differ: bool) -> Any:
    @wraps(original)
    def compare(condition: Any, item: Any) -> Any:
        sides = (condition.lhs, condition.rhs)
        if all(hasattr(side, "get_type") for side in sides):  # a function, such as size, has none
            first, second = (side.get_type(item) for side in sides)
            if first != second:
                return differ
        return original(condition, item)

    return compare


def _false_between_types(original: Any) -> Any:
    @wraps(original)
    def compare(*arguments: Any) -> bool:
        try:
            return bool(original(*arguments))
        except (TypeError, AttributeError, ValueError):
            return False

    compare.is_of_penstock = True  # type: ignore[attr-defined]  # a mark that it is in place
    return compare
