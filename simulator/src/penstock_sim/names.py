"""Names of simulated processes: a worker id, and the number of its life."""

from __future__ import annotations


def name_of(who: str) -> str:
    """Return the worker id of an incarnation."""
    return who.partition("#")[0]
