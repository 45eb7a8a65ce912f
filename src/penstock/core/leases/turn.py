"""One call of `Coordinator.handle`: the effects that it collects, and its random number."""

from __future__ import annotations

from typing import Final

from penstock.core.leases.coordinator_effects import Effect, Level, Report, Topic

_GOLDEN: Final = 0.6180339887498949  # steps by it spread evenly over [0, 1)


class Turn:
    """The effects and the random number of one call, shared by the coordinator's parts. Not thread-safe."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self._chance = 0.5

    def begin(self, chance: float) -> None:
        """Start the next turn, with a fresh number in [0, 1)."""
        self.effects = []
        self._chance = chance

    def draw(self) -> float:
        """Return a number in [0, 1): several per turn, all derived from the turn's one."""
        self._chance = (self._chance + _GOLDEN) % 1.0
        return self._chance

    def emit(self, effect: Effect) -> None:
        """Add an effect to those that this turn returns."""
        self.effects.append(effect)

    def report(
        self, topic: Topic, level: Level, message: str, key: str | None = None, reason: str = ""
    ) -> None:
        """Emit a report for the log and the metrics."""
        self.emit(Report(topic, level, message, key, reason))
