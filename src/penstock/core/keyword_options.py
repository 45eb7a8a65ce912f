"""Options given by keyword: checked against the fields of a frozen dataclass, with the nearest known name in the error."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final, TypeVar

from penstock.errors import OptionError

T = TypeVar("T")
_KINDS: Final[dict[str, tuple[Any, str]]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
}


def field_names(kind: type) -> frozenset[str]:
    """Return the names of a dataclass's fields."""
    return frozenset(field.name for field in dataclasses.fields(kind))


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names, followed by a space; empty if none is near.

    Args:
        name: As the user wrote it, in whatever case.
    """
    by_lower = {each.lower(): each for each in known_names}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    return f"did you mean {by_lower[near[0]]}? " if near else ""


def repeated_name(names: Sequence[Any]) -> Any:
    """Return the first name that is there more than once; None if each is there once."""
    return next((name for name in names if names.count(name) > 1), None)


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, as the `object_pairs_hook` of `json`.

    Raises:
        ValueError: A key is there twice.
    """
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError(f"{repeated_name([key for key, _ in pairs])} is there twice")
    return document


def check_names(names: Iterable[str], known_names: Collection[str], kind: str) -> None:
    """Refuse an unknown name.

    Args:
        kind: The kind of the names, for the message.

    Raises:
        OptionError: An unknown name; the message has the nearest known one and all of them.
    """
    for name in names:
        if name not in known_names:
            raise OptionError(
                f"unknown {kind} {name}: {did_you_mean(name, known_names)}known are {', '.join(sorted(known_names))}"
            )


def check_types(options: Any) -> None:
    """Refuse a field of a dataclass value whose kind differs from its annotation, if that is a number, a bool or a text.

    A number or a text of another class, as numpy has them, becomes a plain one: it could not be sent.

    Raises:
        OptionError: For instance a text in place of a number; the message names the field, and its value if that is not text.
    """
    for field in dataclasses.fields(options):
        kind, *others = str(field.type).split(" | ")
        value = getattr(options, field.name)
        if value is None and "None" in others:
            continue
        if kind == "str" and not set(others) - {"None"}:
            if not isinstance(value, str):  # without the value, which may be a secret
                raise OptionError(f"{field.name}: expected a text, not {type(value).__name__}")
            object.__setattr__(options, field.name, str.__str__(value))
        if kind not in _KINDS:
            continue
        expected, kind_text = _KINDS[kind]
        if not isinstance(value, expected) or isinstance(value, bool) != (kind == "bool"):
            raise OptionError(f"{field.name}={value!r}: expected {kind_text}")
        try:
            float(value)
        except OverflowError:  # arithmetic with it would fail later, in a thread
            raise OptionError(f"{field.name}: the number is too large") from None
        if type(value) not in (bool, int, float):
            object.__setattr__(
                options, field.name, int(value) if isinstance(value, Integral) else float(value)
            )


def check_unicode(name: str, text: str) -> None:
    """Refuse a text that cannot be sent or written.

    Raises:
        OptionError: It has half of a surrogate pair, as an argument of the command line that is not UTF-8 does.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{name}={text!a}: it is not Unicode text at character {error.start}") from error


def check_range(options: object, low: float, high: float | None, *names: str) -> None:
    """Refuse fields outside a range, both ends included; None is allowed.

    Raises:
        OptionError: The message names the field, its value and the range.
    """
    bound = f"at least {low:,}" if high is None else f"{low:,} to {high:,}"
    for name in names:
        value = getattr(options, name)
        if value is not None and not low <= value <= (math.inf if high is None else high):
            raise OptionError(f"{name}={value}: expected {bound}")


def check_above_zero(options: object, *names: str) -> None:
    """Refuse fields that are not above 0; None is allowed.

    Raises:
        OptionError: The message names the field and its value.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise OptionError(f"{name}={value}: expected more than 0")


def check_choice(options: object, name: str, *choices: str) -> None:
    """Refuse a field that has none of these values.

    Raises:
        OptionError: The message names the field, its value and the choices.
    """
    value = getattr(options, name)
    if value not in choices:
        *others, last = map(repr, choices)
        raise OptionError(f"{name}={value!r}: expected {', '.join(others)} or {last}")


def check_backoff(options: Any, prefix: str = "") -> None:
    """Refuse bounds of a back-off that are not above 0, in order and finite.

    Args:
        prefix: Begins both names in the message, as in the user's options.

    Raises:
        OptionError: The message has both bounds.
    """
    low_s, high_s = options.backoff_min_s, options.backoff_max_s
    if not 0 < low_s <= high_s < math.inf:
        low, high = f"{prefix}backoff_min_s", f"{prefix}backoff_max_s"
        raise OptionError(f"{low}={low_s}, {high}={high_s}: expected 0 < {low} <= {high}, and finite")


def merge_options(options: T, replacements: Mapping[str, Any]) -> T:
    """Return a copy of a dataclass value with some fields replaced.

    Raises:
        OptionError: A name is not a field, the dataclass refuses a value, or `options` is not a dataclass value.
    """
    if isinstance(options, type) or not dataclasses.is_dataclass(options):
        raise OptionError(
            f"options is of type {type(options).__name__}: give a value of the options' class, or single options by name"
        )
    check_names(replacements, field_names(type(options)), "option")
    return dataclasses.replace(options, **replacements) if replacements else options  # type: ignore[type-var]


def merge_connection(connection: Mapping[str, Any] | None, **named_region: str | None) -> dict[str, Any]:
    """Return the fields of a connection, with those that were given as separate parameters.

    Raises:
        OptionError: The connection is not a mapping.
    """
    if connection is not None and not isinstance(connection, Mapping):
        raise OptionError(
            f"connection is of type {type(connection).__name__}: expected its fields, for instance "
            "connection={'region': 'eu-west-1'}"
        )
    return {
        **(connection or {}),
        **{name: value for name, value in named_region.items() if value is not None},
    }
