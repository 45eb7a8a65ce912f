"""Blocking code in virtual time: of several fibers exactly one runs, and the world's scheduler chooses it.

A fiber is a thread of a simulated process, and a greenlet of the world's own thread. It runs until it waits for something (an
answer, a moment, a condition). Then the world runs, and resumes the fiber at the event that it waits for. Two fibers never run at
once, so the same seed gives the same history, and production code that was written for threads runs here unchanged.

A process that ends takes its fibers with it: `ProcessEnded` is raised at the place where each one waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from greenlet import getcurrent, greenlet


class ProcessEnded(BaseException):
    """Raised in a waiting fiber whose process has ended."""


class _Process(Protocol):
    """The part of `SimProcess` that its fibers use."""

    who: str
    is_alive: bool

    def local_s(self) -> float: ...
    def world_s_in(self, duration_s: float) -> float: ...
    def later(self, delay_s: float, action: Callable[..., None], *args: Any) -> None: ...
    def at(self, moment_s: float, action: Callable[..., None], *args: Any) -> None: ...


class Fibers:
    """The fibers of one world."""

    def __init__(self) -> None:
        self.current: Fiber | None = None
        self._begun: dict[Fiber, None] = {}
        self._next: Fiber | None = None

    def run(self, step: Callable[[], bool]) -> None:
        """Run events until none is due, and each fiber that an event resumes.

        Args:
            step: Lets one event happen; False when none is due.
        """
        while step():
            fiber, self._next = self._next, None
            if fiber is not None:
                self._switch_to(fiber)

    def resume(self, fiber: Fiber) -> None:
        """Resume a fiber when the event under way is over."""
        assert self.current is None, "events resume fibers; fibers do not resume each other"
        assert self._next is None, "an event resumes one fiber"
        self._next = fiber

    def _switch_to(self, fiber: Fiber) -> None:
        self.current = fiber
        self._begun[fiber] = None
        fiber.greenlet.parent = getcurrent()
        try:
            fiber.greenlet.switch()
        finally:
            self.current = None
            if fiber.is_finished:
                del self._begun[fiber]

    def close(self) -> None:
        """Abandon every waiting fiber."""
        for fiber in list(self._begun):
            fiber.process.is_alive = False
            self._switch_to(fiber)


class Fiber:
    """One thread of a simulated process, which decides whether and when the fiber goes on."""

    def __init__(self, process: _Process, fibers: Fibers, body: Callable[[], None]) -> None:
        self.process = process
        self.greenlet = greenlet(self._run)
        self._fibers = fibers
        self._body = body
        self._wait_number = 0
        self._is_woken = False
        self._interruption: BaseException | None = None

    @property
    def is_finished(self) -> bool:
        return bool(self.greenlet.dead)

    def _run(self) -> None:
        with suppress(ProcessEnded):
            self._body()

    def wait(self, until_s: float | None = None) -> bool:
        """Wait until woken, or until a moment of the world's time; True when woken. Called in the fiber.

        Raises:
            ProcessEnded: The process has ended.
        """
        assert self._fibers.current is self
        self._raise_if_ended()
        self._wait_number += 1
        self._is_woken = False
        if until_s is not None:
            self.process.at(until_s, self._on_event, self._wait_number, False)
        self.greenlet.parent.switch()
        self._raise_if_ended()
        if self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            raise interruption
        return self._is_woken

    def _raise_if_ended(self) -> None:
        if not self.process.is_alive:
            raise ProcessEnded

    def wake(self) -> None:
        self.process.later(0.0, self._on_event, self._wait_number, True)

    def interrupt(self, error: BaseException) -> None:
        """Resume the fiber by raising an error in its wait, as a signal does."""
        if not self.is_finished:
            self._interruption = error
            self.wake()

    def go_on(self) -> None:
        """Resume the fiber when the event under way, which is of its process, is over."""
        self._on_event(self._wait_number, True)

    def _on_event(self, wait_number: int, is_woken: bool) -> None:
        if wait_number == self._wait_number and not self.is_finished:
            self._is_woken = is_woken
            self._fibers.resume(self)

    def unwind(self) -> None:
        """Leave the body, whose process has ended: nothing in it waits any more."""
        if self.greenlet:
            self._fibers.resume(self)


class VirtualCondition:
    """As `threading.Condition`, without a lock: a fiber keeps the baton until it waits."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._waiting: deque[Fiber] = deque()

    def __enter__(self) -> bool:
        """Do nothing: no other fiber runs."""
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Do nothing: no other fiber waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified, at most so many seconds of the process's clock; False when the time is over."""
        fiber = self._fibers.current
        assert fiber is not None
        self._waiting.append(fiber)
        try:
            return fiber.wait(None if timeout is None else fiber.process.world_s_in(timeout))
        finally:
            if fiber in self._waiting:
                self._waiting.remove(fiber)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        fiber = self._fibers.current
        assert fiber is not None
        end_s = None if timeout is None else fiber.process.local_s() + timeout
        while not predicate():
            left_s = None if end_s is None else end_s - fiber.process.local_s()
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify(self) -> None:
        if self._waiting:
            self._waiting.popleft().wake()

    def notify_all(self) -> None:
        while self._waiting:
            self.notify()
