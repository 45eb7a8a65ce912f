"""The run of a consumer for asyncio: starts and stops the consumer on threads from an event loop, and waits for its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from penstock.errors import PenstockError, UsageError
from penstock.runtime.async_pull import AsyncPull
from penstock.runtime.consumer_run import STOP_SLACK_S
from penstock.runtime.loop_tasks import EventLoopTasks
from penstock.runtime.stop_signals import StopSignals


class ThreadedConsumer(Protocol):
    """The consumer on threads."""

    worker_id: str

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""

    def start(self) -> None:
        """Start on other threads."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end."""

    def request_stop(self) -> None:
        """Begin a graceful stop."""

    def stop(self) -> None:
        """Raise the failure of a consumer that has ended, if it has one."""


class AsyncRun:
    """Starts, stops and ends a consumer on threads for one event loop.

    Args:
        pull: Passes items to tasks that iterate; None if there is a handler.
        not_stopped: Returns the error of a consumer that has not stopped in time.
        name: Name of the public class, for messages.
        noun: What it yields to a loop, for messages.
    """

    def __init__(
        self,
        *,
        consumer: ThreadedConsumer,
        calls: EventLoopTasks,
        pull: AsyncPull[Any] | None,
        shutdown_timeout_s: float,
        not_stopped: Callable[[], PenstockError],
        name: str,
        noun: str,
        log: logging.Logger,
    ) -> None:
        self._consumer = consumer
        self._calls = calls
        self._pull = pull
        self._stop_within_s = shutdown_timeout_s + STOP_SLACK_S
        self._not_stopped = not_stopped
        self._name = name
        self._way_to_iterate = (
            f"`async with {name}(...) as consumer:`, and in it `async for {noun} in consumer:`"
        )
        self._log = log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self.keeper: asyncio.Task[None] | None = None
        self._is_finishing = False

    def check_is_not_pulled(self) -> None:
        """Refuse to run a consumer that has no handler."""
        if self._pull is not None:
            raise UsageError(f"give a handler, or iterate: {self._way_to_iterate}")

    async def items(self) -> AsyncIterator[Any]:
        """Yield the items of a consumer that was started; asking for the next one acknowledges the one before."""
        if self._pull is None:
            raise UsageError("a consumer with a handler cannot be iterated; leave the handler out")
        if self._loop is None:
            raise UsageError(f"this consumer was not started: {self._way_to_iterate}")
        async for item in self._pull.items():
            yield item
        if self._ended.is_set():
            self.raise_failure()

    async def run(self) -> None:
        """Start, and wait for the end; a signal in the main thread, or a cancellation, stops gracefully."""
        with StopSignals(self._consumer.request_stop) as signals:
            await self.start()
            try:
                await self._ended.wait()
            except asyncio.CancelledError:
                if not signals.is_interrupted:
                    await self._finish()
                raise
            await self._calls.cancel()
        self._consumer.stop()  # it has ended: raises its failure

    async def start(self) -> None:
        """Start the consumer; return when it has been started.

        Raises:
            UsageError: It was started before.
        """
        if self._loop is not None:
            raise UsageError("this consumer was started before; make a new one")
        loop = self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._is_finishing = False
        self._calls.open()
        starting = loop.run_in_executor(None, self._start_consumer, loop)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on: a consumer that it has started must still be stopped.
            starting.add_done_callback(self._stop_after_start)
            await asyncio.wait([starting])
            await self._wait_for_end()
            raise
        self.keeper = loop.create_task(self._keep())

    def _start_consumer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start on a thread, and signal the loop at the end, also if the start fails."""
        try:
            self._consumer.start()
        except BaseException:
            self._signal(loop, self._on_not_started)
            raise
        threading.Thread(
            target=self._signal_end, args=(loop,), name="penstock-async-end", daemon=True
        ).start()

    def _stop_after_start(self, starting: asyncio.Future[None]) -> None:
        if starting.exception() is None:
            self._consumer.request_stop()

    async def stop(self) -> None:
        """Stop gracefully and wait for the end.

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
        self.raise_failure()

    async def leave(self, error: BaseException | None) -> None:
        """End the block of `async with`; an error of the block goes first."""
        await self._finish()
        if error is None:
            self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the failure of a consumer that should have ended, if it has one."""
        if not self._ended.is_set():
            raise self._not_stopped()
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
            async with asyncio.timeout(self._stop_within_s):
                await self._ended.wait()
        except TimeoutError:
            # The callers raise the error.
            self._log.debug("worker %s has not ended in time", self._consumer.worker_id)

    def _signal_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the end on a thread, and signal the loop."""
        self._consumer.wait()
        self._signal(loop, self._on_ended)

    def _signal(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            self._log.debug("worker %s ended after its event loop", self._consumer.worker_id)

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
                    self._consumer.worker_id,
                    self._name,
                )
                self._consumer.request_stop()
            raise
