"""Fields of JSON records: types of new columns, and reasons why a record is a dead letter."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.core.safe_text import text_of

COLUMNS_MAX: Final = 1000
"""Most columns of a table; a record that needs more is a dead letter."""
_LONG_MAX: Final = 2**63 - 1
HALF_PAIR: Final = (
    r"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F])"
)
"""Half a surrogate pair in the text of a JSON value, for the regular expressions of Python and Java. Spark would write `?`."""
SECONDS_MAX: Final = 253_402_300_800
"""Begin of the year 10000, in seconds. Spark reads a number as seconds, so today's moments in milliseconds are after it."""
SECONDS_MIN: Final = -62_135_596_800
"""Begin of the year 1, in seconds. Python reads no moment before it, and none of the year 10000."""
_SURE: Final = ("string", "boolean", "double", "float")
"""Types for which `_may_fit` alone decides, beside those of `_WHOLE`."""
_FLOAT_MAX: Final = (2 - 2**-23) * 2.0**127
_WHOLE: Final = {"tinyint": 2**7, "smallint": 2**15, "int": 2**31, "bigint": 2**63}
_UNREADABLE: Final = "Spark cannot read {}: a name or a number is too long, or it is nested too deeply"
_OR_UNREADABLE: Final = f", or {_UNREADABLE.format('the record')}"


def _no_refusal(*_: str) -> str | None:
    return None


def infer_columns(
    texts: Iterable[str], columns: Collection[str], refusal: Callable[[str], str | None] = _no_refusal
) -> dict[str, str]:
    """Return the new columns of records, in order of their names.

    Objects, arrays and fields with values of several kinds become STRING columns with their JSON text, so nothing is lost when their
    structure changes.

    Args:
        texts: Records; those that are not JSON objects are skipped.
        columns: The existing columns. A field that differs from one of them only in case becomes no column.
        refusal: Returns why a new field becomes no column; None if it may.

    Returns:
        Spark's type by field: BIGINT, DOUBLE, BOOLEAN or STRING.
    """
    return _infer((_parse(text) for text in texts), columns, refusal)


def infer_fields(
    texts: Iterable[str],
    structs: Mapping[tuple[str, ...], Collection[str]],
    refusal: Callable[[str, str], str | None] = _no_refusal,
) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the new fields of the structs in records, by the rules of `infer_columns`.

    Args:
        structs: The known fields of each struct, by the names of the columns and fields that lead to it.
        refusal: Returns why a new field, from its name and its path with dots, is not added; None if it may.

    Returns:
        Spark's type by field, for each struct that gets fields.
    """
    records = [_parse(text) for text in texts]
    found = {}
    for path, known in structs.items():
        inner = records
        for name in path:
            inner = [each.get(name) if isinstance(each, dict) else None for each in inner]
        found[path] = _infer(inner, known, partial(_refusal_at, path, refusal))
    return {path: fields for path, fields in found.items() if fields}


def _refusal_at(path: tuple[str, ...], refusal: Callable[[str, str], str | None], name: str) -> str | None:
    return refusal(name, ".".join((*path, name)))


def _infer(
    records: Iterable[Any], columns: Collection[str], refusal: Callable[[str], str | None]
) -> dict[str, str]:
    taken = {name.lower() for name in columns}
    found: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    for record in records:
        if not isinstance(record, dict):
            continue
        for name, value in record.items():
            if name and name not in columns and refusal(name) is None:
                found.setdefault(name, set()).add(_kind_of(value))
                counts[name] += 1
    # Of names that differ only in case one becomes a column. A single odd record must not make dead letters of all others.
    chosen = {name.lower(): name for name in sorted(sorted(found, reverse=True), key=counts.__getitem__)}
    new_columns: dict[str, str] = {}
    for name in sorted(chosen.values()):
        if name.lower() not in taken and len(columns) + len(new_columns) < COLUMNS_MAX:
            taken.add(name.lower())
            new_columns[name] = _merge_kinds(found[name] - {""})
    return new_columns


def _kind_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -_LONG_MAX <= value <= _LONG_MAX else "STRING"
    return "DOUBLE" if isinstance(value, float) and _is_finite(value) else "STRING"


def _merge_kinds(kinds: set[str]) -> str:
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return next(iter(kinds)) if len(kinds) == 1 else "STRING"


class TableColumns(Struct, frozen=True):
    """The columns of a table, from which the reason of a dead letter follows.

    Args:
        types: Spark's simple type by column.
        structs: For each column that is a struct: its fields by name, each with its own fields if it is a struct too, else None.
        refusal: Returns why a new field becomes no column; None if it may.
        inner_refusal: The same for a field inside a struct, from its name and its path with dots.
    """

    types: Mapping[str, str]
    structs: Mapping[str, Any] = {}
    refusal: Callable[[str], str | None] = _no_refusal
    inner_refusal: Callable[[str, str], str | None] = _no_refusal


def explain_misfit(data: bytes, columns: TableColumns, *, is_unknown: bool = False) -> str:
    """Return the reason why a record does not fit the table.

    Args:
        is_unknown: Whether a field without a column must be the reason, since all values fit. If not, such a field is the reason
            only if it may not become a column.
    """
    return text_of(_explain(data, columns, is_unknown))


def _explain(data: bytes, columns: TableColumns, is_unknown: bool) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start}"
    try:
        pairs = json.loads(
            text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant, parse_int=_parse_whole_number
        )
    except RecursionError:
        return "not JSON: nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(pairs, _Pairs):
        return f"a JSON {_describe_value(pairs)} instead of an object"
    half_pair = "a text has half a surrogate pair, which is not valid Unicode"
    return (
        _explain_values(pairs, columns.types)
        or _explain_new_field(pairs, columns, is_unknown)
        or _explain_field_in_struct(pairs, columns.structs, columns.inner_refusal, "", is_unknown)
        or (half_pair if re.search(HALF_PAIR, text) else None)
        or _explain_unsure_values(pairs, columns.types)
        or _UNREADABLE.format("it")
    )


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its fields as written: in order, with duplicates."""


