"""A progress bar for people, on a separate line beside the output."""

from __future__ import annotations

import time
from typing import Final, TextIO

_WIDTH: Final = 30


class ProgressBar:
    """A progress bar; drawn at most ten times a second.

    Args:
        total: How much there is to do.
        stream: A terminal.
    """

    def __init__(self, total: float, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._drawn_s = 0.0

    def draw(self, done: float, text: str) -> None:
        """Show how far it is."""
        now_s = time.monotonic()
        if now_s - self._drawn_s < 0.1:
            return
        self._drawn_s = now_s
        filled = int(_WIDTH * done / self._total)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        self._stream.write(f"\r\x1b[K[{bar}] {text}")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for a line."""
        if self._drawn_s:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
