"""A fix of conditions that compare values of different types.

The service calls such a condition false. moto raises, so that a scan of rows of several kinds failed with its filter; it also raises for
the size of a missing attribute, and takes true for the number 1 and a missing attribute for a NULL.
"""

from __future__ import annotations

import logging
from functools import partial, wraps
from typing import Any

from penstock_local.moto_methods import replace_method

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
    equalities: dict[type, Any] = {
        comparisons.OpEqual: partial(_equal_by_types, if_types_differ=False),
        comparisons.OpNotEqual: partial(_equal_by_types, if_types_differ=True),
    }
    for owner in ordered:
        replace_method(owner, "expr", equalities.get(owner, _false_between_types))
    replace_method(DynamoType, "compare", _false_between_types)
    return True


def _equal_by_types(original: Any, *, if_types_differ: bool) -> Any:
    @wraps(original)
    def compare(condition: Any, item: Any) -> Any:
        sides = (condition.lhs, condition.rhs)
        if all(hasattr(side, "get_type") for side in sides):  # a function, such as size, has none
            first, second = (side.get_type(item) for side in sides)
            if first != second:
                return if_types_differ
        return original(condition, item)

    return _false_between_types(compare)


def _false_between_types(original: Any) -> Any:
    @wraps(original)
    def compare(*arguments: Any) -> bool:
        try:
            return bool(original(*arguments))
        except (TypeError, AttributeError, ValueError):
            return False

    return compare
