"""The dashboard's page of a stream: its traffic against the quotas, and its shards by hash key. Pure.

Everything from outside is escaped here.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from penstock.cli.overview.cells import stream_name
from penstock.cli.overview.drawings import draw_bar, draw_rates, html_text
from penstock.cli.overview.page_frame import application_link, frame, legend, problem_list, table
from penstock.cli.overview.stream_cells import (
    SHARD_QUOTAS,
    STREAM_SHARD_COLUMNS,
    count_text,
    mode_text,
    quota_text,
    range_text,
    rate_text,
    sent_text,
    share_text,
    stream_shard_cells,
)
from penstock.cli.overview.stream_load import HOT_SHARE, PEAK_MINUTES, QUOTAS
from penstock.cli.terminal import counted
from penstock.core.hash_key import HASH_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.overview.stream_load import Advice, Load, ShardLoad, StreamSnapshot

_ROWS_MAX: Final = 100
_WIDTH: Final = 1000
_HEIGHT: Final = 120
_EDGES_MAX: Final = 200
"""With more shards than this, lines between the shards would hide the shards."""
LEGEND: Final = (
    ("lag0", "less than a quarter of a quota"),
    ("lag1", "less than half"),
    ("lag2", f"less than {HOT_SHARE:.0%}"),
    ("lag3", "more: hot"),
    ("bad", "writes refused"),
    ("unknown", "unknown"),
)
"""The CSS class of each colour of shards, and its meaning."""


def page_of_stream(
    snapshot: StreamSnapshot | None, stream: str, applications: Sequence[str], interval_s: float
) -> str:
    """Return the page of one stream.

    Args:
        snapshot: The stream's snapshot; None while the first one is under way.
        stream: Name or ARN.
        applications: The applications that read the stream.
        interval_s: Seconds between two snapshots.
    """
    readers = ", ".join(map(application_link, applications))
    heading = f"<h2>{html_text(stream_name(stream))}</h2>"
    if snapshot is None:
        body = f"{heading}<p>Asking CloudWatch ...</p>"
        return frame(stream_name(stream), "", None, body, min(1.0, interval_s))
    facts = f"{mode_text(snapshot)}, {counted(len(snapshot.shards), 'open shard')}, read by {readers}"
    parts = [f"{heading}<p>{facts}</p>", problem_list(snapshot.problems)]
    parts += [_advice_panel(each) for each in snapshot.advice]
    if snapshot.load is not None:
        parts.append(
            f"<h2>Against the quotas, in the busiest of the last {PEAK_MINUTES} minutes</h2>"
            f'<div class="panel wide">{_quota_table(snapshot.load)}</div>'
        )
        chart = draw_rates(snapshot.history) or "<p>From the second whole minute on.</p>"
        parts.append(f'<h2>Written and read in the last hour</h2><div class="panel">{chart}</div>')
    if snapshot.shards:
        parts.append(
            "<h2>Open shards by hash key, height by the used share of a quota</h2>"
            f'<div class="panel">{draw_ranges(snapshot.shards)}<div class="axis"><span>hash key 0</span><span>2^128</span></div>'
            f"{legend(LEGEND)}</div>"
            f'<h2>Hottest first</h2><div class="panel wide">{_shard_table(snapshot)}</div>'
        )
    return frame(stream_name(stream), "", snapshot.taken_ms, "".join(parts), interval_s)


def _advice_panel(advice: Advice) -> str:
    command = "" if advice.command is None else f"<code>{html_text(advice.command)}</code>"
    return f'<div class="panel advice"><p>{html_text(advice.text)}.</p>{command}</div>'


def _quota_table(load: Load) -> str:
    rows = []
    for quota in QUOTAS:
        share = load.share(quota)
        rows.append(
            (
                quota.name,
                rate_text(quota, load),
                quota_text(quota, load.shard_count),
                "" if share is None else draw_bar(min(1.0, share), colour_of_share(share)),
                share_text(share),
            )
        )
    rows.append(("refused records", count_text(load.writes_refused), "", "", ""))
    rows.append(("refused reads", count_text(load.reads_refused), "", "", ""))
    return table(("what", "figure", "quota", "share", "used"), rows)


def colour_of_share(share: float) -> str:
    """Return the CSS class of the colour for a used part of a quota."""
    return next(
        (name for name, end in (("lag0", 0.25), ("lag1", 0.5), ("lag2", HOT_SHARE)) if share < end), "lag3"
    )


def _colour_of(load: Load) -> str:
    if load.writes_refused:
        return "bad"
    return "unknown" if load.hottest_quota is None else colour_of_share(load.hottest_quota[0])


def draw_ranges(shards: Sequence[ShardLoad]) -> str:
    """Return the open shards as bars over all hash keys."""
    edge_class = " edged" if len(shards) <= _EDGES_MAX else ""
    return (
        f'<svg class="ranges{edge_class}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="open shards by hash key">{"".join(_draw_shard(each) for each in shards)}</svg>'
    )


def _draw_shard(each: ShardLoad) -> str:
    hash_range, load = each.shard.hash_range, each.load
    x = hash_range.start / HASH_KEYS * _WIDTH
    width = hash_range.size / HASH_KEYS * _WIDTH
    share = 1.0 if load.hottest_quota is None else min(1.0, load.hottest_quota[0])
    height = max(3.0, share * _HEIGHT)
    facts = [each.shard.shard_id, range_text(each.shard)]
    facts += [
        f"{rate_text(quota, load)} ({share_text(load.share(quota))}) {quota.name}" for quota in SHARD_QUOTAS
    ]
    facts.append(f"{sent_text(load)} sent bytes")
    facts.append(f"{count_text(load.writes_refused)} records refused")
    return (
        f'<g class="{_colour_of(load)}"><title>{html_text(", ".join(facts))}</title>'
        f'<rect class="room" x="{x:.2f}" y="0" width="{width:.2f}" height="{_HEIGHT}"/>'
        f'<rect x="{x:.2f}" y="{_HEIGHT - height:.1f}" width="{width:.2f}" height="{height:.1f}"/></g>'
    )


def _shard_table(snapshot: StreamSnapshot) -> str:
    rows = []
    for each in snapshot.shards_hottest_first[:_ROWS_MAX]:
        *cells, used = (escape(cell) for cell in stream_shard_cells(each))
        hottest_quota = each.load.hottest_quota
        bar = "" if hottest_quota is None else draw_bar(min(1.0, hottest_quota[0]), _colour_of(each.load))
        rows.append((*cells, bar, used))
    left = len(snapshot.shards) - _ROWS_MAX
    *columns, last = STREAM_SHARD_COLUMNS
    return table((*columns, "share", last), rows) + (
        f"<p>and {left} more, which /api/stream names</p>" if left > 0 else ""
    )
