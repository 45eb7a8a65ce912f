"""Calls of user code as tasks of one event loop, begun from any thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from penstock.runtime.user_code import UnusableHandlerError

_CANCELLED_S: Final = 5.0


class EventLoopTasks:
    """Runs calls of user code as tasks of one event loop.

    Args:
        consumer: The name of the consumer's class, for messages.
    """

    def __init__(self, consumer: str) -> None:
        self._consumer_name = consumer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: contextvars.Context | None = None
        self._tasks: set[asyncio.Task[BaseException | None]] = set()

    def open(self) -> None:
        """Run calls on the loop that runs now, with its context variables as they are now."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    def begin_task(
        self,
        run: Callable[[], Coroutine[Any, Any, BaseException | None]],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Begin a task, from any thread.

        Args:
            run: Makes the call, and returns its failure or None.
            on_end: Called on the loop with the failure; with CancelledError if the task was cancelled.

        Raises:
            UnusableHandlerError: The event loop is closed.
        """
        loop = self._loop
        assert loop is not None
        try:
            loop.call_soon_threadsafe(self._start, run, on_end, context=self._context)
        except RuntimeError as error:
            raise UnusableHandlerError(
                "the event loop was closed while the consumer ran on it; stop the consumer first: `async with "
                f"{self._consumer_name}(...)`, or `await consumer.stop()`"
            ) from error

    @property
    def is_inside(self) -> bool:
        """Whether the current task is one of these calls."""
        return asyncio.current_task() in self._tasks

    def _start(
        self,
        run: Callable[[], Coroutine[Any, Any, BaseException | None]],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._run(run))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, on_end))

    async def _run(
        self, run: Callable[[], Coroutine[Any, Any, BaseException | None]]
    ) -> BaseException | None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # an eager task runs before the loop has returned it
        return await run()

    def _end(
        self, on_end: Callable[[BaseException | None], None], task: asyncio.Task[BaseException | None]
    ) -> None:
        """Report the end of a task to its caller."""
        self._tasks.discard(task)
        if task.cancelled():
            on_end(asyncio.CancelledError("the task of the call was cancelled"))
        else:
            raised = task.exception()
            on_end(task.result() if raised is None else raised)

    async def cancel(self) -> None:
        """Cancel the calls that are under way, and wait until they have ended, at most some seconds."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCELLED_S)
