"""The cells of the table of queues, as text without anything that acts on a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.overview.cells import duration, stream_name
from penstock.cli.terminal import escape_text

if TYPE_CHECKING:
    from penstock.cli.overview.queue_rows import QueueRow

QUEUE_COLUMNS: Final = (
    "queue",
    "stream",
    "visible",
    "in flight",
    "dead",
    "done/min",
    "workers",
    "age",
    "why",
)


def queue_cells(row: QueueRow, now_ms: int) -> tuple[str, ...]:
    """Return the cells of a queue, under `QUEUE_COLUMNS`."""
    cells = (
        row.queue,
        stream_name(row.stream_arn),
        _count(row.visible),
        _count(row.in_flight),
        _count(row.dead_letters),
        "-" if row.acknowledged_per_min is None else f"{row.acknowledged_per_min:,.1f}",
        row.workers.value,
        "-" if row.measured_ms is None else duration(max(0, now_ms - row.measured_ms)),
        row.trouble,
    )
    return tuple(escape_text(cell) for cell in cells)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
