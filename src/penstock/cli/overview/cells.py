"""The cells of the tables that show a snapshot, as text that is escaped for a terminal. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.cli.overview.trouble import LAG_STEADY
from penstock.cli.terminal import counted, escape_text
from penstock.core.leases.lease import shard_id_of, stream_id_of, stream_name_of

if TYPE_CHECKING:
    from penstock.cli.overview.queue_rows import QueueRow
    from penstock.cli.overview.snapshot import ApplicationSnapshot, Event, ShardRow

APPLICATION_COLUMNS: Final = ("application", "stream", "trouble", "shards", "workers", "lag", "why")
SHARD_COLUMNS: Final = ("shard", "state", "owner", "lag", "rate", "checkpoint", "why")
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
RIGHT: Final = frozenset(
    {"shards", "workers", "lag", "rate", "used"}
    | {"visible", "in flight", "dead", "done/min", "age"}
    | {"written bytes", "written records", "sent bytes", "refused records", "refused reads"}
)


def application_cells(snapshot: ApplicationSnapshot) -> tuple[str, ...]:
    """Return the cells of an application, under `APPLICATION_COLUMNS`."""
    if snapshot.problems:
        why = snapshot.problems[0]
    elif snapshot.shards:
        first = snapshot.shards[0]
        why = f"{short_shard(first.shard)}: {first.why}" if first.why else ""
    else:
        why = "no leases yet"
    trouble = (
        f"{snapshot.trouble_count} {snapshot.worst_trouble.value}"
        if snapshot.trouble_count
        else state_text(snapshot, "-")
    )
    cells = (
        snapshot.application,
        stream_name(snapshot.stream),
        trouble,
        str(snapshot.unfinished_count),
        str(len(snapshot.workers)),
        duration(snapshot.lag_ms),
        why,
    )
    return tuple(escape_text(cell) for cell in cells)


def summary_of(snapshot: ApplicationSnapshot) -> str:
    """Return how many of an application's shards are unfinished, in trouble and ended."""
    ended = len(snapshot.shards) - snapshot.unfinished_count
    return (
        f"{counted(snapshot.unfinished_count, 'shard')}, {snapshot.trouble_count} in trouble, {ended} ended"
    )


def state_text(snapshot: ApplicationSnapshot, if_running: str) -> str:
    """Return the state to show for an application that has no shard in trouble.

    Args:
        if_running: The text for an application that runs.
    """
    return if_running if snapshot.state == "running" else snapshot.state


def shard_cells(row: ShardRow) -> tuple[str, ...]:
    """Return the cells of a shard, under `SHARD_COLUMNS`."""
    cells = (
        short_shard(row.shard),
        row.trouble.value or row.state,
        owner_cell(row.owner, row.next_owner),
        f"{duration(row.lag_ms)}{arrow(row)}",
        "-" if row.kb_per_s is None else f"{row.kb_per_s:.1f} KiB/s",
        short_checkpoint(row.checkpoint),
        row.why,
    )
    return tuple(escape_text(cell) for cell in cells)


def queue_cells(row: QueueRow, now_ms: int) -> tuple[str, ...]:
    """Return the cells of a queue, under `QUEUE_COLUMNS`."""
    cells = (
        row.queue,
        stream_name(row.stream_arn),
        _count_text(row.visible),
        _count_text(row.in_flight),
        _count_text(row.dead_letters),
        "-" if row.acknowledged_per_min is None else f"{row.acknowledged_per_min:,.1f}",
        row.activity.value,
        "-" if row.measured_ms is None else duration(max(0, now_ms - row.measured_ms)),
        row.trouble,
    )
    return tuple(escape_text(cell) for cell in cells)


def _count_text(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def owner_cell(owner: str | None, next_owner: str | None) -> str:
    """Return the cell of a shard's owner, `-` if it has none; during a hand-over also of the next owner."""
    return f"{owner or '-'} → {next_owner}" if next_owner else owner or "-"


def event_line(event: Event) -> str:
    """Return an event on a line."""
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).strftime("%H:%M:%SZ")
    where = "" if event.shard is None else f"{short_shard(event.shard)}: "
    return escape_text(f"{at}  {where}{event.text}")


def stream_name(stream: str | None) -> str:
    """Return a stream's name without the rest of its ARN; `-` if it is unknown."""
    return "-" if stream is None else stream.rpartition("/")[2] if stream.startswith("arn:") else stream


def short_shard(key: str) -> str:
    """Return a shard's number, with its stream's name in front if several streams share the table.

    An id that is not of the form `shardId-NUMBER` is kept whole.
    """
    name, shard_id = stream_name_of(stream_id_of(key)), shard_id_of(key)
    number = shard_id.removeprefix("shardId-")
    has_usual_form = number != shard_id and number.isascii() and number.isdigit()
    short = str(int(number)) if has_usual_form else shard_id
    return f"{name}/{short}" if name else short


def short_checkpoint(checkpoint: str) -> str:
    """Return a checkpoint that fits on a line. A long number is cut to its end, the part in which checkpoints differ."""
    number, _, sub = checkpoint.partition(".")
    return f"...{number[-12:]}.{sub}" if number.isdigit() and len(number) > 15 else checkpoint


def arrow(row: ShardRow) -> str:
    """Return an arrow for a lag that grows or shrinks; empty if it is steady or unknown."""
    if row.lag_change is None or abs(row.lag_change) < LAG_STEADY:
        return ""
    return " ↑" if row.lag_change > 0 else " ↓"


def duration(duration_ms: int | None) -> str:
    """Return a lag or an age for people, rounded to tenths of a unit; `-` if it is unknown."""
    if duration_ms is None:
        return "-"
    seconds = duration_ms / 1000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
