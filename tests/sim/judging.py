"""The verdict of one checker on a history made for it."""

from msgspec import Struct

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.position import TRIM_HORIZON
from penstock_sim.checker import Broken
from penstock_sim.events.base import HistoryEntry
from penstock_sim.history import History


def verdict(kind, lines, **known):
    """Return the invariant that a checker finds broken, or None.

    Args:
        kind: The checker's class.
        lines: Events; a pair of a moment and an event; or seconds that pass.
        known: Fields of the history at its beginning.
    """
    history, now_s = History(TRIM_HORIZON, **known), 0.0
    checker = kind(history, CoordinatorOptions())
    try:
        for line in lines:
            if isinstance(line, int | float):
                now_s += line
                continue
            now_s, event = (now_s, line) if isinstance(line, Struct) else line
            history.now = now_s
            checker.handle(event)
            history.take_in(HistoryEntry(now_s, event))
        checker.at_end()
    except Broken:
        return checker.invariant
    return None
