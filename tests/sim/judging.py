"""The verdict of one checker, or of all, on a history made for it; and the report on a seed."""

from msgspec import Struct

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.position import TRIM_HORIZON
from penstock.core.starting import StartingPosition
from penstock_sim.checker import Broken
from penstock_sim.checkers import Suite
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


def judge(*lines, start=TRIM_HORIZON, more=(), only=None, at_end=False, quiet=False, **known):
    """Feed a history (a number moves the clock) to all checkers, or to one; return the invariant that it breaks.

    Args:
        lines: Events and numbers, and lists of them.
        more: Checkers beside those of every fleet.
        only: The invariant of the checkers that judge.
        known: Fields of the history.
    """
    suite = Suite(CoordinatorOptions(start=StartingPosition(default=start)), more, **known)
    if only is not None:
        for kind, listeners in suite._listeners.items():
            suite._listeners[kind] = [found for found in listeners if found[0].invariant == only]
    suite.history.is_quiet = quiet
    now = 0.0
    for line in (part for each in lines for part in (each if isinstance(each, list) else [each])):
        if isinstance(line, int | float):
            now = float(line)
        else:
            suite.see(HistoryEntry(now, line))
            now += 0.001
    if at_end:
        suite.finish()
    return None if suite.violation is None else suite.violation.invariant


def show(result):
    """Return the violation of a seed and the events before it."""
    return "\n".join([f"seed {result.seed}: {result.violation}", *result.story(60)])
