"""The demonstration's output: a line per step, progress bars on a terminal, a table at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

BARS: Final = ("published", "in Parquet", "in averages")


def printable(text: str) -> str:
    """Return one line in which a character that could act on a terminal is spelled out by its code."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class Display:
    """Writes to one console. Called by several threads.

    Args:
        console: Where to; where that is not a terminal, nothing but plain lines are written.
        total: Flights in all.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._progress: Progress | None = None
        self._tasks: list[TaskID] = []
        self._step_count = 0

    def step(self, text: str) -> None:
        """Announce a step."""
        self._step_count += 1
        self._say(f"{self._step_count}. {text}")

    def note(self, text: str) -> None:
        """Show what happened within a step."""
        self._say(f"   {text}")

    @contextmanager
    def bars(self) -> Iterator[None]:
        """Show bars while the block runs."""
        if not self._console.is_terminal:
            yield
            return
        from rich import progress

        columns = (
            progress.TextColumn("   {task.description:<12}"),
            progress.BarColumn(bar_width=36),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, console=self._console, transient=True) as shown:
            self._progress = shown
            self._tasks = [shown.add_task(name, total=self._total) for name in BARS]
            try:
                yield
            finally:
                self._progress = None

    def update(self, counts: Sequence[int]) -> None:
        """Move the bars: flights published, in Parquet, in averages."""
        if self._progress is not None:
            for task, count in zip(self._tasks, counts, strict=True):
                self._progress.update(task, completed=min(count, self._total))

    def table(self, figures: Sequence[tuple[str, str]]) -> None:
        """Show the measured figures."""
        from rich.table import Table

        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in figures:
            table.add_row(name, value)
        self._console.print(table)

    def last_line(self, text: str) -> None:
        """Show the result."""
        self._say(text)

    def _say(self, text: str) -> None:
        # Lines may be longer than the console is wide, and brackets in them are brackets.
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
