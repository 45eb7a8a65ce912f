"""The base of all checkers: a checker subscribes to events, and raises at the event that breaks its invariant.

S checkers judge every event at once; L checkers are asked at the end of the liveness phase. The numbers are
those of the project's reliability scorecard.
"""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import Struct

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock_sim.events import processes
from penstock_sim.events.base import Subscriber
from penstock_sim.history import History

CLOCK_TOLERANCE: Final = 0.05
"""Of a time by a worker's own clock: clocks run up to two hundredths apart, and calls take a moment."""


class Violation(Struct, frozen=True):
    """A broken invariant: its name, the moment, and the evidence."""

    invariant: str
    at_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_s:.3f} s: {self.what}"


class Broken(Exception):  # noqa: N818 - it is the finding, not an error
    """Raised by a checker at the event that breaks its invariant."""


class Checker(Subscriber):
    """One invariant. It gets each event before `History` applies it."""

    invariant: ClassVar[str]

    def __init__(self, history: History, options: CoordinatorOptions) -> None:
        self.history = history
        self.options = options
        self._begin()

    def _begin(self) -> None:
        """Set the state from which the checker begins."""

    def at_end(self) -> None:
        """Check conditions that can be judged only at the end."""


class NoCrash(Checker):
    """The base of the checkers that find a crash of the production code, too."""

    def _on_message_logged(self, event: processes.MessageLogged) -> None:
        if event.level == "CRITICAL":
            raise Broken(f"{event.who}: {event.text}: {event.error}")
