"""The source of threads: the operating system's in production, the simulator's in virtual time.

Code that waits for other threads takes its conditions, pools and loops from here, and its pauses from the clock. So the
same code runs under the simulator's scheduler.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from penstock.ports.clock import Clock
from penstock.runtime.loop import Condition, Loop, LoopThread, Pool, ThreadPool

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class DrivingThread(Protocol):
    """A thread that drives a loop."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most `timeout` seconds."""

    def is_alive(self) -> bool:
        """Return whether it has not ended yet."""


class Threads(Protocol):
    """Implemented by `SystemThreads` and by the simulator."""

    def condition(self) -> Condition:
        """Return a new condition."""

    def pool(self, name: str, thread_count: int) -> Pool:
        """Return a pool of at most `thread_count` threads."""

    def drive(
        self, name: str, loop: Loop[Any], clock: Clock, on_crash: Callable[[BaseException], None]
    ) -> DrivingThread:
        """Start a thread that drives a loop until it is finished."""


class SystemThreads:
    """The operating system's threads; all are daemons."""

    def condition(self) -> Condition:
        return threading.Condition()

    def pool(self, name: str, thread_count: int) -> Pool:
        return ThreadPool(name, thread_count)

    def drive(
        self, name: str, loop: Loop[Any], clock: Clock, on_crash: Callable[[BaseException], None]
    ) -> DrivingThread:
        thread = LoopThread(name, loop, clock, on_crash)
        thread.start()
        return thread


SYSTEM_THREADS: Final[Threads] = SystemThreads()


def begin_on_daemon(name: str, function: Callable[[], _Result]) -> Future[_Result]:
    """Call a function on a daemon thread of its own; the future has its result or its error."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def living_objects(registered: WeakKeyDictionary[_Item, None]) -> list[_Item]:
    """Return the registered objects that still live. Unlike those of a `WeakSet`, they can be listed while threads add others."""
    return [item for reference in registered.keyrefs() if (item := reference()) is not None]


@contextlib.contextmanager
def repeat_on_daemon(name: str, interval_s: float, step: Callable[[], bool]) -> Iterator[None]:
    """Call `step` on a daemon thread while the body runs: every `interval_s`, until it returns True."""
    has_ended = threading.Event()

    def run() -> None:
        while not has_ended.wait(interval_s):
            if step():
                return

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def map_on_pool(
    pool: Pool, condition: Condition, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Iterator[_Result]:
    """Call a function for every item on a pool, and yield the results in the items' order.

    Args:
        pool: Runs the calls; it must not be closed before all have ended.
        condition: Used by this call alone.
        items: All are submitted before the first result is waited for.

    Raises:
        BaseException: The function's exception for an item, raised in the place of its result.
    """
    ended: dict[int, tuple[list[_Result], BaseException | None]] = {}

    def run(place: int, item: _Item) -> None:
        result: tuple[list[_Result], BaseException | None]
        try:
            result = ([function(item)], None)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            result = ([], error)
        with condition:
            ended[place] = result
            condition.notify_all()

    count = 0
    for item in items:
        pool.submit(partial(run, count, item))
        count += 1
    for place in range(count):
        with condition:
            condition.wait_for(partial(ended.__contains__, place))
        found, error = ended[place]
        if error is not None:
            raise error
        yield found[0]


def map_on_daemons(
    name: str, thread_count: int, function: Callable[[_Item], _Result], items: Iterable[_Item]
) -> list[_Result]:
    """Call a function for every item on daemon threads, and return the results. A single item needs none: the caller's thread calls it.

    Args:
        name: Prefix of the threads' names.
        thread_count: The most calls at once.
        items: In the order of the results.

    Raises:
        BaseException: The function's exception for the first item that failed, or an interruption, of the wait or of the call for a
            single item. Running calls on daemon threads end by themselves, and no other begins.
    """
    listed = list(items)
    if len(listed) == 1:
        return [function(listed[0])]
    with contextlib.closing(SYSTEM_THREADS.pool(name, thread_count)) as pool:
        return list(map_on_pool(pool, SYSTEM_THREADS.condition(), function, listed))
