"""Blocking code in virtual time: of several OS threads exactly one runs, and the world's scheduler chooses it.

A fiber is a thread of a simulated process. It runs until it waits for something (an answer, a moment, a condition). Then the
world runs, and resumes the fiber at the event that it waits for. Two fibers never run at once, so the same seed gives the same
history, and production code that was written for threads runs here unchanged.

A process that ends takes its fibers with it: `ProcessEnded` is raised at the place where each one waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_sim.process import SimProcess


class ProcessEnded(BaseException):
    """Raised in a waiting fiber whose process has ended."""


class _Carrier:
    """An OS thread that runs one fiber after the other."""

    def __init__(self, fibers: Fibers) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self.fiber: Fiber | None = None
        self._fibers = fibers
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        self.go.acquire()
        while self.fiber is not None:
            self.fiber.run()
            if not self._fibers.goes_on_after_end(self):
                self.go.acquire()


class Fibers:
    """The fibers of one world, and the threads that carry them.

    A waiting fiber runs the world's events on its own thread until one of them resumes a fiber. So a fiber that is the
    next one to go on costs no change of threads.
    """

    def __init__(self) -> None:
        self.current: Fiber | None = None
        self._main = threading.Lock()
        self._main.acquire()
        self._idle: list[_Carrier] = []
        self._begun: dict[Fiber, None] = {}
        self._next: Fiber | None = None
        self._step: Callable[[], bool] = lambda: False
        self._failure: BaseException | None = None

    def run(self, step: Callable[[], bool]) -> None:
        """Run events until none is due.

        Args:
            step: Lets one event happen; False when none is due.

        Raises:
            BaseException: Raised by an event, or not caught by a fiber.
        """
        self._step = step
        fiber = self._let_happen()
        if fiber is not None:
            self._hand_to(fiber)
            self._main.acquire()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def resume(self, fiber: Fiber) -> None:
        """Resume a fiber when the event under way is over."""
        assert self.current is None, "events resume fibers; fibers do not resume each other"
        assert self._next is None, "an event resumes one fiber"
        self._next = fiber

    def switch_from(self, fiber: Fiber) -> None:
        """Run the world until this fiber is resumed; called in it."""
        self.current = None
        following = self._let_happen()
        if following is not fiber:
            assert fiber.carrier is not None
            self._hand_to(following)
            fiber.carrier.go.acquire()
        self.current = fiber

    def goes_on_after_end(self, carrier: _Carrier) -> bool:
        """Run the world after a fiber has ended; True when the next one begins on the same thread."""
        ended, carrier.fiber = carrier.fiber, None
        assert ended is not None
        self.current = ended.carrier = None
        del self._begun[ended]
        self._failure = self._failure or ended.failure
        following = self._let_happen()
        if following is not None and following.carrier is None:
            self._begin(following, carrier)
            return True
        # From here on the carrier may be given another fiber at any moment: it only waits.
        self._idle.append(carrier)
        self._hand_to(following)
        return False

    def _let_happen(self) -> Fiber | None:
        """Run events until one resumes a fiber, and return it; None to resume the world's own thread."""
        try:
            while self._next is None:
                if self._failure is not None or not self._step():
                    return None
        except BaseException as error:  # noqa: BLE001 - raised again on the world's thread
            self._failure = error
            return None
        following, self._next = self._next, None
        return following

    def _begin(self, fiber: Fiber, carrier: _Carrier) -> None:
        fiber.carrier, carrier.fiber = carrier, fiber
        self._begun[fiber] = None
        self.current = fiber

    def _hand_to(self, fiber: Fiber | None) -> None:
        if fiber is None:
            self._main.release()
            return
        if fiber.carrier is None:
            self._begin(fiber, self._idle.pop() if self._idle else _Carrier(self))
        assert fiber.carrier is not None
        fiber.carrier.go.release()

    def close(self) -> None:
        """Abandon every waiting fiber, and end the threads."""
        self._step = lambda: False
        for fiber in list(self._begun):
            fiber.process.is_alive = False
            self._next = None
            self._hand_to(fiber)
            self._main.acquire()
        for carrier in self._idle:
            carrier.fiber = None
            carrier.go.release()
        self._idle.clear()


class Fiber:
    """One thread of a simulated process.

    Args:
        process: The process that owns it. It decides whether and when the fiber goes on.
    """

    def __init__(self, process: SimProcess, body: Callable[[], None]) -> None:
        self.process = process
        self.carrier: _Carrier | None = None
        self.failure: BaseException | None = None
        self.is_finished = False
        self._fibers = process.world.fibers
        self._body = body
        self._wait_number = 0
        self._is_woken = False
        self._interruption: BaseException | None = None

    def run(self) -> None:
        """Run the body to its end; called by the carrier."""
        try:
            self._body()
        except ProcessEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again on the world's thread
            self.failure = error
        self.is_finished = True

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
        self._fibers.switch_from(self)
        self._raise_if_ended()
        if self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            raise interruption
        return self._is_woken

    def _raise_if_ended(self) -> None:
        if not self.process.is_alive:
            raise ProcessEnded

    def wake(self) -> None:
        """Resume the fiber from its wait."""
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
        if self.carrier is not None:
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
