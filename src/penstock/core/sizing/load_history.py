"""The load maps of the last minutes, and the peak of each range."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.core.hash_key import HashRange
from penstock.core.sizing.load_map import Cut, LoadMap

PEAK_S: Final = 3600.0
"""The number of shards shrinks only if the highest load of this time allows it."""
_MAPS_MAX: Final = 70


class PeakLoad:
    """The highest load of each range in some maps.

    Args:
        maps: At least one, oldest first.
    """

    def __init__(self, maps: Sequence[LoadMap]) -> None:
        self._maps = maps
        self._fullest = max(maps, key=lambda each: (each.bytes_per_s, each.records_per_s))

    def use(self, hash_range: HashRange) -> float:
        """Return the largest part of one shard's write quota that a range has used."""
        return max(each.use(hash_range) for each in self._maps)

    def cut(self, hash_range: HashRange, share: float = 0.5) -> Cut | None:
        """Return the cut of `LoadMap.cut` in the map with the highest load."""
        return self._fullest.cut(hash_range, share)


class LoadHistory:
    """Keeps the maps of the last minutes."""

    def __init__(self) -> None:
        self._maps: deque[tuple[float, LoadMap]] = deque(maxlen=_MAPS_MAX)
        self._since_s: float | None = None

    def add(self, now_s: float, load: LoadMap) -> None:
        """Add a measurement."""
        if self._since_s is None:
            self._since_s = now_s
        self._maps.append((now_s, load))
        while self._maps[0][0] < now_s - PEAK_S:
            self._maps.popleft()

    def is_whole(self, now_s: float) -> bool:
        """Return whether the maps cover the last `PEAK_S` seconds: before, no shards are merged."""
        return self._since_s is not None and now_s - self._since_s >= PEAK_S

    @property
    def peak(self) -> PeakLoad:
        """The peak; at least one map must have been added."""
        return PeakLoad([load for _, load in self._maps])
