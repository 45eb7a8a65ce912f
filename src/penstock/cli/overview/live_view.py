"""The live view of `penstock top`: draws with `rich`, and reads keys from the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Final, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.exit_on_signals import CLEAN_STOP, exit_on_signals, shell_statuses
from penstock.cli.overview.cells import (
    APPLICATION_COLUMNS,
    QUEUE_COLUMNS,
    RIGHT,
    SHARD_COLUMNS,
    application_cells,
    duration,
    event_line,
    queue_cells,
    shard_cells,
    stream_name,
    summary_of,
)
from penstock.cli.overview.screen import Key, Page, Selection, parse_keys, window_of
from penstock.cli.overview.snapshot import Trouble, moment_text
from penstock.cli.overview.stream_cells import (
    STREAM_SHARD_COLUMNS,
    count_text,
    mode_text,
    quota_text,
    rate_text,
    share_text,
    stream_shard_cells,
)
from penstock.cli.overview.stream_load import PEAK_MINUTES, QUOTAS
from penstock.cli.terminal import bar, counted, escape_text
from penstock.core.leases.lease import stream_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.cli.overview.queue_rows import QueueRow
    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow, Snapshot
    from penstock.cli.overview.stream_load import Load, Quota, ShardLoad, StreamSnapshot
    from penstock.cli.overview.watch_thread import WatchThread
    from penstock.core.shard import Shard

    FetchStreamSnapshot = Callable[[str, Sequence[Shard]], StreamSnapshot | None]

_Row = TypeVar("_Row")
_DRAW_EVERY_S: Final = 0.5  # shows a new snapshot, or a new size of the terminal
_FRAME_LINES: Final = 5  # heading, empty line, names of columns, empty line, keys
_EVENTS_SHOWN: Final = 6
_WORKERS_SHOWN: Final = 5
_KEYS: Final = "↑↓ or jk: select   enter: open   s: an application's stream   esc: back   q: quit"
_STYLES: Final = {
    Trouble.STOPPED: "bold red",
    Trouble.SILENT: "red",
    Trouble.UNOWNED: "red",
    Trouble.NO_LEASE: "red",
    Trouble.CHECKPOINT_UNMOVED: "yellow",
    Trouble.THROTTLED: "yellow",
    Trouble.BEHIND: "yellow",
    Trouble.IDLE: "dim",
    Trouble.UNKNOWN: "dim",
    Trouble.NONE: "",
}


def run_live(
    snapshots: WatchThread, selection: Selection, fetch_stream_snapshot: FetchStreamSnapshot
) -> None:
    """Show snapshots and handle keys until the user quits.

    Args:
        fetch_stream_snapshot: Takes a stream and its shards; returns the stream's newest snapshot, or None before the first.

    Raises:
        ServiceError: The first snapshot failed.
        SystemExit: Ctrl-C or SIGTERM, with 0, or SIGHUP, with 129. The terminal is as it was.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    with (
        exit_on_signals({**CLEAN_STOP, **shell_statuses(signal.SIGHUP)}),
        _single_keys(sys.stdin.fileno()) as read_keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            snapshot = snapshots.newest_snapshot()
            shown: RenderableType = Text("looking ...")
            if snapshot is not None:
                shown = render(snapshot, selection, console.size.height, fetch_stream_snapshot)
            live.update(shown, refresh=True)
            for key in read_keys(_DRAW_EVERY_S):
                if key is Key.QUIT:
                    return
                if snapshot is not None:
                    selection = selection.press(key, snapshot)


@contextlib.contextmanager
def _single_keys(descriptor: int) -> Iterator[Callable[[float], list[Key]]]:
    """Make a terminal send each key at once while the body runs; yield a function that waits for keys, at most a given time."""
    import termios
    import tty

    def read(timeout_s: float) -> list[Key]:
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        if not ready:
            return []
        data = os.read(descriptor, 64)
        return parse_keys(data) if data else [Key.QUIT]  # the terminal has gone

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield read
    finally:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# --- drawing ----------------------------------------------------------------------------------------------


def render(
    snapshot: Snapshot, selection: Selection, height: int, fetch_stream_snapshot: FetchStreamSnapshot
) -> RenderableType:
    """Return a page that fits into `height` lines."""
    application = selection.application_of(snapshot)
    if selection.page is Page.APPLICATIONS or application is None:
        body = _applications_page(snapshot, selection, height)
    elif selection.page is Page.SHARDS:
        body = _shards_page(snapshot, application, selection, height)
    elif selection.page is Page.STREAM:
        body = _stream_page(application, selection.shard_of(snapshot), fetch_stream_snapshot, height)
    else:
        body = _shard_page(application, selection.shard_of(snapshot), height)
    return Group(*body, Text(""), Text(_KEYS, style="dim", no_wrap=True, overflow="ellipsis"))


def _line(text: str, style: str = "") -> Text:
    return Text(escape_text(text), style=style, no_wrap=True, overflow="ellipsis")


def _wrapping_text(text: str) -> Text:
    """Return a text that wraps at the end of a line instead of being cut off."""
    return Text(escape_text(text))


def _heading(text: str, taken_ms: int, problems: Sequence[str]) -> Text:
    more = f"   {problems[0]}" if problems else ""
    line = _line(f"{text}   {moment_text(taken_ms)[:19]}Z", "bold")
    line.append(escape_text(more), style="bold red")
    return line


def _table(
    columns: Sequence[str],
    rows: Sequence[_Row],
    draw: Callable[[_Row], tuple[Sequence[str], str]],
    selected: int,
    room: int,
) -> Table:
    """Return a table of at most `room` rows, among them that with the index `selected`; -1 selects none. `draw` returns a row's cells and style."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name in columns:
        is_long = name == "why"
        table.add_column(
            name,
            justify="right" if name in RIGHT else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_long else None,
            max_width=None if is_long else 30,
        )
    shown, first = window_of(rows, selected, room)
    for at, row in enumerate(shown, first):
        cells, style = draw(row)
        table.add_row(*(Text(cell) for cell in cells), style=f"{style} reverse" if at == selected else style)
    return table


def _applications_page(snapshot: Snapshot, selection: Selection, height: int) -> list[RenderableType]:
    selected = selection.application_of(snapshot)
    names = [each.application for each in snapshot.applications]
    queues = snapshot.queues.rows
    title = counted(len(names), "application") + (f"   {counted(len(queues), 'queue')}" if queues else "")
    heading = _heading(title, snapshot.taken_ms, snapshot.problems)
    below, below_lines = _queue_lines(snapshot, (height - _FRAME_LINES) // 2)
    if selected is None:
        nothing = "no lease table was found: name an application, or check the region"
        return [heading, Text(""), *below] if queues else [heading, Text(""), _line(nothing), *below]

    def draw(each: ApplicationSnapshot) -> tuple[Sequence[str], str]:
        return application_cells(each), "bold red" if each.problems else _STYLES[each.worst_trouble]

    at = names.index(selected.application)
    room = height - _FRAME_LINES - below_lines
    return [heading, Text(""), _table(APPLICATION_COLUMNS, snapshot.applications, draw, at, room), *below]


def _queue_lines(snapshot: Snapshot, lines_max: int) -> tuple[list[RenderableType], int]:
    """Return the table of queues and their problems, cut to `lines_max` lines, and the number of lines."""
    rows, problems = snapshot.queues.rows, snapshot.queues.problems
    parts: list[RenderableType] = []
    count = 0
    if rows and lines_max > 3:
        room = min(len(rows), lines_max - 3)

        def draw(row: QueueRow) -> tuple[Sequence[str], str]:
            return queue_cells(row, snapshot.taken_ms), "yellow" if row.trouble else ""

        parts += [Text(""), _table(QUEUE_COLUMNS, rows, draw, -1, room)]
        count += 2 + room
    for problem in problems[: max(0, lines_max - count)]:
        parts.append(_line(problem, "dim"))
        count += 1
    return parts, count


def _shards_page(
    snapshot: Snapshot, application: ApplicationSnapshot, selection: Selection, height: int
) -> list[RenderableType]:
    heading = _heading(
        f"{application.application}   stream {stream_name(application.stream)}   {summary_of(application)}   "
        f"lag {duration(application.lag_ms)}",
        snapshot.taken_ms,
        application.problems,
    )
    row = selection.shard_of(snapshot)
    if row is None:
        return [heading, Text(""), *map(_wrapping_text, application.problems or ["no leases yet"])]
    below = [*_worker_lines(application), *_event_lines(application, None)]

    def draw(each: ShardRow) -> tuple[Sequence[str], str]:
        return shard_cells(each), "dim" if each.state == "ended" else _STYLES[each.trouble]

    rows = application.shards
    at = [each.shard for each in rows].index(row.shard)
    # On a small terminal, the lines below are left out first: the shards keep at least half of the lines if they need them.
    lines_max = height - _FRAME_LINES
    room = max(lines_max - len(below), min(len(rows), lines_max // 2))
    left = lines_max - min(room, len(rows))
    return [heading, Text(""), _table(SHARD_COLUMNS, rows, draw, at, room), *below[: max(0, left)]]


def _worker_lines(application: ApplicationSnapshot) -> list[RenderableType]:
    if not application.workers:
        return []
    lines: list[RenderableType] = [Text(""), _line("leases per worker", "bold")]
    largest = application.workers[0].lease_count
    for row in application.workers[:_WORKERS_SHOWN]:
        share = bar(max(1, round(20 * row.lease_count / largest)))
        trouble = f", {row.trouble_count} in trouble" if row.trouble_count else ""
        lines.append(
            _line(f"{share:<20} {row.lease_count}  {row.worker}  lag {duration(row.lag_ms)}{trouble}")
        )
    if len(application.workers) > _WORKERS_SHOWN:
        lines.append(_line(f"and {len(application.workers) - _WORKERS_SHOWN} more", "dim"))
    return lines


def _event_lines(application: ApplicationSnapshot, shard: str | None) -> list[RenderableType]:
    events = [event for event in application.events if shard is None or event.shard == shard]
    if not events:
        return []
    lines: list[RenderableType] = [Text(""), _line("what happened", "bold")]
    return lines + [_line(event_line(event)) for event in events[:_EVENTS_SHOWN]]


def _shard_page(application: ApplicationSnapshot, row: ShardRow | None, height: int) -> list[RenderableType]:
    heading = _heading(application.application, application.taken_ms, application.problems)
    if row is None:
        return [heading, Text(""), _line("the shard has no lease any more")]
    listed = {shard.shard_id: shard for shard in application.lineage}
    shard = listed.get(row.shard)
    children = [each.shard_id for each in application.lineage if row.shard in each.parents]
    facts = {
        "shard": row.shard,
        "trouble": row.trouble.value or "none",
        "why": row.why,
        "state": row.state,
        "owner": row.owner or "none",
        "handed over to": row.next_owner or "",
        "lag": f"{duration(row.lag_ms)}{'' if row.lag_change is None else f', {row.lag_change:+.1f} s in a second'}",
        "rate": "" if row.kb_per_s is None else f"{row.kb_per_s:.1f} KiB/s",
        "checkpoint": row.checkpoint,
        "unmoved for": f"{row.checkpoint_unmoved_s:.0f} s",
        "lease renewed": f"{row.unmoved_s:.0f} s ago, counter {row.counter}",
        "parents": "" if shard is None else ", ".join(shard.parents),
        "children": ", ".join(children),
        "open": "" if shard is None else "yes" if shard.is_open else "no",
    }
    lines = [_fact_line(name, text, _STYLES[row.trouble]) for name, text in facts.items() if text]
    return [
        heading,
        Text(""),
        *[*lines, *_event_lines(application, row.shard)][: max(1, height - _FRAME_LINES)],
    ]


def _stream_page(
    application: ApplicationSnapshot,
    selected: ShardRow | None,
    fetch_stream_snapshot: FetchStreamSnapshot,
    height: int,
) -> list[RenderableType]:
    """Return the page of the selected shard's stream."""
    stream_id = "" if selected is None else stream_id_of(selected.shard)
    stream = application.streams.get(stream_id, application.stream)
    if stream is None:
        heading = _heading(application.application, application.taken_ms, ())
        return [heading, Text(""), _line("the leases do not name their stream: give --stream")]
    found = fetch_stream_snapshot(stream, application.shards_by_stream.get(stream, ()))
    title = f"{application.application}   stream {stream_name(stream)}"
    if found is None:
        heading = _heading(title, application.taken_ms, ())
        return [heading, Text(""), _line("asking CloudWatch ...")]
    heading = _heading(
        f"{title}   {mode_text(found)}   {counted(len(found.shards), 'open shard')}", found.taken_ms, ()
    )
    above: list[RenderableType] = [_line(problem, "red") for problem in found.problems]
    for advice in found.advice:
        above.append(_line(advice.text, "yellow"))
        if advice.command is not None:
            above.append(_line(f"  {advice.command}", "bold"))
    if found.load is not None:
        above += [Text(""), _line(f"in the busiest of the last {PEAK_MINUTES} minutes", "bold")]
        above += [_quota_line(quota, found.load) for quota in QUOTAS]
        load = found.load
        refused = f"records {count_text(load.writes_refused)}, reads {count_text(load.reads_refused)}"
        above.append(_line(f"{'refused':<16}{refused}"))
    above = [*above, Text("")][: max(0, height - _FRAME_LINES - 3)]

    def draw(each: ShardLoad) -> tuple[Sequence[str], str]:
        return stream_shard_cells(each), "yellow" if each.load.is_hot else ""

    room = max(1, height - _FRAME_LINES - len(above))
    table = _table(STREAM_SHARD_COLUMNS, found.shards_hottest_first, draw, -1, room)
    return [heading, Text(""), *above, table]


def _quota_line(quota: Quota, load: Load) -> Text:
    share = load.share(quota)
    drawn = "" if share is None else bar(max(1, round(20 * min(1.0, share))))
    whole = f"of {quota_text(quota, load.shard_count)}" if load.shard_count else ""
    return _line(f"{quota.name:<16}{rate_text(quota, load):>14} {whole:<17}{share_text(share):>5}  {drawn}")


def _fact_line(name: str, text: str, style: str) -> Text:
    line = _line(f"{name:<15}", "bold")
    line.append(escape_text(text), style=style if name in ("trouble", "why") else "")
    return line
