"""Tables for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def html_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; whatever a name or a cell holds is shown as text."""
    from html import escape  # here, so that tasks do not load its table of entities

    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_text(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
