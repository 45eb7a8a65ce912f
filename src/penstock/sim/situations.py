"""How often each fault, each refusal and each awkward situation came up: what a clean run is worth.

A simulator that finds nothing may have met nothing. The environment counts faults and refusals as they happen;
what the history shows is counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from penstock.core.leases.lease_writes import Refusal
from penstock.sim.faults import FaultPlan
from penstock.sim.history import HistoryEntry

_NOT_COUNTED: Final = frozenset({"pause_max_s", "clock_rate_spread", "wall_jumps", "latency_max_s"})
_OF_QUERIES: Final = frozenset({"unknown_shard", "lost_iterator", "early_tip"})
_BY_HISTORY: Final = {
    "pause": "pauses_per_min",
    "stopping": "stops_per_min",
    "closed": "reshards_per_min",
    "row_deleted": "row_deletions_per_min",
    "table_dropped": "table_drops_per_min",
}
_REFUSALS: Final = (Refusal.EXISTS, Refusal.MISSING, Refusal.COUNTER, Refusal.HANDOVER, Refusal.BACKWARDS)


def expected(*, queries: bool) -> tuple[str, ...]:
    """Return what a run of many seeds must meet, of plain workers or of queries and workers."""
    faults = [each.name for each in fields(FaultPlan) if queries or each.name not in _OF_QUERIES]
    return (
        *(f"fault: {name}" for name in faults if name not in _NOT_COUNTED),
        *(f"refusal: {reason.name}" for reason in _REFUSALS),
    )


def never_met(met: Iterable[str], *, queries: bool) -> list[str]:
    """Return what of the expected did not come up."""
    found = list(met)
    return [each for each in expected(queries=queries) if not any(key.startswith(each) for key in found)]


class Situations:
    """Finds situations in one seed's history.

    Args:
        met: Counted in.
    """

    def __init__(self, met: Counter[str]) -> None:
        self._met = met

    def see(self, entry: HistoryEntry) -> None:
        """Look at one line."""
        kind = entry[1]
        if kind in _BY_HISTORY:
            self._met[f"fault: {_BY_HISTORY[kind]}"] += 1
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(entry[0], *entry[2:])

    def _on_down(self, _now: float, _who: Any, how: str) -> None:
        if how == "crashed":
            self._met["fault: crashes_per_min"] += 1
