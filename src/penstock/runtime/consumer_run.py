"""The one run of a consumer on threads: begun once, stopped from anywhere, waited for, and iterated in pull style."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from penstock.errors import PenstockError, UsageError
from penstock.runtime.home_process import HomeProcess
from penstock.runtime.stop_signals import StopSignals
from penstock.runtime.thread_pull import ThreadPull

STOP_SLACK_S: Final = 10.0
"""Seconds beyond `shutdown_timeout_s` to wait for a consumer's end."""
_T = TypeVar("_T")


class Running(Protocol):
    """The threads of a consumer that has started."""

    begun_by: object
    """The run, kept for as long as its threads live, also if the program keeps no reference to the consumer."""

    @property
    def has_ended(self) -> threading.Event:
        """Set when everything has stopped."""

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, or None."""

    def request_stop(self) -> None:
        """Begin a graceful stop; return at once."""


_R = TypeVar("_R", bound=Running)


class ConsumerRun(Generic[_R]):
    """Starts, stops and ends a consumer. In a forked child of its process, every method but `is_running` raises `UsageError`.

    Args:
        not_stopped: Returns the error of a consumer that has not stopped in time.
        name: Names the worker and what it consumes, for the log.
        log: The consumer's.
    """

    def __init__(
        self,
        shutdown_timeout_s: float,
        not_stopped: Callable[[], PenstockError],
        *,
        name: str,
        log: logging.Logger,
    ) -> None:
        self.home = HomeProcess()
        self.running: _R | None = None
        self._stop_within_s = shutdown_timeout_s + STOP_SLACK_S
        self._not_stopped = not_stopped
        self._name = name
        self._log = log
        self._start_lock = threading.Lock()  # held while the consumer starts
        self._iteration_lock = threading.Lock()  # one of the iterating threads starts the consumer
        self._iterations = threading.local()  # has `has_ended` on the threads whose iteration has ended
        self._is_stop_wanted = False  # no lock: a signal handler may set it while `begin` holds the lock

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started and has not ended."""
        return self.running is not None and self.home.is_here and not self.running.has_ended.is_set()

    def begin(self, prepare: Callable[[], tuple[_R, Callable[[], None]]], *, on_threads: bool = True) -> None:
        """Start the consumer; a stop that was requested before begins at once.

        Args:
            prepare: Returns the threads' owner, which may be asked to stop from then on, and the function that starts it.
            on_threads: Whether it runs by itself, and not in virtual time; then the end of the program warns of it.

        Raises:
            UsageError: It was started before.
        """
        self.home.check()
        with self._start_lock:
            if self.running is not None:
                raise UsageError("this consumer was started before; make a new one")
            running, start = prepare()
            self.running = running
            running.begun_by = self
            start()
            if on_threads:
                _begun.add(self)
            if self._is_stop_wanted:
                running.request_stop()

    def request_stop(self) -> None:
        """Begin a graceful stop and return at once. A consumer that has not started yet stops as soon as it has started."""
        self.home.check()
        self._is_stop_wanted = True
        running = self.running
        if running is not None:
            running.request_stop()

    def stop(self, is_in_user_code: Callable[[_R], bool]) -> None:
        """Stop gracefully and wait for the end. A start that is under way is not waited for.

        Args:
            is_in_user_code: Returns whether the caller is a handler of the consumer.

        Raises:
            PenstockError: The consumer failed before; or it did not stop in time.
            UsageError: A handler calls it, which would wait for itself.
        """
        self.home.check()
        # The lock is checked first: a start that ends between the two checks has set `running`.
        is_started = self._start_lock.locked() or self.running is not None
        if self.running is not None and is_in_user_code(self.running):
            raise UsageError(
                "stop() waits for the handlers under way, and is called in one: call request_stop() instead"
            )
        self.request_stop()
        if not is_started:
            return
        if not self.wait(self._stop_within_s):
            raise self._not_stopped()
        self.raise_failure()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the consumer has ended; return False after the timeout."""
        running = self.running
        if running is None:
            return True
        if timeout_s is not None:
            return running.has_ended.wait(timeout_s)
        # Wait in slices: on every platform a signal handler can run between two of them.
        while not running.has_ended.wait(1.0):
            pass
        return True

    def raise_failure(self) -> None:
        """Raise the consumer's failure, if it has failed."""
        if self.running is not None and self.running.failure is not None:
            raise self.running.failure

    def run(self, start: Callable[[], None]) -> None:
        """Start the consumer, and wait for its end; the first signal stops it.

        Raises:
            PenstockError: The consumer failed.
        """
        self.home.check()
        with StopSignals(self.request_stop):
            start()
            self.wait()
        self.raise_failure()

    def leave(
        self, error: BaseException | None, pull: ThreadPull[_T] | None, stop: Callable[[], None]
    ) -> None:
        """Handle the end of a `with` block of the consumer.

        Args:
            error: The error of the block. With one, this waits for the stop and raises no error of the consumer.
            pull: Closed, so that records that are not done are returned.
            stop: The consumer's `stop`.
        """
        if error is not None and not self.home.is_here:
            return
        self.request_stop()
        if pull is not None:
            pull.close()
        if error is None:
            stop()
        else:
            self.wait(self._stop_within_s)

    def items(self, pull: ThreadPull[_T] | None, start: Callable[[], None]) -> Iterator[_T]:
        """Start the consumer if no other thread has, yield its items, and stop it when the iteration ends.

        Raises:
            PenstockError: The consumer failed, now or in an iteration before.
            UsageError: There is a handler, or an iteration on this thread has ended before, and stopped the consumer.
        """
        self.home.check()
        if pull is None:
            raise UsageError("a consumer with a handler cannot be iterated; leave the handler out")
        if hasattr(self._iterations, "has_ended"):
            self.raise_failure()
            raise UsageError(
                "a loop over this consumer has ended before, which stopped it; make a new consumer to go on"
            )
        with StopSignals(self.request_stop):
            with self._iteration_lock:
                if self.running is None:
                    start()
            running = self.running
            assert running is not None
            try:
                yield from pull.items(running.has_ended)
            finally:
                self._iterations.has_ended = True
                if self.home.is_here:  # after a fork in the loop's body, both processes reach this
                    pull.close()
                    self.request_stop()
                    self.wait(self._stop_within_s)
        self.raise_failure()

    def warn_at_exit(self) -> None:
        """Warn if the consumer still runs and no stop was requested: its threads end with the program."""
        if self.is_running and not self._is_stop_wanted:
            self._log.warning(
                "the program ends while %s runs on other threads: records in hand are delivered again, unless a later exit hook stops "
                "it. Call run() in place of start(), or stop() before the end",
                self._name,
            )


_begun: Final[WeakSet[ConsumerRun[Any]]] = WeakSet()


@atexit.register
def _warn_at_exit() -> None:
    """Warn of consumers that still run: a program whose last line is `start()` ends at once, and reads nothing."""
    for run in list(_begun):
        run.warn_at_exit()
