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
        at_ms: When the snapshot was taken, milliseconds since the epoch.
        worst_ms: The largest lag of a shard.
        median_ms: The median of the lags that are known.
    """

    at_ms: int
    worst_ms: int
    median_ms: int


class LagHistory:
    """Keeps the lags of the last `POINTS_MAX` snapshots of each application. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, deque[LagPoint]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add the lags of a snapshot. Applications that the snapshot does not have are removed."""
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
