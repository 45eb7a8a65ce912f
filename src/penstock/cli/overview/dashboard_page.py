"""The pages of the dashboard: HTML that needs nothing from elsewhere. Pure. Everything from outside is escaped here."""

from __future__ import annotations

import base64
import codecs
from html import escape
from typing import TYPE_CHECKING, Final

from penstock.cli.overview.cells import (
    QUEUE_COLUMNS,
    SHARD_COLUMNS,
    duration,
    queue_cells,
    shard_cells,
    state_text,
    stream_name,
    summary_of,
)
from penstock.cli.overview.drawings import (
    LEGEND,
    draw_bar,
    draw_lag,
    draw_lineage,
    draw_sparkline,
    html_text,
)
from penstock.cli.overview.page_frame import (
    address_of,
    application_link,
    frame,
    legend,
    problem_list,
    stream_address,
    table,
)
from penstock.cli.overview.snapshot import UNREAD_TROUBLES, UNREADABLE, moment_text
from penstock.cli.terminal import counted, escape_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.cli.overview.lag_history import LagPoint
    from penstock.cli.overview.next_records import NextRecord, NextRecords
    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow, Snapshot

_ROWS_MAX: Final = 1000


def page_of_all(snapshot: Snapshot, lag_points: Mapping[str, Sequence[LagPoint]], interval_s: float) -> str:
    """Return the page with all applications."""
    cards = "".join(_card(each, lag_points.get(each.application, ())) for each in snapshot.applications)
    queues = snapshot.queues.rows
    if not cards and not queues:
        cards = "<p>No lease table was found: name an application, or check the region.</p>"
    body = f'{problem_list(snapshot.problems)}<div class="cards">{cards}</div>'
    streams = {stream for each in snapshot.applications for stream in each.shards_by_stream}
    if streams:
        body += f"<h2>Streams against their quotas</h2><p>{' · '.join(_stream_link(each) for each in sorted(streams))}</p>"
    summary = counted(len(snapshot.applications), "application")
    if queues:
        rows = [[escape(cell) for cell in queue_cells(row, snapshot.taken_ms)] for row in queues]
        body += f'<h2>Queues</h2><div class="panel wide">{table(QUEUE_COLUMNS, rows)}</div>'
        summary += f", {counted(len(queues), 'queue')}"
    body += "".join(f"<p>{html_text(problem)}</p>" for problem in snapshot.queues.problems)
    return frame("Penstock", summary, snapshot.taken_ms, body, interval_s)


def _stream_link(stream: str) -> str:
    return f'<a href="{escape(stream_address(stream))}">{html_text(stream_name(stream))}</a>'


def page_of_application(
    snapshot: ApplicationSnapshot, points: Sequence[LagPoint], limit_s: float, interval_s: float
) -> str:
    """Return the page of one application."""
    summary = f"{summary_of(snapshot)}, lag {duration(snapshot.lag_ms)}"
    streams = ", ".join(_stream_link(each) for each in snapshot.shards_by_stream) or "-"
    parts = [
        f"<h2>{html_text(snapshot.application)} {_state_pill(snapshot)}</h2><p>stream {streams}, {html_text(summary)}</p>",
        problem_list(snapshot.problems),
    ]
    chart = draw_lag(points, limit_s) or "<p>From the second snapshot on.</p>"
    parts.append(f'<h2>Lag: worst and median shard</h2><div class="panel">{chart}</div>')
    lineage = draw_lineage(snapshot, limit_s)
    if lineage:
        parts.append(
            "<h2>Shards by hash key, splits and merges to the right</h2>"
            f'<div class="panel"><div class="wide">{lineage}</div>{legend(LEGEND)}</div>'
        )
    parts.append(f'<h2>Shards</h2><div class="panel wide">{_shard_table(snapshot)}</div>')
    parts.append(
        f'<div class="two"><section><h2>Workers</h2><div class="panel wide">{_worker_table(snapshot)}</div></section>'
        f'<section><h2>What happened</h2><div class="panel">{_event_list(snapshot)}</div></section></div>'
    )
    return frame(snapshot.application, "", snapshot.taken_ms, "".join(parts), interval_s)


def page_of_shard(
    snapshot: ApplicationSnapshot,
    row: ShardRow,
    next_records: NextRecords | str,
    interval_s: float,
    *,
    shows_records: bool,
) -> str:
    """Return the page of one shard.

    Args:
        next_records: The records that are read next, or a text with the reason why they are unknown.
        interval_s: Seconds between two snapshots.
        shows_records: Whether keys and payloads are shown.
    """
    facts = dict(zip(SHARD_COLUMNS, shard_cells(row), strict=True)) | {
        "checkpoint": escape_text(row.checkpoint)
    }
    facts |= {
        "lease renewed": f"{row.unmoved_s:.0f} s ago",
        "checkpoint stands": f"{row.checkpoint_unmoved_s:.0f} s",
    }
    cells = [(f"<strong>{name}</strong>", escape(text)) for name, text in facts.items() if text]
    if isinstance(next_records, str):
        shown = f"<p>{html_text(next_records)}</p>"
    else:
        shown = _record_table(next_records.records, shows_records=shows_records)
        if next_records.checkpoint != row.checkpoint:
            shown += (
                f"<p>Read behind checkpoint {html_text(next_records.checkpoint)}, which has moved since; it is read again in a "
                "few seconds.</p>"
            )
    body = (
        f'<h2>{application_link(snapshot.application)}: {html_text(row.shard)}</h2><div class="panel wide">{table(("fact", "value"), cells)}</div>'
        f'<h2>What is read next</h2><div class="panel wide">{shown}</div>'
    )
    return frame(row.shard, "", snapshot.taken_ms, body, interval_s)


