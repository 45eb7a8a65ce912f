"""Names in Spark's SQL."""

from __future__ import annotations


def quote_name(name: str) -> str:
    """Return a name in backquotes; a backquote inside it is doubled."""
    return "`" + name.replace("`", "``") + "`"
