"""The base of consumers for asyncio: starts and stops a consumer on threads from an event loop, and waits for its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.errors import UsageError
from penstock.runtime.async_pull import AsyncPull
from penstock.runtime.consumer_run import ThreadedConsumer
from penstock.runtime.home_process import InOneProcess
from penstock.runtime.loop_tasks import EventLoopTasks
from penstock.runtime.stop_signals import StopSignals

_C = TypeVar("_C", bound=ThreadedConsumer[Any, Any])
_T = TypeVar("_T")


class AsyncioConsumer(InOneProcess, Generic[_C, _T]):
    """Starts, stops and ends a consumer on threads for one event loop.

    Args:
        pull: Passes items to tasks that iterate; None if there is a handler.
        noun: The kind of an item, for messages.
        log: The consumer's logger.
    """

    def __init__(
        self,
        consumer: _C,
        calls: EventLoopTasks,
        pull: AsyncPull[_T] | None,
        *,
        noun: str,
        log: logging.Logger,
    ) -> None:
        self.worker_id: str = consumer.worker_id
        self._consumer = consumer
        self._calls = calls
        self._pull = pull
        self._way_to_iterate = (
            f"`async with {type(self).__name__}(...) as consumer:`, and in it `async for {noun} in consumer:`"
        )
        self._log = log
        self._signals: StopSignals | None = None  # of `run`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._is_finishing = False

    def __repr__(self) -> str:
        return f"Async{self._consumer!r}"

    # --- starting and stopping ------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the task is cancelled, or until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        Raises:
            PenstockError: The consumer failed.
        """
        self._check_has_handler()
        with StopSignals(self._consumer.request_stop) as signals:
            self._signals = signals
            await self._start()
            try:
                await self._ended.wait()
            except asyncio.CancelledError:
                if not signals.is_interrupted:
                    await self._finish()
                raise
            await self._calls.cancel()
        self._consumer.stop()  # it has ended: raises its failure

    async def start(self) -> None:
        """Start to work; return when the stream or the queue has been found.

        Raises:
            UsageError: No handler was given, the consumer was started before, or its starting moment is in the future.
            NotFound, AccessDenied: The stream or the queue cannot be used.
        """
        self._check_has_handler()
        await self._start()

    def request_stop(self) -> None:
        """Begin a graceful stop and return at once. Safe in a signal handler, from every thread and from user code."""
        self._consumer.request_stop()

    async def stop(self) -> None:
        """Stop gracefully and wait for it, at most `shutdown_timeout_s` and some seconds.

        Raises:
            PenstockError: The consumer failed before; or it did not stop in time.
            UsageError: A handler calls it and would wait for itself, or it is called on another event loop than the consumer's.
        """
        if self._loop is None:
            return
        if self._loop is not asyncio.get_running_loop():
            raise UsageError("this consumer was started on another event loop: stop it there")
        if self._calls.is_inside:
            raise UsageError(
                "stop() waits for the handlers under way, and is called in one: call request_stop() instead"
            )
        await self._finish()
        self._raise_failure()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish()
        if error is None:  # else the error of the block is raised
            self._raise_failure()

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started and has not ended."""
        return self._consumer.is_running

    # --- pulling --------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[_T]:
        """Yield items, inside `async with`. Requesting the next one acknowledges the one before.

        If the loop's body ends the loop (by `break`, by an error, or because its task is cancelled), the current item is delivered
        again, unless it was acknowledged. Several tasks may iterate at the same time.
        """
        if self._pull is None:
            raise UsageError("a consumer with a handler cannot be iterated; leave the handler out")
        if self._loop is None:
            raise UsageError(f"this consumer was not started: {self._way_to_iterate}")
        async for item in self._pull.items():
            yield item
        if self._ended.is_set():
            self._raise_failure()

    # --- inside ---------------------------------------------------------------------------------------

    def _check_has_handler(self) -> None:
        if self._pull is not None:
            raise UsageError(f"give a handler, or iterate: {self._way_to_iterate}")

    async def _start(self) -> None:
        if self._loop is not None:
            raise UsageError("this consumer was started before; make a new one")
        loop = self._loop = self._calls.open()
        self._ended = asyncio.Event()
        self._is_finishing = False
        starting = loop.run_in_executor(None, self._start_consumer, loop)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on: a consumer that it has started must still be stopped.
            starting.add_done_callback(self._stop_after_start)
            await asyncio.wait([starting])
            if self._signals is None or not self._signals.is_interrupted:
                await self._wait_for_end()
            raise
        self._keeper = loop.create_task(self._keep())

    def _start_consumer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start on a thread, and signal the loop at the end, also if the start fails."""
        try:
            self._consumer.start()
            threading.Thread(
                target=self._signal_end, args=(loop,), name="penstock-async-end", daemon=True
            ).start()
        except BaseException:
            if self._consumer.is_running:  # the thread could not be started
                self._consumer.request_stop()
            self._signal(loop, self._on_not_started)
            raise

    def _stop_after_start(self, starting: asyncio.Future[None]) -> None:
        if starting.exception() is None:
            self._consumer.request_stop()

    def _raise_failure(self) -> None:
        """Raise the failure of a consumer that should have ended, if it has one."""
        if not self._ended.is_set():
            raise self._consumer._stop_timeout_error()  # noqa: SLF001 - the consumer that this one wraps
        self._consumer.stop()

    async def _finish(self) -> None:
        """Stop the consumer, wait for its end, then cancel the calls that still run."""
        self._is_finishing = True
        self._consumer.request_stop()
        if self._pull is not None:
            self._pull.close()
        await self._wait_for_end()
        await self._calls.cancel()

    async def _wait_for_end(self) -> None:
        try:
            async with asyncio.timeout(self._consumer._stop_within_s):  # noqa: SLF001 - the same
                await self._ended.wait()
        except TimeoutError:
            # The callers raise the error.
            self._log.debug("worker %s has not ended in time", self.worker_id)

    def _signal_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the end on a thread, and signal the loop."""
        self._consumer.wait()
        self._signal(loop, self._on_ended)

    def _signal(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            self._log.debug("worker %s ended after its event loop", self.worker_id)

    def _on_not_started(self) -> None:
        self._ended.set()
        self._loop = None  # it may be started again

    def _on_ended(self) -> None:
        self._ended.set()
        if self._pull is not None:
            self._pull.close()

    async def _keep(self) -> None:
        """Stop the consumer if the loop ends first: `asyncio.run` cancels the tasks that are left."""
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            if self._consumer.is_running and not self._is_finishing:
                self._log.warning(
                    "the event loop ends while worker %s runs; it stops now. Use `async with %s(...)`, or await stop()",
                    self.worker_id,
                    type(self).__name__,
                )
                self._consumer.request_stop()
            raise
