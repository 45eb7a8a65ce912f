"""The base of consumers on threads: started once, stopped from anywhere, waited for, and iterated in pull style."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from penstock.errors import PenstockError, UsageError
from penstock.runtime.home_process import HomeProcess, InOneProcess
from penstock.runtime.stop_signals import StopSignals
from penstock.runtime.thread_pull import ThreadPull
from penstock.runtime.threads import living_objects

STOP_SLACK_S: Final = 10.0
"""Seconds beyond `shutdown_timeout_s` to wait for a consumer's end."""
_T = TypeVar("_T")


class ConsumerThreads(Protocol):
    """The threads of a consumer that has started."""

    consumer: object
    """The consumer, kept for as long as its threads live, also if the program keeps no reference to it."""

    @property
    def has_ended(self) -> threading.Event:
        """Set when everything has stopped."""

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, or None."""

    @property
    def is_in_user_code(self) -> bool:
        """Whether the current thread runs a call of user code."""

    def request_stop(self) -> None:
        """Begin a graceful stop; return at once."""


_R = TypeVar("_R", bound=ConsumerThreads)


class ThreadedConsumer(InOneProcess, Generic[_R, _T]):
    """Starts, stops and ends a consumer. In a forked child of its process, every method but `is_running` raises `UsageError`.

    A subclass defines `_prepare`.

    Args:
        shutdown_timeout_s: Bound of a graceful stop.
        pull: Passes items to the threads that iterate; None if there is a handler.
        name: Names the worker and what it consumes, for the log.
        leftover: Fate of the work that a worker leaves if it does not stop in time, for the error.
        log: The consumer's logger.
    """

    def __init__(
        self,
        worker_id: str,
        shutdown_timeout_s: float,
        pull: ThreadPull[_T] | None,
        *,
        name: str,
        leftover: str,
        log: logging.Logger,
    ) -> None:
        self.worker_id = worker_id
        self._home = HomeProcess()
        self._running: _R | None = None
        self._shutdown_timeout_s = shutdown_timeout_s
        self._pull = pull
        self._name = name
        self._leftover = leftover
        self._log = log
        self._start_lock = threading.Lock()  # held while the consumer starts
        self._iteration_lock = threading.Lock()  # one of the iterating threads starts the consumer
        self._iterations = threading.local()  # has `has_ended` on the threads whose iteration has ended
        self._is_stop_wanted = False  # no lock: a signal handler may set it while `_begin` holds the lock

    def _prepare(self) -> tuple[_R, Callable[[], None]]:
        """Return the threads' owner, which may be asked to stop from then on, and the function that starts it."""
        raise NotImplementedError

    def _begin(self, *, on_threads: bool = True) -> None:
        """Start the consumer; a stop that was requested before begins at once.

        Args:
            on_threads: Whether the consumer runs on threads, not in virtual time: then a warning is logged if it runs at the program's end.
        """
        with self._start_lock:
            if self._running is not None:
                raise UsageError("this consumer was started before; make a new one")
            running, start = self._prepare()
            self._running = running
            running.consumer = self
            try:
                start()
            except BaseException:
                self._running = None  # it may be started again
                raise
            if on_threads:
                _begun[self] = None
            if self._is_stop_wanted:
                running.request_stop()

    def _start(self) -> None:
        self._begin()

    # --- starting and stopping ------------------------------------------------------------------------

    def start(self) -> None:
        """Start to work on other threads; return when the stream or the queue has been found.

        Raises:
            UsageError: No handler was given, the consumer was started before, or its starting moment is in the future.
            NotFound, AccessDenied: The stream or the queue cannot be used.
        """
        self._home.refuse_fork()
        if self._pull is not None:
            raise UsageError("give a handler (or iterate over the consumer, by `for`)")
        self._start()

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        Raises:
            PenstockError: The consumer failed.
        """
        self._home.refuse_fork()
        with StopSignals(self.request_stop):
            self.start()
            self.wait()
        self._raise_failure()

    def request_stop(self) -> None:
        """Begin a graceful stop and return at once. Safe in a signal handler and from user code.

        A consumer that has not started yet, or whose `start` is under way, stops as soon as it has started.
        """
        self._home.refuse_fork()
        self._is_stop_wanted = True
        running = self._running
        if running is not None:
            running.request_stop()

    def stop(self) -> None:
        """Stop gracefully and wait for it, at most `shutdown_timeout_s` and some seconds.

        A `start` that is under way in another thread is asked to stop, and not waited for. A consumer that has not started
        yet stops as soon as it has started.

        Raises:
            PenstockError: The consumer failed before; or it did not stop in time.
            UsageError: The handler calls it, which would wait for itself.
        """
        self._home.refuse_fork()
        # The lock is checked first: a start that ends between the two checks has set `_running`.
        is_started = self._start_lock.locked() or self._running is not None
        if self._running is not None and self._running.is_in_user_code:
            raise UsageError(
                "stop() waits for the handlers under way, and is called in one: call request_stop() instead"
            )
        self.request_stop()
        if is_started:
            if not self.wait(self._stop_within_s):
                raise self._stop_timeout_error()
            self._raise_failure()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the consumer has ended, at most this many seconds; return whether it has."""
        running = self._running
        if running is None:
            return True
        if timeout_s is not None:
            return running.has_ended.wait(min(timeout_s, threading.TIMEOUT_MAX))
        # Wait in slices: on every platform a signal handler can run between two of them.
        while not running.has_ended.wait(1.0):
            pass
        return True

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started and has not ended."""
        return self._running is not None and self._home.is_here and not self._running.has_ended.is_set()

    @property
    def _stop_within_s(self) -> float:
        return self._shutdown_timeout_s + STOP_SLACK_S

    def _stop_timeout_error(self) -> PenstockError:
        return PenstockError(
            f"worker {self.worker_id} did not stop within {self._shutdown_timeout_s} s; {self._leftover}"
        )

    def _raise_failure(self) -> None:
        if self._running is not None and self._running.failure is not None:
            raise self._running.failure

    def __enter__(self) -> Self:
        self._home.refuse_fork()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._home.is_here:
            return  # a forked child leaves the block by its own error: the threads are the parent's
        self.request_stop()
        if self._pull is not None:
            self._pull.close()
        if error is None:
            self.stop()
        else:  # the block's error is raised, and none of the consumer's
            self.wait(self._stop_within_s)

    # --- pulling --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[_T]:
        """Start the consumer if no other thread has, yield its items, and stop it when the iteration ends.

        Requesting the next item acknowledges the one before. If the loop's body ends the loop (by `break` or an error), the current
        item is delivered again, unless it was acknowledged. Several threads may iterate.
        """
        self._home.refuse_fork()
        if self._pull is None:
            raise UsageError("a consumer with a handler cannot be iterated; leave the handler out")
        if hasattr(self._iterations, "has_ended"):
            self._raise_failure()
            raise UsageError(
                "a loop over this consumer has ended before, which stopped it; make a new consumer to go on"
            )
        with StopSignals(self.request_stop):
            with self._iteration_lock:
                if self._running is None:
                    self._start()
            running = self._running
            assert running is not None
            try:
                yield from self._pull.items(running.has_ended)
            finally:
                self._iterations.has_ended = True
                if self._home.is_here:  # after a fork in the loop's body, both processes reach this
                    self._pull.close()
                    self.request_stop()
                    self.wait(self._stop_within_s)
        self._raise_failure()

    def _warn_at_exit(self) -> None:
        """Warn if the consumer still runs and no stop was requested: its threads end with the program."""
        if self.is_running and not self._is_stop_wanted:
            self._log.warning(
                "the program ends while %s runs on other threads: records in hand are delivered again, unless a later exit hook stops "
                "it. Call run() in place of start(), or stop() before the end",
                self._name,
            )


_begun: Final[WeakKeyDictionary[ThreadedConsumer[Any, Any], None]] = WeakKeyDictionary()


@atexit.register
def _warn_at_exit() -> None:
    """Warn of consumers that still run: a program whose last line is `start()` ends at once, and reads nothing."""
    for consumer in living_objects(_begun):
        consumer._warn_at_exit()  # noqa: SLF001 - of a class of this file
