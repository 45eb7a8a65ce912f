"""What one seed decides about the KCL 3 workers of its fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NATIVE: Final = "CLIENT_VERSION_3X"
"""The state of a fleet whose leader assigns every lease."""


@dataclass(frozen=True, slots=True)
class Kcl3Plan:
    """What one seed decides about its native KCL 3 fleet.

    Args:
        workers: The workers that are the KCL's.
        lock_s: The lease of the leader's lock.
        leader_deaths_per_min: The leader crashes.
        leader_moves_per_min: The leader gives its lock up, and goes on as a follower.
    """

    workers: frozenset[str]
    lock_s: float = 30.0
    leader_deaths_per_min: float = 0.0
    leader_moves_per_min: float = 0.0
