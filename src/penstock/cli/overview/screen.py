"""Where somebody stands in the live view, and what a key does. Pure: nothing here knows a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.overview.look import ApplicationLook, Look, ShardRow

_Row = TypeVar("_Row")


class Page(Enum):
    """What is shown."""

    APPLICATIONS = "applications"
    SHARDS = "shards"
    SHARD = "shard"
    STREAM = "stream"


class Key(Enum):
    """What a key means."""

    UP = "up"
    DOWN = "down"
    FIRST = "first"
    LAST = "last"
    OPEN = "open"
    STREAM = "stream"
    BACK = "back"
    QUIT = "quit"


_BYTES: Final = {
    b"\x1b[A": Key.UP,
    b"\x1bOA": Key.UP,
    b"k": Key.UP,
    b"\x1b[B": Key.DOWN,
    b"\x1bOB": Key.DOWN,
    b"j": Key.DOWN,
    b"\x1b[H": Key.FIRST,
    b"g": Key.FIRST,
    b"\x1b[F": Key.LAST,
    b"G": Key.LAST,
    b"\x1b[C": Key.OPEN,
    b"\x1bOC": Key.OPEN,
    b"\r": Key.OPEN,
    b"\n": Key.OPEN,
    b"l": Key.OPEN,
    b"s": Key.STREAM,
    b"\x1b[D": Key.BACK,
    b"\x1bOD": Key.BACK,
    b"\x1b": Key.BACK,
    b"\x7f": Key.BACK,
    b"h": Key.BACK,
    b"q": Key.QUIT,
}
_ONE_KEY: Final = re.compile(rb"\x1b[\[O][0-?]*[ -/]*[@-~]|.", re.DOTALL)
"""A control sequence (ECMA-48), or one byte."""


def parse_keys(data: bytes) -> list[Key]:
    """Return the keys behind what a terminal sent; what is none is left out."""
    return [_BYTES[sent] for sent in _ONE_KEY.findall(data) if sent in _BYTES]


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody stands. What is selected is remembered by its name, since rows move.

    Args:
        page: What is shown.
        application: The one that is selected, or shown; None for the first.
        shard: The one that is selected, or shown; None for the first.
    """

    page: Page = Page.APPLICATIONS
    application: str | None = None
    shard: str | None = None

    def press(self, key: Key, look: Look) -> Place:
        """Return where a key leads; `QUIT` leads nowhere."""
        if key is Key.BACK:
            back = Page.SHARDS if self.page in (Page.SHARD, Page.STREAM) else Page.APPLICATIONS
            return replace(self, page=back, shard=self.shard if back is Page.SHARDS else None)
        if self.page is Page.STREAM:
            return self
        if key is Key.STREAM:
            return replace(self, page=Page.STREAM) if self.page is Page.SHARDS else self
        if key is Key.OPEN:
            return self._open(look)
        if self.page is Page.APPLICATIONS:
            names = [each.application for each in look.applications]
            return replace(self, application=_step(names, self.application, key))
        shown = self.application_of(look)
        shards = [row.shard for row in shown.shards] if shown is not None else []
        return replace(self, shard=_step(shards, self.shard, key))

    def _open(self, look: Look) -> Place:
        application = self.application_of(look)
        if application is None:
            return self
        if self.page is Page.APPLICATIONS:
            return Place(Page.SHARDS, application.application)
        row = self.shard_of(look)
        return self if row is None else Place(Page.SHARD, application.application, row.shard)

    def application_of(self, look: Look) -> ApplicationLook | None:
        """Return the application that is selected or shown; None where there is none."""
        named = [each for each in look.applications if each.application == self.application]
        if self.page is Page.APPLICATIONS or self.application is None:
            named += look.applications  # one that has gone is not selected any more
        return named[0] if named else None

    def shard_of(self, look: Look) -> ShardRow | None:
        """Return the shard that is selected or shown; None where there is none."""
        application = self.application_of(look)
        if application is None:
            return None
        named = [row for row in application.shards if row.shard == self.shard]
        if self.page is not Page.SHARD:
            named += application.shards
        return named[0] if named else None


def _step(names: Sequence[str], selected: str | None, key: Key) -> str | None:
    if not names:
        return None
    at = names.index(selected) if selected in names else 0
    if key is Key.QUIT:
        return names[at]
    at = {Key.UP: at - 1, Key.DOWN: at + 1, Key.FIRST: 0, Key.LAST: len(names) - 1}[key]
    return names[max(0, min(len(names) - 1, at))]


def window_of(rows: Sequence[_Row], selected: int, count_max: int) -> tuple[Sequence[_Row], int]:
    """Return as many rows as there is room for, the selected one among them, and the place of the first."""
    count = max(1, count_max)
    first = max(0, min(selected - count // 2, len(rows) - count))
    return rows[first : first + count], first
