"""A loop that owns a state machine: any thread may post events, and only the loop's thread handles them.

The thread that drives the loop is separate: in production `LoopThread`, in tests a driver that calls `run_once` by hand under
a virtual clock. Work that waits (calls to services, user code) never runs in a loop: a `Pool` runs it, and its result is
posted as an event.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from penstock.ports.clock import Clock
from penstock.runtime.own_loggers import guard_loggers

log: logging.Logger = logging.getLogger("penstock.consumer")

E = TypeVar("E")
Task = Callable[[], None]

_WAIT_S_MAX = 60.0


class Condition(Protocol):
    """A condition variable, as `threading.Condition`."""

    def __enter__(self) -> bool:
        """Take the lock."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Release the lock."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified, at most `timeout` seconds; False after a timeout."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate holds, at most `timeout` seconds; return its last result."""

    def notify(self) -> None:
        """Wake one waiting thread."""

    def notify_all(self) -> None:
        """Wake all waiting threads."""


class Pool(Protocol):
    """Runs tasks. A task never raises: it reports by posting an event."""

    def submit(self, task: Task) -> None:
        """Run a task soon. Callers bound the number of tasks in flight."""

    def close(self) -> None:
        """Accept no more tasks; running tasks end by themselves."""


class ThreadPool:
    """A fixed number of daemon threads.

    Daemons, so that a handler that never returns cannot keep the process from ending.

    Args:
        name: Prefix of the threads' names.
        thread_count: Number of threads; started when first needed.
    """

    def __init__(self, name: str, thread_count: int) -> None:
        guard_loggers()
        self._name = name
        self._thread_count = thread_count
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._unfinished = 0  # tasks that wait or run
        self._has_warned = False  # of a thread that could not be started
        self._is_closed = False

    def submit(self, task: Task) -> None:
        """Run a task on the next free thread."""
        with self._lock:
            if self._is_closed:
                return
            self._tasks.put(task)
            self._unfinished += 1
            # Idle threads cannot be counted instead: one that has just taken a task still counts as idle, and the next
            # task would wait behind it, perhaps for ever.
            if self._started < min(self._unfinished, self._thread_count):
                self._start_thread()

    def _start_thread(self) -> None:
        """Start one more thread. If the system has no more, the running ones do its work."""
        name = f"{self._name}-{self._started + 1}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:  # a limit of the container or the user is reached
            if not self._started:  # no thread would take the task
                self._tasks.get_nowait()
                self._unfinished -= 1
                raise
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s goes on with %d of %d threads: %s",
                    self._name,
                    self._started,
                    self._thread_count,
                    error,
                )
        else:
            self._started += 1

    def close(self) -> None:
        """End each thread after its current task; queued tasks are dropped."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for _ in range(self._started):
                self._tasks.put(None)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None or self._is_closed:
                return
            try:
                task()
            except BaseException:
                # Tasks report by themselves; one that raises is a defect, and must not end the thread.
                log.exception("a task of %s failed", self._name)
            finally:
                with self._lock:
                    self._unfinished -= 1


class Loop(Generic[E]):
    """The base of a worker's two loops: an inbox and a wake-up time.

    Subclasses define `handle_events` and `next_wake_s`.

    Args:
        condition: The condition on which the loop's thread waits; None makes one.
    """

    def __init__(self, condition: Condition | None = None) -> None:
        self._inbox: deque[E] = deque()
        self._condition: Condition = threading.Condition() if condition is None else condition
        self.is_finished: bool = False

    def post(self, event: E) -> None:
        """Add an event, from any thread."""
        with self._condition:
            self._inbox.append(event)
            self._condition.notify()

    def finish(self) -> None:
        """End the thread that drives the loop."""
        with self._condition:
            self.is_finished = True
            self._condition.notify_all()

    @property
    def has_events(self) -> bool:
        """Whether the inbox has events."""
        return bool(self._inbox)

    def run_once(self, now_s: float) -> None:
        """Handle the events in the inbox and due timers."""
        with self._condition:
            events = list(self._inbox)
            self._inbox.clear()
        self.handle_events(events, now_s)

    def wait(self, clock: Clock) -> None:
        """Wait until an event is posted or a timer is due."""
        wake_s = self.next_wake_s()
        with self._condition:
            if self._inbox or self.is_finished:
                return
            delay_s = _WAIT_S_MAX if wake_s is None else wake_s - clock.monotonic_s()
            if delay_s > 0:
                self._condition.wait(min(delay_s, _WAIT_S_MAX))

    def handle_events(self, events: list[E], now_s: float) -> None:
        """Handle events in the order in which they were posted, and due timers."""
        raise NotImplementedError

    def next_wake_s(self) -> float | None:
        """Return when the next timer is due, or None."""
        raise NotImplementedError


class LoopThread(threading.Thread):
    """Drives one loop until it is finished.

    Args:
        on_crash: Called when the loop itself fails, which is a defect: the worker must not go on without it.
    """

    def __init__(
        self, name: str, loop: Loop[E], clock: Clock, on_crash: Callable[[BaseException], None]
    ) -> None:
        guard_loggers()
        super().__init__(name=name, daemon=True)
        self._loop: Loop[E] = loop
        self._clock = clock
        self._on_crash = on_crash

    def run(self) -> None:
        """Drive the loop."""
        try:
            while not self._loop.is_finished:
                self._loop.run_once(self._clock.monotonic_s())
                if not self._loop.is_finished:
                    self._loop.wait(self._clock)
        except BaseException as error:
            log.critical("%s failed; the worker stops", self.name, exc_info=True)
            self._on_crash(error)