def _record_table(records: Sequence[NextRecord], *, shows_records: bool) -> str:
    if not records:
        return "<p>Nothing: all records are done.</p>"
    columns = ["sequence number", "arrived", "bytes"] + (["key", "data"] if shows_records else [])
    rows = []
    for record in records:
        cells = [html_text(record.place), moment_text(record.arrival_ms), str(record.byte_count)]
        if shows_records:
            key = "-" if record.partition_key is None else record.partition_key
            cells += [html_text(key), html_text(_payload_text(record))]
        rows.append(cells)
    note = "" if shows_records else "<p>Keys and payloads are shown with --show-records.</p>"
    return f"{table(columns, rows)}{note}"


def _payload_text(record: NextRecord) -> str:
    """Return the beginning of a payload: as text if it is UTF-8, as Base64 otherwise."""
    more = " ..." if record.is_cut else ""
    try:
        # The cut may have split the last character: the rest is text all the same.
        text = codecs.getincrementaldecoder("utf-8")().decode(record.data, final=not record.is_cut)
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(record.data).decode()}{more}"
    return f"{text}{more}"


def page_of_unwatched_application(name: str, interval_s: float) -> str:
    """Return the page of an application that is not watched."""
    body = f'<p class="problem">{html_text(name)} is not among the applications that are watched.</p>'
    return frame("Penstock", "", None, body, interval_s)


def page_of_unleased_shard(snapshot: ApplicationSnapshot, shard: str, interval_s: float) -> str:
    """Return the page of a shard of which no lease is known: there is none, or the leases cannot be read."""
    text = (
        "The leases cannot be read."
        if snapshot.problems and not snapshot.shards
        else "It has no lease of this shard."
    )
    body = f"<h2>{application_link(snapshot.application)}: {html_text(shard)}</h2>{problem_list(snapshot.problems)}<p>{text}</p>"
    return frame(shard, "", snapshot.taken_ms, body, interval_s)


def page_before_first_snapshot(interval_s: float) -> str:
    """Return the page while nothing has been read yet."""
    return frame("Penstock", "", None, "<p>Looking ...</p>", min(1.0, interval_s))


def _state_pill(snapshot: ApplicationSnapshot) -> str:
    if snapshot.is_unreadable:
        return f'<span class="pill bad">{UNREADABLE}</span>'
    if not snapshot.trouble_count:
        text = state_text(snapshot, "well") if snapshot.shards else "no leases yet"
        return f'<span class="pill">{html_text(text)}</span>'
    kind = "bad" if snapshot.worst_trouble in UNREAD_TROUBLES else "trouble"
    return (
        f'<span class="pill {kind}">{snapshot.trouble_count} {html_text(snapshot.worst_trouble.value)}</span>'
    )


def _card(snapshot: ApplicationSnapshot, points: Sequence[LagPoint]) -> str:
    """Return the link to an application's page: its state, its worst problem and its lag over time."""
    whys = [*snapshot.problems, *(row.why for row in snapshot.shards[:1]), ""]
    text = (
        f"{stream_name(snapshot.stream)} · {counted(snapshot.unfinished_count, 'shard')} · {counted(len(snapshot.workers), 'worker')} · lag "
        f"{duration(snapshot.lag_ms)}"
    )
    return (
        f'<a class="card" href="{escape(address_of(snapshot.application))}"><strong>{html_text(snapshot.application)}</strong> '
        f"{_state_pill(snapshot)}<p>{html_text(text)}</p><p>{html_text(whys[0])}</p>{draw_sparkline(points)}</a>"
    )


def _shard_table(snapshot: ApplicationSnapshot) -> str:
    if not snapshot.shards:
        return f"<p>{UNREADABLE if snapshot.is_unreadable else 'no leases yet'}</p>"
    shown = snapshot.shards[:_ROWS_MAX]
    rows = [[_shard_link(snapshot, row), *(escape(cell) for cell in shard_cells(row)[1:])] for row in shown]
    row_classes = ["ended" if row.state == "ended" else "" for row in shown]
    left = len(snapshot.shards) - _ROWS_MAX
    return table(SHARD_COLUMNS, rows, row_classes) + (
        f"<p>and {left} more, which /api/look names</p>" if left > 0 else ""
    )


def _shard_link(snapshot: ApplicationSnapshot, row: ShardRow) -> str:
    return f'<a href="{escape(address_of(snapshot.application, row.shard))}">{html_text(row.shard)}</a>'


def _worker_table(snapshot: ApplicationSnapshot) -> str:
    if not snapshot.workers:
        return "<p>No worker owns a lease.</p>"
    largest = snapshot.workers[0].lease_count
    rows = [
        (
            html_text(row.worker),
            html_text(row.zone),
            draw_bar(row.lease_count / largest, "lag3" if row.trouble_count else "lag0"),
            str(row.lease_count),
            str(row.trouble_count),
            html_text(duration(row.lag_ms)),
        )
        for row in snapshot.workers[:_ROWS_MAX]
    ]
    return table(("worker", "zone", "share", "leases", "in trouble", "lag"), rows)


def _event_list(snapshot: ApplicationSnapshot) -> str:
    if not snapshot.events:
        return "<p>Nothing since the dashboard was started.</p>"
    items = "".join(
        f"<li><time>{moment_text(event.at_ms)[11:19]}Z</time>"
        f"{'' if event.shard is None else f'<strong>{html_text(event.shard)}</strong> '}{html_text(event.text)}</li>"
        for event in snapshot.events
    )
    return f"<ul>{items}</ul>"
