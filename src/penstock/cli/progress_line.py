"""A line on a terminal that shows how far a command is, beside its output."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

from penstock.cli.terminal import is_dumb_terminal

_WIDTH: Final = 30


class ProgressLine:
    """A line on stderr, drawn at most ten times a second. It is not drawn if stderr is not a terminal, or is a dumb one.

    Args:
        is_shown: Whether the line is wanted.
    """

    def __init__(self, *, is_shown: bool = True) -> None:
        self._is_shown = is_shown and sys.stderr.isatty() and not is_dumb_terminal()
        self._is_drawn = False
        self._drawn_s = 0.0

    def draw(self, text: str, done_share: float | None = None) -> None:
        """Show a text. If `done_share`, a share from 0 to 1, is given, a bar precedes the text."""
        now_s = time.monotonic()
        if not self._is_shown or now_s - self._drawn_s < 0.1:
            return
        self._is_drawn, self._drawn_s = True, now_s
        filled = 0 if done_share is None else int(_WIDTH * done_share)
        bar = "" if done_share is None else f"[{'#' * filled}{'-' * (_WIDTH - filled)}] "
        sys.stderr.write(f"\r\x1b[K{bar}{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line, for output or at the end."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
