"""Options of the form NAME=VALUE that may be repeated."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import OptionError


def pairs_of(
    texts: Iterable[str], flag: str, form: str = "NAME=VALUE", *, may_be_empty: bool = True
) -> dict[str, str]:
    """Return values by name.

    Args:
        texts: As they were typed.
        flag: The option, for messages.
        form: Its form, for messages.
        may_be_empty: Whether a value may be empty.

    Raises:
        OptionError: A text has no name, no `=` or no value, or its name was given before.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (sign and name and (value or may_be_empty)):
            raise OptionError(f"{flag} {text}: expected {form}")
        if name in pairs:
            raise OptionError(f"{flag} {text}: {name} was given before")
        pairs[name] = value
    return pairs
