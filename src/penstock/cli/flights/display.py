"""What the demo shows: steps in a line each, bars while a terminal looks, plain lines otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

_BARS: Final = ("published", "read")


class Display:
    """Writes to one console.

    Args:
        console: Where to.
        total: Events in all.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._step = 0

    def step(self, text: str) -> None:
        """Announce the next step."""
        self._step += 1
        self._console.print(f"[bold]{self._step}.[/bold] {text}", highlight=False)

    def note(self, text: str) -> None:
        """Say what happened within a step."""
        self._console.print(f"   {text}", highlight=False)

    @contextmanager
    def bars(self) -> Iterator[None]:
        """Show bars for what is published and read; nothing moves when the console is no terminal."""
        if not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("   {task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            self._progress = progress
            self._tasks = {name: progress.add_task(name, total=self._total) for name in _BARS}
            yield
        self._progress = None

    def update(self, published: int, read: int) -> None:
        """Move the bars."""
        if self._progress is not None:
            self._progress.update(self._tasks["published"], completed=published)
            self._progress.update(self._tasks["read"], completed=min(read, self._total))

    def table(self, rows: list[tuple[str, str]]) -> None:
        """Show the figures."""
        table = Table(box=None, show_header=False, pad_edge=True)
        table.add_column(style="dim")
        table.add_column(justify="right")
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)
