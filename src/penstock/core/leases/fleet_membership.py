"""Decides when the fleet is settled: until then a worker requests one live lease at most.

Workers of a deployment start within seconds of each other, and a worker without a lease is invisible. If each requested its
share at once, the first one would get half of all leases and hand most of them over again. So a new worker requests one
lease, by which the others see it, and its share when a round has passed. It takes free leases at once, since they are
unread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

_MOMENT_ROUNDS: Final = 0.25  # wait after a new worker was seen: others may be starting too
_WAIT_ROUNDS_MAX: Final = 3.0  # longest wait while workers start one after the other
_MEMORY_ROUNDS: Final = 4.0  # a worker that was without a lease for less than this is not new


class FleetMembership:
    """The live workers as one worker sees them, and since when. Not thread-safe."""

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}
        self._began_s: float | None = None  # when the current wait began
        self._due_s = math.inf

    def on_workers(self, workers: Iterable[str], now_s: float, round_s: float, memory_s: float = 0.0) -> None:
        """Handle the live workers of a scan.

        Args:
            workers: All live workers, this one included.
            now_s: Monotonic seconds.
            round_s: Mean time between two scans.
            memory_s: Mean time between two scans that show all workers, if it is longer.
        """
        is_first = not self._seen_s
        known_s = now_s - _MEMORY_ROUNDS * max(round_s, memory_s)
        seen = set(workers)
        has_newcomers = any(self._seen_s.get(worker, -math.inf) < known_s for worker in seen)
        self._seen_s = {worker: at_s for worker, at_s in self._seen_s.items() if at_s >= known_s}
        self._seen_s.update(dict.fromkeys(seen, now_s))
        if has_newcomers:
            if self.is_settled(now_s):
                self._began_s = self._due_s = now_s
            wait_s = round_s * (1.0 if is_first else _MOMENT_ROUNDS)
            began_s = now_s if self._began_s is None else self._began_s
            self._due_s = min(max(self._due_s, now_s + wait_s), began_s + _WAIT_ROUNDS_MAX * round_s)

    def is_settled(self, now_s: float) -> bool:
        """Return whether a worker may request its share."""
        return self._began_s is None or now_s >= self._due_s

    @property
    def due_s(self) -> float:
        """When the fleet will be settled, if no other worker appears."""
        return self._due_s
