"""The drawings of the dashboard, as SVG. Pure. Everything from outside is escaped here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from penstock.cli.overview.cells import duration, short_shard
from penstock.cli.overview.lineage import place_shards
from penstock.cli.overview.snapshot import UNREAD_TROUBLES, moment_text
from penstock.cli.overview.stream_cells import bytes_text
from penstock.cli.terminal import escape_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.overview.lag_history import LagPoint
    from penstock.cli.overview.lineage import Box
    from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow
    from penstock.cli.overview.stream_load import LoadPoint

LEGEND: Final = (
    ("lag0", "next to no lag"),
    ("lag1", "less than half of the limit"),
    ("lag2", "less than the limit"),
    ("lag3", "less than five times the limit"),
    ("lag4", "more"),
    ("bad", "stopped, silent, no owner or no lease"),
    ("unknown", "lag unknown"),
    ("ended", "read to its end"),
    ("unread", "closed, without a lease"),
)
"""The CSS class of each colour of shards, and its meaning."""


def html_text(text: str) -> str:
    """Return text for HTML; characters that would reorder or hide other text are spelled out."""
    return escape(escape_text(text))


def colour_of(row: ShardRow | None, limit_s: float) -> str:
    """Return the CSS class of a shard's colour.

    Args:
        row: None if the application has no lease for the shard.
        limit_s: A shard that is further behind is in trouble.
    """
    if row is None:
        return "unread"
    if row.trouble in UNREAD_TROUBLES:
        return "bad"
    if row.state == "ended":
        return "ended"
    if row.lag_ms is None:
        return "unknown"
    share = row.lag_ms / 1000 / max(limit_s, 0.001)
    return next(
        (name for name, end in (("lag0", 0.1), ("lag1", 0.5), ("lag2", 1.0), ("lag3", 5.0)) if share <= end),
        "lag4",
    )


# --- lineage ----------------------------------------------------------------------------------------------

_COLUMN: Final = 120
_WIDTH_MIN: Final = 720
_GAP: Final = 6
_LINE: Final = 16
_HEIGHT: Final = (160, 2400)


def draw_lineage(snapshot: ApplicationSnapshot, limit_s: float) -> str:
    """Return the stream's shards as a picture: hash keys downwards, splits and merges in order to the right."""
    boxes = place_shards(snapshot.lineage)
    if not boxes:
        return ""
    rows = {row.shard: row for row in snapshot.shards}
    column_count = max(box.end_column for box in boxes)
    thinnest = min(box.bottom - box.top for box in boxes)
    low, high = _HEIGHT
    height = min(high, max(low, round(_LINE / max(thinnest, 1e-9))))
    column_width = max(_COLUMN, _WIDTH_MIN // column_count)
    width = column_count * column_width
    drawn = "".join(
        _draw_box(box, rows.get(box.shard.shard_id), (column_width, height), limit_s) for box in boxes
    )
    return (
        f'<svg class="lineage" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="lineage of the shards">{drawn}</svg>'
    )


def _draw_box(box: Box, row: ShardRow | None, size: tuple[int, int], limit_s: float) -> str:
    column_width, height = size
    x, y = box.first_column * column_width, box.top * height
    wide, tall = (
        (box.end_column - box.first_column) * column_width - _GAP,
        max(1.0, (box.bottom - box.top) * height - 1),
    )
    shard = box.shard
    facts = [shard.shard_id, f"{box.bottom - box.top:.2%} of the keys", "open" if shard.is_open else "closed"]
    if shard.parents:
        facts.append(f"from {' and '.join(shard.parents)}")
    if row is not None:
        facts += [
            row.trouble.value or row.state,
            f"owner {row.owner or '-'}",
            f"lag {duration(row.lag_ms)}",
            row.why,
        ]
    label = ""
    if tall >= _LINE - 3:
        lag = f"  {duration(row.lag_ms)}" if row is not None and row.lag_ms is not None else ""
        text = html_text(f"{short_shard(shard.shard_id)[:12]}{lag}")
        label = f'<text x="{x + 6}" y="{y + min(tall / 2 + 4, tall - 3):.1f}">{text}</text>'
    title = html_text(", ".join(part for part in facts if part))
    return (
        f'<g class="{colour_of(row, limit_s)}"><title>{title}</title>'
        f'<rect x="{x}" y="{y:.1f}" width="{wide}" height="{tall:.1f}" rx="2"/>{label}</g>'
    )


# --- lags and rates over time ------------------------------------------------------------------------------------

_CHART: Final = (640, 160)
_SPARKLINE: Final = (240, 40)
_SPARKLINE_POINTS_MAX: Final = 60


def draw_lag(points: Sequence[LagPoint], limit_s: float) -> str:
    """Return a chart of the worst and the median lag over time; empty before the second snapshot."""
    if len(points) < 2:
        return ""
    top_ms = max(1, *(point.worst_ms for point in points))
    lines = _polyline(points, [point.worst_ms for point in points], top_ms, _CHART, "worst")
    lines += _polyline(points, [point.median_ms for point in points], top_ms, _CHART, "median")
    if limit_s * 1000 <= top_ms:
        y = _y_of(limit_s * 1000, top_ms, _CHART[1])
        lines += f'<line class="limit" x1="0" x2="{_CHART[0]}" y1="{y:.1f}" y2="{y:.1f}"/>'
    scale = f"from 0 to {duration(top_ms)}; the limit is {duration(round(limit_s * 1000))}"
    return _drawing("chart", _CHART, "lag over time", lines) + _axis(points, scale)


def draw_rates(points: Sequence[LoadPoint]) -> str:
    """Return a chart of the written and read bytes over time; empty before the second minute."""
    if len(points) < 2:
        return ""
    written, read = [point.written_per_s for point in points], [point.read_per_s for point in points]
    top = max(1.0, *written, *read)
    lines = _polyline(points, written, top, _CHART, "written") + _polyline(points, read, top, _CHART, "read")
    keys = '<div class="legend"><span><i class="written"></i>written</span><span><i class="read"></i>read</span></div>'
    axis = _axis(points, f"from 0 to {bytes_text(top)}")
    return f"{_drawing('chart', _CHART, 'written and read over time', lines)}{axis}{keys}"


def _axis(points: Sequence[LagPoint | LoadPoint], scale: str) -> str:
    began, ended = (moment_text(at_ms)[11:19] for at_ms in (points[0].at_ms, points[-1].at_ms))
    return f'<div class="axis"><span>{began}Z</span><span>{escape(scale)}</span><span>{ended}Z</span></div>'


def draw_sparkline(points: Sequence[LagPoint]) -> str:
    """Return the worst lag over time as a small line; empty before the second snapshot."""
    if len(points) < 2:
        return ""
    # No more points than can be drawn: a page may have hundreds of these lines.
    step = -(-len(points) // _SPARKLINE_POINTS_MAX)
    parts = [points[at : at + step] for at in range(0, len(points), step)]
    lags_ms = [max(point.worst_ms for point in part) for part in parts]
    points = [part[-1] for part in parts]
    return _drawing(
        "spark",
        _SPARKLINE,
        "lag over time",
        _polyline(points, lags_ms, max(1, *lags_ms), _SPARKLINE, "worst"),
    )


def _drawing(name: str, size: tuple[int, int], about: str, lines: str) -> str:
    # The drawing is stretched to its place. It has no text, which would be stretched, too.
    return (
        f'<svg class="{name}" viewBox="0 0 {size[0]} {size[1]}" preserveAspectRatio="none" role="img" '
        f'aria-label="{about}">{lines}</svg>'
    )


def _polyline(
    points: Sequence[LagPoint | LoadPoint],
    values: Sequence[float],
    top: float,
    size: tuple[int, int],
    name: str,
) -> str:
    began_ms = points[0].at_ms
    span_ms = max(1, points[-1].at_ms - began_ms)
    places = (
        f"{(point.at_ms - began_ms) / span_ms * size[0]:.1f},{_y_of(value, top, size[1]):.1f}"
        for point, value in zip(points, values, strict=True)
    )
    return f'<polyline class="{name}" points="{" ".join(places)}"/>'


def _y_of(value: float, top: float, height: int) -> float:
    room = height / 16
    return height - room - value / top * (height - 2 * room)


def draw_bar(share: float, kind: str) -> str:
    """Return a bar that fills a share, 0 to 1, of its width; `kind` is the CSS class of its colour."""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind}" width="{max(1.0, 100 * share):.1f}" height="8"/></svg>'
    )
