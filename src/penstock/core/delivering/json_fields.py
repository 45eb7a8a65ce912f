"""Fields of JSON records: types of new columns, and reasons why a record is a dead letter."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

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
_WHOLE: Final = {"tinyint": 2**7, "smallint": 2**15, "int": 2**31, "bigint": 2**63}


def _none(name: str) -> str | None:
    del name
    return None


def infer_columns(
    texts: Iterable[str], known: Collection[str], refusal: Callable[[str], str | None] = _none
) -> dict[str, str]:
    """Return the new columns of records, in order of their names.

    Objects, arrays and fields with values of several kinds become STRING columns with their JSON text, so nothing is lost when their
    structure changes.

    Args:
        texts: Records; those that are no JSON objects are skipped.
        known: Existing columns. A field that differs from one of them only in case becomes no column.
        refusal: Returns why a new field becomes no column; None if it may.

    Returns:
        Spark's type by field: BIGINT, DOUBLE, BOOLEAN or STRING.
    """
    taken = {name.lower() for name in known}
    found: dict[str, set[str]] = {}
    for text in texts:
        record = _parse(text)
        if not isinstance(record, dict):
            continue
        for name, value in record.items():
            if name and name not in known and refusal(name) is None:
                found.setdefault(name, set()).add(_kind_of(value))
    columns: dict[str, str] = {}
    for name in sorted(found):
        if name.lower() not in taken and len(known) + len(columns) < COLUMNS_MAX:
            taken.add(name.lower())
            columns[name] = _merged(found[name] - {""})
    return columns


def _kind_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -_LONG_MAX <= value <= _LONG_MAX else "STRING"
    return "DOUBLE" if isinstance(value, float) and _is_finite(value) else "STRING"


def _merged(kinds: set[str]) -> str:
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return next(iter(kinds)) if len(kinds) == 1 else "STRING"


def explain(data: bytes, types: Mapping[str, str], refusal: Callable[[str], str | None] = _none) -> str:
    """Return the reason why a record does not fit the table.

    Args:
        data: The record.
        types: Spark's simple type by column.
        refusal: Returns why a new field becomes no column; None if it may.
    """
    return text_of(_explain(data, types, refusal))


def _explain(data: bytes, types: Mapping[str, str], refusal: Callable[[str], str | None] = _none) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte {error.start}"
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse)
    except RecursionError:
        return "not JSON: nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(pairs, _Pairs):
        return f"a JSON {_name_of(pairs)} instead of an object"
    return (
        _explain_fields(pairs, types, refusal)
        or (
            "a text has half a surrogate pair, which is no valid Unicode"
            if re.search(HALF_PAIR, text)
            else None
        )
        or "a value does not fit its column, or an object in it has a field without one"
    )


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its fields as written: in order, with duplicates."""


def _explain_fields(
    pairs: _Pairs, types: Mapping[str, str], refusal: Callable[[str], str | None]
) -> str | None:
    counts = Counter(name for name, _ in pairs)
    for name, value in pairs:
        if counts[name] > 1:
            return f"field {name} is there twice"
        if name in types and not _may_fit(value, types[name]):
            return f"field {name}: {_name_of(value)} does not fit {types[name].upper()}"
    for name, _ in pairs:
        if name not in types:
            near = next((each for each in types if each.lower() == name.lower()), None)
            reason = refusal(name) if near is None else f"column {near} differs in case"
            return f"field {name} is no column{'' if reason is None else f': {reason}'}"
    return None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _may_fit(value: Any, kind: str) -> bool:
    """Return False if a column of this kind certainly cannot hold the value. Spark decides about all other values."""
    if value is None or kind == "string":
        return True
    if kind in _WHOLE:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _WHOLE[kind]
    if kind.startswith(("double", "float", "decimal")):
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
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


def _name_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return f"number {value}" if len(str(value)) <= 30 else "number"
    if isinstance(value, str):
        return f"text {value!r}" if len(value) <= 30 else "text"
    return "array" if isinstance(value, list) and not isinstance(value, _Pairs) else "object"
