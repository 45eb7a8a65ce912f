"""Options as data: names, aliases, kinds, defaults and meaning in one table that parses, refuses and documents.

Keys are case-insensitive, as Spark's are. An unknown key is an error that names the nearest
known one. Aliases are the spellings of other connectors; those that have no meaning here are accepted, with a note.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from penstock.errors import OptionError

_DURATION: Final = re.compile(
    r"^(?P<number>\d+(\.\d+)?)\s*((?P<unit>ms|s|m|h|d|)|(?P<word>millisecond|second|minute|hour|day)s?)$"
)
_DURATION_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0} | {
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
}
_SIZE: Final = re.compile(r"^(?P<number>\d+)\s*(?P<unit>[kmgt](i?b)?|b|)$")
_SIZE_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
"""By the unit's first letter: as in Spark, `64m`, `64MB` and `64MiB` are the same."""


class Option(Struct, frozen=True):
    """One option.

    Args:
        name: As the documentation spells it.
        kind: How a text becomes a value, with the name of the form for messages and the table.
        default: The value when it is not given.
        meaning: One or two sentences for the table.
        scopes: Where it applies: `source`, `batch`, `sink`.
        aliases: Other spellings; `name=unit` is the unit of a bare number there (`fetchIntervalMs=ms`).
        secret: The value never appears in messages.
        field: The field of the parsed options that has the value as it is read; empty if no field has it unchanged.
    """

    name: str
    kind: Kind
    default: Any
    meaning: str
    scopes: frozenset[str]
    aliases: tuple[str, ...] = ()
    secret: bool = False
    field: str = ""

    def spellings(self) -> Iterable[tuple[str, str]]:
        """Return every key that sets the option, with the unit of a bare number there (or an empty text)."""
        yield (self.name, "")
        for alias in self.aliases:
            name, _, unit = alias.partition("=")
            yield (name, unit)


class Kind(Struct, frozen=True):
    """A form of values: its name for people, and the function that reads one."""

    form: str
    read: Callable[[str], Any]


def _read_text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text.strip()


def _read_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("expected true or false")
    return word == "true"


def _read_duration(text: str) -> float:
    match = _DURATION.match(text.strip().lower())
    if match is None:
        raise ValueError("expected a duration such as 200ms, 1s or 5m (a bare number is seconds)")
    return float(match["number"]) * _DURATION_S[match["word"] or match["unit"] or "s"]


def _read_size(text: str) -> int:
    match = _SIZE.match(text.strip().lower())
    if match is None or int(match["number"]) == 0:
        raise ValueError("expected a size such as 1048576, 512k, 10m or 10 MiB")
    return int(match["number"]) * _SIZE_BYTES[match["unit"][:1]]


def whole_number(low: int, high: int) -> Kind:
    """Return the kind of whole numbers in a range, both ends included."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?\d+", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return Kind(f"{low}..{high}", read)


def duration(low_s: float, high_s: float) -> Kind:
    """Return the kind of durations in a range, in seconds."""

    def read(text: str) -> float:
        value_s = _read_duration(text)
        if not low_s <= value_s <= high_s:
            raise ValueError(f"expected a duration from {low_s:g}s to {high_s:g}s (a bare number is seconds)")
        return value_s

    return Kind("duration", read)


def one_of(*words: str) -> Kind:
    """Return the kind of a closed list of words, in any case."""
    return alternatives(dict.fromkeys(words, ()))


def alternatives(words: Mapping[str, tuple[str, ...]]) -> Kind:
    """Return the kind of a closed list of words, each with other spellings of it, in any case."""
    meant = {spelling.lower(): word for word, others in words.items() for spelling in (word, *others)}

    def read(text: str) -> str:
        word = meant.get(text.strip().lower())
        if word is None:
            raise ValueError(f"expected one of {', '.join(words)}")
        return word

    return Kind(" or ".join(words), read)


TEXT: Final = Kind("text", _read_text)
FLAG: Final = Kind("true or false", _read_flag)
SIZE: Final = Kind("size", _read_size)


def parse_options(
    option_texts: Mapping[str, str],
    table: Iterable[Option],
    *,
    scope: str,
    without_effect: Mapping[str, str],
    refused: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the options that a user has given.

    Args:
        option_texts: Keys and texts; keys in any case.
        scope: Only options of this scope apply.
        without_effect: Foreign keys that are accepted and do nothing, with the reason.
        refused: Foreign keys for abilities that Penstock does not have, with the way out. A key that ends with a dot is a
            prefix.

    Returns:
        Option names to values, defaults filled in; and a sentence for each key without effect.

    Raises:
        OptionError: An unknown key, a value that cannot be read, or an option given twice by two spellings.
    """
    options = list(table)
    by_key = {key.lower(): (option, unit) for option in options for key, unit in option.spellings()}
    ignored = {name.lower(): f"option {name} has no effect: {why}" for name, why in without_effect.items()}
    values: dict[str, Any] = {}
    set_by: dict[str, str] = {}
    notes: list[str] = []
    for key, text in option_texts.items():
        lowered = key.lower()
        if lowered in ignored:
            notes.append(ignored[lowered])
            continue
        if lowered not in by_key:
            _refuse_foreign_key(key, refused or {})
            raise OptionError(_unknown_option_text(key, by_key, scope))
        option, unit = by_key[lowered]
        if scope not in option.scopes:
            places = " and ".join(sorted(option.scopes))
            given_as = next(name for name, _ in option.spellings() if name.lower() == lowered)
            meaning = "" if given_as == option.name else f" ({option.name})"
            raise OptionError(
                f"option {given_as}{meaning} is for the {places}, not for the {scope}; remove it"
            )
        if option.name in values:
            raise OptionError(
                f"option {option.name} is set twice, as {set_by[option.name]} and as {key}; keep one"
            )
        values[option.name] = _read_value(option, key, text, unit)
        set_by[option.name] = key
    for option in options:
        if scope in option.scopes:
            values.setdefault(option.name, option.default)
    return values, tuple(notes)


def _refuse_foreign_key(key: str, refused: Mapping[str, str]) -> None:
    """Raise an error with the way out if the key, or else a prefix of it, is a foreign one."""
    lowered = key.lower()
    for name, remedy in sorted(refused.items(), key=lambda each: each[0].endswith(".")):
        if lowered == name.lower() or (name.endswith(".") and lowered.startswith(name.lower())):
            raise OptionError(f"option {key if name.endswith('.') else name}: {remedy}")


def _read_value(option: Option, key: str, text: str, unit: str) -> Any:
    raw = f"{text}{unit}" if unit and re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else text
    try:
        return option.kind.read(raw)
    except (ValueError, ArithmeticError) as error:
        shown = "(hidden)" if option.secret else repr(text)
        # Spark hands on keys in small letters; an alias stays as it was given.
        name = option.name if key.lower() == option.name.lower() else key
        raise OptionError(f"option {name}={shown}: {error}") from None


def _unknown_option_text(key: str, by_key: Mapping[str, tuple[Option, str]], scope: str) -> str:
    known = sorted({option.name for option, _ in by_key.values() if scope in option.scopes}, key=str.lower)
    near = difflib.get_close_matches(key.lower(), list(by_key), n=1, cutoff=0.6)
    hint = f" Did you mean {by_key[near[0]][0].name}?" if near else ""
    shown = key if key.isprintable() and key == key.strip() else repr(key)
    return f"unknown option {shown}.{hint} Known options of the {scope}: {', '.join(known)}"
