"""What fastavro writes although it does not fit: numbers out of their range, fractions of an int, truth as a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Number
from typing import Any, Final, TypeAlias

Check: TypeAlias = Callable[[Any], None]

INTEGER_ENDS: Final[Mapping[str, int]] = {"int": 1 << 31, "long": 1 << 63}
"""By type: the first number that is too large; the smallest one that fits is its negative."""


def check_of(schema: Any) -> Check:
    """Return what raises ValueError for a value that a schema's numbers and truth values do not take.

    All else is left to fastavro, which checks it when it writes: missing fields, and the matching branch of a union.

    Args:
        schema: As `parse_avro` returns it.
    """
    return _of(schema, "", {})


def _of(schema: Any, path: str, named: dict[str, Check]) -> Check:
    if isinstance(schema, list):
        return _of_union(schema, path, named)
    kind = _kind(schema)
    if kind in ("record", "error"):
        return _of_record(schema, path, named)
    if kind == "array":
        element = _of(schema["items"], f"{path}[]", named)
        return lambda value: _each(element, value)
    if kind == "map":
        item = _of(schema["values"], f"{path}{{}}", named)
        return lambda value: _each(item, value.values() if isinstance(value, Mapping) else ())
    return named.get(kind) or _of_primitive(schema, kind, path)


def _of_primitive(schema: Any, kind: str, path: str) -> Check:
    if kind in INTEGER_ENDS:
        return _of_integer(kind, path, is_logical=isinstance(schema, Mapping) and "logicalType" in schema)
    if kind == "boolean":
        return lambda value: _refuse(value, kind, path) if not isinstance(value, bool) else None
    if kind in ("float", "double"):
        return lambda value: _refuse(value, kind, path) if isinstance(value, bool) else None
    return _nothing


def _of_record(schema: Mapping[str, Any], path: str, named: dict[str, Check]) -> Check:
    fields: dict[str, Check] = {}

    def check(value: Any) -> None:
        if isinstance(value, Mapping):
            for name, each in fields.items():
                if name in value:
                    each(value[name])

    named[schema["name"]] = check
    for field in schema["fields"]:
        found = _of(field["type"], f"{path}.{field['name']}", named)
        if found is not _nothing:
            fields[field["name"]] = found
    return check


def _of_union(branches: list[Any], path: str, named: dict[str, Check]) -> Check:
    # Of a value alone fastavro itself looks for a branch that it fits. A pair names its branch.
    checks = {_name(branch): _of(branch, path, named) for branch in branches}

    def check(value: Any) -> None:
        if isinstance(value, tuple) and len(value) == 2 and value[0] in checks:
            checks[value[0]](value[1])

    return check


def _of_integer(kind: str, path: str, *, is_logical: bool) -> Check:
    end = INTEGER_ENDS[kind]

    def check(value: Any) -> None:
        if is_logical and not isinstance(value, Number):
            return  # a moment, which fastavro makes a number of
        if isinstance(value, bool) or not isinstance(value, Integral) or not -end <= int(value) < end:
            _refuse(value, kind, path)

    return check


def _each(check: Check, values: Any) -> None:
    if check is not _nothing:
        for value in values:
            check(value)


def _nothing(value: Any) -> None:
    """Accept any value."""


def _refuse(value: Any, kind: str, path: str) -> None:
    raise ValueError(f"{path.removeprefix('.') or 'the value'}: {value!r:.100} is no {kind}")


def _kind(schema: Any) -> Any:
    return schema if isinstance(schema, str) else schema["type"]


def _name(branch: Any) -> Any:
    return branch["name"] if isinstance(branch, Mapping) and "name" in branch else _kind(branch)
