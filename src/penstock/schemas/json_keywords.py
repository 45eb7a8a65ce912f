"""Keywords of JSON Schema whose time is bounded by the value's size. jsonschema's own keywords compare every pair of an array's items, and search with `re`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsonschema import Draft7Validator, ValidationError, validators

from penstock.schemas.patterns import compile_search

PATTERN_CHARACTERS_MAX: Final = 10_000
"""Longer texts and names are refused by patterns: the time of a match may grow with the square of the length."""
_SHOWN_MAX: Final = 200
_standard_additional_properties: Final = Draft7Validator.VALIDATORS["additionalProperties"]


def with_bounded_keywords(kind: Any) -> Any:
    """Return a class of validators whose costly keywords are those of this module."""
    return validators.extend(
        kind, {name: each for name, each in _KEYWORDS.items() if name in kind.VALIDATORS}
    )


def _unique_items(validator: Any, rule: Any, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if rule and validator.is_type(value, "array") and len(set(map(_comparable_value, value))) < len(value):
        yield ValidationError(f"{value!r:.{_SHOWN_MAX}} has non-unique elements")


def _pattern(validator: Any, rule: str, value: Any, _schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(value, "string"):
        return
    if len(value) > PATTERN_CHARACTERS_MAX:
        yield ValidationError(_too_long_text(value))
    elif not compile_search(rule)(value):
        yield ValidationError(f"{value!r:.{_SHOWN_MAX}} does not match {rule!r}")


def _pattern_properties(
    validator: Any, rule: Mapping[str, Any], value: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    longest = max(value, key=len, default="")
    if len(longest) > PATTERN_CHARACTERS_MAX:
        yield ValidationError(_too_long_text(longest))
        return
    for pattern, subschema in rule.items():
        for name in filter(compile_search(pattern), value):
            yield from validator.descend(value[name], subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, rule: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    patterns = schema.get("patternProperties", {})
    if not patterns or not validator.is_type(value, "object"):
        yield from _standard_additional_properties(validator, rule, value, schema) or ()
        return
    if any(len(name) > PATTERN_CHARACTERS_MAX for name in value):
        return  # `_pattern_properties` reports the long name
    searches = [compile_search(pattern) for pattern in patterns]
    known_names = schema.get("properties", {})
    unknown_names = [
        name for name in value if name not in known_names and not any(search(name) for search in searches)
    ]
    if validator.is_type(rule, "object"):
        for name in unknown_names:
            yield from validator.descend(value[name], rule, path=name)
    elif not rule and unknown_names:
        names = ", ".join(f"{name!r:.{_SHOWN_MAX}}" for name in unknown_names[:5])
        yield ValidationError(f"of the names {names} none matches {', '.join(map(repr, patterns))}")


_KEYWORDS: Final = {
    "uniqueItems": _unique_items,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}


def _too_long_text(text: str) -> str:
    return f"a text of {len(text)} characters is too long for a pattern, which takes {PATTERN_CHARACTERS_MAX}"


def _comparable_value(value: Any) -> Any:
    """Return a key that equal values of JSON share: 1 and 1.0 do, 1 and true do not."""
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, list):
        return "array", tuple(map(_comparable_value, value))
    if isinstance(value, dict):
        return "object", frozenset((name, _comparable_value(each)) for name, each in value.items())
    return value
