"""Checks of user code, and of its results and errors: for every shell that calls a handler."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from traceback import TracebackException
from types import GeneratorType

from penstock.core.safe_text import name_of, text_of
from penstock.errors import HandlerFailed, UsageError


class UnusableHandlerError(UsageError):
    """User code that no repetition can help: it is of the wrong kind for its consumer, or its event loop is gone."""


def check_are_callable(argument_count: int | None = None, /, **user_code: object) -> None:
    """Refuse arguments that cannot be called; None is no user code.

    Args:
        argument_count: How many arguments a call passes. A function that takes fewer or needs more would fail for every record.

    Raises:
        UsageError: An argument cannot be called, or not with this many arguments.
    """
    for name, code in user_code.items():
        if code is None:
            continue
        if not callable(code):
            raise UsageError(f"{name}={code!r} cannot be called: give a function")
        if argument_count is None:
            continue
        try:
            # A decorator may pass further arguments to the function that it wraps.
            signature = inspect.signature(code, follow_wrapped=False)
        except Exception:  # noqa: BLE001, S112 - none for a function in C; a proxy or Python 3.14's annotations may raise anything
            continue
        try:
            signature.bind(*[None] * argument_count)
        except TypeError as error:
            raise UsageError(
                f"{name}={code!r} is called with {argument_count or 'no'} argument{'' if argument_count == 1 else 's'}, and takes "
                f"{signature}: {error}"
            ) from None


def check_is_factory(factory: object, argument_count: int) -> None:
    """Refuse a `processor_factory` whose call does not return the processor of a shard; None is no user code.

    Raises:
        UsageError: It cannot be called with this many arguments, or it is a coroutine function.
    """
    check_are_callable(argument_count, processor_factory=factory)
    if inspect.iscoroutinefunction(factory):
        raise UsageError(
            "processor_factory is a coroutine function (async def): make it a plain function, or the class itself; it returns the "
            "processor of a shard, and the methods of that may be coroutine functions in penstock.AsyncConsumer"
        )


def check_is_plain(handler: object, name: str, consumer: str = "Consumer") -> None:
    """Refuse a function whose call only returns a coroutine or a generator: its records would count as done without being run.

    Raises:
        UsageError: It is a coroutine function or a generator function, or an object whose call is one.
    """
    for each in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - not whether it can be called, but what that is
        if inspect.iscoroutinefunction(each):
            in_tests = "; in a test, await penstock.testing.run_async" if consumer == "Consumer" else ""
            raise UsageError(
                f"{name} is a coroutine function (async def), and {consumer} calls plain functions on threads: use "
                f"penstock.Async{consumer}, which takes the same arguments{in_tests}"
            )
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise UsageError(f"{name} is a generator function: it has a yield, so a call of it runs nothing")


def unrun_code_error(result: object, consumer: str = "Consumer") -> UnusableHandlerError | None:
    """Return the error of user code that returned a coroutine or a generator, which a consumer on threads does not run; None otherwise."""
    # `isinstance` alone reads `__class__` of the object, and a proxy without a target raises then.
    kind = type(result)
    if issubclass(kind, Awaitable):
        if issubclass(kind, Coroutine) and isinstance(result, Coroutine):
            result.close()
        return UnusableHandlerError(
            f"user code returned {name_of(kind)}, which {consumer} does not await, so its records would not be "
            f"processed: use penstock.Async{consumer} for coroutine functions"
        )
    if issubclass(kind, GeneratorType | AsyncGenerator):
        return UnusableHandlerError(
            "user code returned a generator: it has a yield, so a call of it runs nothing"
        )
    return None


def examinable_error(error: BaseException) -> BaseException:
    """Return the error of user code, or a replacement if reading the error's class, text or traceback raises.

    Each later step examines the error (`isinstance`, a log line), and none of them may fail because of it.
    """
    try:
        isinstance(error, HandlerFailed)
        text_of(error)
        TracebackException.from_exception(error)
    except BaseException as defect:
        if type(defect) is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C
        trace = BaseException.__dict__["__traceback__"].__get__(error)
        kind, reason = name_of(type(error)), name_of(type(defect))
        return HandlerFailed(f"{kind}, which cannot be examined: that raises {reason}").with_traceback(trace)
    return error