def _explain_values(pairs: _Pairs, types: Mapping[str, str]) -> str | None:
    counts = Counter(name for name, _ in pairs)
    for name, value in pairs:
        if counts[name] > 1:
            return f"field {name} is there twice"
        if name in types and not _may_fit(value, types[name]):
            return f"field {name}: {_describe_value(value)} does not fit {types[name].upper()}"
    return None


def _explain_new_field(pairs: _Pairs, columns: TableColumns, is_unknown: bool) -> str | None:
    """Explain a field without a column.

    Args:
        is_unknown: As for `explain_misfit`.
    """
    for name, _ in pairs:
        if name in columns.types:
            continue
        reason = _case_conflict(name, columns.types, "column") or columns.refusal(name)
        if reason is None and is_unknown and len(columns.types) >= COLUMNS_MAX:
            reason = f"a table has at most {COLUMNS_MAX:,} columns"
        if reason is not None or is_unknown:
            return _no_column_text(name, reason)
    return None


def _explain_field_in_struct(
    pairs: _Pairs,
    structs: Mapping[str, Any],
    refusal: Callable[[str, str], str | None],
    path: str,
    is_unknown: bool,
) -> str | None:
    """Explain a field of a struct that is there twice or is not known; `is_unknown` as for `explain_misfit`."""
    for column, value in pairs:
        known = structs.get(column)
        if known is None or not isinstance(value, _Pairs):
            continue
        counts = Counter(name for name, _ in value)
        for name, _ in value:
            shown = f"{path}{column}.{name}"
            if counts[name] > 1:
                return f"field {shown} is there twice"
            if name not in known:
                reason = _case_conflict(name, known, "field") or refusal(name, shown)
                if reason is not None or is_unknown:
                    return _no_column_text(shown, reason)
        reason = _explain_field_in_struct(value, known, refusal, f"{path}{column}.", is_unknown)
        if reason is not None:
            return reason
    return None


def _explain_unsure_values(pairs: _Pairs, types: Mapping[str, str]) -> str | None:
    """Name the fields whose values only Spark can judge; the record does not fit, so one of them does not."""
    unsure = [
        (name, value)
        for name, value in pairs
        if value is not None and name in types and types[name] not in (*_SURE, *_WHOLE)
    ]
    if not unsure:
        return None
    if len(unsure) > 1:
        shown = ", ".join(f"{name} ({types[name].upper()})" for name, _ in unsure)
        return f"a value does not fit its column: one of {shown}{_OR_UNREADABLE}"
    (name, value), *_ = unsure
    return f"field {name}: {_describe_value(value)} does not fit {types[name].upper()}{_OR_UNREADABLE}"


def _case_conflict(name: str, names: Collection[str], noun: str) -> str | None:
    near = next((each for each in names if each.lower() == name.lower()), None)
    return None if near is None else f"{noun} {near} differs in case"


def _no_column_text(name: str, reason: str | None) -> str:
    return f"field {name} is not a column{'' if reason is None else f': {reason}'}"


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _parse_whole_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # Python reads at most 4,300 digits; no column holds that many
        return float(text)


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _may_fit(value: Any, kind: str) -> bool:
    """Return False if a column of this kind certainly cannot hold the value. Spark decides about all other values."""
    if value is None or kind == "string":
        return True
    if kind in _WHOLE:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and -_WHOLE[kind] <= value < _WHOLE[kind]
    if kind.startswith(("double", "float", "decimal")):
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
        return is_number and (kind != "float" or abs(value) <= _FLOAT_MAX)
    if kind.startswith("timestamp"):
        return not isinstance(value, int | float) or abs(value) < SECONDS_MAX
    wanted = {"boolean": bool, "struct": _Pairs, "map": _Pairs, "array": list}.get(kind.partition("<")[0])
    if wanted is list:
        return isinstance(value, list) and not isinstance(value, _Pairs)
    return wanted is None or isinstance(value, wanted)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _describe_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return f"number {value}" if len(str(value)) <= 30 else "number"
    if isinstance(value, str):
        return f"text {value!r}" if len(value) <= 30 else "text"
    return "array" if isinstance(value, list) and not isinstance(value, _Pairs) else "object"
