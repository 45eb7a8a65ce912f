"""When the workers that a worker sees are all that are coming: until then it asks for no more than shows it.

Workers of a deployment start within seconds of each other, and one without a lease cannot be seen. If each asked at
once for its share of what it sees, the first would get half of everything and give most of it away again. So a new
worker asks for one lease, by which the others see it, and for its share when a round has passed. Free leases are taken at
once: nobody reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

_MOMENT_ROUNDS: Final = 0.25  # after a new worker was seen others may still be coming
_WAIT_ROUNDS_MAX: Final = 3.0  # workers that come one after the other do not keep it waiting for longer
_MEMORY_ROUNDS: Final = 4.0  # a worker between two leases is not a new one


class FleetMembership:
    """One worker's view of who is there, and since when. Not thread-safe."""

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}
        self._began_s: float | None = None  # when the wait that is under way began
        self._due_s = math.inf

    def on_workers(self, workers: Iterable[str], now_s: float, round_s: float, memory_s: float = 0.0) -> None:
        """Observe who is there.

        Args:
            workers: Everybody who is seen to live, this worker too.
            now_s: Monotonic seconds.
            round_s: Mean time between two looks at the table.
            memory_s: Mean time between two looks that show everybody, where it is longer.
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
        """Whether a worker may ask for its share."""
        return self._began_s is None or now_s >= self._due_s

    @property
    def due_s(self) -> float:
        """When it may, if nobody else comes."""
        return self._due_s
