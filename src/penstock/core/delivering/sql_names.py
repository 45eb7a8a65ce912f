"""Names in Spark's SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name as SQL has it: in backquotes, with those of the name doubled."""
    return "`" + name.replace("`", "``") + "`"
