"""Checks of values that fastavro writes although they do not fit: numbers out of range, fractions, booleans, long decimals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Integral, Number
from typing import Any, Final, TypeAlias

from penstock.schemas.avro_cost import DECIMAL_DIGITS_MAX

Check: TypeAlias = Callable[[Any], None]

INTEGER_ENDS: Final[Mapping[str, int]] = {"int": 1 << 31, "long": 1 << 63}
"""The first number that is too large, by type; its negative is the smallest one that fits."""


_AVRO_TYPES: Final[Mapping[type, tuple[str, ...]]] = {
    Decimal: ("bytes", "fixed"),
    dict: ("record", "error", "map"),
}
"""Avro types by the type of a value. A value of one of these types can only belong to the branch of its Avro type."""


def check_of(schema: Any) -> Check:
    """Return a check that raises ValueError for a value that does not fit a number or a boolean of the schema.

    fastavro finds other errors when it writes: a missing field, a value that fits no branch of a union.

    Args:
        schema: As `parse_avro` returns it.
    """
    return _check_of(schema, "", {})


def _check_of(schema: Any, path: str, checks_by_name: dict[str, Check]) -> Check:
    if isinstance(schema, list):
        return _union_check(schema, path, checks_by_name)
    kind = _type_of(schema)
    if kind in ("record", "error"):
        return _record_check(schema, path, checks_by_name)
    if kind == "array":
        element = _check_of(schema["items"], f"{path}[]", checks_by_name)
        return lambda value: _check_each(element, value)
    if kind == "map":
        item = _check_of(schema["values"], f"{path}{{}}", checks_by_name)
        return lambda value: _check_each(item, value.values() if isinstance(value, Mapping) else ())
    return checks_by_name.get(kind) or _primitive_check(schema, kind, path)


def _primitive_check(schema: Any, kind: str, path: str) -> Check:
    if kind in INTEGER_ENDS:
        return _integer_check(kind, path, is_logical=isinstance(schema, Mapping) and "logicalType" in schema)
    if kind == "boolean":
        return lambda value: _refuse(value, kind, path) if not isinstance(value, bool) else None
    if isinstance(schema, Mapping) and schema.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return _decimal_check(schema["precision"], schema.get("scale", 0), path)
    if kind in ("float", "double"):
        return lambda value: _refuse(value, kind, path) if isinstance(value, bool) else None
    return _accept


def _record_check(schema: Mapping[str, Any], path: str, checks_by_name: dict[str, Check]) -> Check:
    fields: dict[str, Check] = {}

    def check(value: Any) -> None:
        if isinstance(value, Mapping):
            for name, each in fields.items():
                if name in value:
                    each(value[name])

    checks_by_name[schema["name"]] = check
    for field in schema["fields"]:
        found = _check_of(field["type"], f"{path}.{field['name']}", checks_by_name)
        if found is not _accept:
            fields[field["name"]] = found
    return check


def _union_check(branches: list[Any], path: str, checks_by_name: dict[str, Check]) -> Check:
    # For a plain value, fastavro itself finds the branch that fits. A pair (name, value) names its branch.
    checks = {_branch_name(branch): _check_of(branch, path, checks_by_name) for branch in branches}
    branch_checks = {
        kind: [_check_of(each, path, checks_by_name) for each in branches if _is_branch_of(each, kind)]
        for kind in _AVRO_TYPES
    }

    def check(value: Any) -> None:
        if isinstance(value, tuple) and len(value) == 2 and value[0] in checks:
            checks[value[0]](value[1])
            return
        for kind, found in branch_checks.items():
            if isinstance(value, kind) and len(found) == 1:
                found[0](value)

    return check


def _is_branch_of(branch: Any, kind: type) -> bool:
    is_decimal = isinstance(branch, Mapping) and branch.get("logicalType") == "decimal"
    return is_decimal if kind is Decimal else _type_of(branch) in _AVRO_TYPES[kind]


def _integer_check(kind: str, path: str, *, is_logical: bool) -> Check:
    end = INTEGER_ENDS[kind]

    def check(value: Any) -> None:
        if is_logical and not isinstance(value, Number):
            return  # a timestamp, which fastavro converts to a number
        if isinstance(value, bool) or not isinstance(value, Integral) or not -end <= int(value) < end:
            _refuse(value, kind, path)

    return check


def _decimal_check(precision: int, scale: int, path: str) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, Decimal):
            return
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            _refuse(value, "number", path)
        elif value and len(digits) + exponent + scale > precision:
            raise ValueError(
                f"{path.removeprefix('.') or 'the value'}: {value!r:.100} has more than {precision} digits with a scale of "
                f"{scale}"
            )

    return check


def check_exponents(value: Any) -> None:
    """Refuse a decimal with a large exponent anywhere in a value, because fastavro would write out all of its zeros.

    Raises:
        ValueError: The value has such a decimal.
    """
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and exponent > DECIMAL_DIGITS_MAX:
            raise ValueError(f"{value!r:.100} has more than {DECIMAL_DIGITS_MAX} digits")
    elif isinstance(value, Mapping):
        for each in value.values():
            check_exponents(each)
    elif isinstance(value, list | tuple):
        for each in value:
            check_exponents(each)


def _check_each(check: Check, values: Any) -> None:
    if check is not _accept:
        for value in values:
            check(value)


def _accept(value: Any) -> None:
    """Accept any value."""


def _refuse(value: Any, kind: str, path: str) -> None:
    raise ValueError(f"{path.removeprefix('.') or 'the value'}: {value!r:.100} is not a valid {kind}")


def _type_of(schema: Any) -> Any:
    return schema if isinstance(schema, str) else schema["type"]


def _branch_name(branch: Any) -> Any:
    return branch["name"] if isinstance(branch, Mapping) and "name" in branch else _type_of(branch)
