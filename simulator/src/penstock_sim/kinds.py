"""The kinds of seeds: the subject of each, and the situations that many seeds of it must meet."""

from __future__ import annotations

from enum import Enum


class SeedKind(Enum):
    """The subject of a seed."""

    CONSUMERS = "consumers"
    QUERIES = "queries"
    KCL3 = "kcl3"
    PRODUCERS = "producers"
    SINKS = "sinks"
    STREAMS = "streams"
    QUEUES = "queues"


SITUATIONS: dict[str, frozenset[SeedKind]] = {}
"""The kinds of seeds that must meet each situation; filled where situations are declared, beside their events."""


def situation(what: str, *kinds: SeedKind) -> str:
    """Declare a situation that many seeds of these kinds must meet; return the name under which it is counted."""
    name = what if what.partition(": ")[0] in {"error", "fault"} else f"situation: {what}"
    SITUATIONS[name] = SITUATIONS.get(name, frozenset()) | frozenset(kinds)
    return name
