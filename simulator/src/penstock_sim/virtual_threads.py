"""Implements the threads of `penstock.runtime.threads` with fibers, so that production code waits in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.ports.clock import Clock
from penstock.runtime.loop import Condition, Loop, LoopThread, Pool, Task
from penstock_sim.fibers import VirtualCondition
from penstock_sim.process import SimProcess


class _VirtualPool:
    """As `penstock.runtime.loop.ThreadPool`."""

    def __init__(self, process: SimProcess, fiber_count: int) -> None:
        self._process = process
        self._fiber_count = fiber_count
        self._tasks: deque[Task] = deque()
        self._running = 0
        self._is_closed = False

    def submit(self, task: Task) -> None:
        if self._is_closed:
            return
        self._tasks.append(task)
        if self._running < self._fiber_count:
            self._running += 1
            self._process.spawn(self._work)

    def close(self) -> None:
        self._is_closed = True

    def _work(self) -> None:
        while self._tasks and not self._is_closed:
            self._tasks.popleft()()
        self._running -= 1


class _Driving(VirtualCondition):
    """A fiber that drives a loop, as the thread of `penstock.runtime.loop.LoopThread`."""

    has_ended = False

    def join(self, timeout: float | None = None) -> None:
        self.wait_for(lambda: self.has_ended, timeout)

    def is_alive(self) -> bool:
        return not self.has_ended


class VirtualThreads:
    """Implements `penstock.runtime.threads.Threads` for one simulated process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def condition(self) -> Condition:
        return VirtualCondition(self._process.world.fibers)

    def pool(self, name: str, thread_count: int) -> Pool:
        return _VirtualPool(self._process, thread_count)

    def drive(
        self, name: str, loop: Loop[Any], clock: Clock, on_crash: Callable[[BaseException], None]
    ) -> _Driving:
        """Drive a loop by the production's own code, on a fiber."""
        self._process.watch_loop(loop)
        driving = _Driving(self._process.world.fibers)
        thread = LoopThread(name, loop, clock, on_crash)

        def body() -> None:
            thread.run()
            driving.has_ended = True
            driving.notify_all()

        self._process.spawn(body)
        return driving
