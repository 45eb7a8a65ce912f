"""Output for people: text from outside, made harmless, and the lines and tables that show it.

Records, keys, owners and messages of the service are written by others. Printed as they are, they could clear the
screen, rename the window, reorder the text or pass for a line of ours.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.runtime.own_loggers import bounded_trace

_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})
"""Unicode's categories that are not text: controls, formats, lone surrogates, unassigned, line ends."""
_JOINERS: Final = frozenset("\u200c\u200d")  # format characters that are parts of words and emoji
_WIDTH_UNWATCHED: Final = 220


def _acts_on_terminal(character: str) -> bool:
    """Return whether a character could act on a terminal, instead of being shown."""
    return unicodedata.category(character) in _ACTING and character not in _JOINERS


def prepare_output() -> None:
    """Make sure that stdin, stdout and stderr exist and that both outputs accept any text; for the whole process.

    A character that the encoding does not have (`PYTHONIOENCODING=latin-1`, `LANG=C`) is spelled out by its code. If the
    shell has closed an output (`>&-`) or the input (`<&-`), Python has no file for it: prints are discarded, and the input is empty.
    """
    if sys.stdin is None:  # first: the next opened file gets the free descriptor of stdin
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - for as long as the process
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_dumb_terminal() -> bool:
    """Return whether the terminal only prints lines, as in editors and serial consoles: it takes no escape sequences."""
    return os.environ.get("TERM") == "dumb"


def can_print(text: str) -> bool:
    """Return whether the encoding of stdout has every character of a text."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def bar(length: int) -> str:
    """Return a horizontal bar of this many characters."""
    return ("█" if can_print("█") else "#") * length


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, for instance `1 shard` or `2 shards`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def escape_text(text: str) -> str:
    """Return one line in which every character that could act on a terminal is spelled out by its code.

    A backslash stays as it is: the result is for reading. JSON keeps every character exactly.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if _acts_on_terminal(character) else character
        for character in text
    )


def safe_json(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON in which every character that could act on a terminal is escaped.

    Characters beyond ASCII are left as they are only if stdout is UTF-8, the encoding of JSON.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_unicode = codecs.lookup(encoding).name == "utf-8"
    return safe_json_text(json.dumps(document, ensure_ascii=not is_unicode, indent=indent))


def safe_json_text(text: str) -> str:
    """Return the text of a JSON document in which every character that could act on a terminal is escaped."""
    if text.isascii() and "\x7f" not in text:
        return text  # JSON itself has escaped the other controls
    # A line end can only be between the parts of a document: inside texts, JSON itself has escaped line ends.
    return "".join(
        json.dumps(character)[1:-1] if character != "\n" and _acts_on_terminal(character) else character
        for character in text
    )


def warn(message: str) -> None:
    """Print one line for people to stderr, apart from the output."""
    print(escape_text(message), file=sys.stderr)


def print_line(text: str) -> None:
    """Print one line for people to stdout."""
    print(escape_text(text))


class Output:
    """Prints for people: with styles where `rich` is installed (the extra `cli`), as plain text otherwise.

    Every text is escaped, and has no markup: a style is a separate argument.
    """

    def __init__(self) -> None:
        try:
            from rich.console import Console
        except ModuleNotFoundError:
            self._console = None
            return

        class PipedConsole(Console):
            """A console that leaves a closed pipe to the command line; rich would end the process with 1."""

            def on_broken_pipe(self) -> None:
                """Raise the BrokenPipeError under way."""
                raise  # noqa: PLE0704 - rich calls this while it handles the error

        # Without a terminal, lines are not cut to its width.
        width = None if sys.stdout.isatty() else _WIDTH_UNWATCHED
        self._console = PipedConsole(width=width, highlight=False, markup=False, emoji=False)

    def line(self, text: str, style: str | None = None) -> None:
        """Print one line."""
        if self._console is None:
            print_line(text)
        else:
            self._console.print(escape_text(text), style=style)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Print names and values in two columns."""
        width = max(map(len, facts))
        for name, value in facts.items():
            self.line(f"{name.replace('_', ' '):<{width}}  {value}")

    def table(self, names: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
        """Print rows under the names of their columns; those named in `right` are aligned to the right."""
        names, *rows = ([escape_text(cell) for cell in row] for row in (names, *rows))
        if self._console is None:
            widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
            for row in (names, *rows):
                cells = [
                    cell.rjust(width) if name in right else cell.ljust(width)
                    for name, cell, width in zip(names, row, widths, strict=True)
                ]
                print("  ".join(cells).rstrip())
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def bars(self, title: str, counts: Mapping[str, int], none: str = "") -> None:
        """Print numbers as bars under a title.

        Args:
            counts: By name.
            none: Printed if `counts` is empty.
        """
        self.line("")
        self.line(title, style="bold")
        largest = max(counts.values(), default=1)
        shown = {escape_text(name): number for name, number in counts.items()}
        width = max(map(len, shown), default=0)
        for name, number in shown.items():
            self.line(f"{name:<{width}}  {bar(max(1, round(40 * number / largest)))} {number}")
        if not counts and none:
            self.line(none)


class SafeFormatter(logging.Formatter):
    """Formats each log record as one escaped line, followed by the lines of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the traceback."""
        if record.exc_info:
            record.exc_text = None  # a text that is set would not be escaped: our loggers set it if a traceback is long or no valid Unicode
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line."""
        return escape_text(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        """Return the traceback."""
        return "\n".join(escape_text(line) for line in bounded_trace(super().formatException(ei)).split("\n"))
