"""Parts of every page of the dashboard: its frame, tables, problems, addresses. Pure."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from itertools import repeat
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from penstock.cli.overview.cells import RIGHT
from penstock.cli.overview.drawings import html_text
from penstock.cli.overview.snapshot import moment_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FILES: Final = files("penstock.cli.overview")
_STYLE: Final = (_FILES / "dashboard.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_FILES / "dashboard.js").read_text(encoding="utf-8")
_NUMBERS: Final = RIGHT - {"shards", "workers"} | {"leases", "in trouble", "bytes", "figure", "quota"}
_KINDS: Final = dict.fromkeys(_NUMBERS, " number") | {
    "why": " long",
    "worker": " long",
    "data": " long",
    "value": " long",
}
"""Further CSS classes of a column, by its name."""


def _csp_source_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; style-src {_csp_source_of(_STYLE)}; script-src {_csp_source_of(_SCRIPT)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only the page's own script runs, and it fetches only from the dashboard's server."""


def address_of(application: str, shard: str | None = None) -> str:
    """Return the path of an application's page, or of the page of one of its shards."""
    place = f"name={quote(application, safe='')}"
    return f"/application?{place}" if shard is None else f"/shard?{place}&shard={quote(shard, safe='')}"


def application_link(application: str) -> str:
    """Return the link to an application's page."""
    return f'<a href="{escape(address_of(application))}">{html_text(application)}</a>'


def stream_address(stream: str) -> str:
    """Return the path of a stream's page."""
    return f"/stream?name={quote(stream, safe='')}"


def frame(title: str, summary: str, taken_ms: int | None, body: str, interval_s: float) -> str:
    """Return a whole HTML page.

    Args:
        summary: The text beside the name of the program.
        taken_ms: When the contents were read; None if nothing was read.
        body: HTML.
        interval_s: Seconds after which the browser reloads the page.
    """
    taken = "" if taken_ms is None else f"{moment_text(taken_ms)[:19]}Z"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html_text(title)}</title><link rel="icon" href="data:,"><style>{_STYLE}</style>'
        f'<noscript><meta http-equiv="refresh" content="{max(1, round(interval_s))}"></noscript></head>'
        f'<body data-interval="{interval_s:g}"><header><h1><a href="/">Penstock</a></h1><p>{html_text(summary)}</p>'
        f'<p id="taken">{taken}</p><p id="state" class="stale"></p></header><main>{body}</main>'
        f"<script>{_SCRIPT}</script></body></html>"
    )


def problem_list(problems: Iterable[str]) -> str:
    """Return problems as paragraphs."""
    return "".join(f'<p class="problem">{html_text(problem)}</p>' for problem in problems)


def legend(classes: Iterable[tuple[str, str]]) -> str:
    """Return the legend of a drawing's colours.

    Args:
        classes: The class of each colour, and its meaning.
    """
    items = "".join(f'<span><i class="{name}"></i>{html_text(text)}</span>' for name, text in classes)
    return f'<div class="legend">{items}</div>'


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], row_classes: Iterable[str] = repeat("")
) -> str:
    """Return a table.

    Args:
        rows: The cells of each row, as HTML.
        row_classes: The CSS class of each row.
    """
    classes = [f'class="{name.replace(" ", "-")}{_KINDS.get(name, "")}"' for name in columns]
    head = "".join(f"<th {kind}>{name}</th>" for name, kind in zip(columns, classes, strict=True))
    body = "".join(
        f'<tr class="{name}">{"".join(f"<td {kind}>{cell}</td>" for cell, kind in zip(cells, classes, strict=True))}</tr>'
        for name, cells in zip(row_classes, rows, strict=False)
    )
    return f"<table><tr>{head}</tr>{body}</table>"
