"""The log of the production code in a simulated world, as lines of its history."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock_sim.events.processes import MessageLogged
from penstock_sim.fibers import ProcessEnded

if TYPE_CHECKING:
    from penstock_sim.world import World


class Journal(logging.Handler):
    """Writes warnings and errors of the production code to the history; none of them is shown."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        self._logger = logging.getLogger("penstock")
        self._before = (self._logger.level, self._logger.propagate)

    def open(self) -> None:
        """Begin."""
        self._logger.addHandler(self)
        self._logger.setLevel(logging.WARNING)
        self._logger.propagate = False

    def shut(self) -> None:
        """End, and leave the loggers as they were."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; lines of an ended process are dropped."""
        error = None if not record.exc_info else record.exc_info[1]
        fiber = self._world.fibers.current
        if fiber is not None and fiber.process.is_alive and not isinstance(error, ProcessEnded):
            name = "" if error is None else repr(error)
            self._world.record(MessageLogged(fiber.process.who, record.levelname, record.getMessage(), name))
