"""The base of the actors of a world: each kind of them has its own processes, events and faults."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from penstock_sim.environment import Environment
from penstock_sim.events.base import Subscriber
from penstock_sim.process import SimProcess


class CannotStart(Exception):  # noqa: N818 - a worker's own decision, not an error
    """Raised when a process cannot start now; the actors have scheduled another attempt."""


class ProcessEnvironment(Environment):
    """The world as its actors use it: processes run in it by name."""

    workers: dict[str, SimProcess]

    @abstractmethod
    def start_worker(self, name: str) -> None:
        """Start a process of this name, unless one runs, it has left for ever, or it cannot start now."""


class Actors(Subscriber):
    """One kind of actors. By default it has no processes, no faults, and is always done.

    Methods named `_on_…` handle the world's events once they are recorded.

    Args:
        world: Their world. The constructor may draw from its chance.
    """

    def __init__(self, world: ProcessEnvironment) -> None:
        self.world = world

    def begin(self) -> None:
        """Schedule what happens once."""

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the repeated faults, and how often a minute each happens."""
        return []

    def make(self, name: str) -> SimProcess | None:
        """Return a new process of this name, not begun yet; None if the name belongs to other actors.

        Raises:
            CannotStart: The process needs an answer of the service that it does not get.
        """
        return None

    def wants_restart(self, process: SimProcess) -> bool:
        """Whether people restart a process once the faults have ended."""
        return False

    def heal(self) -> None:
        """End all faults."""

    def is_done(self) -> bool:
        """Whether nothing of the plan is left to happen."""
        return True
