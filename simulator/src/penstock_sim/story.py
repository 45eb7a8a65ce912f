"""A failing seed's history in plain words: the events of the shards that its violation names."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_sim.checker import Violation
from penstock_sim.events.base import HistoryEntry, shards_in


def story_lines(history: Sequence[HistoryEntry], violation: Violation, line_count: int) -> list[str]:
    """Return the last lines of the story of the shards that a violation names; of all shards if it names none."""
    shards = shards_in(violation.what)
    lines: list[str] = []
    for at_s, event in history:
        if not shards or event.concerns_all or shards & event.shards():
            words = event.describe()
            if words:
                lines.append(f"{at_s:8.2f} s  {words}")
    return lines[max(0, len(lines) - line_count) :]
