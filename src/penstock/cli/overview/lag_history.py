"""The lags of the last snapshots: a bounded number of points for each application."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.cli.overview.snapshot import Snapshot

POINTS_MAX: Final = 720


@dataclass(frozen=True, slots=True)
class LagPoint:
    """The lags of one snapshot of an application.

    Args:
        at_ms: When, milliseconds since the epoch.
        worst_ms: The largest of its shards.
        median_ms: Half of the shards that are not read to their end have less.
    """

    at_ms: int
    worst_ms: int
    median_ms: int


class LagHistory:
    """Remembers the last `POINTS_MAX` snapshots. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, deque[LagPoint]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Remember a snapshot. Applications that it does not have are forgotten."""
        with self._lock:
            before, self._points = self._points, {}
            for each in snapshot.applications:
                points = self._points[each.application] = before.get(
                    each.application, deque(maxlen=POINTS_MAX)
                )
                lags = [row.lag_ms for row in each.shards if row.lag_ms is not None]
                if lags:
                    points.append(LagPoint(each.taken_ms, max(lags), round(median(lags))))

    def points_of(self, application: str) -> tuple[LagPoint, ...]:
        """Return an application's points, oldest first."""
        with self._lock:
            return tuple(self._points.get(application, ()))
