"""Properties that Spark passes to a source beside the user's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNTIL_MS: Final = "penstock.untilms"
"""Key by which `penstock deliver --once` passes the end of its run to a Spark that does not pass AvailableNow to the source."""
_SWITCHES: Final = frozenset({"checkpointlocation", "queryname", UNTIL_MS})
_OF_TABLES: Final = frozenset(
    {
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "path",
        "provider",
        "serialization.format",
    }
)
"""Properties of a table in a catalog: Spark's reserved ones, and those of its session catalog."""
_PREFIX: Final = "option."
NO_OPTIONS: Final = (
    "option streamName is missing: name the stream with option streamName or streamARN. If this is a table of a catalog: "
    "Spark keeps its options from a source in Python, so give them with the read (SELECT ... FROM orders WITH "
    "(streamName = 'orders'), or spark.read.option(...).table(...)), or use CREATE TEMPORARY VIEW ... USING kinesis OPTIONS (...)"
)
"""The error message for a read without any option."""


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user set.

    Spark's own options of a query are left out. When a table is created (`CREATE TABLE ... USING kinesis OPTIONS (...)`),
    Spark passes every property of the table, and each option a second time with a prefix: the name without it is kept. When
    a table is read, Spark passes only the options that are given with the read.
    """
    options = {key: text for key, text in given.items() if key.lower() not in _SWITCHES}
    if not any(key.lower() in ("owner", "provider") or key.lower().startswith(_PREFIX) for key in options):
        return options
    plain = {
        key: text
        for key, text in options.items()
        if key.lower() not in _OF_TABLES and not key.lower().startswith(_PREFIX)
    }
    known = {key.lower() for key in plain}
    for key, text in options.items():
        name = key[len(_PREFIX) :]
        if key.lower().startswith(_PREFIX) and name.lower() not in known | _OF_TABLES:
            plain[name] = text
    return plain
