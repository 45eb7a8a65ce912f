"""How a queue's consumer calls user code: on threads, or on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from penstock.errors import HandlerFailed
from penstock.queues.queue_records import QueueBatch, QueueRecord
from penstock.runtime.home_process import HomeProcess
from penstock.runtime.loop import Pool
from penstock.runtime.loop_tasks import EventLoopTasks
from penstock.runtime.user_code import UnusableHandlerError, examinable_error, unrun_code_error

QueueHandler: TypeAlias = Callable[[Any], object]
"""Gets a `QueueRecord`, or a `QueueBatch` with `batch_records_max`. Its result is ignored; an exception is a failure."""
AsyncQueueHandler: TypeAlias = Callable[[Any], Awaitable[object]]
QueueSpan: TypeAlias = Callable[[QueueBatch], AbstractContextManager[None]]


class HandlerWork(Struct, eq=False):
    """One call of the handler.

    Args:
        batch: The records of the call.
        is_single: Whether the handler gets its single record instead of the batch.
        end: Called once, from any thread, with the handler's error or None.
    """

    batch: QueueBatch
    is_single: bool
    end: Callable[[BaseException | None], None]

    @property
    def argument(self) -> QueueBatch | QueueRecord:
        """The handler's argument."""
        return self.batch.records[0] if self.is_single else self.batch


class HandlerCalls(Protocol):
    """Begins calls of the handler. Implemented by `ThreadCalls` and `EventLoopCalls`."""

    span: QueueSpan

    def begin(self, work: HandlerWork) -> None:
        """Begin a call; return without waiting for its end."""

    @property
    def is_inside(self) -> bool:
        """Whether the caller runs inside one of these calls."""


class ThreadCalls:
    """Calls a plain function on threads.

    Args:
        pool: The threads, one for each call that may be under way.
    """

    def __init__(self, handler: QueueHandler, pool: Pool) -> None:
        self._handler = handler
        self._pool = pool
        self._home = HomeProcess()
        self._here = threading.local()
        self.span: QueueSpan = lambda _: nullcontext()

    def begin(self, work: HandlerWork) -> None:
        self._pool.submit(partial(self._run, work))

    @property
    def is_inside(self) -> bool:
        return getattr(self._here, "is_inside", False)

    def _run(self, work: HandlerWork) -> None:
        error: BaseException | None
        self._here.is_inside = True
        try:
            with self.span(work.batch), self._home:
                result: object = self._handler(work.argument)
            error = unrun_code_error(result, "QueueConsumer")
        except BaseException as raised:  # noqa: BLE001 - whatever user code raises is the result of the call
            error = examinable_error(raised)
        finally:
            self._here.is_inside = False
        work.end(error)


class EventLoopCalls(EventLoopTasks):
    """Calls a coroutine function on the event loop that `open` was called on."""

    def __init__(self, handler: AsyncQueueHandler) -> None:
        super().__init__("AsyncQueueConsumer")
        self._handler = handler
        self.span: QueueSpan = lambda _: nullcontext()

    def begin(self, work: HandlerWork) -> None:
        try:
            ended = self.begin_call(partial(self._handle, work))
        except UnusableHandlerError as error:
            work.end(error)
        else:
            ended.add_done_callback(partial(self._on_done, work))

    async def _handle(self, work: HandlerWork) -> None:
        with self.span(work.batch):
            result: object = self._handler(work.argument)
            if not inspect.isawaitable(result):
                raise UnusableHandlerError(
                    "the handler returned no awaitable: write it with `async def`, or use penstock.QueueConsumer, which calls "
                    "plain functions on threads"
                )
            await result

    @staticmethod
    def _on_done(work: HandlerWork, future: Future[None]) -> None:
        failure = future.exception()
        if failure is not None and issubclass(type(failure), asyncio.CancelledError):
            failure = HandlerFailed("the task of the handler was cancelled")
        work.end(None if failure is None else examinable_error(failure))
