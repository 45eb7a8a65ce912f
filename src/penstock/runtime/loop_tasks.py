"""Calls of user code as tasks of one event loop, begun from any thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from penstock.errors import UsageError
from penstock.runtime.home_process import HomeProcess
from penstock.runtime.user_code import UnusableHandlerError

_CANCELLED_WITHIN_S: Final = 5.0


def running_loop(user: str) -> asyncio.AbstractEventLoop:
    """Return the event loop that runs the caller.

    Args:
        user: The public name of the class that needs it, also for a subclass.

    Raises:
        UsageError: There is none, as under trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        plain = user.removeprefix("Async")
        raise UsageError(
            f"{user} works on an event loop of asyncio (or uvloop), and none runs here: start it with asyncio.run; with anyio choose the "
            f"backend asyncio; under trio, use penstock.{plain} on a thread (trio.to_thread.run_sync)"
        ) from error


class EventLoopTasks:
    """Runs calls of user code as tasks of one event loop.

    Args:
        consumer: The name of the consumer's class, for messages.
    """

    def __init__(self, consumer: str) -> None:
        self._consumer_name = consumer
        self._home = HomeProcess()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        self._tasks: set[asyncio.Task[BaseException | None]] = set()

    def open(self) -> asyncio.AbstractEventLoop:
        """Choose the running loop and the present context variables for all later calls; return the loop."""
        self._loop = running_loop(self._consumer_name)
        self._context = contextvars.copy_context()
        return self._loop

    def begin_call(self, call: Callable[[], Awaitable[object]]) -> Future[None]:
        """Begin a call as a task, from any thread; the future is done when the call has ended, and has its failure.

        Raises:
            UnusableHandlerError: The event loop is closed.
        """
        loop = self._loop
        assert loop is not None
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()
        try:
            loop.call_soon_threadsafe(self._start, call, ended, context=self._context)
        except RuntimeError as error:
            raise UnusableHandlerError(
                "the event loop was closed while the consumer ran on it; stop the consumer first: `async with "
                f"{self._consumer_name}(...)`, or `await consumer.stop()`"
            ) from error
        return ended

    @property
    def is_inside(self) -> bool:
        """Whether the current task is one of these calls."""
        return asyncio.current_task() in self._tasks

    def _start(self, call: Callable[[], Awaitable[object]], future: Future[None]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, future))

    async def _run(self, call: Callable[[], Awaitable[object]]) -> BaseException | None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # an eager task runs before the loop has returned it
        try:
            with self._home:
                await call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a task, SystemExit would end the loop
            return error
        return None

    def _end(self, future: Future[None], task: asyncio.Task[BaseException | None]) -> None:
        self._tasks.discard(task)
        failure: BaseException | None = asyncio.CancelledError("the task of the call was cancelled")
        if not task.cancelled():
            raised = task.exception()
            failure = task.result() if raised is None else raised
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    async def cancel(self) -> None:
        """Cancel the calls that are under way, and wait until they have ended, at most some seconds."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCELLED_WITHIN_S)
