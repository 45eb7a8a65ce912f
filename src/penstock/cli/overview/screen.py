"""The page and row that the live view shows, and the effect of each key on it. Pure: no terminal is used here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow, Snapshot

_Row = TypeVar("_Row")


class Page(Enum):
    """The kinds of pages."""

    APPLICATIONS = "applications"
    SHARDS = "shards"
    SHARD = "shard"
    STREAM = "stream"


class Key(Enum):
    """The commands that keys give."""

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
    """Return the keys in a terminal's input; other bytes are left out."""
    return [_BYTES[sent] for sent in _ONE_KEY.findall(data) if sent in _BYTES]


@dataclass(frozen=True, slots=True)
class Selection:
    """The page on display and its selected row. The row is kept by name, since rows move.

    Args:
        page: The page on display.
        application: The application that is selected or shown; None: the first.
        shard: The shard that is selected or shown; None: the first.
    """

    page: Page = Page.APPLICATIONS
    application: str | None = None
    shard: str | None = None

    def press(self, key: Key, snapshot: Snapshot) -> Selection:
        """Return the selection after a key; `QUIT` does not change it."""
        if key is Key.BACK:
            back = Page.SHARDS if self.page in (Page.SHARD, Page.STREAM) else Page.APPLICATIONS
            return replace(self, page=back, shard=self.shard if back is Page.SHARDS else None)
        if self.page is Page.STREAM:
            return self
        if key is Key.STREAM:
            return replace(self, page=Page.STREAM) if self.page is Page.SHARDS else self
        if key is Key.OPEN:
            return self._open(snapshot)
        if self.page is Page.APPLICATIONS:
            names = [each.application for each in snapshot.applications]
            return replace(self, application=_next_name(names, self.application, key))
        shown = self.application_of(snapshot)
        shards = [row.shard for row in shown.shards] if shown is not None else []
        return replace(self, shard=_next_name(shards, self.shard, key))

    def _open(self, snapshot: Snapshot) -> Selection:
        application = self.application_of(snapshot)
        if application is None:
            return self
        if self.page is Page.APPLICATIONS:
            return Selection(Page.SHARDS, application.application)
        row = self.shard_of(snapshot)
        return self if row is None else Selection(Page.SHARD, application.application, row.shard)

    def application_of(self, snapshot: Snapshot) -> ApplicationSnapshot | None:
        """Return the application that is selected or shown; None if there is none."""
        candidates = [each for each in snapshot.applications if each.application == self.application]
        if self.page is Page.APPLICATIONS or self.application is None:
            candidates += snapshot.applications  # if the selected one has gone, the first is selected
        return candidates[0] if candidates else None

    def shard_of(self, snapshot: Snapshot) -> ShardRow | None:
        """Return the shard that is selected or shown; None if there is none."""
        application = self.application_of(snapshot)
        if application is None:
            return None
        candidates = [row for row in application.shards if row.shard == self.shard]
        if self.page is not Page.SHARD:
            candidates += application.shards  # as for applications
        return candidates[0] if candidates else None


def _next_name(names: Sequence[str], selected: str | None, key: Key) -> str | None:
    if not names:
        return None
    at = names.index(selected) if selected in names else 0
    if key is Key.QUIT:
        return names[at]
    at = {Key.UP: at - 1, Key.DOWN: at + 1, Key.FIRST: 0, Key.LAST: len(names) - 1}[key]
    return names[max(0, min(len(names) - 1, at))]


def window_of(rows: Sequence[_Row], selected: int, count_max: int) -> tuple[Sequence[_Row], int]:
    """Return at most `count_max` rows, at least one, with the selected row among them; and the index of the first."""
    count = max(1, count_max)
    first = max(0, min(selected - count // 2, len(rows) - count))
    return rows[first : first + count], first
