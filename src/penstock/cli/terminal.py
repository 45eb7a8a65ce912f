"""What may be shown to people: text from outside, made harmless, and the console that shows it.

Records, keys, owners and messages of the service are written by others. Printed as they are, they could clear the
screen, rename the window, reorder what is read or pass for a line of ours.
"""

from __future__ import annotations

import json
import logging
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
"""Unicode's categories of what is no text: controls, formats, lone surrogates, unassigned, line ends."""
_JOINERS: Final = frozenset("\u200c\u200d")  # formats that words and emoji are made with
_WIDTH_UNWATCHED: Final = 220


def _acts(character: str) -> bool:
    return unicodedata.category(character) in _ACTING and character not in _JOINERS


def escape_text(text: str) -> str:
    """Return one line in which every character that could act on a terminal is spelled out by its code.

    A backslash stays as it is: the result is for reading. What must be told apart exactly is printed as JSON.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if _acts(character) else character
        for character in text
    )


def safe_json(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON that means the same and holds nothing that acts on a terminal."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text  # JSON itself has escaped the other controls
    return "".join(
        json.dumps(character)[1:-1]
        if character == "\x7f" or (character != "\n" and _acts(character))
        else character
        for character in text
    )


def warn(message: str) -> None:
    """Print one line for people, beside the output."""
    print(escape_text(message), file=sys.stderr)


def open_console() -> Console:
    """Open the console of the output. It takes text as text: styles are given beside it, never inside."""
    from rich.console import Console

    # Where nobody looks at a terminal, lines are not cut to one's width.
    width = None if sys.stdout.isatty() else _WIDTH_UNWATCHED
    return Console(width=width, highlight=False, markup=False, emoji=False)


class SafeFormatter(logging.Formatter):
    """Formats log records so that each is one line, and its traceback the lines of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line."""
        return escape_text(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        """Return the traceback."""
        return "\n".join(escape_text(line) for line in super().formatException(ei).split("\n"))
