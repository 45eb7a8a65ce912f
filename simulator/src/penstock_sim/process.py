"""A simulated process: its own clock, and its scheduled steps, unless it has ended or is paused by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.leases.lease import WHOLE_TABLE, TablePart
from penstock.runtime.loop import Loop
from penstock_sim.environment import Environment
from penstock_sim.events import processes
from penstock_sim.fibers import Fiber


class SimProcess:
    """One process. It can end, be paused, and start again under the same name."""

    def __init__(self, world: Environment, name: str) -> None:
        self.world = world
        self.name = name
        self.on_gone: Callable[[SimProcess, str], None] = world.on_worker_gone
        """Called when it has ended by itself, with how; the world starts it again."""
        self.life = world.next_life(name)
        """Names it apart from its earlier lives."""
        self.who = f"{name}#{self.life}"
        self.is_alive = True
        self.paused_until = 0.0
        self.has_stopped_shard = False
        spread = world.scenario.faults.clock_rate_spread
        self.clock_rate = 1.0 + world.chance.uniform(-spread, spread)
        self.clock_base = world.chance.uniform(0.0, 1e5)
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._fibers: list[Fiber] = []

    # --- time -----------------------------------------------------------------------------------------

    def local_s(self) -> float:
        return self.clock_base + self.world.now * self.clock_rate

    def at_local(self, moment_s: float) -> float:
        """Return the world's time of a moment on this process's clock."""
        return (moment_s - self.clock_base) / self.clock_rate

    def world_s_in(self, duration_s: float) -> float:
        """Return the world's time when so much has passed on this process's clock."""
        # A hair later: turning the moment into the world's time and back may give a hair less.
        return self.at_local(self.local_s() + max(0.0, duration_s)) + 1e-6

    def later(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Run something in this process after a while, unless it has ended by then."""
        self.at(self.world.now + delay_s, action, *args)

    def at(self, moment_s: float, action: Callable[..., None], *args: Any) -> None:
        """Run something in this process at a moment of the world's time, unless it has ended by then."""
        self.world.schedule(max(moment_s, self.world.now), self._do_unless_ended, action, args)

    def _do_unless_ended(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.world.now < self.paused_until:
            self._backlog.append((action, args))
            return
        action(*args)

    def pause(self, duration_s: float) -> None:
        self.paused_until = self.world.now + duration_s
        self.world.schedule(self.paused_until, self.resume)
        self.world.record(processes.ProcessPaused(self.who, round(self.paused_until, 3)))

    def end_pause(self) -> None:
        self.paused_until = min(self.paused_until, self.world.now)
        self.resume()

    def resume(self) -> None:
        """Go on after a pause: everything that fell due is done now, in order."""
        if self.world.now >= self.paused_until:
            backlog, self._backlog = self._backlog, []
            for action, args in backlog:
                self.world.schedule(self.world.now, self._do_unless_ended, action, args)

    # --- blocking code --------------------------------------------------------------------------------

    def spawn(self, body: Callable[[], None]) -> Fiber:
        fiber = Fiber(self, self.world.fibers, body)
        self._fibers = [each for each in self._fibers if not each.is_finished]
        self._fibers.append(fiber)
        self.later(0.0, self.world.fibers.resume, fiber)
        return fiber

    def start(self) -> None:
        raise NotImplementedError

    def request_stop(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """End the process at once; its threads are abandoned."""
        self.is_alive = False
        for fiber in self._fibers:
            self.world.schedule(self.world.now, fiber.unwind)

    def watch_loop(self, loop: Loop[Any]) -> None:
        """Record a step of one of this process's loops; by default nothing."""


def scan_name(part: TablePart | None) -> str:
    """Return the name of a scan in the history."""
    if part == WHOLE_TABLE:
        return "watch"
    return "scan" if part is None else "scan part"
